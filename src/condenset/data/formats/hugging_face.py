"""Hugging Face: a dataset that `datasets.load_from_disk` reads, with a dataset card."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from condenset.data.formats.card import make_card
from condenset.data.formats.content import SetContent
from condenset.data.formats.png import encode_images
from condenset.errors import UserError

INSTALL = "install it with: pip install 'condenset[hf]'"


def write_hugging_face(content: SetContent, directory: Path) -> None:
    """Write the columns `image` (PNG), `label`, `pixels` (exact values) and, for soft labels, `soft_label`."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"Hugging Face sets need the package datasets: {INSTALL}") from None
    assert content.class_names is not None
    name, count = Counter(content.class_names).most_common(1)[0]
    if count > 1:
        raise UserError(f"class names of a Hugging Face dataset must differ, but got {name!r} twice: rename one")
    files = encode_images(content.pixels_NHWC)
    columns: dict[str, Any] = {
        "image": [{"bytes": file, "path": None} for file in files],
        "label": content.hard_labels,
        "pixels": list(content.images),
    }
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=list(content.class_names)),
        "pixels": datasets.Array3D(content.images.shape[1:], "float32"),
    }
    if content.labels.ndim == 2:
        columns["soft_label"] = content.labels
        features["soft_label"] = datasets.List(datasets.Value("float32"), length=len(content.class_names))
    were_disabled = datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        dataset = datasets.Dataset.from_dict(columns, datasets.Features(features))
        dataset.save_to_disk(directory)
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()
    (directory / "README.md").write_text(make_card(content), encoding="utf-8")
