"""GAN: a class-conditional BigGAN with differentiable augmentation, from which the set is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.methods.generative.adversarial import AdversarialTraining, build_generator
from condenset.methods.generative.recipe import AdversarialRecipe
from condenset.methods.generative.training import condense_by_generator
from condenset.methods.registry import Method
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS


@dataclass(frozen=True, kw_only=True)
class GANRecipe(AdversarialRecipe):
    """Settings of the GAN, with the fields of `AdversarialRecipe`."""


def condense(data: ImageData, recipe: GANRecipe, run: RunContext) -> CondensedSet:
    """Train a BigGAN (Brock et al., 2019) with differentiable augmentation (Zhao et al., 2020), and draw the set."""
    return condense_by_generator(data, recipe, run, build_generator, AdversarialTraining)


def adversarial_presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits."""
    if (dataset, size) != DIGITS:
        return {}
    return {"iterations": 500, "batch_size": 64, "width": 16, "lr": 4e-3, "augment": "none"}


METHOD = Method(
    name="gan",
    recipe=GANRecipe,
    condense=condense,
    summary="Draw images from a class-conditional BigGAN with differentiable augmentation.",
    source="Brock et al., ICLR 2019; Zhao et al., NeurIPS 2020",
    presets=adversarial_presets,
    tiny={"iterations": 2, "batch_size": 8, "width": 4},
)
