"""Distribution matching of raw pixels: the squared MMD of a kernel between real and synthetic images, class by class.

Shapes: K classes, B real and I synthetic images a class, F pixels. It is the matching family with the identity for an
embedding; only the objective is its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from condenset.data.store import ClassStore
from condenset.draws import make_key
from condenset.methods.common import images_per_class
from condenset.methods.matching import Matching, Objective, mean_distance
from condenset.recipes import PixelRecipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData

DEGREE = 3  # of the polynomial kernel
MEDIAN_IMAGES = 64  # real images a class whose distances give the bandwidth

Kernel = Callable[[Tensor, Tensor, float], Tensor]


def mmd(data: ImageData, recipe: PixelRecipe, run: Run) -> CondensedSet:
    """MMD in pixel space, the paper's ablation of embedding and augmentation (Gretton et al., JMLR 2012)."""
    run.place.reset_peak_memory()
    batch, most = min(recipe.batch, max(data.class_counts)), max(images_per_class(data, recipe))
    problem = Matching(data, [recipe], run, mean_distance, _memory(recipe.kernel, batch, most, data.images[0].numel()))
    if recipe.kernel != "linear":
        norm = 1 if recipe.kernel == "laplacian" else 2
        bandwidth = recipe.bandwidth or median_distance(problem.store, run.seed, norm)
        problem.objective = kernel_distance(recipe.kernel, bandwidth)
    return problem.solve("mmd", data)[0]


def kernel_distance(kernel: str, bandwidth: float = 1.0) -> Objective:
    """The objective: (K,) squared MMD, the V-statistic over all pairs, of images weighted as `mean_distance` has them.

    The linear kernel's is `mean_distance` itself, which needs no pairs. Real images carry no gradient, so that the
    pairs among them cost no backward pass: they only make the loss a distance.
    """
    if kernel == "linear":
        return mean_distance
    function = KERNELS[kernel]

    def objective(
        real_KBF: Tensor, synthetic_KIF: Tensor, real_KB: Tensor | None = None, synthetic_KI: Tensor | None = None
    ) -> Tensor:
        x, y = (real_KBF, real_KB), (synthetic_KIF, synthetic_KI)
        pairs = (
            _mean(function(a_KNF, b_KMF, bandwidth), a_KN, b_KM)
            for (a_KNF, a_KN), (b_KMF, b_KM) in ((x, x), (x, y), (y, y))
        )
        within_real, across, within_synthetic = pairs
        return within_real - 2 * across + within_synthetic

    return objective


def _mean(values_KNM: Tensor, rows_KN: Tensor | None, columns_KM: Tensor | None) -> Tensor:
    """(K,) the mean over all pairs; weights sum to 1 a class, None: all images alike."""
    by_row_KN = values_KNM.mean(2) if columns_KM is None else (values_KNM * columns_KM[:, None]).sum(2)
    return by_row_KN.mean(1) if rows_KN is None else (by_row_KN * rows_KN).sum(1)


def _polynomial(x_KNF: Tensor, y_KMF: Tensor, _: float) -> Tensor:
    features = x_KNF.shape[2]
    return features / 36 * (1 + x_KNF @ y_KMF.mT / features) ** DEGREE


def _rbf(x_KNF: Tensor, y_KMF: Tensor, bandwidth: float) -> Tensor:
    squares = x_KNF.square().sum(2)[:, :, None] + y_KMF.square().sum(2)[:, None] - 2 * x_KNF @ y_KMF.mT
    return bandwidth**2 * torch.exp(-squares.clamp(min=0) / (2 * bandwidth**2))


def _laplacian(x_KNF: Tensor, y_KMF: Tensor, bandwidth: float) -> Tensor:
    return bandwidth * torch.exp(-torch.cdist(x_KNF, y_KMF, p=1) / bandwidth)


# Each is scaled to pull on an image about as the linear kernel does, whatever the size of the images, so that one
# learning rate serves all: rbf and laplacian by their slope, the polynomial by its curvature at pixels of variance 1.
KERNELS: dict[str, Kernel] = {"polynomial": _polynomial, "rbf": _rbf, "laplacian": _laplacian}


def median_distance(store: ClassStore, seed: int, norm: int) -> float:
    """The median distance of two real images of one class; looked up once, before the first iteration."""
    device = store.counts.device
    key, found = make_key(seed, "bandwidth", device=device), []
    for number, count in enumerate(store.counts.tolist()):
        places = store.choose(key, 0, torch.tensor([number], device=device), min(MEDIAN_IMAGES, count))[0]
        found.append(torch.pdist(store.take(places).flatten(1), p=norm))
    distances = torch.cat(found)
    median = float(distances.median()) if len(distances) else 0.0
    features = store.images_NCHW[0].numel()
    return median or features ** (1 / norm)  # classes of one image, or of many alike: any scale will do


def _memory(kernel: str, real: int, synthetic: int, features: int) -> int:
    """Bytes a class that the pairs take; the backward pass of L1 distances holds every pixel of every pair."""
    if kernel == "linear":
        return 0
    return 16 * (real + synthetic) ** 2 + (kernel == "laplacian") * 4 * max(real, synthetic) * synthetic * features
