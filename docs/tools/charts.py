"""Draw pictures of the guides.

python docs/tools/charts.py    # after the records of CIFAR-10, those of digits or the augmentation have changed
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

import condenset as cs
from condenset.report.charts import save_comparison

sys.path.insert(0, str(Path(__file__).parent))

from records import Record, read_records

IMAGES = Path(__file__).parents[1] / "images"
FILES = {  # with records of CIFAR-10, by protocol
    "paper": ("cifar10-compare.json", "cifar10.json", "paper-generative.json", "other-methods.json"),
    "modern": ("family-cifar10.json", "other-methods.json", "cifar10.json"),
}
OPERATIONS = ("original", "color", "crop", "cutout", "flip", "scale", "rotate")
ROWS_OF_SET = [3, 13, 47, 72, 83, 91]
SIDE, GAP, LABEL_WIDTH = 64, 4, 90  # pixels


def select_points(protocol: str, ipc: int = 10) -> list[Record]:
    """Return one record per method, scored by a protocol, and that of the whole dataset."""
    points: dict[str, Record] = {}
    for record in (record for name in FILES[protocol] for record in read_records(name)):
        tests = {"paper": ("default", "paper"), "modern": ("default", "modern")}[protocol]
        fits = record["protocol"] == protocol and record.get("test", "default") in tests and record["ipc"] == ipc
        if record["method"] == "whole":
            points["whole"] = without_ipc_of_whole(record)
        elif fits and record["dataset"] == "cifar10" and record["norm"] == "instance" and record["method"] != "dd":
            points.setdefault(record["method"], {"condense_seconds": None, **record})
    return list(points.values())


def without_ipc_of_whole(record: Record) -> Record:
    """Return a record as a chart expects it: the whole dataset has no number of images per class."""
    return {**record, "ipc": None} if record["method"] == "whole" else record


def draw_augmentation(path: Path) -> None:
    """Draw learned images of CIFAR-10, and below them what each operation makes of them."""
    condensed = cs.load_condensed("cifar10-dm-10")
    inputs = condensed.normalize(condensed.images[ROWS_OF_SET].clamp(0, 1))
    mean, std = (torch.tensor(values)[:, None, None] for values in (condensed.mean, condensed.std))
    generator = torch.Generator().manual_seed(3)
    step = SIDE + GAP
    picture = Image.new("RGB", (LABEL_WIDTH + len(inputs) * step, len(OPERATIONS) * step), "white")
    for row, operation in enumerate(OPERATIONS):
        images = inputs if row == 0 else condensed.augment(inputs, operation, generator=generator)
        pixels = ((images * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
        place = (6, row * step + SIDE // 2 - 8)
        ImageDraw.Draw(picture).text(place, operation, fill="black", font=ImageFont.load_default(14))
        for column, image in enumerate(pixels):
            tile = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.NEAREST)
            picture.paste(tile, (LABEL_WIDTH + column * step, row * step))
    picture.save(path, optimize=True)


if __name__ == "__main__":
    charts = {
        "choose-method.png": (select_points("paper"), "CIFAR-10, protocol paper, one H200"),
        "choose-method-modern.png": (select_points("modern"), "CIFAR-10, protocol modern, one H200"),
        "compare-digits.png": (list(map(without_ipc_of_whole, read_records("digits-compare.json"))), "digits"),
    }
    for name, (records, title) in charts.items():
        save_comparison(records, title, IMAGES / name)
        (IMAGES / name).with_suffix(".svg").unlink()  # the pages show the smaller files
    draw_augmentation(IMAGES / "augmentation.png")
