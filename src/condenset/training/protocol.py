"""The evaluation protocol: how networks are trained on a set before they are tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from condenset import augment, networks
from condenset.config import (
    MAX_NETWORKS,
    check_bool_fields,
    check_int_fields,
    check_momentum_field,
    check_non_negative_field,
    check_positive_fields,
    field_names,
    make_config,
)
from condenset.errors import UserError, check, option

DIGITS = ("digits", 8)  # name and image size of the demonstration dataset, which has quick presets
DIGITS_NETWORK = "convnet(width=64, depth=2)"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How to score a set: train new networks on it and test each once, after its last epoch (the paper's protocol).

    Attributes:
        network: The network: a spec such as "convnet(width=64)", or a builder (channels, size, num_classes) ->
            nn.Module, which is replaced by its name.
        num_networks: The number of networks to train.
        epochs: The number of epochs. One more is trained, since the paper's code counts from 0 to `epochs`.
        lr: The learning rate of SGD. It falls to a tenth halfway through the training.
        momentum: The momentum of SGD.
        weight_decay: The weight decay of SGD.
        batch_size: The number of images per step.
        augment: The augmentation strategy, such as "color_crop_flip", or "none".
        steps: The number of steps of a training, in place of `epochs`.
        learned_steps: Train with the step sizes that the set contains, as the method dd learns them. The fields of
            the optimiser, of the augmentation and of the length are then ignored.

    Raises:
        UserError: If a field is invalid.

    Example:
        >>> import condenset as cs
        >>> digits = cs.load("digits", verbose=False)
        >>> protocol = cs.Protocol(network="mlp(width=16)", num_networks=2, epochs=1)
        >>> scores = cs.evaluate(digits.train, digits.test, protocol, device="cpu", verbose=False)
        >>> len(scores.accuracies)
        2
    """

    network: str = "convnet"
    num_networks: int = 20
    epochs: int = 1000
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 256
    augment: str = augment.DEFAULT_STRATEGY
    steps: int | None = None
    learned_steps: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", networks.as_spec(self.network))
        check_bool_fields(self, "learned_steps")
        check_int_fields(self, 1, "num_networks", maximum=MAX_NETWORKS)
        check_int_fields(self, 1, "batch_size")
        check_int_fields(self, 0, "epochs")
        check_positive_fields(self, "lr")
        check_momentum_field(self)
        check_non_negative_field(self, "weight_decay")
        augment.parse_strategy(self.augment)
        if self.steps is not None:
            check_int_fields(self, 1, "steps")

    @property
    def total_epochs(self) -> int:
        """The number of epochs trained: the paper's code counts from 0 to `epochs` inclusive."""
        return self.epochs + 1

    @property
    def lr_drop_epoch(self) -> int:
        """The epoch after which the learning rate falls to a tenth and the momentum is reset."""
        return self.epochs // 2 + 1

    def training_steps(self, num_images: int) -> tuple[int, int]:
        """Return the number of steps of a training, and the step after which the learning rate falls."""
        if self.steps is not None:
            return self.steps, (self.steps + 1) // 2
        steps_per_epoch = -(-num_images // self.batch_size)
        return self.total_epochs * steps_per_epoch, self.lr_drop_epoch * steps_per_epoch


OVERRIDDEN_FIELDS = {  # fields of a protocol that another field overrides
    "learned_steps": ("epochs", "steps", "lr", "momentum", "weight_decay", "batch_size", "augment"),
    "steps": ("epochs",),
}


def make_protocol(*, name: str, size: int, whole: bool = False, **fields: Any) -> Protocol:
    """Return the protocol for a dataset.

    Args:
        name: The name of the dataset, which may have a preset.
        size: The image size.
        whole: Whether the networks train on a whole dataset, which needs fewer epochs than a condensed one.
        fields: Fields of the protocol, which override the preset of the dataset.
    """
    preset: dict[str, Any] = {"epochs": 200} if whole else {}
    if (name, size) == DIGITS:
        preset = {"network": DIGITS_NETWORK, "num_networks": 3, "epochs": 40 if whole else 500}
    if "network" in fields:
        fields["network"] = networks.as_spec(fields["network"])
    return make_config(Protocol, "an option of the evaluation", {**preset, **fields})


def training_protocol(
    *, name: str, size: int, whole: bool = False, defaults: Mapping[str, Any] = MappingProxyType({}), **fields: Any
) -> Protocol:
    """Return the protocol for networks that are trained to be used or ranked, instead of to score a set.

    Args:
        name: The name of the dataset.
        size: The image size.
        whole: Whether the networks train on a whole dataset.
        defaults: Fields that `fields` override.
        fields: Fields of the protocol. `learned_steps` must be false.
    """
    learned_steps = fields.get("learned_steps", False)
    check(learned_steps is False, "learned_steps must be false unless a set is evaluated", learned_steps)
    check_ignored_options(fields)
    return make_protocol(name=name, size=size, whole=whole, **{**defaults, **fields})


def check_ignored_options(fields: Mapping[str, Any]) -> None:
    """Refuse options that another option overrides. All fields together are accepted, as `Scores.protocol` has them."""
    if field_names(Protocol) <= fields.keys():
        return
    for name, overridden in OVERRIDDEN_FIELDS.items():
        ignored = [option(field) for field in overridden if field in fields]
        if fields.get(name) and ignored:
            raise UserError(f"{option(name)} replaces {', '.join(ignored)}: give only one of them")
