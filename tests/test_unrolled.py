"""Dataset distillation: the gradient through training against autograd and finite differences, and what it keeps."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import condenset as cs
from condenset import draws
from condenset.engine import Place
from condenset.methods import unrolled
from condenset.methods.common import labels_of
from condenset.methods.unrolled import Gradients, Unrolled, dd, shortened, through_training
from condenset.presets import make_recipe
from condenset.recipes import Protocol, UnrolledRecipe
from condenset.runs import Run
from condenset.train import Trainer, TrainingSet, dealt
from condenset.workflow import summary
from plain import tiny_data

CPU = Place.best("cpu")
HIDDEN, PIXELS, CLASSES = 5, 4, 3


def mlp_loss(weights_P: Tensor, images_NF: Tensor, labels_N: Tensor) -> Tensor:
    """A tiny network with one smooth hidden layer."""
    first, second = weights_P.split([HIDDEN * PIXELS, CLASSES * HIDDEN])
    hidden = torch.tanh(images_NF @ first.view(HIDDEN, PIXELS).T)
    return F.cross_entropy(hidden @ second.view(CLASSES, HIDDEN).T, labels_N)


@dataclasses.dataclass
class Case:
    weights: Tensor
    images: Tensor
    labels: Tensor
    schedule: list[Tensor]
    sizes: Tensor
    real: tuple[Tensor, Tensor]

    def final_loss(self, images: Tensor, sizes: Tensor) -> Tensor:
        """The loss after training, written plainly: the whole graph is kept."""
        weights = self.weights.detach().requires_grad_()
        for places, size in zip(self.schedule, sizes, strict=True):
            loss = mlp_loss(weights, images[places], self.labels[places])
            weights = weights - size * torch.autograd.grad(loss, weights, create_graph=True)[0]
        return mlp_loss(weights, *self.real)


@pytest.fixture
def case() -> Case:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    counts = [2, 3, 2]
    schedule = dealt(labels_of(counts), 2, 3)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    real = (normal(9, PIXELS), torch.arange(9) % 3)
    sizes = 0.5 + normal(6).abs()
    return Case(normal(HIDDEN * (PIXELS + CLASSES)), normal(7, PIXELS), labels, schedule, sizes, real)


def test_gradient_is_autograds_through_the_whole_graph(case: Case) -> None:
    found = through_training(mlp_loss, case.weights, case.images, case.labels, case.schedule, case.sizes, case.real)
    images, sizes = case.images.clone().requires_grad_(), case.sizes.clone().requires_grad_()
    loss = case.final_loss(images, sizes)
    by_images, by_sizes = torch.autograd.grad(loss, (images, sizes))
    torch.testing.assert_close(found.loss, loss.detach())
    torch.testing.assert_close(found.images, by_images)
    torch.testing.assert_close(found.step_sizes_T, by_sizes)


def test_gradient_is_that_of_finite_differences(case: Case) -> None:
    found = through_training(mlp_loss, case.weights, case.images, case.labels, case.schedule, case.sizes, case.real)
    small = 1e-5
    for values, gradient in ((case.images, found.images), (case.sizes, found.step_sizes_T)):
        for place in range(values.numel()):
            losses = []
            for change in (small, -small):
                values.view(-1)[place] += change
                losses.append(case.final_loss(case.images, case.sizes).detach())
                values.view(-1)[place] -= change
            slope = (losses[0] - losses[1]) / (2 * small)
            torch.testing.assert_close(gradient.view(-1)[place], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "network", ["convnet(width=4, depth=2)", "convnet(width=4, depth=2, norm='batch')", "alexnet_small"]
)
def test_gradient_of_real_networks(network: str) -> None:
    """Convolutions, norms and pooling have the second derivatives that the way back needs."""
    recipe = UnrolledRecipe(ipc=2, network=network, steps=2, epochs=1, batch=6)
    problem = Unrolled(tiny_data([4, 4]), recipe, Run(place=CPU), [2, 2])
    weights = problem.parameters.initial(torch.rand(problem.parameters.num, generator=torch.Generator().manual_seed(0)))
    sizes, real = torch.full((2,), 0.1), (problem.images_NCHW + 1, problem.labels_N)
    found = through_training(
        problem.loss, weights, problem.images_NCHW, problem.labels_N, problem.schedule, sizes, real
    )
    images, now = problem.images_NCHW.clone().requires_grad_(), weights.detach().requires_grad_()
    for places in problem.schedule:
        loss = problem.loss(now, images[places], problem.labels_N[places])
        now = now - 0.1 * torch.autograd.grad(loss, now, create_graph=True)[0]
    (expected,) = torch.autograd.grad(problem.loss(now, *real), images)
    assert expected.abs().max() > 0
    torch.testing.assert_close(found.images, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_a_run_is_adam_on_images_and_steps_with_a_falling_rate() -> None:
    recipe = UnrolledRecipe(ipc=1, network="mlp(width=8)", steps=2, epochs=1, batch=6, iterations=10, lr=0.05)
    problem = Unrolled(tiny_data([4, 4]), recipe, Run(place=CPU), [1, 1])
    images, raw = (each.clone().requires_grad_() for each in (problem.images_NCHW, problem.raw_sizes_T))
    adam, num_cut = torch.optim.Adam([images, raw]), 0
    for step in range(recipe.iterations):
        places = problem.store.choose_any(problem.keys["real"], step, recipe.batch)
        uniform = draws.flat_uniform(problem.keys["network"], step, problem.parameters.num)
        weights = problem.parameters.initial(uniform).requires_grad_()
        for chosen, size in zip(problem.schedule, F.softplus(raw), strict=True):
            loss = problem.loss(weights, images[chosen], problem.labels_N[chosen])
            weights = weights - size * torch.autograd.grad(loss, weights, create_graph=True)[0]
        adam.zero_grad()
        problem.loss(weights, problem.store.take(places), problem.store.labels_N[places]).backward()
        for values in (images, raw) if step else ():  # none is longer than twice what the second moment expects
            expected = (adam.state[values]["exp_avg_sq"].sum() / (1 - 0.999**step)).sqrt()
            num_cut += bool(torch.nn.utils.clip_grad_norm_(values, 2 * float(expected)) > 2 * expected)
        adam.param_groups[0]["lr"] = recipe.lr * 0.5 ** (step // 2)  # halved after every fifth
        adam.step()
        problem.step()
    torch.testing.assert_close(problem.images_NCHW, images.detach(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(problem.raw_sizes_T, raw.detach(), rtol=1e-4, atol=1e-5)
    assert num_cut > 0


@pytest.mark.parametrize("factor", [1e4, float("inf"), float("nan")])
def test_one_wild_gradient_does_not_stop_the_learning(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Weights from which training runs away are drawn now and then; Adam alone would hardly move after them."""

    def later_moves(wild_at: int | None) -> tuple[float, float]:
        problem = Unrolled(tiny_data([20, 20]), recipe(init="real"), Run(place=CPU), [2, 2])

        def through(*args: Any) -> Gradients:
            found, wild = through_training(*args), factor if problem.clock == wild_at else 1.0
            return Gradients(wild * found.loss, wild * found.images, wild * found.step_sizes_T)

        monkeypatch.setattr(unrolled, "through_training", through)
        trail = []
        for _ in range(40):
            problem.step()
            trail.append((problem.images_NCHW.clone(), problem.raw_sizes_T.clone()))
        assert problem.losses.isfinite().all() and problem.losses[:40].all()
        images, sizes = (float((late - early).norm()) for early, late in zip(trail[20], trail[-1], strict=True))
        return images, sizes

    for wild, calm in zip(later_moves(wild_at=10), later_moves(wild_at=None), strict=True):
        assert wild > 0.5 * calm


def test_gradients_from_nothing_are_not_cut() -> None:
    """Before the first step, and after gradients of 0, no length is expected."""
    gradient = torch.tensor([3.0, 4.0])
    for clock in (0, 5):
        found = shortened(gradient, torch.zeros(2, 2), torch.tensor(clock))
        torch.testing.assert_close(found, gradient)
    assert torch.equal(shortened(torch.zeros(2), torch.zeros(2, 2), torch.tensor(5)), torch.zeros(2))


class Kept:
    """A tensor that a graph holds; counts the bytes of all that are alive."""

    alive = peak = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.bytes = tensor, tensor.numel() * tensor.element_size()
        Kept.alive += self.bytes
        Kept.peak = max(Kept.peak, Kept.alive)

    def __del__(self) -> None:
        Kept.alive -= self.bytes


@contextmanager
def counted() -> Iterator[None]:
    Kept.alive = Kept.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        yield


def test_graphs_do_not_grow_with_the_number_of_steps() -> None:
    peaks = []
    for steps in (2, 16):
        recipe = UnrolledRecipe(ipc=2, network="convnet(width=8, depth=2)", steps=steps, epochs=1, batch=8)
        problem = Unrolled(tiny_data([6, 6]), recipe, Run(place=CPU), [2, 2])
        with counted():
            problem.step()
        peaks.append(Kept.peak)
    assert peaks[1] <= 1.25 * peaks[0]  # eight times as many steps
    assert peaks[0] > 0


def test_weights_on_the_way_grow_with_the_root_of_the_number_of_steps() -> None:
    """Of 64 steps those before 8 stretches are kept, and those of the stretch at hand."""
    seen: dict[int, weakref.ref[Tensor]] = {}
    most = 0

    def loss(weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        nonlocal most
        seen[id(weights)] = weakref.ref(weights)
        most = max(most, sum(each() is not None for each in seen.values()))
        return F.cross_entropy(images.flatten(1) @ weights.view(4, 2), labels)

    images, labels, num = torch.rand(6, 1, 2, 2), torch.tensor([0, 1] * 3), 64
    schedule = [torch.tensor([step % 6, (step + 1) % 6]) for step in range(num)]
    through_training(loss, torch.rand(8), images, labels, schedule, torch.full((num,), 0.1), (images, labels))
    assert 8 <= most <= 8 + 8 + 2


def test_every_image_has_its_turn_in_every_pass() -> None:
    for counts, steps in (([10, 10], 10), ([7, 3], 5), ([1, 1], 4), ([2, 9], 4)):
        schedule = dealt(labels_of(counts), steps, 3)
        assert len(schedule) == 3 * steps
        seen = torch.cat(schedule[:steps]).bincount(minlength=sum(counts))
        assert len(seen) == sum(counts)
        assert (seen >= 1).all()
        assert all(len(places) for places in schedule)
    assert [places.tolist() for places in dealt(labels_of([2, 2]), 2, 1)] == [[0, 2], [1, 3]]
    mixed = torch.tensor([1, 0, 0, 1])
    assert [places.tolist() for places in dealt(mixed, 2, 1)] == [[0, 1], [2, 3]]


def test_a_set_can_be_scored_by_its_own_steps() -> None:
    data = tiny_data([6, 6])
    small = dd(data, recipe(iterations=2), Run(place=CPU))
    assert small.step_sizes is not None
    sizes = torch.linspace(0.01, 0.3, len(small.step_sizes))
    small = dataclasses.replace(small, step_sizes=sizes)
    made = Protocol(network="mlp(width=16)", momentum=0, weight_decay=0, augment="none", own_steps=True)
    train_set = TrainingSet.of(small, CPU.device)
    trainer = Trainer(made.network, train_set, made, CPU)
    schedule = dealt(small.labels, 3, 2)
    assert list(trainer.descending(0, "evaluate", 1, schedule=schedule, step_sizes=sizes.tolist())) == [*range(1, 7)]

    plain = Trainer(made.network, train_set, made, CPU)
    plain._draw(0, "evaluate", 1)
    weights = plain.weights.clone()
    for places, size in zip(schedule, sizes, strict=True):
        leaf = weights.clone().requires_grad_()
        views = plain.parameters.views(leaf, torch.float32)
        loss = F.cross_entropy(plain.forward(views, train_set.images(places)), small.labels[places])
        weights = weights - size * torch.autograd.grad(loss, leaf)[0]
    torch.testing.assert_close(trainer.weights, weights)

    own = cs.evaluate(small, data, network="mlp(width=16)", nets=2, own_steps=True, device="cpu")
    assert own.accuracies[1] == trainer.accuracy(TrainingSet.of(data, CPU.device))
    assert own.accuracies == cs.evaluate(small, data, nets=2, own_steps=True, device="cpu").accuracies
    assert own.accuracies == cs.evaluate(small, data, **own.protocol, device="cpu").accuracies
    with pytest.raises(cs.UserError, match="own_steps stands in place of epochs, augment: give the one or the other"):
        cs.evaluate(small, data, own_steps=True, epochs=3, augment="flip", device="cpu")


def test_own_steps_are_taken_in_the_precision_they_were_learned_in(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6, 6])
    small = dd(data, recipe(network="mlp(width=16)", iterations=2), Run(place=CPU))
    made: list[tuple[torch.dtype, object]] = []
    begin = Trainer.__init__

    def noted(self: Trainer, network: str, data: TrainingSet, protocol: Protocol, place: Place, **more: Any) -> None:
        made.append((place.dtype, more["compiling"]))
        begin(self, network, data, protocol, place, **more)

    monkeypatch.setattr(Trainer, "__init__", noted)
    options: dict[str, Any] = {"nets": 1, "device": "cpu", "precision": "bfloat16"}
    scores = [cs.evaluate(small, data, **way, **options) for way in ({"own_steps": True}, {"epochs": 0})]
    assert made == [(torch.float32, False), (torch.bfloat16, True)]
    assert [each.protocol["precision"] for each in scores] == ["float32", "bfloat16"]
    assert [each.protocol["network"] for each in scores] == ["mlp(width=16)", "convnet"]  # one that learns by any steps


def test_own_steps_that_are_not_there() -> None:
    data = tiny_data([6, 6])
    with pytest.raises(cs.UserError, match="carries steps of its own"):
        cs.evaluate(data, data, own_steps=True, device="cpu")
    small = dd(data, recipe(iterations=0), Run(place=CPU))
    for steps in (4, None, -1):
        odd = dataclasses.replace(small, provenance={"recipe": {"steps": steps}})
        with pytest.raises(cs.UserError, match="must divide the set's 6"):
            cs.evaluate(odd, data, network="mlp", own_steps=True, device="cpu")


def recipe(**fields: object) -> UnrolledRecipe:
    values = {"ipc": 2, "network": "mlp(width=16)", "iterations": 60, "batch": 32, "steps": 3, "epochs": 2, **fields}
    return UnrolledRecipe(**values)  # type: ignore[arg-type]


def test_the_loss_falls_and_step_sizes_are_learned() -> None:
    data = tiny_data([20, 20])
    problem = Unrolled(data, recipe(lr=0.05, step_size=0.2, init="real"), Run(place=CPU), [2, 2])
    for _ in range(60):
        problem.step()
    assert problem.losses[50:60].mean() < 0.5 * problem.losses[:5].mean()
    small = dd(data, recipe(iterations=5), Run(place=CPU))
    assert small.step_sizes is not None
    assert small.step_sizes.shape == (6,)
    assert (small.step_sizes != 0.02).all()
    assert len(small.step_sizes.unique()) == 6  # each step has its own


def test_step_sizes_are_saved_shown_and_checked(tmp_path: Path) -> None:
    small = dd(tiny_data([4, 4]), recipe(iterations=1), Run(place=CPU))
    small.save(tmp_path / "a.safetensors")
    back = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert back.step_sizes is not None
    assert torch.equal(back.step_sizes, small.step_sizes)
    assert summary(back)["step sizes"].startswith("6, 0.0")
    without = dataclasses.replace(small, step_sizes=None)
    without.save(tmp_path / "b.safetensors")
    assert cs.CondensedSet.load(tmp_path / "b.safetensors").step_sizes is None
    assert "step sizes" not in summary(without)
    for wrong in (torch.ones(2, 2), torch.ones(0), torch.ones(2).double()):
        with pytest.raises(cs.UserError, match="step sizes must be a list of float32"):
            dataclasses.replace(small, step_sizes=wrong)
    for wrong in (torch.tensor([0.1, -0.1]), torch.tensor([float("nan")])):
        with pytest.raises(cs.UserError, match="step sizes must be above 0"):
            dataclasses.replace(small, step_sizes=wrong)


def test_one_fixed_network_is_the_same_in_every_iteration() -> None:
    data = tiny_data([5, 5])
    losses = {}
    for fixed in (True, False):
        problem = Unrolled(data, recipe(fixed_network=fixed, batch=10, lr=1e-9), Run(place=CPU), [2, 2])
        for _ in range(3):
            problem.step()
        losses[fixed] = problem.losses[:3]
    assert float(losses[True].std()) < 1e-6 < float(losses[False].std())


def test_own_steps_of_a_fixed_network_start_from_it() -> None:
    data, network = tiny_data([6, 6]), "mlp(width=16)"
    fixed = recipe(network=network, fixed_network=True, iterations=3, batch=12)
    small = dd(data, fixed, Run(seed=5, place=CPU))
    problem = Unrolled(data, fixed, Run(seed=5, place=CPU), [2, 2])
    start = problem.parameters.initial(draws.flat_uniform(problem.keys["network"], 0, problem.parameters.num))

    made = Protocol(network=network, momentum=0, weight_decay=0, augment="none", own_steps=True)
    trainer = Trainer(network, TrainingSet.of(small, CPU.device), made, CPU)
    schedule, sizes = dealt(small.labels, fixed.steps, fixed.epochs), small.step_sizes
    assert sizes is not None
    assert list(trainer.descending(5, schedule=[], step_sizes=[])) == []
    torch.testing.assert_close(trainer.weights, start)
    assert len(list(trainer.descending(5, schedule=schedule, step_sizes=sizes.tolist()))) == len(sizes)

    own = cs.evaluate(small, data, nets=3, seed=1, own_steps=True, device="cpu")
    assert own.accuracies == (trainer.accuracy(TrainingSet.of(data, CPU.device)),)  # others would be the same
    others = cs.evaluate(small, data, network="mlp(width=8)", nets=3, own_steps=True, device="cpu")
    assert len(others.accuracies) == 3


def test_networks_start_by_xaviers_rule_in_learning_and_in_own_steps() -> None:
    """PyTorch's default has a third of the variance: through layers without a norm hardly a signal comes."""
    small = dd(tiny_data([6, 6]), recipe(iterations=1), Run(place=CPU))
    train_set, spec = TrainingSet.of(small, CPU.device), "mlp(width=16)"
    problem = Unrolled(tiny_data([6, 6]), recipe(), Run(place=CPU), [2, 2])
    trainer = Trainer(spec, train_set, Protocol(network=spec, augment="none", own_steps=True), CPU)
    assert list(trainer.descending(0, "evaluate", 0, schedule=[], step_sizes=[])) == []
    drawn = problem.parameters.initial(torch.rand(problem.parameters.num, generator=torch.Generator().manual_seed(0)))
    for weights in (drawn, trainer.weights):
        views = problem.parameters.views(weights, torch.float32)
        bound = (6 / (16 + 16)) ** 0.5
        assert 0.9 * bound < float(views["features.3.weight"].abs().max()) <= bound
        assert not views["features.3.bias"].any()
    trainer = Trainer(spec, train_set, Protocol(network=spec, augment="none"), CPU)  # for any other training
    trainer._draw(0, "evaluate", 0)
    views = problem.parameters.views(trainer.weights, torch.float32)
    assert 0.9 * 16**-0.5 < float(views["features.3.weight"].abs().max()) <= 16**-0.5
    assert views["features.3.bias"].all()


def test_networks_are_those_of_the_paper() -> None:
    names = {"mnist": "lenet", "fashionmnist": "lenet", "cifar10": "alexnet_small"}
    for name, network in names.items():
        made = make_recipe("dd", ipc=10, name=name, size=28)
        assert isinstance(made, UnrolledRecipe)
        assert made.network == network
    with pytest.raises(cs.UserError, match="steps must be a whole number, 1 or more"):
        recipe(steps=0)
    with pytest.raises(cs.UserError, match="step_size must be a number above 0"):
        recipe(step_size=0.0)
