"""Distribution matching: equal to Algorithm 1 as a loop over classes, chunks, several sizes, memory limits."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from condenset import UserError, augment, networks
from condenset.augment import Transform
from condenset.engine import ComputeDevice, rng
from condenset.engine.memory import MemoryEstimate, num_classes_that_fit
from condenset.methods import DMRecipe
from condenset.methods.matching import user_functions
from condenset.methods.matching.dm import (
    DistributionMatching,
    can_share,
    condense,
    condense_sizes,
    estimate_memory,
    make_problem,
)
from condenset.methods.matching.memory import estimate_matching_memory
from condenset.methods.matching.objectives import mean_distance
from condenset.methods.matching.sets import Chunk
from condenset.methods.samplers import RandomNetworks, build_on_meta
from condenset.runs.context import RunContext
from helpers.reference_dm import matching_loss, tiny_data

CPU = ComputeDevice.select("cpu")
BATCH_NORM = "convnet(width=8, depth=2, norm='batch')"


def make_recipe(**fields: Any) -> DMRecipe:
    return DMRecipe(**{"ipc": 3, "network": "convnet(width=8, depth=2)", "iterations": 4, "batch_size": 5, **fields})


def make_matching(counts: list[int], run: RunContext | None = None, **fields: Any) -> DistributionMatching:
    return make_problem(tiny_data(counts), [make_recipe(**fields)], run or RunContext(seed=3, compute=CPU))


def sample_network(matching: DistributionMatching, num_classes: int) -> torch.nn.Module:
    """Return the network of the current iteration as a module."""
    sampler = matching.networks
    assert isinstance(sampler, RandomNetworks)
    network = networks.build(matching.recipe.network, channels=3, size=8, num_classes=num_classes).train()
    missing, _ = network.load_state_dict(sampler.sample(matching.clock, torch.float32), strict=False)
    assert all(name.startswith("classifier") or "running" in name or "num_batches" in name for name in missing)
    return network


def reference_step(
    matching: DistributionMatching, counts: list[int], *, batch_norm: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return loss and gradients of the current iteration, class by class, with the same random numbers."""
    data, recipe, step = tiny_data(counts), matching.recipe, int(matching.clock)
    real, synthetic = [], []
    for label, count in enumerate(counts):
        num, stream = min(recipe.batch_size, count), torch.tensor([label])
        selected = rng.sample_without_replacement(
            matching.real_key, step, stream, torch.tensor([count]), max(counts), num
        )[0]
        pixels = data.images[data.labels == label][selected].float() / 255
        real.append((pixels - 0.5) / 0.25)
        images = matching.sets.images_KICHW[label, : min(recipe.ipc, count)]
        synthetic.append(images.clone().requires_grad_())
    loss = matching_loss(
        sample_network(matching, len(counts)),
        real,
        synthetic,
        stages=augment.parse_strategy(recipe.augment),
        uniforms=rng.uniform(matching.augment_key, step, torch.arange(len(counts)), augment.NUM_UNIFORMS),
        one_pass=batch_norm,
    )
    return loss.detach(), list(torch.autograd.grad(loss, synthetic))


@pytest.mark.parametrize("strategy", [augment.DEFAULT_STRATEGY, "none"])
@pytest.mark.parametrize("norm", ["none", "batch", "layer", "instance", "group"])
@pytest.mark.parametrize("counts", [[6, 6, 6], [7, 2, 5, 4]], ids=["equal", "unequal"])
def test_step_equals_algorithm_1(norm: str, strategy: str, counts: list[int]) -> None:
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    matching = make_matching(counts, network=spec, augment=strategy, allow_fewer=True)
    sets = matching.sets
    for _ in range(3):
        images, velocity = sets.images_KICHW.clone(), sets.velocity.clone()
        loss, gradients = reference_step(matching, counts, batch_norm=norm == "batch")
        step = int(matching.clock)
        matching.step()
        torch.testing.assert_close(matching.losses[step], loss, rtol=1e-4, atol=1e-6)
        for label, gradient in enumerate(gradients):
            index = label, slice(0, len(gradient))
            new_velocity = 0.5 * velocity[index] + gradient  # SGD with momentum 0.5
            torch.testing.assert_close(sets.velocity[index], new_velocity, rtol=2e-3, atol=2e-5)
            torch.testing.assert_close(sets.images_KICHW[index], images[index] - new_velocity, rtol=1e-3, atol=1e-4)


def test_images_of_a_class_do_not_depend_on_the_numbers_of_other_classes() -> None:
    data, numbers, run = tiny_data([9, 7, 8]), (1, 4, 2), RunContext(seed=3, compute=CPU)
    condensed = condense(data, make_recipe(ipc=numbers), run)
    for label, number in enumerate(numbers):
        alone = condense(data, make_recipe(ipc=number), run)
        actual, expected = (item.images[item.labels == label] for item in (condensed, alone))
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("norm", ["instance", "none"])
@pytest.mark.parametrize("classes_per_chunk", [1, 2, 3])
def test_chunks_of_classes_do_not_change_the_result(norm: str, classes_per_chunk: int) -> None:
    fields = {"network": f"convnet(width=8, depth=2, norm={norm!r})", "allow_fewer": True}
    whole = make_matching([6, 3, 6, 4], **fields)
    run = RunContext(seed=3, compute=CPU, classes_per_chunk=classes_per_chunk)
    chunked = make_matching([6, 3, 6, 4], run, **fields)
    assert len(chunked.chunks) > 1
    for _ in range(5):
        whole.step()
        chunked.step()
    torch.testing.assert_close(chunked.sets.images_KICHW, whole.sets.images_KICHW, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(chunked.losses, whole.losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("counts", [[6, 6, 6], [7, 2, 5, 4]], ids=["equal", "unequal"])
def test_real_images_in_several_passes_do_not_change_the_result(counts: list[int]) -> None:
    whole, split = (make_matching(counts, allow_fewer=True) for _ in range(2))
    assert whole.images_per_pass is not None
    assert whole.images_per_pass > 30  # such small feature maps fit the cache
    split.images_per_pass = 2
    for _ in range(3):
        whole.step()
        split.step()
    torch.testing.assert_close(split.sets.images_KICHW, whole.sets.images_KICHW, rtol=1e-3, atol=1e-4)
    assert make_matching([5, 5], network=BATCH_NORM).images_per_pass is None


def test_batch_norm_refuses_chunks() -> None:
    with pytest.raises(UserError, match="batch norm needs all 3 classes in one pass"):
        make_matching([5, 5, 5], RunContext(seed=3, compute=CPU, classes_per_chunk=2), network=BATCH_NORM)


def test_order_of_images_between_classes_does_not_matter() -> None:
    data = tiny_data([6, 6, 6])
    order = torch.argsort(data.labels, stable=True)
    sorted_data = dataclasses.replace(data, images=data.images[order], labels=data.labels[order])
    first, second = (condense(source, make_recipe(), RunContext(compute=CPU)) for source in (data, sorted_data))
    assert torch.equal(first.images, second.images)


def test_noise_is_normalised_and_real_init_selects_real_images() -> None:
    data = tiny_data([40, 40])
    noise = condense(data, make_recipe(ipc=30, init="noise", iterations=0), RunContext(compute=CPU))
    assert abs(noise.normalized().mean()) < 0.1
    assert abs(noise.normalized().std() - 1) < 0.1
    real = condense(data, make_recipe(ipc=30, init="real", iterations=0), RunContext(compute=CPU))
    pixels = (real.images * 255).round().to(torch.uint8)
    for image, label in zip(pixels, real.labels, strict=True):
        assert (data.images[data.labels == label] == image).flatten(1).all(1).any()
    assert len(pixels.flatten(1).unique(dim=0)) == 60


def test_loss_decreases() -> None:
    matching = make_matching([30, 30, 30], init="noise", batch_size=30, lr=1.0, augment="none")
    for _ in range(60):
        matching.step()
    assert matching.losses[50:60].mean() < 0.5 * matching.losses[:5].mean()


def test_bfloat16_is_close_to_float32() -> None:
    bfloat16 = ComputeDevice.select("cpu", "bfloat16")
    fine, coarse = make_matching([6, 6]), make_matching([6, 6], RunContext(seed=3, compute=bfloat16))
    fine.step()
    coarse.step()
    assert coarse.sets.images_KICHW.dtype == torch.float32
    torch.testing.assert_close(coarse.losses[0], fine.losses[0], rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("counts", [[7, 7, 7], [7, 2, 5]], ids=["equal", "unequal"])
def test_several_sizes_at_once_equal_each_size_alone(counts: list[int]) -> None:
    data = tiny_data(counts)
    sizes: tuple[dict[str, Any], ...] = ({"ipc": 1}, {"ipc": 3, "lr": 10.0}, {"ipc": 2})
    recipes = [make_recipe(allow_fewer=True, **size) for size in sizes]
    condensed_sets = condense_sizes(data, recipes, RunContext(seed=3, compute=CPU))
    for condensed, recipe in zip(condensed_sets, recipes, strict=True):
        alone = condense(data, recipe, RunContext(seed=3, compute=CPU))
        torch.testing.assert_close(condensed.images, alone.images, rtol=1e-3, atol=1e-4)
        assert torch.equal(condensed.labels, alone.labels)
        assert condensed.provenance["recipe"] == recipe.to_dict()
        assert condensed.provenance["together"] == [1, 3, 2]


def test_all_sizes_share_the_real_images_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [make_recipe(ipc=1), make_recipe(ipc=2)]
    matching = make_problem(tiny_data([6, 6]), recipes, RunContext(compute=CPU))
    calls = []
    augment = matching.store.augment
    monkeypatch.setattr(matching.store, "augment", lambda *args: calls.append(1) or augment(*args))
    matching.step()
    assert len(calls) == len(matching.chunks)


def test_real_images_of_a_chunk_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunContext(compute=CPU, classes_per_chunk=1)
    matching = make_problem(tiny_data([6, 6, 6]), [make_recipe(ipc=1), make_recipe(ipc=2)], run)
    sample_real, references = matching.sample_real, []

    def record(chunk: Chunk, transform: Transform | None) -> Tensor:
        assert all(reference() is None for reference in references)
        images = sample_real(chunk, transform)
        references.append(weakref.ref(images))
        return images

    monkeypatch.setattr(matching, "sample_real", record)
    matching.step()
    assert len(references) == 3


def test_last_layer_gradients_at_uniform_predictions_are_mean_features() -> None:
    """The paper's appendix: matching mean last-layer gradients equals matching mean features times a constant."""
    classes, features = 7, 11
    real, synthetic = torch.randn(9, features, dtype=torch.float64), torch.randn(4, features, dtype=torch.float64)
    label = 2

    def mean_gradient(embedded: Tensor) -> Tensor:
        weight = torch.zeros(classes, features, dtype=torch.float64, requires_grad=True)  # uniform predictions
        target = torch.full((len(embedded),), label)
        loss = torch.nn.functional.cross_entropy(embedded @ weight.T, target)
        return torch.autograd.grad(loss, weight)[0]

    weights = torch.full((classes, 1), 1 / classes, dtype=torch.float64)
    weights[label] = (1 - classes) / classes
    torch.testing.assert_close(mean_gradient(real), weights * real.mean(0))
    distance = (mean_gradient(real) - mean_gradient(synthetic)).square().sum()
    one = torch.ones(1, 1)
    expected = mean_distance(real[None].float(), synthetic[None].float(), one.expand(1, 9) / 9, one.expand(1, 4) / 4)
    constant = ((1 - classes) / classes) ** 2 + (classes - 1) / classes**2
    torch.testing.assert_close(distance.float(), constant * expected[0])


def make_limited(memory_limit: int | None, **fields: Any) -> DistributionMatching:
    run = RunContext(seed=3, compute=CPU, memory_limit=memory_limit)
    return make_matching([40] * 7, run, **{"batch_size": 40, **fields})


def estimate(count: int = 40, **fields: Any) -> MemoryEstimate:
    """Return the memory estimate for seven classes of `count` images."""
    data, recipe = tiny_data([count] * 7), make_recipe(batch_size=40, **fields)
    return estimate_matching_memory(build_on_meta(recipe.network, data, embedding=True), data, [recipe], CPU)


@pytest.mark.filterwarnings("ignore:one class needs")
def test_classes_are_split_evenly_and_into_fewer_chunks_with_more_memory() -> None:
    num_chunks = []
    for bits in range(10, 34):
        sizes = [len(chunk.classes_K) for chunk in make_limited(2**bits).chunks]
        assert sum(sizes) == 7
        assert len(sizes) == -(-7 // sizes[0])
        num_chunks.append(len(sizes))
    assert num_chunks == sorted(num_chunks, reverse=True)
    assert (num_chunks[0], num_chunks[-1]) == (7, 1)
    assert len(set(num_chunks)) > 2


def test_memory_limit_covers_images_and_feature_maps() -> None:
    few, many = estimate(40), estimate(80)
    assert few.bytes_per_class == many.bytes_per_class
    assert many.fixed_bytes - few.fixed_bytes >= 7 * 40 * 3 * 8 * 8
    synthetic_bytes = estimate(ipc=4).fixed_bytes - few.fixed_bytes
    assert synthetic_bytes == 4 * 7 * 3 * 8 * 8 * 4  # images and velocity, and a copy of both
    for num_classes in (1, 2, 7):
        assert num_classes_that_fit(few, CPU, few.total(num_classes)) == num_classes
        assert num_classes_that_fit(many, CPU, many.total(num_classes)) == num_classes
    assert num_classes_that_fit(many, CPU, many.total(7) - 1) == 6
    assert num_classes_that_fit(few, CPU, 2**60) == num_classes_that_fit(few, CPU)  # a limit cannot raise the number


def test_memory_limit_changes_only_the_chunks() -> None:
    unlimited = make_limited(None)
    limited = make_limited(estimate().total(2))
    chunked = make_matching([40] * 7, RunContext(seed=3, compute=CPU, classes_per_chunk=2), batch_size=40)
    assert (len(unlimited.chunks), len(limited.chunks), len(chunked.chunks)) == (1, 4, 4)
    for _ in range(3):
        for matching in (unlimited, limited, chunked):
            matching.step()
    assert torch.equal(limited.sets.images_KICHW, chunked.sets.images_KICHW)
    torch.testing.assert_close(limited.sets.images_KICHW, unlimited.sets.images_KICHW, rtol=1e-3, atol=1e-4)


def test_memory_limit_below_one_class_warns_once() -> None:
    with pytest.warns(
        UserWarning, match=r"one class needs about [\d.]+ MiB, more than the memory limit of 1 KiB"
    ) as warnings:
        matching = make_limited(1024)
    assert len(warnings) == 1
    assert len(matching.chunks) == 7


def test_batch_norm_refuses_a_memory_limit_below_all_classes() -> None:
    with pytest.raises(UserError, match=r"batch norm needs all 7 .* about [\d.]+ MiB, but .* limit is 1 MiB"):
        make_limited(2**20, network=BATCH_NORM)
    assert len(make_limited(2**30, network=BATCH_NORM).chunks) == 1


def test_sizes_share_a_run_if_only_size_and_learning_rate_differ() -> None:
    recipe = DMRecipe(ipc=1)
    assert can_share(recipe, DMRecipe(ipc=10, lr=5.0, allow_fewer=True))
    others: list[dict[str, Any]] = [{"batch_size": 8}, {"iterations": 3}, {"network": "mlp"}, {"init": "noise"}]
    for fields in (*others, {"momentum": 0.1}):
        assert not can_share(recipe, DMRecipe(ipc=10, **fields))


def test_sizes_do_not_share_a_run_with_batch_norm_or_own_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(user_functions._functions, ("sampler", "sample"), lambda iteration: None)
    own = networks.as_spec(lambda channels, size, num_classes: torch.nn.Flatten(), name="own_flatten")
    others: list[dict[str, Any]] = [{"network": BATCH_NORM}, {"network": own}, {"sampler": "sample"}]
    for fields in others:
        assert not can_share(DMRecipe(ipc=1, **fields), DMRecipe(ipc=10, **fields))


def test_memory_estimate_depends_on_the_limit_except_with_batch_norm() -> None:
    data = tiny_data([9] * 6)
    unlimited = estimate_memory(data, make_recipe(), CPU, None)
    assert estimate_memory(data, make_recipe(ipc=9), CPU, None) > unlimited
    assert estimate_memory(data, make_recipe(), CPU, unlimited - 1) < unlimited
    batch_norm = make_recipe(network=BATCH_NORM)
    assert estimate_memory(data, batch_norm, CPU, 1) == estimate_memory(data, batch_norm, CPU, None)
