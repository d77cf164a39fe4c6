"""Base classes of recipes: the fields of all methods, and of families of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from condenset import augment
from condenset.config import check_bool_fields, check_int_fields, check_momentum_field, check_positive_fields
from condenset.data.ipc import check_ipc, mean_ipc
from condenset.data.partition import PartLayout
from condenset.errors import check, check_choice, option

INITS = ("real", "noise")
ZCA_FIELDS = {"partition": 1, "clamp": False}  # parts and pixel limits of whitened images have no meaning
TINY_NETWORK = "convnet(width=16, depth=2)"  # for runs of seconds


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a method, validated on construction; defaults are the paper's values.

    Attributes:
        ipc: Images per class of the condensed set: one number for all classes, or one per class.
        allow_fewer: Use all images of a class that has fewer than `ipc`, instead of raising an error.
        zca: Whiten the images by ZCA in place of the normalisation. The set stores the whitening.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"init": INITS}  # valid values of fields that are names
    removed_fields: ClassVar[Mapping[str, object]] = {}  # fields of older versions, with the value that is left out
    added_fields: ClassVar[Mapping[str, object]] = {"zca": False}  # fields that older versions lack, with their value

    ipc: int | tuple[int, ...] = 10
    allow_fewer: bool = False
    zca: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ipc", check_ipc(self.ipc))
        check_bool_fields(self, "allow_fewer", "zca")
        for name, expected in ZCA_FIELDS.items() if self.zca else ():
            value = getattr(self, name, expected)
            check(value == expected, f"{name} must be {str(expected).lower()} with {option('zca', True)}", value)

    @property
    def layout(self) -> PartLayout:
        """How a stored image holds several images, by the fields `partition` and `decoder` if there are any."""
        return PartLayout(getattr(self, "partition", 1), getattr(self, "decoder", "bilinear"))

    @property
    def image_steps(self) -> int:
        """Optimisation steps of the images in the whole run; 0 for methods that select images."""
        return getattr(self, "iterations", 0)

    def config_fields(self) -> dict[str, Any]:
        """Return the settings as recipe.toml has them."""
        return asdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a JSON file has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the result; a resumed run compares them with those it began with.

        `added_fields` that have the value of older versions are left out, because older checkpoints lack them.
        """
        return {name: value for name, value in self.to_dict().items() if (name, value) not in self.added_fields.items()}


def check_learning_fields(recipe: Recipe) -> None:
    """Check the fields of every recipe that learns by iterations: `iterations`, `batch_size` and `lr`."""
    check_int_fields(recipe, 0, "iterations")
    check_int_fields(recipe, 1, "batch_size")
    check_positive_fields(recipe, "lr")


@dataclass(frozen=True, kw_only=True)
class MatchingRecipe(Recipe):
    """Settings of methods that match what networks compute from real and from synthetic images.

    Attributes:
        network: Spec of the network.
        iterations: Number of networks that are sampled.
        lr: Learning rate of the images.
        momentum: Momentum of the images.
        batch_size: Real images per class and iteration.
        init: Start from "real" images or from "noise".
        augment: Augmentation strategy, shared by real and synthetic images.
    """

    network: str = "convnet"
    iterations: int = 20_000
    lr: float = 1.0
    momentum: float = 0.5
    batch_size: int = 256
    init: str = "real"
    augment: str = augment.DEFAULT_STRATEGY

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_momentum_field(self)
        check_choice("init", self.init, INITS)
        augment.parse_strategy(self.augment)


def interpolate_loops(ipc: int, loops: Mapping[int, tuple[int, int]]) -> dict[str, int]:
    """Return outer steps and inner epochs: the published values, interpolated linearly within their range."""
    sizes = sorted(loops)
    above = next((size for size in sizes if size >= ipc), sizes[-1])
    below = max((size for size in sizes if size <= ipc), default=sizes[0])
    fraction = (ipc - below) / (above - below) if above > below else 0.0
    outer, inner = (round(a + fraction * (b - a)) for a, b in zip(loops[below], loops[above], strict=True))
    return {"outer_steps": outer, "inner_epochs": inner}


@dataclass(frozen=True, kw_only=True)
class GradientMatchingRecipe(MatchingRecipe):
    """Settings of gradient matching.

    Attributes:
        outer_steps: Steps of the images with each network. None: by `ipc`, as published.
        inner_epochs: Epochs of the network on the images between two of those steps. None: by `ipc`, as published.
        network_lr: Learning rate of the network.
    """

    # images per class: (outer_steps, inner_epochs), as published
    published_loops: ClassVar[Mapping[int, tuple[int, int]]] = {
        1: (1, 1),
        10: (10, 50),
        20: (20, 25),
        30: (30, 20),
        40: (40, 15),
        50: (50, 10),
    }

    iterations: int = 1000
    outer_steps: int | None = None
    inner_epochs: int | None = None
    lr: float = 0.1
    network_lr: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_fields(self, "network_lr")
        for name, default in interpolate_loops(mean_ipc(self.ipc), self.published_loops).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)  # so that the record has the number
        check_int_fields(self, 1, "outer_steps")
        check_int_fields(self, 0, "inner_epochs")

    @property
    def loops(self) -> tuple[int, int]:
        """Outer steps and inner epochs, which are numbers once the recipe is built."""
        assert self.outer_steps is not None and self.inner_epochs is not None
        return self.outer_steps, self.inner_epochs

    @property
    def image_steps(self) -> int:
        """Optimisation steps of the images in the whole run."""
        return self.iterations * self.loops[0]
