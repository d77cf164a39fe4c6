"""Objectives: equal to direct formulas, with and without padding, and zero for equal sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import UserError
from condenset.engine import rng
from condenset.methods.common import mean_weights
from condenset.methods.matching.objectives import (
    CHARACTERISTIC_SCALE,
    covariance_distance,
    kernel_distance,
    make_objective,
    mean_distance,
    parse_objective,
)

SEED, STEP, NUM_FEATURES = 3, 5, 7
CLOCK = torch.tensor(STEP)
EQUAL, UNEQUAL = [(6, 4), (6, 4)], [(6, 3), (2, 4), (1, 1)]  # real and synthetic images of each class


def reference_mean(real: Tensor, synthetic: Tensor) -> Tensor:
    return ((real.mean(0) - synthetic.mean(0)) ** 2).sum()


def reference_covariance(real: Tensor, synthetic: Tensor) -> Tensor:
    def covariance(features: Tensor) -> Tensor:
        return torch.cov(features.T, correction=0)

    difference = covariance(real) - covariance(synthetic)
    return reference_mean(real, synthetic) + 50 / NUM_FEATURES * (difference**2).sum()


def reference_kernel(real: Tensor, synthetic: Tensor) -> Tensor:
    """Return the squared MMD, one pair at a time."""

    def mean(first: Tensor, second: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        values = [function(((x - y) ** 2).sum()) for x, y in itertools.product(first, second)]
        return torch.stack(values).mean()

    pairs = ((real, real), (real, synthetic), (synthetic, synthetic))
    bandwidth = sum(mean(*pair, lambda square: square) for pair in pairs).detach() / 3

    def kernel(square: Tensor) -> Tensor:
        return sum(torch.exp(-square / (factor * bandwidth)) for factor in (0.25, 0.5, 1, 2, 4))

    within_real, between, within_synthetic = (mean(*pair, kernel) for pair in pairs)
    return within_real - 2 * between + within_synthetic


def reference_characteristic(real: Tensor, synthetic: Tensor) -> Tensor:
    """Return the mean distance of E[exp(i t x)] over the frequencies t: amplitude and phase give |φ - ψ|² / 2."""
    numbers = rng.normal(rng.make_key(SEED, "frequencies"), STEP, torch.zeros(1, dtype=torch.int64), 16 * NUM_FEATURES)
    frequencies = numbers.view(16, NUM_FEATURES)

    def characteristic(features: Tensor) -> Tensor:
        unit = features / features.norm(dim=1, keepdim=True)
        return torch.stack([torch.exp(1j * (unit @ frequency)).mean() for frequency in frequencies])

    difference = characteristic(real) - characteristic(synthetic)
    return CHARACTERISTIC_SCALE * (difference.abs() / 2**0.5).mean()


REFERENCES = {
    "mean": reference_mean,
    "covariance(weight=50)": reference_covariance,
    "kernel(bandwidths=5)": reference_kernel,
    "characteristic(frequencies=16)": reference_characteristic,
}


def random_features(num_classes: int, num: int, seed: int) -> Tensor:
    return torch.randn(num_classes, num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("spec", REFERENCES)
@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_objective_equals_its_formula(spec: str, counts: list[tuple[int, int]]) -> None:
    num_real, num_synthetic = (max(column) for column in zip(*counts, strict=True))
    real, initial = random_features(len(counts), num_real, 0), random_features(len(counts), num_synthetic, 1)
    weights: list[Tensor | None] = [None, None]
    if counts is UNEQUAL:
        weights = [mean_weights(list(column), max(column)) for column in zip(*counts, strict=True)]
    synthetic = initial.clone().requires_grad_()
    distance = make_objective(spec, SEED, CLOCK)(real, synthetic, *weights)
    (gradient,) = torch.autograd.grad(distance.sum(), synthetic)
    plain = initial.clone().requires_grad_()
    expected = torch.stack(
        [REFERENCES[spec](real[label, :num], plain[label, :other]) for label, (num, other) in enumerate(counts)]
    )
    (expected_gradient,) = torch.autograd.grad(expected.sum(), plain)
    torch.testing.assert_close(distance, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", REFERENCES)
def test_distance_of_equal_sets_is_zero(spec: str) -> None:
    features, objective = random_features(2, 5, 0), make_objective(spec, SEED, CLOCK)
    distance = objective(features, features.clone(), None, None)
    torch.testing.assert_close(distance, torch.zeros(2), rtol=0, atol=1e-3)
    assert (objective(features, random_features(2, 5, 1), None, None) > 0.1).all()
    gradient = torch.autograd.grad(objective(features, features.requires_grad_(), None, None).sum(), features)[0]
    assert gradient.isfinite().all()


def test_covariance_distance_sees_more_than_the_mean() -> None:
    features = F.normalize(random_features(1, 6, 0), dim=2)
    spread = features.mean(1, keepdim=True) + 3 * (features - features.mean(1, keepdim=True))
    torch.testing.assert_close(mean_distance(features, spread), torch.zeros(1), rtol=0, atol=1e-6)
    for objective in (covariance_distance(1.0), kernel_distance(5)):
        assert (objective(features, spread, None, None) > 0.01).all()


def test_frequencies_depend_on_seed_and_iteration() -> None:
    real, synthetic = random_features(1, 4, 0), random_features(1, 4, 1)
    clock = torch.tensor(0)
    objective = make_objective("characteristic(frequencies=8)", SEED, clock)
    first = objective(real, synthetic, None, None)
    assert torch.equal(objective(real, synthetic, None, None), first)
    other_seed = make_objective("characteristic(frequencies=8)", 9, clock)
    assert not torch.equal(other_seed(real, synthetic, None, None), first)
    clock += 1
    assert not torch.equal(objective(real, synthetic, None, None), first)


def test_chunks_and_sets_share_the_frequencies_of_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, normal = [], rng.normal
    monkeypatch.setattr(rng, "normal", lambda key, step, *rest: steps.append(int(step)) or normal(key, step, *rest))
    clock, features = torch.tensor(0), random_features(1, 4, 0)
    objective = make_objective("characteristic(frequencies=8)", SEED, clock)
    for step in (0, 1, 0):
        clock.fill_(step)
        for _ in range(2):
            objective(features, features, None, None)
    assert steps == [0, 1, 0]


def test_bfloat16_features_are_compared_in_float32() -> None:
    features = [random_features(2, 5, seed).bfloat16() for seed in (0, 1)]
    for spec in REFERENCES:
        objective = make_objective(spec, SEED, CLOCK)
        distance = objective(features[0], features[1], None, None)
        assert distance.dtype == torch.float32
        torch.testing.assert_close(distance, objective(features[0].float(), features[1].float(), None, None))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("mean", ("mean", {})),
        ("covariance", ("covariance", {"weight": 50})),
        ("covariance(weight=0.5)", ("covariance", {"weight": 0.5})),
        ("kernel(bandwidths=3)", ("kernel", {"bandwidths": 3})),
        ("characteristic", ("characteristic", {"frequencies": 4096})),
    ],
)
def test_specs(spec: str, expected: tuple[str, dict[str, float]]) -> None:
    assert parse_objective(spec) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("means", "objective cannot be 'means'; did you mean 'mean'"),
        ("mean(weight=1)", "an option of the objective mean"),
        ("covariance(weigth=1)", "an option of the objective covariance .*'weigth'; did you mean 'weight'"),
        ("covariance(weight=0)", "weight must be above 0, .* but got 0"),
        ("covariance(weight='a')", "weight must be above 0, .* but got 'a'"),
        ("kernel(bandwidths=2.5)", "bandwidths must be a whole number, but got 2.5"),
        ("characteristic(frequencies=10**9)", "characteristic"),
        ("characteristic(frequencies=10000000)", "frequencies must be above 0, at most 1,000,000, but got 10000000"),
    ],
)
def test_invalid_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"\A.*{message}.*\Z"):
        parse_objective(spec)
