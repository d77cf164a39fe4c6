"""Generative teaching networks: the gradient through training and generator, and what is learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import condenset as cs
from condenset.data.whitening import fit_whitening
from condenset.engine import ComputeDevice
from condenset.methods.generative.layers import SpectralConv2d, SpectralLinear
from condenset.methods.unrolled.gtn import GenerativeTeaching, GTNRecipe, condense
from condenset.methods.unrolled.unrolling import Gradients, TrainingStep, differentiate_training
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
PIXELS, CLASSES = 3 * 8 * 8, 2


def make_problem(counts: list[int], problem_class: type[GenerativeTeaching] = GenerativeTeaching, **fields: Any) -> Any:
    settings = {"ipc": 2, "network": "mlp(width=8)", "iterations": 40, "batch_size": 8, "steps": 2, "epochs": 2}
    recipe = GTNRecipe(**{**settings, "width": 4, **fields})
    return problem_class(tiny_data(counts), recipe, RunContext(compute=CPU), [2] * len(counts))


class LinearTeaching(GenerativeTeaching):
    """Teach a linear classifier in float64, from fixed weights and with fixed real images."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        generator = torch.Generator().manual_seed(0)
        self.initial = torch.randn(PIXELS * CLASSES, generator=generator, dtype=torch.float64) / 10
        self.real = torch.randn(6, PIXELS, generator=generator, dtype=torch.float64), torch.arange(6) % CLASSES
        self.generator.network.double()
        self.generator.weights_P = self.generator.weights_P.double()
        self.latents_NZ, self.raw_sizes_T = self.latents_NZ.double(), self.raw_sizes_T.double()

    def loss(self, weights_P: Tensor, images: Tensor, labels_N: Tensor) -> Tensor:
        return F.cross_entropy(images.flatten(1) @ weights_P.view(PIXELS, CLASSES), labels_N)

    def differentiate(self, images_NCHW: Tensor) -> Gradients:
        return differentiate_training(
            TrainingStep(self.loss),
            self.initial,
            images_NCHW,
            self.labels_N,
            self.schedule,
            F.softplus(self.raw_sizes_T),
            lambda weights_P: self.loss(weights_P, *self.real),
        )

    def final_loss(self, weights_P: Tensor, latents_NZ: Tensor) -> float:
        with torch.no_grad():
            images = self.generate(weights_P, latents_NZ)
        return float(self.differentiate(images).loss)


def test_gradient_equals_finite_differences() -> None:
    problem = make_problem([4, 4], LinearTeaching, step_size=0.5)
    values = (problem.generator.weights_P, problem.latents_NZ)
    training, *gradients = problem.differentiate_generator()
    assert float(training.loss) == pytest.approx(problem.final_loss(*values), rel=1e-9)
    generator, epsilon = torch.Generator().manual_seed(1), 1e-6
    for number, gradient in enumerate(gradients):
        for _ in range(3):
            direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
            changed = []
            for sign in (1, -1):
                arguments = list(values)
                arguments[number] = arguments[number] + sign * epsilon * direction
                changed.append(problem.final_loss(*arguments))
            expected = (changed[0] - changed[1]) / (2 * epsilon)
            assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-3, abs=1e-7)


def test_generator_latents_and_step_sizes_are_learned() -> None:
    problem = make_problem([4, 4])
    learned = (problem.generator.weights_P, problem.latents_NZ, problem.raw_sizes_T)
    before = [values.clone() for values in learned]
    problem.step()
    assert all((values != start).float().mean() > 0.5 for values, start in zip(learned, before, strict=True))


def test_the_generator_has_no_spectral_norm() -> None:
    modules = make_problem([4, 4]).generator.network.modules()
    assert not any(isinstance(module, (SpectralConv2d, SpectralLinear)) for module in modules)


def test_step_sizes_learn_ten_times_as_fast() -> None:
    problem = make_problem([4, 4], lr=0.01)
    sizes, latents = problem.raw_sizes_T.clone(), problem.latents_NZ.clone()
    problem.step()  # the first step of Adam is the learning rate
    assert (problem.raw_sizes_T - sizes).abs().tolist() == pytest.approx([0.1] * len(sizes), rel=1e-2)
    assert (problem.latents_NZ - latents).abs().max() == pytest.approx(0.01, rel=1e-2)


def test_loss_decreases() -> None:
    problem = make_problem([20, 20], lr=0.002, step_size=0.2, batch_size=40, steps=1)
    for _ in range(40):
        problem.step()
    assert problem.losses[35:40].mean() < 0.8 * problem.losses[:5].mean()


def test_set_has_the_step_sizes_and_can_be_evaluated_with_them() -> None:
    data = tiny_data([4, 4])
    recipe = GTNRecipe(ipc=2, network="mlp(width=8)", iterations=2, batch_size=8, steps=2, epochs=2, width=4)
    condensed = condense(data, recipe, RunContext(compute=CPU))
    assert condensed.step_sizes is not None and len(condensed.step_sizes) == 4
    scores = cs.evaluate(condensed, tiny_data([4, 4], seed=1), num_networks=1, learned_steps=True, device="cpu")
    assert 0 <= scores.mean <= 1


def test_networks_train_on_whitened_images() -> None:
    data = tiny_data([4, 4])
    whitened = dataclasses.replace(data, whitening=fit_whitening(data.images, CPU.device))
    recipe = GTNRecipe(ipc=2, network="mlp(width=8)", iterations=0, width=4)
    first, second = (condense(images, recipe, RunContext(compute=CPU)) for images in (data, whitened))
    assert second.whitening is not None
    torch.testing.assert_close(second.images, first.images, rtol=1e-3, atol=1e-3)  # the pixels are the same


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"step_size": 101.0}, "step_size must be at most 100"),
        ({"width": 0}, "width must be a whole number"),
    ],
)
def test_invalid_recipes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        GTNRecipe(**fields)
