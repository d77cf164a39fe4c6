"""Settings of distribution matching and its successors: one field per part that can be combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from condenset.augment import STACKED_STRATEGY
from condenset.config import check_bool_fields, check_int_fields, check_non_negative_field
from condenset.data.partition import DECODERS, MAX_FACTOR
from condenset.errors import check, check_choice
from condenset.io.user_directories import absolute_path
from condenset.methods.matching.objectives import parse_objective
from condenset.methods.matching.sets import Parametrization
from condenset.methods.matching.user_functions import find_function
from condenset.methods.pools.accuracy_groups import parse_accuracy_range
from condenset.methods.pools.pool import NetworkPool, is_pool
from condenset.methods.recipe import MatchingRecipe
from condenset.networks.block_features import FEATURES

PARTITIONED_LR = 0.25  # learning rate of partitioned images per image of a class
POOL_SAMPLERS = ("final", "checkpoints", "interpolated")  # they need networks trained on the real images
SAMPLERS = ("random", *POOL_SAMPLERS, "queue")


@dataclass(frozen=True, kw_only=True)
class DMRecipe(MatchingRecipe):
    """Settings of distribution matching.

    Attributes:
        objective: Distance of the features: "mean", "covariance(weight=50)", "kernel(bandwidths=5)" or
            "characteristic(frequencies=4096)".
        features: Features to match: "last" (the embedding), "blocks" (all blocks) or "attention" (the embedding and
            where the earlier blocks respond).
        sampler: The network of each iteration: "random"; of a pool of trained networks "final", "checkpoints" or
            "interpolated" (between initial and final weights); or "queue" (trained on the synthetic images).
        pool: Directory of a pool of trained networks, or a new directory to store the networks in that the sampler
            needs. Empty: store them in the directory of the run.
        group: Networks of the pool to use, by validation accuracy in percent, such as "60-70", or "all". Others
            than "all" need the sampler "checkpoints" without calibration.
        pool_size: Networks of the pool that is trained.
        pool_epochs: Epochs of these networks.
        partition: A stored image holds the square of this number of images.
        decoder: How they are decoded: "bilinear" upsampling of parts as published, "bicubic" upsampling, which is
            sharper, or "dct" from the lowest frequencies, which hold more detail.
        clamp: Clamp the pixels to 0..1, with the decoder "dct" approximately.
        average: The result is the mean of the images over this share of the iterations, the last ones. 0: the last
            images.
        lr_decay: Reduce the learning rate linearly to 0.
        calibration: Weight of the cross-entropy of the synthetic images under a trained network. 0: none.
        calibration_images: Decoded images per class and iteration that the calibration uses, in turn. 0: all.

    Example:
        >>> import condenset as cs
        >>> digits = cs.load("digits", verbose=False)
        >>> recipe = cs.DMRecipe(ipc=1, network="convnet(width=8, depth=1)", iterations=2)
        >>> len(cs.condense(digits.train, recipe, device="cpu", verbose=False))
        10
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **MatchingRecipe.choices,
        "features": FEATURES,
        "sampler": SAMPLERS,
        "decoder": DECODERS,
    }
    added_fields: ClassVar[Mapping[str, object]] = {
        **MatchingRecipe.added_fields,
        "decoder": "bilinear",
        "calibration_images": 0,
    }

    objective: str = "mean"
    features: str = "last"
    sampler: str = "random"
    pool: str = ""
    group: str = "all"
    pool_size: int = 10
    pool_epochs: int = 60
    partition: int = 1
    decoder: str = "bilinear"
    clamp: bool = False
    average: float = 0.0
    lr_decay: bool = False
    calibration: float = 0.0
    calibration_images: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_objective(self.objective)
        check_choice("features", self.features, FEATURES)
        if not find_function("sampler", self.sampler):
            check_choice("sampler", self.sampler, SAMPLERS)
        parse_accuracy_range(self.group)
        check(bool(self.pool) or self.group == "all", "group must come with the pool that it selects from", self.group)
        if self.pool:  # absolute, because a run may be resumed from another directory
            object.__setattr__(self, "pool", absolute_path(self.pool))
            if self.sampler == "random" and is_pool(self.pool):
                object.__setattr__(self, "sampler", "checkpoints")
        uses_pool = self.sampler in ("random", *POOL_SAMPLERS)
        check(not self.pool or uses_pool, f"the sampler {self.sampler} must come without a pool", self.pool)
        check_int_fields(self, 1, "pool_size", maximum=1000)
        check_int_fields(self, 1, "pool_epochs")
        check_int_fields(self, 1, "partition", maximum=MAX_FACTOR)
        check_choice("decoder", self.decoder, DECODERS)
        check_bool_fields(self, "clamp", "lr_decay")
        check_non_negative_field(self, "average")
        check(self.average <= 1, "average must be a share of the iterations, from 0 to 1", self.average)
        check_non_negative_field(self, "calibration")
        check_int_fields(self, 0, "calibration_images")
        is_possible = self.sampler != "random" or bool(self.pool) or not self.calibration
        check(is_possible, f"sampler must be one of {', '.join(SAMPLERS[1:])} with a calibration", self.sampler)
        has_groups = self.sampler in ("random", "checkpoints") and not self.calibration
        rule = "group must be all unless the sampler is checkpoints and the calibration is 0"
        check(has_groups or self.group == "all", rule, self.group)

    @property
    def parametrization(self) -> Parametrization:
        """How the images are stored and updated."""
        first = self.iterations - round(self.average * self.iterations)
        return Parametrization(
            layout=self.layout,
            clamp=self.clamp,
            average_from=first if self.average else None,
            decay_steps=max(self.iterations, 1) if self.lr_decay else None,
        )

    @property
    def has_pool(self) -> bool:
        """Whether `pool` must be a pool already, instead of a directory to train the networks in."""
        return bool(self.pool) and (self.sampler not in POOL_SAMPLERS or is_pool(self.pool))

    def config_fields(self) -> dict[str, Any]:
        """Return the settings as recipe.toml has them.

        A pool in place of random networks is stated without its sampler: if it is gone when the run is repeated, the
        run fails instead of training networks in its place.
        """
        replaces_random = type(self).sampler == "random" and self.sampler == "checkpoints" and self.has_pool
        return super().config_fields() | ({"sampler": "random"} if replaces_random else {})

    def identity(self) -> dict[str, Any]:
        """Return the settings with the fingerprint of the pool in place of its path.

        Networks that a run trains depend on the other settings alone, wherever they are stored.
        """
        pool = NetworkPool.load(self.pool).fingerprint if self.has_pool else ""
        return super().identity() | {"pool": pool}


@dataclass(frozen=True, kw_only=True)
class PartitionedRecipe(DMRecipe):
    """Settings that methods with partitioned images and trained networks share, as DANCE introduced them."""

    partition: int = 2
    clamp: bool = True
    augment: str = STACKED_STRATEGY
    batch_size: int = 128
    iterations: int = 10_000
