"""Train with the step sizes that were learned with a set: one per step (dd, gtn), or one for all steps (mtt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import UserError, check, is_number, option_name
from condenset.training.protocol import OVERRIDDEN_FIELDS, Overrides


@dataclass(frozen=True)
class LearnedSteps:
    """The steps of a training.

    Attributes:
        batches: For each step, the positions of the images that it trains on.
        step_sizes: For each step, the learning rate.
    """

    batches: list[Tensor]
    step_sizes: list[float]


def read_learned_lr(train_set: CondensedSet | ImageData) -> float | None:
    """Return the learning rate that trajectory matching learned with a set; None for other sets."""
    if isinstance(train_set, ImageData) or train_set.step_sizes is not None:
        return None
    lr: Any = train_set.provenance.get("step_size")
    return float(lr) if is_number(lr) and lr > 0 else None


def overridden_fields(*train_sets: CondensedSet | ImageData) -> Overrides:
    """Return the fields of a protocol that other fields override if these sets are scored together."""
    if all(read_learned_lr(train_set) is not None for train_set in train_sets):
        return {**OVERRIDDEN_FIELDS, "learned_steps": ("lr",)}
    return OVERRIDDEN_FIELDS


def check_learned_steps(train_set: CondensedSet) -> None:
    """Raise an error if a set has neither step sizes nor a learning rate."""
    if read_learned_lr(train_set) is None:
        read_learned_steps(train_set)


def read_learned_steps(train_set: CondensedSet | ImageData) -> LearnedSteps:
    """Return the steps that a set contains."""
    if isinstance(train_set, ImageData) or train_set.step_sizes is None:
        name = option_name("learned_steps")
        raise UserError(f"{name} needs a set with learned step sizes, such as those of the methods dd, gtn and mtt")
    recipe, step_sizes = train_set.provenance.get("recipe", {}), train_set.step_sizes
    steps = recipe.get("steps")
    is_divisor = isinstance(steps, int) and steps > 0 and len(step_sizes) % steps == 0
    check(is_divisor, f"the steps per epoch must divide the number of step sizes, {len(step_sizes)}", steps)
    check(train_set.labels.ndim == 1, "a set with learned step sizes must have hard labels", "soft labels")
    is_fixed = recipe.get("fixed_network") is True  # an earlier version could learn steps for one initialisation
    check(not is_fixed, "step sizes must be learned for all initialisations of a network", "fixed_network=True")
    batches = batch_schedule(train_set.labels, steps, len(step_sizes) // steps)
    return LearnedSteps(batches, step_sizes.tolist())


def batch_schedule(labels_N: Tensor, steps: int, epochs: int) -> list[Tensor]:
    """Return the positions of the images of each step.

    The images of every class are divided among the steps of an epoch. If all classes have fewer images than there
    are steps, the batches repeat within the epoch.
    """
    labels = labels_N.cpu()
    counts, order = labels.bincount(), labels.argsort(stable=True)
    position_N = torch.empty_like(labels)  # within the class
    position_N[order] = torch.cat([torch.arange(count) for count in counts.tolist()])
    num = min(steps, int(counts.max()))
    batches = [(position_N % num == batch).nonzero()[:, 0].to(labels_N.device) for batch in range(num)]
    return [batches[step % num] for step in range(steps)] * epochs
