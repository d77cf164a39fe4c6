"""Objectives of distribution matching: distances between the features of real and synthetic images of a class.

Shapes: K classes, B real and I synthetic images per class, F features, T frequencies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.engine import rng
from condenset.engine.memory import MemoryEstimate
from condenset.errors import UserError, check, check_choice, is_number
from condenset.methods.matching.user_functions import find_function, wrap_objective
from condenset.networks.spec import parse_spec

# (real_KBF, synthetic_KIF, real_weight_KB, synthetic_weight_KI) -> (K,); a weight of None means equal weights.
Objective = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def mean_distance(
    real_KBF: Tensor,
    synthetic_KIF: Tensor,
    real_weight_KB: Tensor | None = None,
    synthetic_weight_KI: Tensor | None = None,
) -> Tensor:
    """Return (K,) squared distances of the mean features; weights sum to 1 per class."""
    difference_KF = weighted_mean(real_KBF, real_weight_KB) - weighted_mean(synthetic_KIF, synthetic_weight_KI)
    return difference_KF.square().sum(1)


def covariance_distance(weight: float) -> Objective:
    """Return the objective of DSDM: the distance of the means, plus that of the covariances.

    The second term is `weight / F * |Cov_real - Cov_synthetic|²`. It is computed from products of images, because the
    covariances have F² entries.
    """

    def objective(
        real_KBF: Tensor,
        synthetic_KIF: Tensor,
        real_weight_KB: Tensor | None = None,
        synthetic_weight_KI: Tensor | None = None,
    ) -> Tensor:
        real, synthetic = _centered(real_KBF, real_weight_KB), _centered(synthetic_KIF, synthetic_weight_KI)
        products = ((x_KNF @ y_KMF.mT).square() for x_KNF, y_KMF in _make_pairs(real, synthetic))
        distance_K = _pair_distance(products, real_weight_KB, synthetic_weight_KI)
        means_K = mean_distance(real_KBF, synthetic_KIF, real_weight_KB, synthetic_weight_KI)
        return means_K + weight / real_KBF.shape[2] * distance_K

    return objective


def kernel_distance(num_bandwidths: int) -> Objective:
    """Return the objective of M3D: the squared MMD under a sum of Gaussian kernels.

    The bandwidths are powers of 2 around the mean of three mean squared distances: between real images, between
    synthetic images, and between real and synthetic images of a class.
    """
    factors = [2.0 ** (index - num_bandwidths // 2) for index in range(num_bandwidths)]

    def objective(
        real_KBF: Tensor,
        synthetic_KIF: Tensor,
        real_weight_KB: Tensor | None = None,
        synthetic_weight_KI: Tensor | None = None,
    ) -> Tensor:
        distances = [_squared_distances(x, y) for x, y in _make_pairs(real_KBF.float(), synthetic_KIF.float())]
        means = _pair_means((d.detach() for d in distances), real_weight_KB, synthetic_weight_KI)
        bandwidth_K11 = torch.stack(means).mean(0).clamp(min=1e-12)[:, None, None]
        kernels = (
            torch.stack([torch.exp(-d / (factor * bandwidth_K11)) for factor in factors]).sum(0) for d in distances
        )
        return _pair_distance(kernels, real_weight_KB, synthetic_weight_KI)

    return objective


def characteristic_distance(num_frequencies: int, seed: int, clock: Tensor) -> Objective:
    """Return the objective of NCFM: the distance of the characteristic functions of normalised features.

    The frequencies are standard normal, and sampled in every iteration. On a CPU, where this takes half of the time of
    an iteration, all chunks of classes and all sets share them.
    """
    key = rng.make_key(seed, "frequencies", device=clock.device)
    stream = torch.zeros(1, dtype=torch.int64, device=clock.device)

    def sample_frequencies(step: int | Tensor, num_features: int) -> Tensor:
        return rng.normal(key, step, stream, num_frequencies * num_features).view(-1, num_features)

    sample_once = functools.lru_cache(maxsize=1)(sample_frequencies)

    def objective(
        real_KBF: Tensor,
        synthetic_KIF: Tensor,
        real_weight_KB: Tensor | None = None,
        synthetic_weight_KI: Tensor | None = None,
    ) -> Tensor:
        num_features = real_KBF.shape[2]
        on_host = rng.uses_numpy(key)
        frequencies_TF = sample_once(int(clock), num_features) if on_host else sample_frequencies(clock, num_features)

        def characteristic(features_KNF: Tensor, weight_KN: Tensor | None) -> tuple[Tensor, Tensor]:
            phases_KNT = F.normalize(features_KNF.float(), dim=2) @ frequencies_TF.mT
            return weighted_mean(phases_KNT.cos(), weight_KN), weighted_mean(phases_KNT.sin(), weight_KN)

        cos_r, sin_r = characteristic(real_KBF, real_weight_KB)
        cos_s, sin_s = characteristic(synthetic_KIF, synthetic_weight_KI)
        squares_KT = (cos_r - cos_s) ** 2 + (sin_r - sin_s) ** 2  # twice the sum of the amplitude and the phase term
        return CHARACTERISTIC_SCALE * torch.sqrt((squares_KT / 2).clamp(min=1e-12)).mean(1)

    return objective


CHARACTERISTIC_SCALE = 300.0

# name -> options with their defaults
OBJECTIVES: Mapping[str, Mapping[str, float]] = {
    "mean": {},
    "covariance": {"weight": 50.0},
    "kernel": {"bandwidths": 5},
    "characteristic": {"frequencies": 4096},
}
MAX_OPTION = 1_000_000


def parse_objective(spec: str) -> tuple[str, dict[str, float]]:
    """Return the name and the options of an objective such as "covariance(weight=50)"."""
    if find_function("objective", spec):
        return spec, {}
    try:
        name, options = parse_spec(spec)
    except UserError:
        rule = "an objective must be written like mean or covariance(weight=50)"
        raise UserError(f"{rule}, but got {spec!r}") from None
    check_choice("objective", name, OBJECTIVES)
    values = dict(OBJECTIVES[name])
    for option, value in options.items():
        check_choice(f"an option of the objective {name}", option, values)
        number: Any = value
        check(
            is_number(number) and 0 < number <= MAX_OPTION, f"{option} must be above 0, at most {MAX_OPTION:,}", value
        )
        check(option == "weight" or number == int(number), f"{option} must be a whole number", value)
        values[option] = float(number)
    return name, values


def make_objective(spec: str, seed: int, clock: Tensor) -> Objective:
    """Return the objective that a spec names.

    Args:
        spec: The objective.
        seed: The seed of the run.
        clock: The current iteration, which random frequencies depend on.
    """
    name, options = parse_objective(spec)
    if function := find_function("objective", name):
        return wrap_objective(name, function)
    if name == "covariance":
        return covariance_distance(options["weight"])
    if name == "kernel":
        return kernel_distance(int(options["bandwidths"]))
    if name == "characteristic":
        return characteristic_distance(int(options["frequencies"]), seed, clock)
    return mean_distance


def estimate_objective_memory(spec: str, *, num_real: int, num_synthetic: int, num_features: int) -> MemoryEstimate:
    """Estimate the memory of an objective beyond that of the features; 0 for a user's objective.

    The factors are measured: the peak of a class with its backward pass, in numbers of 4 bytes.

    Args:
        spec: The objective.
        num_real: Real images per class.
        num_synthetic: Synthetic images per class.
        num_features: Features of an image.
    """
    name, options = parse_objective(spec)
    if name not in OBJECTIVES or name == "mean":
        return MemoryEstimate(0, 0)
    num_fixed = 0
    per_class = 3 * (num_real + num_synthetic) * num_features  # float32 copies of the features
    if name == "covariance":
        per_class += 2 * num_real**2 + 5 * num_synthetic * (num_real + num_synthetic)
    elif name == "kernel":
        num_pairs = num_real**2 + num_synthetic * (num_real + num_synthetic)
        per_class += (2 * int(options["bandwidths"]) + 4) * num_pairs
    else:
        num_frequencies = int(options["frequencies"])
        num_fixed = 7 * num_frequencies * num_features  # with the integers that they are sampled from
        per_class += num_frequencies * (2 * num_real + 6 * num_synthetic)
    return MemoryEstimate(4 * num_fixed, 4 * per_class)


def weighted_mean(features_KNF: Tensor, weight_KN: Tensor | None) -> Tensor:
    """Return (K, F) means over the images of each class, in float32."""
    if weight_KN is None:
        return features_KNF.mean(1, dtype=torch.float32)
    return (features_KNF.float() * weight_KN[:, :, None]).sum(1)


def _make_pairs(real: Tensor, synthetic: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    return (real, real), (real, synthetic), (synthetic, synthetic)


def _pair_distance(
    values: Iterable[Tensor], real_weight_KB: Tensor | None, synthetic_weight_KI: Tensor | None
) -> Tensor:
    """Return (K,) distances from values of the pairs of `_make_pairs`: within real - 2 * between + within synthetic."""
    within_real, between, within_synthetic = _pair_means(values, real_weight_KB, synthetic_weight_KI)
    return within_real - 2 * between + within_synthetic


def _pair_means(
    values: Iterable[Tensor], real_weight_KB: Tensor | None, synthetic_weight_KI: Tensor | None
) -> list[Tensor]:
    """Return the three (K,) means of values of the pairs of `_make_pairs`."""
    real, synthetic = real_weight_KB, synthetic_weight_KI
    weights = ((real, real), (real, synthetic), (synthetic, synthetic))
    return [_pair_mean(values_KNM, *pair) for values_KNM, pair in zip(values, weights, strict=True)]


def _pair_mean(values_KNM: Tensor, rows_KN: Tensor | None, columns_KM: Tensor | None) -> Tensor:
    """Return (K,) means over all pairs; weights sum to 1 per class, None means equal weights."""
    by_row_KN = values_KNM.mean(2) if columns_KM is None else (values_KNM * columns_KM[:, None]).sum(2)
    return by_row_KN.mean(1) if rows_KN is None else (by_row_KN * rows_KN).sum(1)


def _centered(features_KNF: Tensor, weight_KN: Tensor | None) -> Tensor:
    return features_KNF.float() - weighted_mean(features_KNF, weight_KN)[:, None]


def _squared_distances(x_KNF: Tensor, y_KMF: Tensor) -> Tensor:
    squares = x_KNF.square().sum(2)[:, :, None] + y_KMF.square().sum(2)[:, None] - 2 * x_KNF @ y_KMF.mT
    return squares.clamp(min=0)
