"""Generators in training: running average, resume, and the file that sets of all sizes share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.data.whitening import fit_whitening
from condenset.engine import ComputeDevice
from condenset.methods import METHODS
from condenset.methods.generative.adversarial import AVERAGE_DECAY, AdversarialTraining, hinge_loss
from condenset.methods.generative.training import GeneratorTraining
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import tiny_recipe

CPU = ComputeDevice.select("cpu")
DATA = tiny_data([6, 4, 5])


def make_training(**fields: Any) -> AdversarialTraining:
    return AdversarialTraining(DATA, tiny_recipe("gan", **fields), RunContext(compute=CPU))  # type: ignore[arg-type]


def condense(method: str, run: RunContext, **fields: Any) -> cs.CondensedSet:
    return METHODS[method].condense(DATA, tiny_recipe(method, **fields), run)


def test_result_has_the_running_average_of_the_weights() -> None:
    training = make_training(iterations=5)
    average = training.generator.weights_P.clone()
    for step in range(5):
        training.step()
        decay = min(AVERAGE_DECAY, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * training.generator.weights_P
    torch.testing.assert_close(training.average_P, average, rtol=1e-5, atol=1e-6)
    generator = training.finish()
    assert not generator.training
    flat = torch.cat([parameter.detach().flatten() for parameter in generator.parameters()])
    torch.testing.assert_close(flat, average, rtol=1e-5, atol=1e-6)


def test_learning_rate_falls_to_zero() -> None:
    training = make_training(iterations=4, lr=0.1)
    rates = []
    for _ in range(4):
        rates.append(float(training.lr))
        training.step()
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_statistics_of_batch_norm_are_those_of_the_averaged_weights() -> None:
    """An image drawn alone is the image drawn with others, and about the image of a training batch."""
    generator: Any = make_training(iterations=3).finish()
    latents = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    together = generator.draw(latents)
    torch.testing.assert_close(generator.draw(latents[:, :1]), together[:, :1], rtol=1e-4, atol=1e-5)
    assert all(module.num_batches_tracked == 8 for module in generator.modules() if hasattr(module, "running_mean"))


def test_hinge_loss() -> None:
    assert hinge_loss(torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 1.0])) == pytest.approx(0.25 + 1.0)


@pytest.mark.parametrize("method", ["gmmn", "vae", "gan"])
def test_resumed_training_has_the_same_result(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    expected = condense(method, RunContext(compute=CPU))
    run = RunContext(compute=CPU, directory=tmp_path, job="job")
    run.progress = StopAtStep(run, 2)
    with pytest.raises(Interrupted):
        condense(method, run)
    assert not (tmp_path / "networks").exists()
    resumed = condense(method, RunContext(compute=CPU, directory=tmp_path, job="job"))
    assert torch.equal(resumed.images, expected.images)
    assert len(list((tmp_path / "networks").glob("*.safetensors"))) == 1


@pytest.mark.parametrize("method", ["gmmn", "vae", "gan"])
def test_sets_of_all_sizes_are_drawn_from_one_generator(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = condense(method, RunContext(compute=CPU, directory=tmp_path, job="first"))

    def fail(self: GeneratorTraining, *_: object) -> None:
        raise AssertionError("the generator is trained already")

    monkeypatch.setattr(GeneratorTraining, "__init__", fail)
    run = RunContext(compute=CPU, directory=tmp_path, job="second")
    again, larger = condense(method, run), condense(method, run, ipc=4)
    assert torch.equal(again.images, first.images)
    assert again.provenance["seconds"] == first.provenance["seconds"]
    assert len(larger) == 12
    with pytest.raises(AssertionError, match="trained already"):
        condense(method, run, width=9)


@pytest.mark.parametrize("method", ["gmmn", "gan"])
def test_generators_learn_pixels_also_if_the_set_is_whitened(method: str) -> None:
    run = RunContext(compute=CPU)
    plain = condense(method, run)
    whitened_data = dataclasses.replace(DATA, whitening=fit_whitening(DATA.images, CPU.device))
    whitened = METHODS[method].condense(whitened_data, tiny_recipe(method, zca=True), RunContext(compute=CPU))
    assert whitened.whitening is not None
    torch.testing.assert_close(whitened.images, plain.images, rtol=1e-3, atol=1e-3)


def test_damaged_generator_is_an_error(tmp_path: Path) -> None:
    condense("gan", RunContext(compute=CPU, directory=tmp_path, job="job"))
    (path,) = (tmp_path / "networks").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(cs.UserError, match="delete it to train the generator again"):
        condense("gan", RunContext(compute=CPU, directory=tmp_path, job="job"))


def test_generator_with_other_settings_is_an_error(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    condense("gan", RunContext(compute=CPU, directory=tmp_path / "a", job="job"))
    condense("gan", RunContext(compute=CPU, directory=tmp_path / "b", job="job"), lr=3e-4)
    (first,), (second,) = ((tmp_path / name / "networks").iterdir() for name in "ab")
    second.replace(first)
    with pytest.raises(cs.UserError, match="trained with other settings; delete it"):
        condense("gan", RunContext(compute=CPU, directory=tmp_path / "a", job="job"))


@pytest.mark.parametrize("method", ["gmmn", "vae", "gan"])
def test_invalid_widths(method: str) -> None:
    for width in (0, 10**6):
        with pytest.raises(cs.UserError, match="width must be"):
            tiny_recipe(method, width=width)


def test_capabilities() -> None:
    reasons = {name: METHODS[name].class_dependence(None) for name in ("gmmn", "vae", "gan", "kip", "gtn")}
    assert [name for name, reason in reasons.items() if not reason] == ["gmmn"]  # a generator per class
    assert not any(METHODS[name].is_coreset for name in reasons)


@pytest.mark.parametrize("name", ["gan", "vae"])
def test_augmentation_is_the_published_one(name: str) -> None:
    recipe: Any = METHODS[name].recipe()
    assert recipe.augment == "flip+crop+cutout"


def test_settings_without_which_the_training_fails() -> None:
    recipes: dict[str, Any] = {name: METHODS[name].recipe() for name in ("gmmn", "vae")}
    assert recipes["gmmn"].iterations == 40_000  # as published
    assert recipes["vae"].kl_weight <= 0.001  # 0.05 made the encoder useless
