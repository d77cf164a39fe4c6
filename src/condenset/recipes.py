"""Every knob of a method and of the evaluation, validated on construction, with the paper's values as defaults.

What the paper's values are for a dataset and a number of images a class is in presets.py.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from condenset import augment
from condenset.errors import check, check_choice, is_number, whole

INITS = ("real", "noise")
KERNELS = ("linear", "polynomial", "rbf", "laplacian")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every method takes: how many images a class to make."""

    ipc: int
    allow_fewer: bool = False  # a class with fewer images than ipc gives all it has, instead of an error

    def __post_init__(self) -> None:
        object.__setattr__(self, "ipc", whole("ipc (images per class)", self.ipc, 1))
        check(isinstance(self.allow_fewer, bool), "allow_fewer must be true or false", self.allow_fewer)


@dataclass(frozen=True, kw_only=True)
class CoresetRecipe(Recipe):
    """What a method takes that chooses among the real images."""


@dataclass(frozen=True, kw_only=True)
class RandomRecipe(CoresetRecipe):
    """Class-balanced random real images."""


@dataclass(frozen=True, kw_only=True)
class TrainedRecipe(CoresetRecipe):
    """What a method takes that chooses by a network trained on the whole real set.

    No augmentation by default: the network is asked about the images as they are, and whether an image was forgotten
    should follow from what was learned in between, not from a harder crop of it.
    """

    network: str = "convnet"
    epochs: int = 200  # until almost every image is learned: forgetting takes those first that never were
    network_lr: float = 0.01  # not `lr`, which is of the images in methods that learn them
    batch: int = 256
    augment: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_0(self, "network_lr")
        _at_least(self, 0, "epochs")
        _at_least(self, 1, "batch")
        _ = self.protocol  # which checks the rest

    @property
    def protocol(self) -> Protocol:
        """How that network is trained: as networks are in the evaluation."""
        return Protocol(
            network=self.network,
            nets=1,
            epochs=self.epochs,
            lr=self.network_lr,
            batch=self.batch,
            augment=self.augment,
        )


@dataclass(frozen=True, kw_only=True)
class HerdingRecipe(TrainedRecipe):
    """Real images whose mean embedding in a trained network stays nearest their class's, image by image."""


@dataclass(frozen=True, kw_only=True)
class KCenterRecipe(TrainedRecipe):
    """Real images that leave no image of their class far away in the embedding of a trained network."""


@dataclass(frozen=True, kw_only=True)
class ForgettingRecipe(TrainedRecipe):
    """Real images that a network most often unlearned while it trained on all of them."""


@dataclass(frozen=True, kw_only=True)
class MatchingRecipe(Recipe):
    """What a method takes that matches real and synthetic images as networks see them."""

    network: str = "convnet"
    iterations: int = 20_000
    lr: float = 1.0
    momentum: float = 0.5
    batch: int = 256  # real images a class in every iteration
    init: str = "real"
    augment: str = augment.STRATEGY

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_learning(self)
        _check_momentum(self.momentum)
        check_choice("init", self.init, INITS)
        augment.parse(self.augment)

    @property
    def image_steps(self) -> int:
        """Steps of the images in all: what progress counts."""
        return self.iterations


@dataclass(frozen=True, kw_only=True)
class DistributionRecipe(MatchingRecipe):
    """Distribution matching (Algorithm 1 of the paper)."""

    pool: str = ""  # a folder of trained networks to draw from; none: a fresh random one in every iteration
    group: str = "all"  # of the pool, by validation accuracy in %, such as 60-70

    def __post_init__(self) -> None:
        super().__post_init__()
        read_group(self.group)
        check(bool(self.pool) or self.group == "all", "group must come with the pool that it is of", self.group)
        if self.pool:  # a run may be resumed from another folder
            object.__setattr__(self, "pool", str(Path(os.path.expanduser(self.pool)).absolute()))


@dataclass(frozen=True, kw_only=True)
class GradientRecipe(MatchingRecipe):
    """Gradient matching (DC): images whose loss gradients meet the real ones' while a network is trained on them."""

    iterations: int = 1000  # each with a fresh network
    outer: int | None = None  # steps of the images with each network; None: by ipc
    inner: int | None = None  # passes of the network over the images between two of those; None: by ipc
    lr: float = 0.1
    network_lr: float = 0.01
    init: str = "noise"
    augment: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_0(self, "network_lr")
        for name, usual in default_loops(self.ipc).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)  # so that the record says what was done
        _at_least(self, 1, "outer")
        _at_least(self, 0, "inner")

    @property
    def loops(self) -> tuple[int, int]:
        """outer and inner, which are numbers once the recipe is made."""
        assert self.outer is not None and self.inner is not None
        return self.outer, self.inner

    @property
    def image_steps(self) -> int:
        return self.iterations * self.loops[0]


@dataclass(frozen=True, kw_only=True)
class SiameseRecipe(GradientRecipe):
    """Gradient matching under differentiable Siamese augmentation (DSA)."""

    init: str = "real"
    augment: str = augment.STRATEGY


@dataclass(frozen=True, kw_only=True)
class PixelRecipe(Recipe):
    """Kernel two-sample distance (MMD) of raw pixels: distribution matching without network or augmentation."""

    kernel: str = "linear"  # the only one that the paper found to beat random images
    bandwidth: float = 0.0  # of rbf and laplacian; 0: the median distance of real images of a class
    iterations: int = 20_000
    lr: float = 0.1  # at 1 a single image a class follows the batches' means instead of settling at their mean
    momentum: float = 0.5
    batch: int = 256  # real images a class in every iteration
    init: str = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_learning(self)
        check_choice("kernel", self.kernel, KERNELS)
        wide = is_number(self.bandwidth) and self.bandwidth >= 0
        check(wide, "bandwidth must be a number, 0 (median) or more", self.bandwidth)
        has_one = self.kernel in ("rbf", "laplacian")
        check(has_one or not self.bandwidth, f"the {self.kernel} kernel has no bandwidth: leave it out", self.bandwidth)
        _check_momentum(self.momentum)
        check_choice("init", self.init, INITS)


@dataclass(frozen=True, kw_only=True)
class UnrolledRecipe(Recipe):
    """Dataset distillation: images and step sizes learned through unrolled training steps (Wang et al. 2018)."""

    network: str = "alexnet_small"  # lenet for MNIST and FashionMNIST
    iterations: int = 20_000
    lr: float = 0.01  # of Adam; halved four times on the way
    batch: int = 1024  # real images in every iteration, of all classes together
    steps: int = 10  # of a pass over the set, each on its own share of a class's images
    epochs: int = 3  # passes that are unrolled
    step_size: float = 0.02  # that every step starts with
    init: str = "noise"
    fixed_network: bool = False  # one initialisation for good, instead of a fresh one in every iteration

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_learning(self)
        _at_least(self, 1, "steps", "epochs")
        _above_0(self, "step_size")
        check_choice("init", self.init, INITS)
        check(isinstance(self.fixed_network, bool), "fixed_network must be true or false", self.fixed_network)


@dataclass(frozen=True, kw_only=True)
class LabelRecipe(Recipe):
    """Label distillation: random real images whose soft labels are learned by ridge regression (Bohdal et al. 2020)."""

    network: str = "convnet"
    iterations: int = 5_000
    lr: float = 0.01  # of Adam
    batch: int = 1024  # real images in every iteration, of all classes together
    ridge: float = 0.01  # beside the mean square of the features
    softness: float = 0.75  # of the labels: their mean entropy beside that of equal shares for all classes

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_learning(self)
        _above_0(self, "ridge", "softness")
        check(self.softness < 1, "softness must be a number below 1", self.softness)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a set is scored: train fresh networks on it, test each once (the paper's evaluation)."""

    network: str = "convnet"
    nets: int = 20
    epochs: int = 1000
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch: int = 256
    augment: str = augment.STRATEGY
    steps: int | None = None  # that a training stops after, in place of epochs
    own_steps: bool = False  # train by the steps that the set carries, as `dd` learned them, and by nothing else

    def __post_init__(self) -> None:
        check(isinstance(self.own_steps, bool), "own_steps must be true or false", self.own_steps)
        _at_least(self, 1, "nets", "batch")
        _at_least(self, 0, "epochs")
        _above_0(self, "lr")
        _check_momentum(self.momentum)
        decays = is_number(self.weight_decay) and self.weight_decay >= 0
        check(decays, "weight_decay must be a number, 0 or more", self.weight_decay)
        augment.parse(self.augment)
        if self.steps is not None:
            _at_least(self, 1, "steps")

    @property
    def passes(self) -> int:
        """Passes over the set: the paper's code counts from 0 to `epochs` inclusive."""
        return self.epochs + 1

    @property
    def drop_after(self) -> int:
        """The pass after which the learning rate falls to a tenth and the momentum starts anew."""
        return self.epochs // 2 + 1

    def length(self, num: int) -> tuple[int, int]:
        """How many steps a training on `num` images has, and after which of them the learning rate falls."""
        if self.steps is not None:
            return self.steps, (self.steps + 1) // 2
        a_pass = -(-num // self.batch)
        return self.passes * a_pass, self.drop_after * a_pass


# Coresets, then synthesis; the last is what a run's condensed.safetensors holds when all are made.
RECIPES: dict[str, type[Recipe]] = {
    "random": RandomRecipe,
    "herding": HerdingRecipe,
    "kcenter": KCenterRecipe,
    "forgetting": ForgettingRecipe,
    "mmd": PixelRecipe,
    "dd": UnrolledRecipe,
    "ld": LabelRecipe,
    "dc": GradientRecipe,
    "dsa": SiameseRecipe,
    "dm": DistributionRecipe,
}


def describe() -> list[tuple[str, str, str]]:
    """Name, what it does, and options with defaults of every method."""
    rows = []
    for name, kind in RECIPES.items():
        fields = [field for field in dataclasses.fields(kind) if field.name not in ("ipc", "allow_fewer")]
        rows.append((name, str(kind.__doc__), ", ".join(f"{field.name}={field.default!r}" for field in fields)))
    return rows


# images a class -> outer, inner
LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}


def default_loops(ipc: int) -> dict[str, int]:
    """Gradient matching's outer and inner steps: the published ones, on straight lines between them, level beyond."""
    known = sorted(LOOPS)
    after = next((each for each in known if each >= ipc), known[-1])
    before = max((each for each in known if each <= ipc), default=known[0])
    along = (ipc - before) / (after - before) if after > before else 0.0
    outer, inner = (round(a + along * (b - a)) for a, b in zip(LOOPS[before], LOOPS[after], strict=True))
    return {"outer": outer, "inner": inner}


def read_group(group: str) -> tuple[float, float]:
    """The accuracies, in %, that a group such as 60-70 lies between; all: any."""
    if group == "all":
        return 0.0, 100.0
    try:
        low, high = map(float, group.split("-"))
    except (AttributeError, ValueError):
        low, high = 1.0, 0.0
    check(0 <= low < high <= 100, "group must be all, or accuracies in % such as 60-70", group)
    return low, high


def _check_learning(recipe: MatchingRecipe | PixelRecipe | UnrolledRecipe | LabelRecipe) -> None:
    _at_least(recipe, 0, "iterations")
    _at_least(recipe, 1, "batch")
    _above_0(recipe, "lr")


def _check_momentum(momentum: float) -> None:
    check(is_number(momentum) and 0 <= momentum < 1, "momentum must be a number from 0 to below 1", momentum)


def _at_least(recipe: object, least: int, *names: str) -> None:
    """These fields must be whole numbers; NumPy's become Python's, which files and hashes are made of."""
    for name in names:
        object.__setattr__(recipe, name, whole(name, getattr(recipe, name), least))


def _above_0(recipe: object, *names: str) -> None:
    for name in names:
        value = getattr(recipe, name)
        check(is_number(value) and value > 0, f"{name} must be a number above 0", value)
