"""Label distillation: the closed form and its gradient, and the softness of the final labels."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods.regression.ld import LabelDistillation, LDRecipe, condense, ridge_prediction, soften_labels
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("num", "features"), [(5, 11), (11, 5), (6, 6)], ids=["dual", "primal", "square"])
def test_ridge_prediction_is_the_least_squares_solution(num: int, features: int) -> None:
    set_features, labels, ridge = normal(num, features), normal(num, 3, seed=1), 0.1
    other_features = normal(4, features, seed=2)
    centred = set_features - set_features.mean(0)
    strength = (ridge * centred.square().sum() / num).sqrt()
    # Ridge regression is least squares with `features` more rows. Their intercept is 0, so it is not regularised.
    left = torch.cat(
        (
            torch.cat((centred, torch.ones(num, 1)), 1),
            torch.cat((strength * torch.eye(features), torch.zeros(features, 1)), 1),
        )
    )
    right = torch.cat((labels, torch.zeros(features, 3)))
    weights = torch.linalg.lstsq(left, right).solution
    expected = torch.cat((other_features - set_features.mean(0), torch.ones(4, 1)), 1) @ weights
    torch.testing.assert_close(ridge_prediction(set_features, labels, other_features, ridge), expected)


@pytest.mark.parametrize(("num", "features"), [(4, 7), (7, 4)], ids=["dual", "primal"])
def test_gradient_of_ridge_prediction_equals_finite_differences(num: int, features: int) -> None:
    inputs = normal(num, features), normal(num, 3, seed=1), normal(5, features, seed=2)
    for tensor in inputs:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: ridge_prediction(*tensors, 0.05), inputs)


def test_equal_images_predict_the_mean_label() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    prediction = ridge_prediction(torch.ones(2, 3), labels, torch.zeros(4, 3), 0.01)
    torch.testing.assert_close(prediction, torch.full((4, 2), 0.5))


@pytest.mark.parametrize("softness", [0.3, 0.75, 0.99])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_softened_labels_have_the_given_entropy_and_the_ratios_of_the_logits(softness: float, scale: float) -> None:
    logits = scale * normal(50, 4).float()
    labels = soften_labels(logits, softness)
    torch.testing.assert_close(labels.sum(1), torch.ones(50))
    probabilities = labels.double()
    entropy = -(probabilities * probabilities.clamp(min=1e-30).log()).sum(1).mean()
    assert entropy == pytest.approx(softness * math.log(4), rel=1e-3)
    ratio = (labels[0].log() - labels[0].log().mean()) / (logits[0] - logits[0].mean())
    torch.testing.assert_close(ratio, ratio.mean().expand(4), rtol=1e-3, atol=0)


def test_softened_labels_of_few_classes() -> None:
    torch.testing.assert_close(soften_labels(normal(3, 1), 0.5), torch.ones(3, 1))
    labels = soften_labels(torch.tensor([[5.0, 0.0], [0.0, 5.0]]), 0.75)
    assert -(labels * labels.log()).sum(1) == pytest.approx([0.75 * math.log(2)] * 2, rel=1e-3)
    tied = soften_labels(torch.tensor([[1.0, 1.0, 0.0]] * 2), 0.1)  # no scale separates the first two
    torch.testing.assert_close(tied, torch.tensor([[0.5, 0.5, 0.0]] * 2), atol=1e-6, rtol=0)


def test_equal_logits_give_uniform_labels() -> None:
    torch.testing.assert_close(soften_labels(torch.ones(3, 4), 0.5), torch.full((3, 4), 0.25))


def make_recipe(**fields: Any) -> LDRecipe:
    settings = {"ipc": 2, "network": "convnet(width=8, depth=2)", "iterations": 40, "batch_size": 64, **fields}
    return LDRecipe(**settings)


def test_images_equal_those_of_random_and_initial_labels_are_their_classes() -> None:
    data = tiny_data([9, 9, 4])
    initial = condense(data, make_recipe(iterations=0), RunContext(seed=4, compute=CPU))
    random = cs.condense(data, "random", ipc=2, seed=4, device="cpu")
    assert torch.equal(initial.images, random.images)
    assert torch.equal(initial.labels.argmax(1), random.labels)
    torch.testing.assert_close(initial.labels.max(1).values, initial.labels.max().expand(6))
    learned = condense(data, make_recipe(iterations=3), RunContext(seed=4, compute=CPU))
    assert torch.equal(learned.images, random.images)
    assert not torch.equal(learned.labels, initial.labels)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_learned_labels_lower_the_loss_on_other_images_and_networks(norm: str) -> None:
    data = tiny_data([200, 200, 200])
    is_train = torch.arange(len(data)) % 2 == 0
    train, val = (
        dataclasses.replace(data, images=data.images[part], labels=data.labels[part]) for part in (is_train, ~is_train)
    )
    recipe = make_recipe(ipc=4, lr=0.03, network=f"convnet(width=8, depth=2, norm={norm!r})")
    problem = LabelDistillation(train, recipe, RunContext(compute=CPU), [4, 4, 4])
    network = problem.networks.sample(torch.tensor(1000), torch.float32)  # later than all iterations

    def validation_loss() -> float:
        images = (val.images.float() / 255 - 0.5) / 0.25
        set_features, val_features = problem._embed(network, problem.images_NCHW), problem._embed(network, images)
        return float(problem.loss(set_features, problem.logits_NK, val_features, val.labels))

    initial_loss = validation_loss()
    for _ in range(40):
        problem.step()
    assert validation_loss() < 0.95 * initial_loss


@pytest.mark.parametrize(("norm", "max_batch"), [("instance", 3), ("batch", 12)])
def test_images_per_pass_are_limited_without_batch_norm(
    monkeypatch: pytest.MonkeyPatch, norm: str, max_batch: int
) -> None:
    recipe = make_recipe(network=f"convnet(width=8, depth=2, norm={norm!r})", batch_size=12)
    problem = LabelDistillation(tiny_data([9, 9]), recipe, RunContext(compute=CPU), [2, 2])
    assert (problem.images_per_pass is None) == (norm == "batch")
    if norm == "instance":
        problem.images_per_pass = 3
    batches, forward = list[int](), problem.forward

    def record(views: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
        batches.append(len(images_NCHW))
        return forward(views, images_NCHW)

    monkeypatch.setattr(problem, "forward", record)
    problem.step()
    assert (max(batches), sum(batches)) == (max_batch, 4 + 12)


def test_bfloat16_features_are_solved_in_float32() -> None:
    run = RunContext(compute=ComputeDevice.select("cpu", "bfloat16"))
    problem = LabelDistillation(tiny_data([9, 9]), make_recipe(), run, [2, 2])
    problem.step()
    assert problem.logits_NK.dtype == torch.float32
    assert problem.losses[0].isfinite()


def test_invalid_recipes() -> None:
    with pytest.raises(cs.UserError, match="ridge must be a number above 0"):
        make_recipe(ridge=0.0)
    with pytest.raises(cs.UserError, match="softness must be a number below 1"):
        make_recipe(softness=1.0)
