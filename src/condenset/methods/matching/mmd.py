"""MMD in pixel space: distribution matching of raw pixels under a kernel, without network or augmentation.

Shapes: K classes, B real and I synthetic images per class, F pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from condenset.config import check_momentum_field, check_non_negative_field
from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.compile import functional_forward
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import MemoryEstimate, num_classes_that_fit
from condenset.engine.rng import make_key
from condenset.errors import check, check_choice, option
from condenset.methods.common import max_images_per_class
from condenset.methods.matching.dm import DistributionMatching
from condenset.methods.matching.memory import estimate_matching_memory, peak_memory
from condenset.methods.matching.objectives import Objective, mean_distance, pair_mean, squared_distances
from condenset.methods.recipe import INITS, Recipe, check_learning_fields
from condenset.methods.registry import Method
from condenset.methods.samplers import NoNetworks
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS

KERNEL_NAMES = ("linear", "polynomial", "rbf", "laplacian")
DEGREE = 3  # of the polynomial kernel
MEDIAN_IMAGES = 64  # real images per class whose distances give the bandwidth

Kernel = Callable[[Tensor, Tensor, float], Tensor]


@dataclass(frozen=True, kw_only=True)
class MMDRecipe(Recipe):
    """Settings of MMD in pixel space.

    `ipc` and `allow_fewer` are those of `Recipe`.

    Attributes:
        kernel: "linear", "polynomial", "rbf" or "laplacian". Only the linear kernel beats random images in the paper.
        bandwidth: Bandwidth of "rbf" and "laplacian". 0: the median distance of real images of a class.
        iterations: Number of iterations.
        lr: Learning rate of the images. At 1, a single image per class would follow the mean of each batch.
        momentum: Momentum of the images.
        batch_size: Real images per class and iteration.
        init: Start from "real" images or from "noise".
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {**Recipe.choices, "kernel": KERNEL_NAMES}

    kernel: str = "linear"
    bandwidth: float = 0.0
    iterations: int = 20_000
    lr: float = 0.1
    momentum: float = 0.5
    batch_size: int = 256
    init: str = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_choice("kernel", self.kernel, KERNEL_NAMES)
        check_non_negative_field(self, "bandwidth")
        has_bandwidth = self.kernel in ("rbf", "laplacian")
        check(has_bandwidth or not self.bandwidth, f"the {self.kernel} kernel has no bandwidth", self.bandwidth)
        check_momentum_field(self)
        check_choice("init", self.init, INITS)


def condense(data: ImageData, recipe: MMDRecipe, run: RunContext) -> CondensedSet:
    """Match raw pixels (Gretton et al., JMLR 2012), the paper's ablation of embedding and augmentation."""
    run.compute.reset_peak_memory()
    return make_problem(data, recipe, run).solve()[0]


def make_problem(data: ImageData, recipe: MMDRecipe, run: RunContext) -> DistributionMatching:
    """Return the initial state of a run; pixels are always float32."""
    network, compute = nn.Flatten(), ComputeDevice(run.compute.device, torch.float32)
    problem = DistributionMatching(
        data,
        [recipe],
        run,
        network=network,
        forward=functional_forward(network, compute),
        sampler=NoNetworks(),
        objective=mean_distance,
        stages=(),
        dtype=torch.float32,
        memory=_matching_memory(data, recipe, compute, run.memory_limit),
    )
    if recipe.kernel != "linear":
        norm = 1 if recipe.kernel == "laplacian" else 2
        bandwidth = recipe.bandwidth or median_distance(problem.store, run.seed, norm)
        problem.objective = pixel_kernel_distance(recipe.kernel, bandwidth)
    return problem


def pixel_kernel_distance(kernel: str, bandwidth: float = 1.0) -> Objective:
    """Return an objective that computes the (K,) squared MMD: the V-statistic over all pairs of images of a class.

    For the linear kernel it is `mean_distance`, which needs no pairs. Pairs of real images have no gradient and cost no
    backward pass. They only make the loss a distance.
    """
    if kernel == "linear":
        return mean_distance
    function = KERNELS[kernel]

    def objective(
        real_KBF: Tensor,
        synthetic_KIF: Tensor,
        real_weight_KB: Tensor | None = None,
        synthetic_weight_KI: Tensor | None = None,
    ) -> Tensor:
        real, synthetic = (real_KBF, real_weight_KB), (synthetic_KIF, synthetic_weight_KI)
        within_real, between, within_synthetic = (
            pair_mean(function(x_KNF, y_KMF, bandwidth), x_KN, y_KM)
            for (x_KNF, x_KN), (y_KMF, y_KM) in ((real, real), (real, synthetic), (synthetic, synthetic))
        )
        return within_real - 2 * between + within_synthetic

    return objective


def _polynomial(x_KNF: Tensor, y_KMF: Tensor, _: float) -> Tensor:
    features = x_KNF.shape[2]
    return features / 36 * (1 + x_KNF @ y_KMF.mT / features) ** DEGREE


def _rbf(x_KNF: Tensor, y_KMF: Tensor, bandwidth: float) -> Tensor:
    return bandwidth**2 * torch.exp(-squared_distances(x_KNF, y_KMF) / (2 * bandwidth**2))


def _laplacian(x_KNF: Tensor, y_KMF: Tensor, bandwidth: float) -> Tensor:
    return bandwidth * torch.exp(-torch.cdist(x_KNF, y_KMF, p=1) / bandwidth)


# Each kernel is scaled so that its gradient has about the size of the linear kernel's for images of any size, and one
# learning rate suits all kernels. The scale of rbf and laplacian follows from their slope, that of the polynomial from
# its curvature at pixels of variance 1.
KERNELS: dict[str, Kernel] = {"polynomial": _polynomial, "rbf": _rbf, "laplacian": _laplacian}


def median_distance(store: ClassStore, seed: int, norm: int) -> float:
    """Return the median distance between two real images of the same class."""
    device = store.counts.device
    key, distances = make_key(seed, "bandwidth", device=device), []
    for label, count in enumerate(store.counts.tolist()):
        index = store.sample_class_indices(key, 0, torch.tensor([label], device=device), min(MEDIAN_IMAGES, count))[0]
        distances.append(torch.pdist(store.take_normalized(index).flatten(1), p=norm))
    all_distances = torch.cat(distances)
    median = float(all_distances.median()) if len(all_distances) else 0.0
    num_pixels = math.prod(store.image_shape)
    return median or num_pixels ** (1 / norm)  # with one image per class, or equal images, any scale will do


def estimate_memory(data: ImageData, recipe: MMDRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes that a run needs."""
    compute = ComputeDevice(compute.device, torch.float32)
    memory = _matching_memory(data, recipe, compute, memory_limit)
    return peak_memory(memory, data.num_classes, compute, memory_limit)


def classes_per_chunk(data: ImageData, recipe: MMDRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return how many classes are computed at once."""
    compute = ComputeDevice(compute.device, torch.float32)
    return num_classes_that_fit(_matching_memory(data, recipe, compute, memory_limit), compute, memory_limit)


def _matching_memory(
    data: ImageData, recipe: MMDRecipe, compute: ComputeDevice, memory_limit: int | None
) -> MemoryEstimate:
    batch_size, ipc = min(recipe.batch_size, data.largest_class), max_images_per_class(data, recipe)
    pair_bytes = _pair_bytes(recipe.kernel, batch_size, ipc, data.images[0].numel())
    objective = MemoryEstimate(0, pair_bytes)
    return estimate_matching_memory(
        nn.Flatten(), data, [recipe], compute, memory_limit=memory_limit, objective=objective
    )


def _pair_bytes(kernel: str, real: int, synthetic: int, num_pixels: int) -> int:
    """Return the bytes per class of all pairs; the backward pass of L1 distances stores every pixel of every pair."""
    if kernel == "linear":
        return 0
    return 16 * (real + synthetic) ** 2 + (kernel == "laplacian") * 4 * max(real, synthetic) * synthetic * num_pixels


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return fewer iterations for large images, and quick settings for the digits."""
    if (dataset, size) == DIGITS:
        return {"iterations": 2_000, "batch_size": 64}
    return {"iterations": 10_000} if size >= 64 else {}


def class_dependence(recipe: MMDRecipe) -> str:
    """Return why the classes cannot be condensed separately."""
    needs_median = recipe.kernel in ("rbf", "laplacian") and not recipe.bandwidth
    return f"the bandwidth is a median over all classes unless {option('bandwidth')} gives one" if needs_median else ""


METHOD = Method(
    name="mmd",
    recipe=MMDRecipe,
    condense=condense,
    summary="Match raw pixels of real and synthetic images under a kernel, without network or augmentation.",
    presets=presets,
    tiny={"iterations": 5, "batch_size": 32},
    estimate_memory=estimate_memory,
    classes_per_chunk=classes_per_chunk,
    class_dependence=class_dependence,
    supports_snapshots=True,
    streams_images=True,
)
