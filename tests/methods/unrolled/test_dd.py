"""Dataset distillation: the gradient through training, its memory, the optimiser, and step sizes."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods import make_recipe
from condenset.methods.common import class_labels
from condenset.methods.unrolled import base
from condenset.methods.unrolled.base import clip_gradient
from condenset.methods.unrolled.dd import DatasetDistillation, DDRecipe, condense
from condenset.methods.unrolled.unrolling import Gradients, TrainingStep, differentiate_training
from condenset.pipeline.sets import set_summary
from condenset.runs.context import RunContext
from condenset.training.learned_steps import batch_schedule
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
HIDDEN, PIXELS, CLASSES = 5, 4, 3


def tiny_recipe(**fields: Any) -> DDRecipe:
    settings = {"ipc": 2, "network": "mlp(width=16)", "iterations": 60, "batch_size": 32, "steps": 3, "epochs": 2}
    return DDRecipe(**{**settings, **fields})


def make_problem(counts: list[int], **fields: Any) -> DatasetDistillation:
    """Return the initial state of a run with `ipc` images per class."""
    recipe = tiny_recipe(**fields)
    return DatasetDistillation(tiny_data(counts), recipe, RunContext(compute=CPU), [recipe.ipc] * len(counts))


def mlp_loss(weights_P: Tensor, images_NF: Tensor, labels_N: Tensor) -> Tensor:
    """Return the loss of a network with one smooth hidden layer."""
    first, second = weights_P.split([HIDDEN * PIXELS, CLASSES * HIDDEN])
    hidden = torch.tanh(images_NF @ first.view(HIDDEN, PIXELS).T)
    return F.cross_entropy(hidden @ second.view(CLASSES, HIDDEN).T, labels_N)


@dataclasses.dataclass
class TrainingCase:
    weights: Tensor
    images: Tensor
    labels: Tensor
    schedule: list[Tensor]
    sizes: Tensor
    real: tuple[Tensor, Tensor]

    def final_loss(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Return the real loss after training, with the graph of all steps."""
        weights = self.weights.detach().requires_grad_()
        for index, size in zip(self.schedule, sizes, strict=True):
            loss = mlp_loss(weights, images[index], self.labels[index])
            weights = weights - size * torch.autograd.grad(loss, weights, create_graph=True)[0]
        return mlp_loss(weights, *self.real)

    def differentiate(self, after_step: Callable[[float], None] = lambda _: None) -> Gradients:
        return differentiate_training(
            TrainingStep(mlp_loss),
            self.weights,
            self.images,
            self.labels,
            self.schedule,
            self.sizes,
            lambda weights: mlp_loss(weights, *self.real),
            after_step,
        )


@pytest.fixture
def case() -> TrainingCase:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    counts = [2, 3, 2]
    real = (normal(9, PIXELS), torch.arange(9) % 3)
    sizes = 0.5 + normal(6).abs()
    return TrainingCase(
        weights=normal(HIDDEN * (PIXELS + CLASSES)),
        images=normal(7, PIXELS),
        labels=class_labels(counts),
        schedule=batch_schedule(class_labels(counts), 2, 3),
        sizes=sizes,
        real=real,
    )


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])  # weights are computed again, or stored
def test_gradient_equals_autograd_through_all_steps(
    case: TrainingCase, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.methods.unrolled.unrolling.MAX_STORED_BYTES", max_bytes)
    gradients = case.differentiate()
    images, sizes = case.images.clone().requires_grad_(), case.sizes.clone().requires_grad_()
    loss = case.final_loss(images, sizes)
    by_images, by_sizes = torch.autograd.grad(loss, (images, sizes))
    torch.testing.assert_close(gradients.loss, loss.detach())
    torch.testing.assert_close(gradients.images, by_images)
    torch.testing.assert_close(gradients.step_sizes_T, by_sizes)


def test_gradient_equals_finite_differences(case: TrainingCase) -> None:
    gradients, epsilon = case.differentiate(), 1e-5
    for values, gradient in ((case.images, gradients.images), (case.sizes, gradients.step_sizes_T)):
        for index in range(values.numel()):
            losses = []
            for change in (epsilon, -epsilon):
                values.view(-1)[index] += change
                losses.append(case.final_loss(case.images, case.sizes).detach())
                values.view(-1)[index] -= change
            slope = (losses[0] - losses[1]) / (2 * epsilon)
            torch.testing.assert_close(gradient.view(-1)[index], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "network", ["convnet(width=4, depth=2)", "convnet(width=4, depth=2, norm='batch')", "alexnet_small"]
)
def test_gradient_of_convolutional_networks(network: str) -> None:
    problem = make_problem([4, 4], network=network, steps=2, epochs=1, batch_size=6)
    generator = torch.Generator().manual_seed(0)
    layout = problem.networks.parameters
    initial = layout.initialize(torch.rand(layout.num, generator=generator))
    sizes, real = torch.full((2,), 0.1), (problem.images_NCHW + 1, problem.labels_N)
    gradients = differentiate_training(
        TrainingStep(problem.loss),
        initial,
        problem.images_NCHW,
        problem.labels_N,
        problem.schedule,
        sizes,
        lambda weights: problem.loss(weights, *real),
    )
    images, weights = problem.images_NCHW.clone().requires_grad_(), initial.detach().requires_grad_()
    for index in problem.schedule:
        loss = problem.loss(weights, images[index], problem.labels_N[index])
        weights = weights - 0.1 * torch.autograd.grad(loss, weights, create_graph=True)[0]
    (expected,) = torch.autograd.grad(problem.loss(weights, *real), images)
    assert expected.abs().max() > 0
    torch.testing.assert_close(gradients.images, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_run_is_adam_with_clipped_gradients_and_a_decreasing_rate() -> None:
    problem = make_problem(
        [4, 4], ipc=1, network="mlp(width=8)", steps=2, epochs=1, batch_size=6, iterations=10, lr=0.05
    )
    recipe = problem.recipe
    images, raw_sizes = (tensor.clone().requires_grad_() for tensor in (problem.images_NCHW, problem.raw_sizes_T))
    adam, num_clipped = torch.optim.Adam([images, raw_sizes]), 0
    for step in range(recipe.iterations):
        real = problem.store.sample_indices(problem.real_key, step, recipe.batch_size)
        weights = problem.networks.sample_weights(torch.tensor(step)).requires_grad_()
        for index, size in zip(problem.schedule, F.softplus(raw_sizes), strict=True):
            loss = problem.loss(weights, images[index], problem.labels_N[index])
            weights = weights - size * torch.autograd.grad(loss, weights, create_graph=True)[0]
        adam.zero_grad()
        problem.loss(weights, problem.store.take_normalized(real), problem.store.labels_N[real]).backward()
        for values in (images, raw_sizes) if step else ():  # at most twice the norm that the second moment expects
            expected = (adam.state[values]["exp_avg_sq"].sum() / (1 - 0.999**step)).sqrt()
            num_clipped += bool(torch.nn.utils.clip_grad_norm_(values, 2 * float(expected)) > 2 * expected)
        adam.param_groups[0]["lr"] = recipe.lr * 0.5 ** (step // 2)  # halved after every fifth of the run
        adam.step()
        problem.step()
    torch.testing.assert_close(problem.images_NCHW, images.detach(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(problem.raw_sizes_T, raw_sizes.detach(), rtol=1e-4, atol=1e-5)
    assert num_clipped > 0


def late_changes(monkeypatch: pytest.MonkeyPatch, factor: float) -> tuple[float, float]:
    """Multiply the gradients of step 10 by `factor`; return the later change of the images and of the step sizes."""
    problem = make_problem([20, 20], init="real", epochs=1)

    def differentiate(*args: Any, after_step: Callable[[], None]) -> Gradients:
        gradients = differentiate_training(*args, after_step)
        scale = factor if problem.clock == 10 else 1.0
        return Gradients(scale * gradients.loss, scale * gradients.images, scale * gradients.step_sizes_T)

    monkeypatch.setattr(base, "differentiate_training", differentiate)
    history = []
    for _ in range(40):
        problem.step()
        history.append((problem.images_NCHW.clone(), problem.raw_sizes_T.clone()))
    assert problem.losses.isfinite().all()
    assert problem.losses[:40].all()
    images, sizes = (float((late - early).norm()) for early, late in zip(history[20], history[-1], strict=True))
    return images, sizes


def test_one_exploding_gradient_does_not_stop_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training diverges from some initial weights. Without clipping, Adam would hardly move afterwards."""
    undisturbed = late_changes(monkeypatch, 1.0)
    for factor in (1e4, float("inf"), float("nan")):
        for change, expected in zip(late_changes(monkeypatch, factor), undisturbed, strict=True):
            assert change > 0.5 * expected


def test_first_gradient_is_not_clipped() -> None:
    """Before the first step, and after gradients of 0, the expected norm is unknown."""
    gradient = torch.tensor([3.0, 4.0])
    for clock in (0, 5):
        clipped = clip_gradient(gradient, torch.zeros(2, 2), torch.tensor(clock))
        torch.testing.assert_close(clipped, gradient)
    assert torch.equal(clip_gradient(torch.zeros(2), torch.zeros(2, 2), torch.tensor(5)), torch.zeros(2))


class SavedTensor:
    """A tensor that a graph stores; counts the bytes of all such tensors."""

    current = peak = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.bytes = tensor, tensor.numel() * tensor.element_size()
        SavedTensor.current += self.bytes
        SavedTensor.peak = max(SavedTensor.peak, SavedTensor.current)

    def __del__(self) -> None:
        SavedTensor.current -= self.bytes


@contextmanager
def count_saved_bytes() -> Iterator[None]:
    SavedTensor.current = SavedTensor.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(SavedTensor, lambda saved: saved.tensor):
        yield


def test_memory_of_graphs_does_not_grow_with_the_number_of_steps() -> None:
    peaks = []
    for steps in (2, 16):
        problem = make_problem([6, 6], network="convnet(width=8, depth=2)", steps=steps, epochs=1, batch_size=8)
        with count_saved_bytes():
            problem.step()
        peaks.append(SavedTensor.peak)
    assert peaks[1] <= 1.25 * peaks[0]
    assert peaks[0] > 0


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_shares_of_the_steps_sum_to_the_time_before_the_loss(
    case: TrainingCase, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.methods.unrolled.unrolling.MAX_STORED_BYTES", max_bytes)
    shares: list[float] = []
    case.differentiate(shares.append)
    assert sum(shares) + shares[0] == pytest.approx(1)


def test_a_run_frees_its_memory_without_the_garbage_collector() -> None:
    problem = make_problem([6, 6])
    problem.step()
    reference = weakref.ref(problem)
    gc.collect()
    gc.disable()
    try:
        del problem
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("max_bytes", "expected"), [(0, 8 + 8), (64 * 8 * 4, 64)])
def test_stored_weights(max_bytes: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 steps, the weights before 8 segments are stored, and those of the current segment; or all if they fit."""
    monkeypatch.setattr("condenset.methods.unrolled.unrolling.MAX_STORED_BYTES", max_bytes)
    references: dict[int, weakref.ref[Tensor]] = {}
    peak = 0

    def watch(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(weights: Tensor, *args: Tensor) -> Any:
            nonlocal peak
            references[id(weights)] = weakref.ref(weights)
            peak = max(peak, sum(reference() is not None for reference in references.values()))
            return function(weights, *args)

        return call

    step = TrainingStep(lambda weights, images, labels: F.cross_entropy(images.flatten(1) @ weights.view(4, 2), labels))
    step.gradient, step.differentiate = watch(step.gradient), watch(step.differentiate)
    images, labels, num_steps = torch.rand(6, 1, 2, 2), torch.tensor([0, 1] * 3), 64
    schedule = [torch.tensor([number % 6, (number + 1) % 6]) for number in range(num_steps)]
    sizes = torch.full((num_steps,), 0.1)
    differentiate_training(step, torch.rand(8), images, labels, schedule, sizes, lambda weights: weights.sum())
    assert expected / 2 <= peak <= expected + 2


def test_loss_decreases_and_step_sizes_are_learned() -> None:
    problem = make_problem([20, 20], lr=0.05, step_size=0.2, init="real")
    for _ in range(60):
        problem.step()
    assert problem.losses[50:60].mean() < 0.5 * problem.losses[:5].mean()
    condensed = condense(tiny_data([20, 20]), tiny_recipe(iterations=5), RunContext(compute=CPU))
    assert condensed.step_sizes is not None
    assert condensed.step_sizes.shape == (6,)
    assert (condensed.step_sizes != 0.02).all()
    assert len(condensed.step_sizes.unique()) == 6


def test_step_sizes_are_saved_summarised_and_checked(tmp_path: Path) -> None:
    condensed = condense(tiny_data([4, 4]), tiny_recipe(iterations=1), RunContext(compute=CPU))
    condensed.save(tmp_path / "a.safetensors")
    loaded = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert loaded.step_sizes is not None
    assert condensed.step_sizes is not None
    assert torch.equal(loaded.step_sizes, condensed.step_sizes)
    assert set_summary(loaded)["step sizes"].startswith("6, 0.0")
    without = dataclasses.replace(condensed, step_sizes=None)
    without.save(tmp_path / "b.safetensors")
    assert cs.CondensedSet.load(tmp_path / "b.safetensors").step_sizes is None
    assert "step sizes" not in set_summary(without)
    for step_sizes in (torch.ones(2, 2), torch.ones(0), torch.ones(2).double()):
        with pytest.raises(cs.UserError, match=r"step.sizes must be .*float32"):
            dataclasses.replace(condensed, step_sizes=step_sizes)
    for step_sizes in (torch.tensor([0.1, -0.1]), torch.tensor([float("nan")])):
        with pytest.raises(cs.UserError, match=r"step.sizes must be above 0"):
            dataclasses.replace(condensed, step_sizes=step_sizes)


def test_networks_have_xavier_initialisation() -> None:
    """PyTorch's default has a third of the variance, and the signal vanishes in layers without norm."""
    problem = make_problem([6, 6])
    parameters = problem.networks.sample(torch.tensor(0), torch.float32)
    bound = (6 / (16 + 16)) ** 0.5
    assert 0.9 * bound < float(parameters["features.3.weight"].abs().max()) <= bound
    assert not parameters["features.3.bias"].any()


def test_presets_and_invalid_recipes() -> None:
    for name, network in {"mnist": "lenet", "fashionmnist": "lenet", "cifar10": "alexnet_small"}.items():
        recipe = make_recipe("dd", ipc=10, name=name, size=28)
        assert isinstance(recipe, DDRecipe)
        assert recipe.network == network
    with pytest.raises(cs.UserError, match=r"steps must be .*, but got 0"):
        tiny_recipe(steps=0)
    with pytest.raises(cs.UserError, match="step_size must be a number above 0"):
        tiny_recipe(step_size=0.0)
