"""Gradient matching against the published algorithm written plainly; chunks, resuming, tracing, its table of steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from condenset import UserError, augment, draws, networks
from condenset.engine import Place
from condenset.engine import step as engine_step
from condenset.methods.gradient import NORM_IMAGES, GradientMatching, dc, dsa, row_distance
from condenset.presets import make_recipe
from condenset.recipes import GradientRecipe, SiameseRecipe, default_loops
from condenset.runs import Interrupted, Run
from condenset.types import ImageData
from plain import StopAtStep, augment_class, gradient_distance, tiny_data

CPU = Place.best("cpu")


def recipe(kind: type[GradientRecipe] = GradientRecipe, **fields: object) -> GradientRecipe:
    values = {"ipc": 3, "network": "convnet(width=8, depth=2)", "iterations": 2, "outer": 3, "inner": 2, "batch": 5}
    return kind(**{**values, **fields})  # type: ignore[arg-type]


def problem(counts: list[int], run: Run | None = None, **fields: object) -> GradientMatching:
    data, made = tiny_data(counts), recipe(**fields)
    return GradientMatching(data, made, run or Run(seed=3, place=CPU), [min(made.ipc, c) for c in counts])


def real_images(data: ImageData, key: Tensor, step: int, number: int, num: int) -> Tensor:
    own = data.images[data.labels == number]
    counts = torch.tensor([len(own)])
    chosen = draws.subsets(key, step, torch.tensor([number]), counts, max(data.class_counts), min(num, len(own)))[0]
    return (own[chosen].float() / 255 - 0.5) / 0.25


def plain_run(
    data: ImageData, made: GradientRecipe, images: list[Tensor], seed: int
) -> tuple[list[Tensor], list[float]]:
    """The images after all steps and the losses: a module, two optimisers and a loop over classes."""
    keys = {use: draws.make_key(seed, use) for use in ("network", "augment", "real", "norm", "order", "training")}
    operations, (outer, inner) = augment.parse(made.augment), made.loops
    images = [each.clone().requires_grad_() for each in images]
    labels = torch.cat([torch.full((len(each),), number) for number, each in enumerate(images)])
    sgd = torch.optim.SGD(images, lr=made.lr, momentum=made.momentum)
    step, trained, losses = 0, 0, []
    for _ in range(made.iterations):
        network = networks.build(made.network, channels=3, size=8, num_classes=data.num_classes)
        parameters = networks.Parameters(network, torch.device("cpu"))
        networks.initialise(network, draws.flat_uniform(keys["network"], step, parameters.num))
        of_network = torch.optim.SGD(network.parameters(), lr=made.network_lr)
        for number in range(outer):
            for module in network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.momentum = 1.0
            network.train()
            classes = range(data.num_classes)
            network(torch.cat([real_images(data, keys["norm"], step, c, NORM_IMAGES) for c in classes]))
            network.eval()
            loss = torch.zeros(())
            for c in classes:
                real, mine = real_images(data, keys["real"], step, c, made.batch), images[c]
                if operations:
                    drawn = draws.uniform(keys["augment"], step, torch.tensor([c]), augment.NUM_UNIFORMS)[0]
                    real, mine = (augment_class(each, operations, drawn) for each in (real, mine))
                loss = loss + gradient_distance(network, real, mine, c)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(float(loss.detach()))
            network.train()
            for each in range(inner if number + 1 < outer else 0):
                batch = torch.cat([each.detach() for each in images])  # all of them: no order is drawn
                if operations:
                    drawn = draws.uniform(keys["training"], trained, torch.arange(len(batch)), augment.NUM_UNIFORMS)
                    drawn[:, 0] = drawn[0, 0]  # the operation is the batch's, its parameters the image's
                    batch = torch.cat(
                        [augment_class(x[None], operations, u) for x, u in zip(batch, drawn, strict=True)]
                    )
                of_network.zero_grad()
                F.cross_entropy(network(batch), labels).backward()
                of_network.step()
                trained += 1
            step += 1
    return [each.detach() for each in images], losses


def test_every_pass_of_the_network_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    matching, clocks = problem([6, 6], outer=3, inner=2, iterations=2), []
    monkeypatch.setattr(matching.trainer, "one_pass", lambda key, clock: clocks.append(int(clock)))
    step = matching.prepare()
    for number in range(matching.recipe.image_steps):
        step(number)
    assert len(clocks) == len(set(clocks)) == 2 * 2 * 2  # none after the last match of a network
    assert matching.trainer.protocol.batch == 256


@pytest.mark.parametrize("kind", [GradientRecipe, SiameseRecipe])
@pytest.mark.parametrize("norm", ["instance", "batch", "layer"])
@pytest.mark.parametrize("counts", [[6, 6, 6], [20, 2, 5]], ids=["equal", "unequal"])
def test_a_run_is_the_plain_algorithm(kind: type[GradientRecipe], norm: str, counts: list[int]) -> None:
    data = tiny_data(counts)
    # Smooth: at a kink the rounding of one machine or the other turns a unit on or off.
    network = f"convnet(width=8, depth=2, norm={norm!r}, activation='swish')"
    made = recipe(kind, network=network, network_lr=0.05, allow_fewer=True)
    own = [min(made.ipc, count) for count in counts]
    matching = GradientMatching(data, made, Run(seed=3, place=CPU), own)
    started = list(matching.images_NCHW.clone().split(own))
    expected, losses = plain_run(data, made, started, seed=3)
    step = matching.prepare()
    for number in range(made.image_steps):
        step(number)
    torch.testing.assert_close(matching.losses[: made.image_steps], torch.tensor(losses), rtol=1e-3, atol=1e-3)
    assert (matching.images_NCHW - torch.cat(started)).abs().max() > 0.05
    for mine, plain in zip(matching.images_NCHW.split(own), expected, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-2, atol=2e-3)


def test_distance_is_one_minus_cosine_of_every_row() -> None:
    generator = torch.Generator().manual_seed(0)
    real, synthetic = ({"a": torch.randn(2, 3, 4, generator=generator)} for _ in range(2))
    real["b"], synthetic["b"] = 5 * real["a"], real["a"] * torch.tensor([1.0, -2.0])[:, None, None]
    synthetic["a"][1, 2] = 0  # no gradient, no direction
    expected = torch.zeros(2)
    for number in range(2):
        for name in ("a", "b"):
            for a, b in zip(real[name][number], synthetic[name][number], strict=True):
                norms = float(a.square().sum().sqrt() * b.square().sum().sqrt())
                expected[number] += 1 - float((a * b).sum()) / norms if norms else 1.0
    torch.testing.assert_close(row_distance(real, synthetic), expected, rtol=1e-4, atol=1e-5)
    synthetic["a"].requires_grad_()
    row_distance(real, synthetic).sum().backward()
    assert synthetic["a"].grad is not None
    assert synthetic["a"].grad.isfinite().all()


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_chunks_of_classes_give_the_same(norm: str) -> None:
    fields = {"kind": SiameseRecipe, "network": f"convnet(width=8, depth=2, norm={norm!r})", "allow_fewer": True}
    whole = problem([6, 2, 6, 4], **fields)
    parts = problem([6, 2, 6, 4], Run(seed=3, place=CPU, chunk=2), **fields)
    assert (len(whole.chunks), len(parts.chunks)) == (1, 2)
    for each in (whole, parts):
        step = each.prepare()
        for number in range(3):
            step(number)
    torch.testing.assert_close(parts.images_NCHW, whole.images_NCHW, rtol=1e-3, atol=1e-4)
    with pytest.warns(UserWarning, match="one class at a time"):
        assert len(problem([6, 6, 6, 6], Run(place=CPU, memory=1)).chunks) == 4


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_stopped_between_two_steps_of_a_network_and_resumed_is_bitwise_the_same(
    tmp_path: Path, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, made = tiny_data([6, 6]), recipe(SiameseRecipe, network=f"convnet(width=8, depth=2, norm={norm!r})")
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    expected = dsa(data, made, Run(seed=1, place=CPU)).images
    stops = 0
    for step in (2, 4, 99):  # the networks change after the third
        run = Run(seed=1, place=CPU, folder=tmp_path, job="dsa-3", recipe=dataclasses.asdict(made))
        run.progress = StopAtStep(run, step)
        try:
            images = dsa(data, made, run).images
        except Interrupted:
            stops += 1
    assert stops == 2
    assert torch.equal(images, expected)


def test_the_traced_step_is_the_step() -> None:
    """On a GPU the gradient of the gradient is traced to plain operations and compiled; the trace is checked here."""
    for norm in ("instance", "batch"):
        matching = problem([6, 6], network=f"convnet(width=8, depth=2, norm={norm!r})")
        matching.draw_network()
        chunk, given = matching.chunks[0], (matching.trainer.weights, matching.buffers)
        real_KBCHW = matching.store.take(matching.store.choose(matching.keys["real"], 0, chunk.classes_K, 5))
        args = (*given, real_KBCHW, chunk.classes_K, chunk.real_KB)
        real = matching.real_gradients(*args)
        again = make_fx(lambda *args: matching.real_gradients(*args))(*args)(*args)  # noqa: B023
        for name, gradient in real.items():
            torch.testing.assert_close(again[name], gradient)
        args = (*given, matching.images_NCHW.unflatten(0, (2, 3)), chunk.classes_K, chunk.synthetic_KI, real)
        again = make_fx(lambda *args: matching.loss_and_slope(*args))(*args)(*args)  # noqa: B023
        torch.testing.assert_close(again, matching.loss_and_slope(*args))


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_a_trace_serves_all_problems_of_its_shapes(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads comes as arguments: nothing of the problem it was made for is left in it."""
    made: list[object] = []
    monkeypatch.setattr(engine_step, "compiled", lambda graph, _: made.append(graph) or graph)
    monkeypatch.setattr(engine_step, "_traces", {})
    gpu = Place(torch.device("cuda"), torch.float32)

    def check(seed: int, method: type[GradientRecipe] = GradientRecipe, **fields: Any) -> None:
        spec = f"convnet(width=8, depth=2, norm={norm!r})"
        data, run = tiny_data([6, 6], seed=seed), Run(seed=seed, place=CPU)
        matching = GradientMatching(data, recipe(method, network=spec, **fields), run, [fields.get("ipc", 3)] * 2)
        matching.draw_network()
        matching._set_statistics()
        fast = engine_step.traced(matching.loss_and_slope, gpu, spec)
        chunk, weights = matching.chunks[0], matching.trainer.weights
        real_KBCHW = matching.store.take(matching.store.choose(matching.keys["real"], 0, chunk.classes_K, 5))
        real = matching.real_gradients(weights, matching.buffers, real_KBCHW, chunk.classes_K, chunk.real_KB)
        images_KICHW = matching.images_NCHW.unflatten(0, (2, -1))
        args = (weights, matching.buffers, images_KICHW, chunk.classes_K, chunk.synthetic_KI, real)
        torch.testing.assert_close(fast(*args), matching.loss_and_slope(*args))

    check(1)
    check(2)
    check(3, SiameseRecipe)
    assert len(made) == 1
    check(4, ipc=2)
    assert len(made) == 2
    monkeypatch.setattr(engine_step, "MOST_TRACES", 2)
    check(5, ipc=1)
    check(6)
    assert (len(made), len(engine_step._traces)) == (4, 2)


def test_bfloat16_is_near_float32() -> None:
    fine, coarse = problem([9, 9]), problem([9, 9], Run(seed=3, place=Place.best("cpu", "bfloat16")))
    for each in (fine, coarse):
        each.draw_network()
        each.match()
    assert coarse.images_NCHW.dtype == torch.float32
    torch.testing.assert_close(coarse.losses[0], fine.losses[0], rtol=0.02, atol=1e-2)
    assert F.cosine_similarity(coarse.velocity.flatten(), fine.velocity.flatten(), dim=0) > 0.99


def test_all_that_takes_long_to_make_ready_is_made_ready_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.methods.gradient.TRAIN_BATCH", 4)
    for fields, sizes in (({}, {0, 2, 4}), ({"ipc": 2}, {4}), ({"outer": 1}, set()), ({"inner": 0}, set())):
        matching = problem([6, 6], **fields)
        matching.prepare()
        assert matching.trainer._steps.keys() == sizes  # of images in a step; 0 is the shuffling


def test_the_loss_falls() -> None:
    matching = problem([30, 30, 30], iterations=1, outer=40, inner=0, batch=30)
    step = matching.prepare()
    for number in range(40):
        step(number)
    assert matching.losses[35:40].mean() < 0.8 * matching.losses[:5].mean()


def test_starts_are_noise_for_dc_and_real_for_dsa() -> None:
    data = tiny_data([40, 40])
    noise = dc(data, recipe(ipc=30, iterations=0), Run(place=CPU))
    assert abs(noise.normalised().std() - 1) < 0.1
    real = dsa(data, recipe(SiameseRecipe, ipc=30, iterations=0), Run(place=CPU))
    pixels = (real.images * 255).round().to(torch.uint8)
    assert all((data.images == image).flatten(1).all(1).any() for image in pixels)


def test_steps_by_images_a_class() -> None:
    published = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}
    for ipc, (outer, inner) in published.items():
        assert default_loops(ipc) == {"outer": outer, "inner": inner}
        assert GradientRecipe(ipc=ipc).loops == (outer, inner)
    assert default_loops(15) == {"outer": 15, "inner": 38}  # halfway between 50 and 25, to the even
    assert default_loops(25) == {"outer": 25, "inner": 22}
    assert default_loops(100) == default_loops(50)
    assert GradientRecipe(ipc=10, outer=3).loops == (3, 50)
    assert GradientRecipe(ipc=50).image_steps == 50_000
    assert make_recipe("dsa", ipc=50, name="cifar100", size=32).loops == (10, 10)  # type: ignore[attr-defined]
    published_as = make_recipe("dsa", ipc=50, name="cifar10", size=32)
    assert isinstance(published_as, SiameseRecipe)
    assert (published_as.iterations, published_as.lr, published_as.momentum, published_as.batch) == (
        1000,
        0.1,
        0.5,
        256,
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outer": 0}, "outer must be a whole number, 1 or more, but got 0"),
        ({"outer": 2.5}, "outer must be a whole number, 1 or more, but got 2.5"),
        ({"inner": -1}, "inner must be a whole number, 0 or more, but got -1"),
        ({"inner": True}, "inner must be a whole number, 0 or more, but got True"),
        ({"network_lr": 0}, "network_lr must be a number above 0"),
    ],
)
def test_recipes_validate_themselves(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe(**fields)
