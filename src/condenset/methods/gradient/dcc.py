"""DCC: gradient matching over all classes jointly (Lee, Chun, Jung, Yun and Yoon, ICML 2022).

DC matches the gradient of each class by itself. What the classes have in common then dominates. DCC sums the gradients
of all classes before it matches them, so that differences between classes count: D(Σ_k g_k(real), Σ_k g_k(synthetic)).
A warm-up matches each class by itself, as DC does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from condenset.config import check_non_negative_field
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import check_single_pass_memory, split_evenly
from condenset.errors import check
from condenset.methods.gradient.chunks import Chunk, estimate_pass
from condenset.methods.gradient.dc import METHOD as DC
from condenset.methods.gradient.dc import digits_presets
from condenset.methods.gradient.gradient_matching import GradientMatching, solve
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.networks.gradients import class_gradients_by_backward
from condenset.runs.context import RunContext

WARMUP_STEPS = 10  # with each network of the warm-up, as published; its later steps match all classes jointly


@dataclass(frozen=True, kw_only=True)
class DCCRecipe(GradientMatchingRecipe):
    """Settings of gradient matching over all classes jointly.

    The steps are those of DC, except for one image per class. For the variant DSAC of the paper, set `augment` as in
    `DSARecipe`.

    Attributes:
        warmup: The share of the networks, the first ones, whose first 10 steps match each class by itself.
    """

    published_loops: ClassVar[Mapping[int, tuple[int, int]]] = {**GradientMatchingRecipe.published_loops, 1: (10, 5)}

    augment: str = "none"
    warmup: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative_field(self, "warmup")
        check(self.warmup <= 1, "warmup must be a share, from 0 to 1", self.warmup)


class JointGradientMatching(GradientMatching):
    """Gradient matching with one gradient for all classes, after a warm-up with one gradient per class.

    All synthetic images pass through the network at once. Real images, which are many more, pass in chunks of classes.
    """

    recipe: DCCRecipe

    def split_classes(self, counts: list[int], max_classes: int) -> list[Chunk]:
        """Return one chunk with all classes."""
        self.real_parts = split_evenly(len(counts), max_classes)
        self.warmup_chunks = super().split_classes(counts, max_classes)
        return super().split_classes(counts, len(counts))

    def _compile(self, spec: str) -> None:
        """Compile the functions of the warm-up, and those of the joint gradient."""
        super()._compile(spec)
        self.warmup_functions = self.real, self.synthetic
        self.distance_name = "joint gradient distance"
        super()._compile(spec)
        self.joint_functions, self.joint_chunks = (self.real, self.synthetic), self.chunks
        self.select_gradient(joint=True)

    def select_gradient(self, *, joint: bool) -> None:
        """Select the gradients that `match` compares: one for all classes, or one per class."""
        self.differentiates_weights = joint
        self.chunks = self.joint_chunks if joint else self.warmup_chunks
        self.real, self.synthetic = self.joint_functions if joint else self.warmup_functions

    def make_match(self) -> Callable[[int], None]:
        """Return a function that updates the images in a step, given its number."""
        make_match = super().make_match
        functions: dict[bool, Callable[[int], None]] = {}  # each is captured when it is first needed

        def match(number: int) -> None:
            joint = not self.is_warmup(number)
            self.select_gradient(joint=joint)
            if joint not in functions:
                functions[joint] = make_match()
            functions[joint](number)

        return match

    def is_warmup(self, number: int) -> bool:
        """Return whether step `number` of the run matches each class by itself."""
        network, step = divmod(number, self.recipe.loops[0])
        return step < WARMUP_STEPS and network < self.recipe.warmup * self.recipe.iterations

    def compute_gradients(self, *args: Any, create_graph: bool = False) -> dict[str, Tensor]:
        """Return the gradient of the loss of all classes, or those of each class in the warm-up."""
        if not self.differentiates_weights:
            return super().compute_gradients(*args, create_graph=create_graph)
        return class_gradients_by_backward(self.forward, *args, joint=True, create_graph=create_graph)

    def differentiate_real(self, real_KBCHW: Tensor, chunk: Chunk) -> dict[str, Tensor]:
        """Return the gradient of the real images of all classes, or those of each class in the warm-up."""
        if not self.differentiates_weights:
            return super().differentiate_real(real_KBCHW, chunk)
        parts = []
        for part in self.real_parts:
            arguments = real_KBCHW[part], chunk.classes_K[part], chunk.real_weight_KB[part]
            parts.append(self.real(self.trainer.weights, self.buffers, *arguments))
            self._check_stop()
        return {name: torch.stack([gradients[name] for gradients in parts]).sum(0) for name in parts[0]}

    @property
    def num_substeps(self) -> int:
        """The number of chunks of real images and of steps of the network in a step."""
        return len(self.real_parts) + super().num_substeps


def condense(data: ImageData, recipe: DCCRecipe, run: RunContext) -> CondensedSet:
    """Learn images by gradient matching over all classes jointly."""
    return solve(JointGradientMatching, data, recipe, run)


def check_recipe(data: ImageData, recipe: DCCRecipe, compute: ComputeDevice, memory_limit: int | None) -> None:
    """Refuse a memory limit that the synthetic images of all classes exceed in one pass, with a real batch of each."""
    memory = estimate_pass(data, recipe, compute, batch_size=0)
    batch_bytes = 4 * min(recipe.batch_size, data.largest_class) * data.images[0].numel()
    memory = dataclasses.replace(memory, bytes_per_class=memory.bytes_per_class + batch_bytes)
    check_single_pass_memory("dcc", memory, data.num_classes, memory_limit)


METHOD = dataclasses.replace(
    DC,
    name="dcc",
    recipe=DCCRecipe,
    condense=condense,
    summary="DCC: gradient matching over all classes jointly, with the differences between classes.",
    source="Lee et al., ICML 2022",
    presets=digits_presets,
    check=check_recipe,
    classes_per_chunk=None,  # some images pass in chunks, but not the synthetic ones
)
