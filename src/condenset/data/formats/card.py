"""The dataset card of a Hugging Face dataset: README.md with YAML front matter."""

from __future__ import annotations

import json
from typing import Any

from condenset.data.formats.content import SetContent
from condenset.data.image_data import one_line

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
USAGE = """```python
from datasets import load_from_disk

dataset = load_from_disk("PATH").with_format("torch")
pixels, labels = dataset["pixels"][:], dataset["label"][:]  # exact values; `image` has them rounded to 8 bits
```"""


def make_card(content: SetContent) -> str:
    """Return the card: how the set was made, and how it is used."""
    provenance, shape = content.provenance, content.images.shape
    dataset = one_line(provenance.get("dataset", "images"))
    whitened = "ZCA-whitened pixels: `condenset.import_set` reads the whitening"
    inputs = whitened if content.is_whitened else "`(pixels - mean) / std`"
    title = f"{dataset}, condensed to {len(content.images):,} images"
    rows = {
        "source": provenance.get("dataset"),
        "method": provenance.get("method"),
        "seed": provenance.get("seed"),
        "accuracy": provenance.get("accuracy"),
        "images": f"{shape[0]:,} of {'x'.join(map(str, shape[1:]))}",
        "classes": len(content.class_names or ()),
        "labels": "soft" if content.labels.ndim == 2 else "hard",
        "mean": content.mean,
        "std": content.std,
        "fingerprint of the source": provenance.get("fingerprint"),
        "condenset": provenance.get("version"),
    }
    table = [f"| {name} | {_escape(value)} |" for name, value in rows.items() if value is not None]
    recipe = [f"| {_escape(name)} | {_escape(value)} |" for name, value in provenance.get("recipe", {}).items()]
    sections = [
        _front_matter(title, len(content.images)),
        f"# {_escape(title)}",
        f"A small synthetic training set, made with condenset. Networks train on {inputs}.",
        "\n".join(["| | |", "|---|---|", *table]),
        USAGE,
        *(["## Recipe", "\n".join(["| field | value |", "|---|---|", *recipe])] if recipe else []),
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(title: str, num_images: int) -> str:
    size = next((name for limit, name in SIZES if num_images < limit), "n>1M")
    fields: dict[str, Any] = {
        "pretty_name": title,
        "task_categories": ["image-classification"],
        "size_categories": [size],
        "tags": ["dataset-condensation", "dataset-distillation", "synthetic", "condenset"],
    }
    return "\n".join(
        ["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---"]
    )  # JSON is YAML


def _escape(value: object) -> str:
    """Return a value as text in a table. Names in files can contain anything."""
    text = one_line(", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return text.encode("utf-8", "replace").decode()
