"""Distribution matching against Algorithm 1 written plainly; seeds, chunks, resuming."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from condenset import UserError, augment, draws, networks
from condenset.engine import Place
from condenset.engine.memory import classes_together
from condenset.methods.matching import Chunk, Matching, Seen, _need, can_be_one, dm, dm_sizes, mean_distance
from condenset.recipes import DistributionRecipe, MatchingRecipe, RandomRecipe
from condenset.runs import Interrupted, Run
from plain import StopAtStep, matching_loss, tiny_data

CPU = Place.best("cpu")


def recipe(**fields: object) -> MatchingRecipe:
    values = {"ipc": 3, "network": "convnet(width=8, depth=2)", "iterations": 4, "batch": 5, **fields}
    return MatchingRecipe(**values)  # type: ignore[arg-type]


def problem(counts: list[int], run: Run | None = None, **fields: object) -> Matching:
    data, made = tiny_data(counts), recipe(**fields)
    return Matching(data, [made], run or Run(seed=3, place=CPU), mean_distance)


def plain_step(matching: Matching, counts: list[int], norm: str) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradient of the iteration the clock stands at, one class after the other, from the same draws."""
    data, made, step = tiny_data(counts), matching.recipe, int(matching.clock)
    with torch.device("meta"):
        network = networks.build(made.network, channels=3, size=8, num_classes=len(counts))
    network = network.to_empty(device="cpu").train()
    head = [name for name, _ in network.named_parameters() if name.startswith("classifier")]
    uniform = draws.flat_uniform(matching.keys["network"], step, matching.parameters.num)
    weights = matching.parameters.views(matching.parameters.initial(uniform), torch.float32)
    missing, _ = network.load_state_dict(weights, strict=False)
    assert all(name in head or "running" in name or "num_batches" in name for name in missing)
    real, synthetic = [], []
    for number, count in enumerate(counts):
        row = torch.tensor([number])
        num = min(made.batch, count)
        chosen = draws.subsets(matching.keys["real"], step, row, torch.tensor([count]), max(counts), num)[0]
        pixels = data.images[data.labels == number][chosen].float() / 255
        real.append((pixels - 0.5) / 0.25)
        synthetic.append(matching.images_KICHW[number, : min(made.ipc, count)].clone().requires_grad_())
    uniforms = draws.uniform(matching.keys["augment"], step, torch.arange(len(counts)), augment.NUM_UNIFORMS)
    loss = matching_loss(
        network,
        real,
        synthetic,
        operations=augment.parse(made.augment),
        uniforms=uniforms,
        together=norm == "batch",
    )
    return loss.detach(), list(torch.autograd.grad(loss, synthetic))


@pytest.mark.parametrize("strategy", [augment.STRATEGY, "none"])
@pytest.mark.parametrize("norm", ["none", "batch", "layer", "instance", "group"])
@pytest.mark.parametrize("counts", [[6, 6, 6], [7, 2, 5, 4]], ids=["equal", "unequal"])
def test_step_is_algorithm_1(norm: str, strategy: str, counts: list[int]) -> None:
    matching = problem(counts, network=f"convnet(width=8, depth=2, norm={norm!r})", augment=strategy, allow_fewer=True)
    for _ in range(3):
        images, velocity = matching.images_KICHW.clone(), matching.velocity.clone()
        loss, gradients = plain_step(matching, counts, norm)
        place = int(matching.clock)
        matching.step()
        torch.testing.assert_close(matching.losses[place], loss, rtol=1e-4, atol=1e-6)
        for number, gradient in enumerate(gradients):
            mine = slice(0, len(gradient))
            new = 0.5 * velocity[number, mine] + gradient  # SGD with momentum 0.5
            torch.testing.assert_close(matching.velocity[number, mine], new, rtol=2e-3, atol=2e-5)
            torch.testing.assert_close(
                matching.images_KICHW[number, mine], images[number, mine] - new, rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("norm", ["instance", "none"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_of_classes_give_the_same(norm: str, chunk: int) -> None:
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    whole = problem([6, 3, 6, 4], network=spec, allow_fewer=True)
    parts = problem([6, 3, 6, 4], Run(seed=3, place=CPU, chunk=chunk), network=spec, allow_fewer=True)
    assert len(parts.chunks) > 1
    for _ in range(5):
        whole.step()
        parts.step()
    torch.testing.assert_close(parts.images_KICHW, whole.images_KICHW, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.losses, whole.losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("counts", [[6, 6, 6], [7, 2, 5, 4]], ids=["equal", "unequal"])
def test_slices_of_the_real_images_give_the_same(counts: list[int]) -> None:
    whole, sliced = (problem(counts, allow_fewer=True) for _ in range(2))
    assert whole.slice is not None
    assert whole.slice > 30  # maps this small need no slices
    sliced.slice = 2
    for _ in range(3):
        whole.step()
        sliced.step()
    torch.testing.assert_close(sliced.images_KICHW, whole.images_KICHW, rtol=1e-3, atol=1e-4)
    assert problem([5, 5], network="convnet(width=8, depth=2, norm='batch')").slice is None


def test_batch_norm_refuses_chunks() -> None:
    with pytest.raises(UserError, match="batch norm needs all 3 classes in one pass"):
        problem([5, 5, 5], Run(seed=3, place=CPU, chunk=2), network="convnet(width=8, depth=2, norm='batch')")


def test_the_same_seed_is_bitwise_the_same_set_and_another_is_another() -> None:
    data = tiny_data([6, 6, 6])
    first, again, other = (dm(data, recipe(), Run(seed=seed, place=CPU)).images for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_order_of_the_data_between_classes_does_not_matter() -> None:
    data = tiny_data([6, 6, 6])
    order = torch.argsort(data.labels, stable=True)
    by_class = dataclasses.replace(data, images=data.images[order], labels=data.labels[order])
    assert torch.equal(dm(data, recipe(), Run(place=CPU)).images, dm(by_class, recipe(), Run(place=CPU)).images)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_stopped_and_resumed_is_bitwise_the_same(tmp_path: Path, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, made = tiny_data([6, 6, 6]), recipe(iterations=9, network=f"convnet(width=8, depth=2, norm={norm!r})")
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    expected = dm(data, made, Run(seed=1, place=CPU)).images
    stops = 0
    for step in (2, 5, 99):
        run = Run(seed=1, place=CPU, folder=tmp_path, job="dm-3", recipe=dataclasses.asdict(made))
        run.progress = StopAtStep(run, step)
        try:
            images = dm(data, made, run).images
        except Interrupted:
            stops += 1
    assert stops == 2
    assert torch.equal(images, expected)


def test_noise_starts_in_normalised_space_and_real_starts_as_real_images() -> None:
    data = tiny_data([40, 40])
    noise = dm(data, recipe(ipc=30, init="noise", iterations=0), Run(place=CPU))
    assert abs(noise.normalised().mean()) < 0.1
    assert abs(noise.normalised().std() - 1) < 0.1
    real = dm(data, recipe(ipc=30, init="real", iterations=0), Run(place=CPU))
    pixels = (real.images * 255).round().to(torch.uint8)
    for image, label in zip(pixels, real.labels, strict=True):
        assert (data.images[data.labels == label] == image).flatten(1).all(1).any()
    assert len(pixels.flatten(1).unique(dim=0)) == 60


def test_the_loss_falls() -> None:
    matching = problem([30, 30, 30], init="noise", batch=30, lr=1.0, augment="none")
    for _ in range(60):
        matching.step()
    assert matching.losses[50:60].mean() < 0.5 * matching.losses[:5].mean()


def test_bfloat16_is_near_float32() -> None:
    fine, coarse = problem([6, 6]), problem([6, 6], Run(seed=3, place=Place.best("cpu", "bfloat16")))
    fine.step()
    coarse.step()
    assert coarse.images_KICHW.dtype == torch.float32
    torch.testing.assert_close(coarse.losses[0], fine.losses[0], rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("counts", [[7, 7, 7], [7, 2, 5]], ids=["equal", "unequal"])
def test_several_sizes_at_once_are_what_each_is_alone(norm: str, counts: list[int]) -> None:
    data, spec = tiny_data(counts), f"convnet(width=8, depth=2, norm={norm!r})"
    shapes = ({"ipc": 1}, {"ipc": 3, "lr": 10.0}, {"ipc": 2})
    recipes = [recipe(network=spec, allow_fewer=True, **shape) for shape in shapes]
    found = dm_sizes(data, recipes, Run(seed=3, place=CPU))
    for mine, made in zip(found, recipes, strict=True):
        alone = dm(data, made, Run(seed=3, place=CPU))
        torch.testing.assert_close(mine.images, alone.images, rtol=1e-3, atol=1e-4)
        assert torch.equal(mine.labels, alone.labels)
        assert mine.provenance["recipe"] == dataclasses.asdict(made)
        assert mine.provenance["together"] == [1, 3, 2]


def test_a_step_takes_the_real_images_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    matching = Matching(tiny_data([6, 6]), [recipe(ipc=1), recipe(ipc=2)], Run(place=CPU), mean_distance)
    taken = []
    take = matching.store.take_augmented
    monkeypatch.setattr(matching.store, "take_augmented", lambda *args: taken.append(1) or take(*args))
    matching.step()
    assert len(taken) == len(matching.chunks)


def test_what_was_seen_of_a_chunk_is_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(place=CPU, chunk=1)
    matching = Matching(tiny_data([6, 6, 6]), [recipe(ipc=1), recipe(ipc=2)], run, mean_distance)
    see, before = matching.see, []

    def note(chunk: Chunk, weights: Tensor) -> Seen:
        assert all(reference() is None for reference in before)
        seen = see(chunk, weights)
        before.append(weakref.ref(seen.real_KBF))
        return seen

    monkeypatch.setattr(matching, "see", note)
    matching.step()
    assert len(before) == 3


def test_fewer_images_than_asked_for_is_an_error_that_names_the_class() -> None:
    data = tiny_data([6, 2, 6])
    with pytest.raises(UserError, match="got 3 and class 'class 1' has 2 images"):
        dm(data, recipe(), Run(place=CPU))
    small = dm(data, recipe(allow_fewer=True, iterations=2), Run(place=CPU))
    assert small.labels.bincount().tolist() == [3, 2, 3]


def test_last_layer_gradients_at_uniform_predictions_are_mean_features() -> None:
    """The paper's appendix: matching mean last-layer gradients is matching mean features times a constant."""
    classes, features = 7, 11
    real, synthetic = torch.randn(9, features, dtype=torch.float64), torch.randn(4, features, dtype=torch.float64)
    label = 2

    def mean_gradient(embedded: Tensor) -> Tensor:
        weight = torch.zeros(classes, features, dtype=torch.float64, requires_grad=True)  # uniform predictions
        target = torch.full((len(embedded),), label)
        loss = torch.nn.functional.cross_entropy(embedded @ weight.T, target)
        return torch.autograd.grad(loss, weight)[0]

    gradient = mean_gradient(real)
    weights = torch.full((classes, 1), 1 / classes, dtype=torch.float64)
    weights[label] = (1 - classes) / classes
    torch.testing.assert_close(gradient, weights * real.mean(0))
    distance = (mean_gradient(real) - mean_gradient(synthetic)).square().sum()
    one = torch.ones(1, 1)
    expected = mean_distance(real[None].float(), synthetic[None].float(), one.expand(1, 9) / 9, one.expand(1, 4) / 4)
    constant = ((1 - classes) / classes) ** 2 + (classes - 1) / classes**2
    torch.testing.assert_close(distance.float(), constant * expected[0])


def bounded(memory: int | None, **fields: object) -> Matching:
    return problem([40] * 7, Run(seed=3, place=CPU, memory=memory), **{"batch": 40, **fields})


@pytest.mark.filterwarnings("ignore:one class alone")
def test_classes_are_spread_evenly_over_the_chunks_that_memory_asks_for() -> None:
    for bits in range(10, 30):
        sizes = [len(chunk.classes_K) for chunk in bounded(2**bits).chunks]
        assert sum(sizes) == 7
        assert len(sizes) == -(-7 // sizes[0])


@pytest.mark.filterwarnings("ignore:one class alone")
def test_more_memory_never_means_fewer_classes_together() -> None:
    sizes = [len(bounded(2**bits).chunks) for bits in range(10, 34)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 7
    assert sizes[-1] == 1
    assert len(set(sizes)) > 2


def test_the_bound_is_on_all_that_is_held_not_on_the_maps_alone() -> None:
    few, many = (_need(bounded(None).network, tiny_data([count] * 7), [recipe(batch=40)], CPU) for count in (40, 80))
    assert few.a_class == many.a_class
    assert many.held - few.held >= 7 * 40 * 3 * 8 * 8
    learned = _need(bounded(None).network, tiny_data([40] * 7), [recipe(batch=40, ipc=4)], CPU).held - few.held
    assert learned == 4 * 7 * 3 * 8 * 8 * 4  # images and velocity, and a copy of both
    for classes in (1, 2, 7):
        assert classes_together(few, CPU, few.of(classes)) == classes
        assert classes_together(many, CPU, many.of(classes)) == classes
    assert classes_together(many, CPU, many.of(7) - 1) == 6
    assert classes_together(few, CPU, 2**60) == classes_together(few, CPU)  # a bound, no wish for more


def test_a_bound_changes_the_chunks_and_nothing_else() -> None:
    free = bounded(None)
    bound = _need(free.network, tiny_data([40] * 7), [free.recipe], CPU).of(2)
    tight, asked = bounded(bound), problem([40] * 7, Run(seed=3, place=CPU, chunk=2), batch=40)
    assert (len(free.chunks), len(tight.chunks), len(asked.chunks)) == (1, 4, 4)
    for _ in range(3):
        for matching in (free, tight, asked):
            matching.step()
    assert torch.equal(tight.images_KICHW, asked.images_KICHW)
    torch.testing.assert_close(tight.images_KICHW, free.images_KICHW, rtol=1e-3, atol=1e-4)


def test_a_bound_that_one_class_exceeds_is_told_of_and_gone_on_with() -> None:
    with pytest.warns(
        UserWarning, match=r"one class alone takes about [\d.]+ MiB, more than the memory of 1 KiB given"
    ) as told:
        matching = bounded(1024)
    assert len(told) == 1
    assert len(matching.chunks) == 7


def test_batch_norm_refuses_a_bound_that_all_classes_exceed() -> None:
    spec = "convnet(width=8, depth=2, norm='batch')"
    with pytest.raises(UserError, match=r"batch norm needs all 7 .* about [\d.]+ MiB, but got memory of 1 MiB"):
        bounded(2**20, network=spec)
    assert len(bounded(2**30, network=spec).chunks) == 1


def test_sizes_are_learned_at_once_where_they_differ_in_nothing_else() -> None:
    one = DistributionRecipe(ipc=1)
    assert can_be_one(one, DistributionRecipe(ipc=10, lr=5.0, allow_fewer=True))
    for fields in ({"batch": 8}, {"iterations": 3}, {"network": "mlp"}, {"init": "noise"}, {"momentum": 0.1}):
        assert not can_be_one(one, DistributionRecipe(ipc=10, **fields))  # type: ignore[arg-type]
    assert not can_be_one(one, RandomRecipe(ipc=10))
    assert not can_be_one(one, None)
