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
from condenset.errors import UserError, check, check_choice, option

DIGITS = ("digits", 8)  # name and image size of the demonstration dataset, which has quick presets
DIGITS_NETWORK = "convnet(width=64, depth=2)"
MIN_STEPS_PER_EPOCH = 5  # of a large dataset
SCHEDULES = ("paper", "modern", "constant")  # of the learning rate


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How to score a set: train new networks on it and test each once, after its last epoch.

    The defaults are the paper's protocol. `Protocol.modern()` is the protocol of later methods.

    Attributes:
        network: The network: a spec such as "convnet(width=64)", or a builder (channels, size, num_classes) ->
            nn.Module, which is replaced by its name.
        num_networks: The number of networks to train.
        epochs: The number of epochs. The paper's schedule trains one more, since its code counts from 0 to `epochs`.
        lr: The learning rate of SGD.
        schedule: How the learning rate falls. "paper": to a tenth halfway through the training, where the momentum is
            reset. "modern": by a factor of 5 after 2/3 and after 5/6 of the training. "constant": it does not fall.
        momentum: The momentum of SGD.
        weight_decay: The weight decay of SGD.
        batch_size: The number of images per step.
        augment: The augmentation strategy: "none", or operations such as "color_crop_flip" (one of them per batch) or
            "flip+color" (both).
        cutmix: The probability that a batch is mixed by CutMix (Yun et al., ICCV 2019).
        steps: The number of steps of a training, in place of `epochs`.
        learned_steps: Train with the step sizes that were learned with the set. Sets of mtt have one, which replaces
            `lr`. Sets of dd and gtn have one per step; the fields of the optimiser, of the augmentation and of the
            length are then ignored.

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
    schedule: str = "paper"
    batch_size: int = 256
    augment: str = augment.DEFAULT_STRATEGY
    cutmix: float = 0.0
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
        check_choice("schedule", self.schedule, SCHEDULES)
        check_non_negative_field(self, "cutmix")
        check(self.cutmix <= 1, "cutmix must be a probability, from 0 to 1", self.cutmix)
        augment.parse_strategy(self.augment)
        if self.steps is not None:
            check_int_fields(self, 1, "steps")

    @classmethod
    def modern(cls, **fields: Any) -> Protocol:
        """Return the protocol of later methods (Kim et al., ICML 2022), with these fields.

        It trains longer, in smaller batches, and with stronger augmentation.
        """
        return cls(**{**PROTOCOLS["modern"], **fields})

    @property
    def total_epochs(self) -> int:
        """The number of epochs trained: the paper's code counts from 0 to `epochs` inclusive."""
        return self.epochs + (self.schedule == "paper")

    @property
    def resets_momentum(self) -> bool:
        """Whether the momentum is reset when the learning rate falls."""
        return self.schedule == "paper"

    def training_steps(self, num_images: int) -> int:
        """Return the number of steps of a training on this number of images."""
        return self.steps if self.steps is not None else self.total_epochs * -(-num_images // self.batch_size)

    def lr_factors(self, num_images: int) -> dict[int, float]:
        """Return the steps after which the learning rate falls, and the factors that it is multiplied by."""
        if self.schedule == "constant":
            return {}
        if self.schedule == "modern":
            num_steps = self.training_steps(num_images)
            first, second = num_steps * 2 // 3, num_steps * 5 // 6
            return {first: 0.2, second: 0.2} if first < second else {first: 0.2 * 0.2}
        if self.steps is not None:
            return {(self.steps + 1) // 2: 0.1}
        return {(self.epochs // 2 + 1) * -(-num_images // self.batch_size): 0.1}


PROTOCOLS: dict[str, dict[str, Any]] = {  # fields that differ from the defaults
    "paper": {},
    "modern": {
        "schedule": "modern",
        "epochs": 1500,
        "batch_size": 64,
        "augment": "flip+color+crop_scale_rotate",
        "cutmix": 0.5,
    },
}
Overrides = Mapping[str, tuple[str, ...]]
OVERRIDDEN_FIELDS: Overrides = {  # fields of a protocol that another field overrides
    "learned_steps": (
        "protocol",
        "epochs",
        "steps",
        "lr",
        "schedule",
        "momentum",
        "weight_decay",
        "batch_size",
        "augment",
        "cutmix",
    ),
    "steps": ("epochs",),
}


def make_protocol(*, name: str, size: int, whole: bool = False, protocol: str = "paper", **fields: Any) -> Protocol:
    """Return the protocol for a dataset.

    Args:
        name: The name of the dataset, which may have a preset.
        size: The image size.
        whole: Whether the networks train on a large dataset, which needs fewer epochs than a condensed one.
        protocol: The name of the protocol, "paper" or "modern".
        fields: Fields of the protocol, which override those of the named one and the preset of the dataset.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    preset = dict(PROTOCOLS[protocol])
    if whole:
        preset |= {"epochs": 200, "batch_size": Protocol.batch_size}
    if (name, size) == DIGITS:
        preset |= {"network": DIGITS_NETWORK, "num_networks": 3, "epochs": 40 if whole else 500}
    if "network" in fields:
        fields["network"] = networks.as_spec(fields["network"])
    return make_config(Protocol, "an option of the evaluation", {**preset, **fields})


def is_large(num_images: int) -> bool:
    """Return whether a whole dataset has many steps per epoch, so that it needs fewer epochs than a condensed set."""
    return num_images >= MIN_STEPS_PER_EPOCH * Protocol.batch_size


def without_overridden(
    fields: Mapping[str, Any], explicit: Mapping[str, Any], overridden: Overrides = OVERRIDDEN_FIELDS
) -> dict[str, Any]:
    """Leave out the recorded fields of a protocol that explicit options override.

    Options override each other as in `overridden`, such as `steps` and `epochs`. The name of a protocol
    overrides everything but the network and the number of networks.
    """
    dropped = {name for override, names in overridden.items() if explicit.get(override) for name in names}
    dropped |= {override for override, names in overridden.items() if explicit.keys() & set(names)}
    if "protocol" in explicit:
        dropped |= fields.keys() - {"network", "num_networks"}
    return {name: value for name, value in fields.items() if name not in dropped}


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


def check_ignored_options(fields: Mapping[str, Any], overridden: Overrides = OVERRIDDEN_FIELDS) -> None:
    """Refuse options that another option overrides. All fields together are accepted, as `Scores.protocol` has them."""
    if field_names(Protocol) <= fields.keys():
        return
    for name, replaced in overridden.items():
        ignored = [option(field) for field in replaced if field in fields]
        if fields.get(name) and ignored:
            raise UserError(f"{option(name)} replaces {', '.join(ignored)}: give only one of them")


def describe_protocol(protocol: Protocol) -> str:
    """Return how many networks are trained, how long, and by which protocol."""
    length = f"{protocol.epochs} epochs" if protocol.steps is None else f"{protocol.steps} steps"
    name = f"{protocol.schedule} protocol"
    return f"{protocol.num_networks} × {protocol.network}, {name}, {length}, augment={protocol.augment}"
