"""Label distillation: the closed form against a direct solve, its gradient, and labels as soft as asked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.engine import Place
from condenset.methods.labels import Labels, ld, ridge_prediction, softened
from condenset.recipes import LabelRecipe
from condenset.runs import Run
from plain import tiny_data

CPU = Place.best("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("num", "features"), [(5, 11), (11, 5), (6, 6)], ids=["dual", "primal", "square"])
def test_ridge_is_the_least_squares_solution(num: int, features: int) -> None:
    small, labels, others, ridge = normal(num, features), normal(num, 3, seed=1), normal(4, features, seed=2), 0.1
    centred = small - small.mean(0)
    strength = (ridge * centred.square().sum() / num).sqrt()
    # Ridge regression is least squares with `features` more rows, whose intercept is 0: it is not shrunk.
    left = torch.cat(
        (
            torch.cat((centred, torch.ones(num, 1)), 1),
            torch.cat((strength * torch.eye(features), torch.zeros(features, 1)), 1),
        )
    )
    right = torch.cat((labels, torch.zeros(features, 3)))
    weights = torch.linalg.lstsq(left, right).solution
    expected = torch.cat((others - small.mean(0), torch.ones(4, 1)), 1) @ weights
    torch.testing.assert_close(ridge_prediction(small, labels, others, ridge), expected)


@pytest.mark.parametrize(("num", "features"), [(4, 7), (7, 4)], ids=["dual", "primal"])
def test_gradient_through_the_solve_is_that_of_finite_differences(num: int, features: int) -> None:
    small, labels, others = normal(num, features), normal(num, 3, seed=1), normal(5, features, seed=2)
    for tensor in (small, labels, others):
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: ridge_prediction(*given, 0.05), (small, labels, others))


def test_images_all_alike_leave_the_mean_label() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = ridge_prediction(torch.ones(2, 3), labels, torch.zeros(4, 3), 0.01)
    torch.testing.assert_close(found, torch.full((4, 2), 0.5))


@pytest.mark.parametrize("softness", [0.3, 0.75, 0.99])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_softened_labels_are_as_soft_as_asked_and_rank_as_their_logits(softness: float, scale: float) -> None:
    logits = scale * normal(50, 4).float()
    found = softened(logits, softness)
    torch.testing.assert_close(found.sum(1), torch.ones(50))
    shares = found.double()
    entropy = -(shares * shares.clamp(min=1e-30).log()).sum(1).mean()
    assert entropy == pytest.approx(softness * math.log(4), rel=1e-3)
    ratio = (found[0].log() - found[0].log().mean()) / (logits[0] - logits[0].mean())
    torch.testing.assert_close(ratio, ratio.mean().expand(4), rtol=1e-3, atol=0)


def test_softened_labels_of_few_classes() -> None:
    torch.testing.assert_close(softened(normal(3, 1), 0.5), torch.ones(3, 1))
    two = softened(torch.tensor([[5.0, 0.0], [0.0, 5.0]]), 0.75)
    assert -(two * two.log()).sum(1) == pytest.approx([0.75 * math.log(2)] * 2, rel=1e-3)
    tied = softened(torch.tensor([[1.0, 1.0, 0.0]] * 2), 0.1)  # no length tells the first two apart
    torch.testing.assert_close(tied, torch.tensor([[0.5, 0.5, 0.0]] * 2), atol=1e-6, rtol=0)


def test_labels_that_say_nothing_stay_equal_shares() -> None:
    torch.testing.assert_close(softened(torch.ones(3, 4), 0.5), torch.full((3, 4), 0.25))


def recipe(**fields: object) -> LabelRecipe:
    values = {"ipc": 2, "network": "convnet(width=8, depth=2)", "iterations": 40, "batch": 64, **fields}
    return LabelRecipe(**values)  # type: ignore[arg-type]


def test_images_are_those_of_random_and_labels_start_at_their_classes() -> None:
    data = tiny_data([9, 9, 4])
    start = ld(data, recipe(iterations=0), Run(seed=4, place=CPU))
    random = cs.condense(data, "random", ipc=2, seed=4, device="cpu")
    assert torch.equal(start.images, random.images)
    assert torch.equal(start.labels.argmax(1), random.labels)
    torch.testing.assert_close(start.labels.max(1).values, start.labels.max().expand(6))
    learned = ld(data, recipe(iterations=3), Run(seed=4, place=CPU))
    assert torch.equal(learned.images, random.images)
    assert not torch.equal(learned.labels, start.labels)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_learned_labels_lower_the_loss_on_images_and_networks_not_seen(norm: str) -> None:
    """Half of the data is held out; a network that no iteration drew gives the features."""
    data = tiny_data([200, 200, 200])
    half = torch.arange(len(data)) % 2 == 0
    seen, held = (
        cs.ImageData(
            images=data.images[part],
            labels=data.labels[part],
            class_names=data.class_names,
            mean=data.mean,
            std=data.std,
        )
        for part in (half, ~half)
    )
    made = recipe(ipc=4, lr=0.03, network=f"convnet(width=8, depth=2, norm={norm!r})")
    problem = Labels(seen, made, Run(place=CPU), [4, 4, 4])
    uniform = torch.rand(problem.parameters.num, generator=torch.Generator().manual_seed(5))
    views = problem.parameters.views(problem.parameters.initial(uniform), torch.float32)

    def held_out() -> float:
        images = (held.images.float() / 255 - 0.5) / 0.25
        features = problem._embed(views, problem.images_NCHW), problem._embed(views, images)
        return float(problem.loss(features[0], problem.logits_NK, features[1], held.labels))

    before = held_out()
    for _ in range(40):
        problem.step()
    assert held_out() < 0.95 * before


@pytest.mark.parametrize(("norm", "most"), [("instance", 3), ("batch", 12)])
def test_images_pass_a_few_at_a_time_but_for_batch_norm(monkeypatch: pytest.MonkeyPatch, norm: str, most: int) -> None:
    monkeypatch.setattr("condenset.methods.labels.images_together", lambda *_: 3)
    problem = Labels(
        tiny_data([9, 9]),
        recipe(network=f"convnet(width=8, depth=2, norm={norm!r})", batch=12),
        Run(place=CPU),
        [2, 2],
    )
    seen, forward = list[int](), problem.forward

    def watched(views: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
        seen.append(len(images_NCHW))
        return forward(views, images_NCHW)

    monkeypatch.setattr(problem, "forward", watched)
    problem.step()
    assert (max(seen), sum(seen)) == (most, 4 + 12)


def test_bfloat16_features_are_solved_in_float32() -> None:
    coarse = Labels(tiny_data([9, 9]), recipe(), Run(place=Place.best("cpu", "bfloat16")), [2, 2])
    coarse.step()
    assert coarse.logits_NK.dtype == torch.float32
    assert coarse.losses[0].isfinite()


def test_mistakes_are_one_line() -> None:
    with pytest.raises(cs.UserError, match="ridge must be a number above 0"):
        recipe(ridge=0.0)
    with pytest.raises(cs.UserError, match="softness must be a number below 1"):
        recipe(softness=1.0)
