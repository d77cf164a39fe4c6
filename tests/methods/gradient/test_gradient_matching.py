"""Gradient matching: equal to the published algorithm, chunks, tracing, published numbers of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from condenset import UserError, augment, networks
from condenset.data.image_data import ImageData
from condenset.engine import ComputeDevice, rng
from condenset.engine import compile as engine_compile
from condenset.methods import make_recipe
from condenset.methods.gradient.dc import DCRecipe
from condenset.methods.gradient.distance import row_distance
from condenset.methods.gradient.dsa import DSARecipe
from condenset.methods.gradient.gradient_matching import GradientMatching, condense
from condenset.methods.gradient.norms import NORM_IMAGES
from condenset.runs.context import RunContext
from helpers.reference_dm import augment_class, gradient_distance, tiny_data

CPU = ComputeDevice.select("cpu")


def tiny_recipe(recipe_class: type[DCRecipe] = DCRecipe, **fields: Any) -> DCRecipe:
    loops = {"iterations": 2, "outer_steps": 3, "inner_epochs": 2}
    return recipe_class(**{"ipc": 3, "network": "convnet(width=8, depth=2)", "batch_size": 5, **loops, **fields})


def make_matching(
    counts: list[int], run: RunContext | None = None, recipe_class: type[DCRecipe] = DCRecipe, **fields: Any
) -> GradientMatching:
    recipe = tiny_recipe(recipe_class, **fields)
    run = run or RunContext(seed=3, compute=CPU)
    return GradientMatching(tiny_data(counts), recipe, run, [min(recipe.ipc, count) for count in counts])


def run_steps(matching: GradientMatching, num_steps: int) -> None:
    step = matching.make_step()
    for number in range(num_steps):
        step(number)


def sample_real(data: ImageData, key: Tensor, step: int, label: int, num: int) -> Tensor:
    """Return the real images that a step uses of one class."""
    images = data.images[data.labels == label]
    count, stream = torch.tensor([len(images)]), torch.tensor([label])
    index = rng.sample_without_replacement(key, step, stream, count, max(data.class_counts), min(num, len(images)))[0]
    return (images[index].float() / 255 - 0.5) / 0.25


def augment_batch(images: Tensor, stages: augment.Stages, uniform_NU: Tensor) -> Tensor:
    """Augment a training batch: one operation for all images, with parameters per image."""
    uniform_NU[:, 0] = uniform_NU[0, 0]
    augmented = [augment_class(image[None], stages, u) for image, u in zip(images, uniform_NU, strict=True)]
    return torch.cat(augmented)


def reference_run(
    data: ImageData, recipe: DCRecipe, images: list[Tensor], seed: int
) -> tuple[list[Tensor], list[float]]:
    """Return images and losses of the published algorithm, with modules, two optimisers and a loop over classes."""
    keys = {use: rng.make_key(seed, use) for use in ("network", "augment", "real", "norm", "order", "training")}
    stages, (outer_steps, inner_epochs) = augment.parse_strategy(recipe.augment), recipe.loops
    images = [class_images.clone().requires_grad_() for class_images in images]
    labels = torch.cat([torch.full((len(class_images),), label) for label, class_images in enumerate(images)])
    image_optimizer = torch.optim.SGD(images, lr=recipe.lr, momentum=recipe.momentum)
    step, num_updates, losses = 0, 0, []
    for _ in range(recipe.iterations):
        network = networks.build(recipe.network, channels=3, size=8, num_classes=data.num_classes)
        num_parameters = networks.FlatParameters(network, CPU.device).num
        networks.initialize(network, rng.flat_uniform(keys["network"], step, num_parameters))
        network_optimizer = torch.optim.SGD(network.parameters(), lr=recipe.network_lr)
        for outer_step in range(outer_steps):
            for module in network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.momentum = 1.0
            network.train()
            classes = range(data.num_classes)
            network(torch.cat([sample_real(data, keys["norm"], step, label, NORM_IMAGES) for label in classes]))
            network.eval()
            loss = torch.zeros(())
            for label in classes:
                real, synthetic = sample_real(data, keys["real"], step, label, recipe.batch_size), images[label]
                if stages:
                    u = rng.uniform(keys["augment"], step, torch.tensor([label]), augment.NUM_UNIFORMS)[0]
                    real, synthetic = (augment_class(batch, stages, u) for batch in (real, synthetic))
                loss = loss + gradient_distance(network, real, synthetic, label)
            image_optimizer.zero_grad()
            loss.backward()
            image_optimizer.step()
            losses.append(float(loss.detach()))
            network.train()
            for _ in range(inner_epochs if outer_step + 1 < outer_steps else 0):
                batch = torch.cat([class_images.detach() for class_images in images])  # all, so their order is fixed
                if stages:
                    rows = torch.arange(len(batch))
                    uniform_NU = rng.uniform(keys["training"], num_updates, rows, augment.NUM_UNIFORMS)
                    batch = augment_batch(batch, stages, uniform_NU)
                network_optimizer.zero_grad()
                F.cross_entropy(network(batch), labels).backward()
                network_optimizer.step()
                num_updates += 1
            step += 1
    return [class_images.detach() for class_images in images], losses


@pytest.mark.parametrize("recipe_class", [DCRecipe, DSARecipe])
@pytest.mark.parametrize("norm", ["instance", "batch", "layer"])
@pytest.mark.parametrize("counts", [[6, 6, 6], [20, 2, 5]], ids=["equal", "unequal"])
def test_run_equals_the_published_algorithm(recipe_class: type[DCRecipe], norm: str, counts: list[int]) -> None:
    data = tiny_data(counts)
    # A smooth activation, because at the kink of ReLU rounding errors would have a large effect.
    network = f"convnet(width=8, depth=2, norm={norm!r}, activation='swish')"
    recipe = tiny_recipe(recipe_class, network=network, network_lr=0.05, allow_fewer=True)
    set_counts = [min(recipe.ipc, count) for count in counts]
    matching = GradientMatching(data, recipe, RunContext(seed=3, compute=CPU), set_counts)
    initial = list(matching.images_NCHW.clone().split(set_counts))
    expected, losses = reference_run(data, recipe, initial, seed=3)
    run_steps(matching, recipe.image_steps)
    torch.testing.assert_close(matching.losses[: recipe.image_steps], torch.tensor(losses), rtol=1e-3, atol=1e-3)
    assert (matching.images_NCHW - torch.cat(initial)).abs().max() > 0.05
    for images, expected_images in zip(matching.images_NCHW.split(set_counts), expected, strict=True):
        torch.testing.assert_close(images, expected_images, rtol=1e-2, atol=2e-3)


def test_every_epoch_of_the_network_has_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    matching, epochs = make_matching([6, 6], outer_steps=3, inner_epochs=2, iterations=2), []
    monkeypatch.setattr(matching.trainer, "train_epoch", lambda key, epoch, *_, **__: epochs.append(int(epoch)))
    run_steps(matching, matching.recipe.image_steps)
    assert len(epochs) == len(set(epochs)) == 2 * 2 * 2  # none after the last match of a network
    assert matching.trainer.protocol.batch_size == 256


def test_distance_is_one_minus_cosine_summed_over_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    real, synthetic = ({"a": torch.randn(2, 3, 4, generator=generator)} for _ in range(2))
    real["b"], synthetic["b"] = 5 * real["a"], real["a"] * torch.tensor([1.0, -2.0])[:, None, None]
    synthetic["a"][1, 2] = 0  # a row without gradient has distance 1
    expected = torch.zeros(2)
    for label in range(2):
        for name in ("a", "b"):
            for a, b in zip(real[name][label], synthetic[name][label], strict=True):
                norms = float(a.square().sum().sqrt() * b.square().sum().sqrt())
                expected[label] += 1 - float((a * b).sum()) / norms if norms else 1.0
    torch.testing.assert_close(row_distance(real, synthetic), expected, rtol=1e-4, atol=1e-5)
    synthetic["a"].requires_grad_()
    row_distance(real, synthetic).sum().backward()
    assert synthetic["a"].grad is not None
    assert synthetic["a"].grad.isfinite().all()


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_chunks_of_classes_do_not_change_the_result(norm: str) -> None:
    fields = {"network": f"convnet(width=8, depth=2, norm={norm!r})", "allow_fewer": True}
    runs = (RunContext(seed=3, compute=CPU, classes_per_chunk=num) for num in (None, 2))
    whole, chunked = (make_matching([6, 2, 6, 4], run, DSARecipe, **fields) for run in runs)
    assert (len(whole.chunks), len(chunked.chunks)) == (1, 2)
    for matching in (whole, chunked):
        run_steps(matching, 3)
    torch.testing.assert_close(chunked.images_NCHW, whole.images_NCHW, rtol=1e-3, atol=1e-4)
    with pytest.warns(UserWarning, match="one class at a time"):
        assert len(make_matching([6, 6, 6, 6], RunContext(compute=CPU, memory_limit=1)).chunks) == 4


def gradient_arguments(matching: GradientMatching) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return arguments for `real_gradients` and for `loss_and_gradient`."""
    chunk, network = matching.chunks[0], (matching.trainer.weights, matching.buffers)
    real_KBCHW = matching.store.take_normalized(
        matching.store.sample_class_indices(matching.keys["real"], 0, chunk.classes_K, 5)
    )
    real_arguments = (*network, real_KBCHW, chunk.classes_K, chunk.real_weight_KB)
    real = matching.real_gradients(*real_arguments)
    images_KICHW = matching.images_NCHW.unflatten(0, (2, -1))
    return real_arguments, (*network, images_KICHW, chunk.classes_K, chunk.synthetic_weight_KI, real)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_traced_functions_equal_the_functions(norm: str) -> None:
    """On a GPU the second derivative is traced and compiled."""
    matching = make_matching([6, 6], network=f"convnet(width=8, depth=2, norm={norm!r})")
    matching.sample_network()
    real_arguments, arguments = gradient_arguments(matching)
    real = matching.real_gradients(*real_arguments)
    traced = make_fx(lambda *args: matching.real_gradients(*args))(*real_arguments)(*real_arguments)
    for name, gradient in real.items():
        torch.testing.assert_close(traced[name], gradient)
    traced = make_fx(lambda *args: matching.loss_and_gradient(*args))(*arguments)(*arguments)
    torch.testing.assert_close(traced, matching.loss_and_gradient(*arguments))


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_problems_of_equal_shapes_share_a_trace(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace takes all tensors as arguments and has none of the problem that it was made for."""
    graphs: list[object] = []
    monkeypatch.setattr(engine_compile, "compile_or_fallback", lambda graph, _: graphs.append(graph) or graph)
    monkeypatch.setattr(engine_compile, "_traces", {})
    gpu = ComputeDevice(torch.device("cuda"), torch.float32)
    spec = f"convnet(width=4, depth=1, norm={norm!r})"

    def check_trace(seed: int, recipe_class: type[DCRecipe] = DCRecipe, ipc: int = 3) -> None:
        recipe = tiny_recipe(recipe_class, network=spec, ipc=ipc)
        matching = GradientMatching(tiny_data([6, 6], seed=seed), recipe, RunContext(seed=seed, compute=CPU), [ipc] * 2)
        matching.sample_network()
        matching.update_batch_norm()
        compiled = engine_compile.compile_second_order(matching.loss_and_gradient, gpu, spec)
        _, arguments = gradient_arguments(matching)
        torch.testing.assert_close(compiled(*arguments), matching.loss_and_gradient(*arguments))

    check_trace(1)
    check_trace(2)
    check_trace(3, DSARecipe)
    assert len(graphs) == 1
    check_trace(4, ipc=2)
    assert len(graphs) == 2
    monkeypatch.setattr(engine_compile, "MAX_TRACES", 2)
    check_trace(5, ipc=1)
    check_trace(6)
    assert (len(graphs), len(engine_compile._traces)) == (4, 2)


def test_bfloat16_is_close_to_float32() -> None:
    bfloat16 = RunContext(seed=3, compute=ComputeDevice.select("cpu", "bfloat16"))
    fine, coarse = make_matching([9, 9]), make_matching([9, 9], bfloat16)
    for matching in (fine, coarse):
        matching.sample_network()
        matching.match()
    assert coarse.images_NCHW.dtype == torch.float32
    torch.testing.assert_close(coarse.losses[0], fine.losses[0], rtol=0.02, atol=1e-2)
    assert F.cosine_similarity(coarse.velocity.flatten(), fine.velocity.flatten(), dim=0) > 0.99


@pytest.mark.parametrize(
    ("fields", "batch_sizes"),
    [({}, {0, 2, 4}), ({"ipc": 2}, {4}), ({"outer_steps": 1}, set()), ({"inner_epochs": 0}, set())],
)
def test_training_steps_are_compiled_before_the_loop(
    fields: dict[str, Any], batch_sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.methods.gradient.gradient_matching.TRAIN_BATCH", 4)
    matching = make_matching([6, 6], **fields)
    matching.make_step()
    assert matching.trainer._steps.keys() == batch_sizes  # 0 is the shuffling


def test_loss_decreases() -> None:
    matching = make_matching([30, 30, 30], iterations=1, outer_steps=40, inner_epochs=0, batch_size=30)
    run_steps(matching, 40)
    assert matching.losses[35:40].mean() < 0.8 * matching.losses[:5].mean()


def test_dc_starts_from_noise_and_dsa_from_real_images() -> None:
    data = tiny_data([40, 40])
    noise = condense(data, tiny_recipe(ipc=30, iterations=0), RunContext(compute=CPU))
    assert abs(noise.normalized().std() - 1) < 0.1
    real = condense(data, tiny_recipe(DSARecipe, ipc=30, iterations=0), RunContext(compute=CPU))
    pixels = (real.images * 255).round().to(torch.uint8)
    assert all((data.images == image).flatten(1).all(1).any() for image in pixels)


def test_default_loops_are_the_published_ones() -> None:
    published = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}
    assert {ipc: DCRecipe(ipc=ipc).loops for ipc in published} == published
    assert DCRecipe(ipc=15).loops == (15, 38)  # 37.5, rounded to even
    assert DCRecipe(ipc=25).loops == (25, 22)
    assert DCRecipe(ipc=100).loops == DCRecipe(ipc=50).loops
    assert DCRecipe(ipc=10, outer_steps=3).loops == (3, 50)
    assert DCRecipe(ipc=50).image_steps == 50_000
    cifar100, cifar10 = (make_recipe("dsa", ipc=50, name=name, size=32) for name in ("cifar100", "cifar10"))
    assert isinstance(cifar100, DSARecipe)
    assert cifar100.loops == (10, 10)
    assert isinstance(cifar10, DSARecipe)
    assert (cifar10.iterations, cifar10.lr, cifar10.momentum, cifar10.batch_size) == (1000, 0.1, 0.5, 256)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outer_steps": 0}, "outer_steps must be .*, but got 0"),
        ({"outer_steps": 2.5}, "outer_steps must be .*, but got 2.5"),
        ({"inner_epochs": -1}, "inner_epochs must be .*, but got -1"),
        ({"inner_epochs": True}, "inner_epochs must be .*, but got True"),
        ({"network_lr": 0}, "network_lr must be a number above 0"),
    ],
)
def test_invalid_recipes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_recipe(**fields)
