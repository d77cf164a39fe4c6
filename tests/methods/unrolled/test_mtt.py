"""Trajectory matching: the loss by hand, its gradient, the experts, and the published settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods.pools.pool import NetworkPool
from condenset.methods.registry import make_recipe
from condenset.methods.unrolled.mtt import MIN_STEP_SIZE, TrajectoryMatching, load_or_train_experts, trajectory_distance
from condenset.methods.unrolled.mtt_recipe import MTTRecipe
from condenset.methods.unrolled.unrolling import Gradients, TrainingStep, differentiate_training
from condenset.pipeline.cost.trial import trial_recipe
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
PIXELS, CLASSES = 4, 3


def tiny_recipe(**fields: Any) -> MTTRecipe:
    settings = {"ipc": 2, "network": "convnet(width=4, depth=1, activation='swish')", "iterations": 3, "steps": 3}
    experts = {"expert_epochs": 2, "max_start_epoch": 2, "pool_size": 2, "lr": 10.0, "augment": "none"}
    return MTTRecipe(**{**settings, **experts, **fields})


def make_problem(counts: list[int], weights_ESP: Tensor | None = None, **fields: Any) -> TrajectoryMatching:
    data, recipe, run = tiny_data(counts), tiny_recipe(**fields), RunContext(seed=3, compute=CPU)
    if weights_ESP is None:
        weights_ESP, _ = load_or_train_experts(data, recipe, run)
    return TrajectoryMatching(data, recipe, run, [2] * len(counts), weights_ESP)


class LinearCase:
    """A linear classifier whose student takes three steps on two batches of images."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.start, self.target = normal(CLASSES * PIXELS), normal(CLASSES * PIXELS)
        self.images, self.labels, self.step_size = normal(6, PIXELS), torch.arange(6) % CLASSES, 0.3
        self.schedule = [torch.tensor(index) for index in ([0, 1, 2], [3, 4, 5], [1, 3, 5])]

    def loss_by_hand(self) -> float:
        """Take the steps with the gradient of softmax regression, (probabilities - one-hot) x image."""
        weights = self.start.view(CLASSES, PIXELS).numpy().copy()
        for index in self.schedule:
            images, labels = self.images[index].numpy(), self.labels[index].numpy()
            scores = np.exp(images @ weights.T)
            errors = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[labels]
            weights -= self.step_size * errors.T @ images / len(images)
        start, target = (value.view(CLASSES, PIXELS).numpy() for value in (self.start, self.target))
        return float(((weights - target) ** 2).sum() / ((start - target) ** 2).sum())

    def differentiate(self) -> Gradients:
        def loss(weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(images @ weights.view(CLASSES, PIXELS).T, labels)

        sizes = torch.full((3,), self.step_size, dtype=torch.float64)
        return differentiate_training(
            TrainingStep(loss),
            self.start,
            self.images,
            self.labels,
            self.schedule,
            sizes,
            lambda weights: trajectory_distance(weights, self.start, self.target),
        )


def test_loss_of_a_linear_model_by_hand() -> None:
    case = LinearCase()
    assert float(case.differentiate().loss) == pytest.approx(case.loss_by_hand(), rel=1e-10)
    assert float(trajectory_distance(case.start, case.start, case.target)) == 1
    assert float(trajectory_distance(case.target, case.start, case.target)) == 0


def test_gradient_equals_finite_differences() -> None:
    case, epsilon = LinearCase(), 1e-6
    gradients = case.differentiate()
    for index in range(case.images.numel()):
        losses = []
        for change in (epsilon, -epsilon):
            case.images.view(-1)[index] += change
            losses.append(case.loss_by_hand())
            case.images.view(-1)[index] -= change
        assert float(gradients.images.view(-1)[index]) == pytest.approx(
            (losses[0] - losses[1]) / (2 * epsilon), rel=1e-5, abs=1e-9
        )
    losses = []
    for change in (epsilon, -epsilon):
        case.step_size = 0.3 + change
        losses.append(case.loss_by_hand())
    slope = (losses[0] - losses[1]) / (2 * epsilon)
    assert float(gradients.step_sizes_T.sum()) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("fields", [{}, {"student_batch": 3}, {"augment": "color_crop_scale"}])
def test_step_equals_autograd_through_all_steps(fields: dict[str, Any]) -> None:
    problem = make_problem([6, 6], momentum=0.0, step_size=0.05, **fields)
    images, step_size = problem.images_NCHW.clone().requires_grad_(), problem.step_size.clone().requires_grad_()
    start, target = problem.sample_segment()
    batches, labels = problem.sample_batches(images)
    weights = start.clone().requires_grad_()
    for index in problem.schedule:
        loss = problem.training_step.loss(weights, batches[index], labels[index])
        weights = weights - step_size * torch.autograd.grad(loss, weights, create_graph=True)[0]
    loss = (weights - target).square().sum() / (start - target).square().sum()
    by_images, by_size = torch.autograd.grad(loss, (images, step_size))
    problem.step()
    torch.testing.assert_close(problem.losses[0], loss.detach())
    torch.testing.assert_close(problem.velocity, by_images, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(problem.step_size_velocity, by_size, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(problem.images_NCHW, images.detach() - 10 * by_images, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(problem.step_size, step_size.detach() - 1e-5 * by_size)


def test_segments_begin_before_the_last_start_epoch_and_span_the_expert_epochs() -> None:
    numbers_ESP = torch.arange(20.0).view(4, 5, 1)
    problem = make_problem([6, 6], numbers_ESP, max_start_epoch=3, expert_epochs=2)
    starts = set()
    for number in range(200):
        problem.clock.fill_(number)
        start, target = (int(weights[0]) for weights in problem.sample_segment())
        assert target == start + 2
        starts.add(divmod(start, 5))
    assert starts == {(expert, epoch) for expert in range(4) for epoch in range(3)}


def test_batches_of_the_student_are_parts_of_random_orders() -> None:
    problem = make_problem([6, 6, 6], torch.zeros(1, 4, 1), steps=5, student_batch=2)
    first = problem.sample_indices().view(5, 2)
    assert sorted(first[:3].flatten().tolist()) == list(range(6))
    assert len(set(first[3:].flatten().tolist())) == 4
    problem.clock += 1
    assert not torch.equal(problem.sample_indices().view(5, 2), first)


def test_experts_are_trained_by_plain_sgd_and_stored_after_every_epoch(tmp_path: Path) -> None:
    data, recipe = tiny_data([6, 6]), tiny_recipe(pool=str(tmp_path / "nets"))
    protocol = recipe.expert_protocol(data)
    assert (protocol.momentum, protocol.weight_decay, protocol.lr_factors(12)) == (0.0, 0.0, {})
    assert recipe.num_epochs == protocol.total_epochs == 3
    weights_ESP, provenance = load_or_train_experts(data, recipe, RunContext(seed=3, compute=CPU))
    assert weights_ESP.shape[:2] == (2, 4) and weights_ESP.dtype == torch.float32
    assert provenance["networks"] == 2
    (directory,) = (tmp_path / "nets").iterdir()
    assert [state.step for state in NetworkPool.load(directory).states] == [0, 1, 2, 3] * 2
    moves = (weights_ESP[:, 1:] - weights_ESP[:, :-1]).norm(dim=2)
    assert (moves > 0).all()
    again, _ = load_or_train_experts(data, recipe, RunContext(seed=3, compute=CPU))
    assert torch.equal(again, weights_ESP)
    assert recipe.identity() == tiny_recipe().identity()  # wherever the experts are stored
    (tmp_path / "nets" / "note.txt").touch()  # does not matter beside a pool
    cs.condense(data, recipe, device="cpu", verbose=False)
    with pytest.raises(cs.UserError, match=f"is a pool: give the directory that contains it, {tmp_path / 'nets'}"):
        cs.condense(data, dataclasses.replace(recipe, pool=str(directory)), device="cpu", verbose=False)


def test_set_records_the_learned_step_size() -> None:
    condensed = cs.condense(tiny_data([6, 6]), tiny_recipe(step_size_lr=1e-2), device="cpu", verbose=False)
    assert condensed.provenance["step_size"] not in (0.01, 0.0)
    assert condensed.provenance["pool"]["seconds"] > 0
    problem = make_problem([6, 6], step_size_lr=1.0)
    problem.step_size_velocity.fill_(1e9)
    problem.step()
    assert float(problem.step_size) == pytest.approx(MIN_STEP_SIZE)  # instead of a negative number


def test_loss_decreases() -> None:
    problem = make_problem([8, 8], lr=100.0, step_size=0.1, max_start_epoch=1, pool_size=1)
    for _ in range(8):
        problem.step()
    assert problem.losses[7] < problem.losses[0]


def test_settings_are_the_published_ones() -> None:
    one, ten, fifty = (make_recipe("mtt", ipc=ipc, name="cifar10", size=32) for ipc in (1, 10, 50))
    assert isinstance(one, MTTRecipe) and isinstance(ten, MTTRecipe) and isinstance(fifty, MTTRecipe)
    assert (one.steps, one.expert_epochs, one.max_start_epoch, one.lr, one.zca) == (50, 2, 2, 100.0, True)
    assert (ten.steps, ten.max_start_epoch, ten.lr, ten.step_size_lr, ten.zca) == (30, 20, 100.0, 1e-5, True)
    assert ten.step_size == 0.001
    assert (fifty.steps, fifty.max_start_epoch, fifty.step_size, fifty.zca) == (30, 40, 0.001, False)
    assert make_recipe("mtt", ipc=40, name="cifar10", size=32, iterations=1).steps == 30  # type: ignore[attr-defined]
    assert make_recipe("mtt", ipc=10, name="own", size=32).zca is False


def test_a_trial_of_a_plan_trains_one_small_expert() -> None:
    trial = trial_recipe(make_recipe("mtt", ipc=10, name="cifar10", size=32))
    assert isinstance(trial, MTTRecipe)
    assert (trial.pool_size, trial.num_epochs) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps must be .*, but got 0"),
        ({"steps": 10**6}, "steps must be .*, but got 1000000"),
        ({"student_batch": 0}, "student_batch must be .*, but got 0"),
        ({"expert_epochs": 0}, "expert_epochs must be .*, but got 0"),
        ({"step_size": -1}, "step_size must be a number above 0"),
        ({"pool_size": 1001}, "pool_size must be .*, but got 1001"),
        ({"init": "x"}, "init must be one of real, noise"),
    ],
)
def test_invalid_recipes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        tiny_recipe(**fields)


def test_networks_of_users_are_refused() -> None:
    def build(channels: int, size: int, num_classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * size**2, num_classes))

    with pytest.raises(cs.UserError, match="the network of mtt must be a spec of a built-in network, but got 'build"):
        cs.condense(tiny_data([6, 6]), "mtt", ipc=1, network=build, device="cpu", verbose=False)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_trace_of_a_step_computes_the_same(norm: str) -> None:
    """On a GPU, the compiler gets a trace of the gradients."""
    problem = make_problem([6, 6], network=f"convnet(width=4, depth=1, norm={norm!r})")
    step, (start_P, _) = problem.training_step, problem.sample_segment()
    arguments = (start_P, problem.images_NCHW, problem.labels_N)
    for function, values in ((step.gradient, arguments), (step.differentiate, (*arguments, torch.rand_like(start_P)))):
        with torch.autograd.set_multithreading_enabled(False):
            trace = make_fx(lambda *tensors, function=function: function(*tensors))(*values)
        others = [value.flip(0) for value in values]
        torch.testing.assert_close(trace(*others), function(*others))


def test_steps_of_built_in_networks_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    monkeypatch.setattr(
        "condenset.methods.unrolled.unrolling.compile_second_order",
        lambda function, compute, name: names.append(name) or function,  # type: ignore[func-returns-value]
    )
    make_problem([6, 6], network="convnet(width=4, depth=1)")
    assert len(set(names)) == 2 and all("width=4" in name and "2 classes" in name for name in names)
