"""The losses of gmmn and vae against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from condenset.engine import ComputeDevice, rng
from condenset.methods.generative.generators import ClassGenerators
from condenset.methods.generative.gmmn import NUM_BANDWIDTHS, GMMNTraining, classes_per_chunk
from condenset.methods.generative.vae import (
    NUM_FEATURES,
    TEMPERATURE,
    VAETraining,
    contrastive_loss,
    kl_divergence,
)
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import tiny_recipe

CPU = ComputeDevice.select("cpu")


def double_sum_mmd(real: torch.Tensor, fake: torch.Tensor) -> float:
    """Return the root of the squared MMD, by a sum over all pairs of images."""

    def mean(first: torch.Tensor, second: torch.Tensor, factor: float) -> float:
        values = [
            sum(math.exp(-float((x - y).square().sum()) / scale) for scale in scales(factor))
            for x in first
            for y in second
        ]
        return sum(values) / len(values)

    def scales(factor: float) -> list[float]:
        return [factor * 2.0 ** (number - NUM_BANDWIDTHS // 2) for number in range(NUM_BANDWIDTHS)]

    distances = [torch.cdist(x, y).square().mean() for x, y in ((real, real), (real, fake), (fake, fake))]
    bandwidth = float(torch.stack(distances).mean())
    pairs = ((real, real, 1), (real, fake, -2), (fake, fake, 1))
    return math.sqrt(sum(sign * mean(x, y, bandwidth) for x, y, sign in pairs))


def test_mmd_equals_the_double_sum() -> None:
    """The classes are smaller than a batch. The batch of the second one has padding, which must not count."""
    data = tiny_data([5, 3])
    training = GMMNTraining(data, tiny_recipe("gmmn", batch_size=6), RunContext(compute=CPU))  # type: ignore[arg-type]
    distances = training.mmd(training.weights_KP, slice(0, 2))
    index_KB = training.store.sample_class_indices(training.real_key, 0, training.classes_K, 5)
    latents = training.generators.sample_latents(training.latent_key, 0, training.classes_K, 6)
    fakes = training.generators.generate(training.weights_KP, latents)
    for label, count in ((0, 5), (1, 3)):
        real = training.store.take_normalized(index_KB[label, :count]).flatten(1)
        assert float(distances[label]) == pytest.approx(double_sum_mmd(real, fakes[label]), rel=1e-3)


def test_memory_limit_divides_the_classes_but_keeps_the_result() -> None:
    data, recipe = tiny_data([6, 6, 6]), tiny_recipe("gmmn")
    whole = GMMNTraining(data, recipe, RunContext(compute=CPU))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="one class needs about .*, more than the memory limit of 1 B"):
        divided = GMMNTraining(data, recipe, RunContext(compute=CPU, memory_limit=1))  # type: ignore[arg-type]
    assert (len(whole.chunks), len(divided.chunks)) == (1, 3)
    assert classes_per_chunk(data, recipe, CPU, 2**50) == classes_per_chunk(data, recipe, CPU, None)  # type: ignore[arg-type]
    for training in (whole, divided):
        training.step()
    torch.testing.assert_close(divided.weights_KP, whole.weights_KP)
    torch.testing.assert_close(divided.losses[0], whole.losses[0])


def test_generators_of_the_classes_are_plain_networks() -> None:
    training = GMMNTraining(tiny_data([6, 6]), tiny_recipe("gmmn"), RunContext(compute=CPU))  # type: ignore[arg-type]
    generators, latents = training.generators, torch.rand(2, 3, 64)
    images = generators.generate(training.weights_KP, latents)
    for label in range(2):
        values, weights = latents[label], training.weights_KP[label]
        for number, (num_in, num_out) in enumerate(generators.layer_sizes):
            matrix, bias, weights = weights.split([num_in * num_out, num_out, len(weights) - (num_in + 1) * num_out])
            values = (F.relu(values) if number else values) @ matrix.view(num_in, num_out) + bias
        expected = (torch.sigmoid(values).view(3, *generators.image_shape) - generators.mean) / generators.std
        torch.testing.assert_close(images[label], expected.flatten(1))


def test_initial_images_depend_on_the_latents() -> None:
    """Otherwise MMD trains generators that draw the same few images again and again."""
    shape = {"image_shape": (3, 16, 16), "num_classes": 1, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    generators = ClassGenerators(width=256, **shape)  # type: ignore[arg-type]
    weights = generators.initialize(torch.rand(generators.weights_KP.shape, generator=torch.Generator().manual_seed(0)))
    images = generators.generate(weights, generators.sample_latents(rng.make_key(0), 0, torch.tensor([0]), 50))
    bound = math.sqrt(1 / 256)  # of the last layer: a larger one saturates the sigmoids
    assert weights[0, -3 * 16**2 - 256 * 3 * 16**2 :].abs().max() == pytest.approx(bound, rel=1e-3)
    assert images[0].std(0).mean() > 0.03  # 0.006 without He's rule, about 0.25 between real images


def test_gmmn_comes_closer_to_the_real_images() -> None:
    data = tiny_data([12, 12])
    recipe = tiny_recipe("gmmn", iterations=60, batch_size=12, width=16, lr=0.01)
    training = GMMNTraining(data, recipe, RunContext(compute=CPU))  # type: ignore[arg-type]
    for _ in range(60):
        training.step()
    assert training.losses[50:60].mean() < 0.8 * training.losses[:5].mean()


def test_divergence_equals_that_of_the_distributions() -> None:
    mean, log_variance = torch.randn(4, 3), torch.randn(4, 3)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    prior = torch.distributions.Normal(0.0, 1.0)
    expected = torch.distributions.kl_divergence(posterior, prior).sum(1).mean()
    torch.testing.assert_close(kl_divergence(mean, log_variance), expected)


def test_contrastive_loss_by_hand() -> None:
    real, reconstructed = torch.randn(3, 5), torch.randn(3, 5)
    losses = []
    for number in range(3):
        cosines = [float(F.cosine_similarity(reconstructed[number], other, dim=0)) for other in real]
        total = sum(math.exp(cosine / TEMPERATURE) for cosine in cosines)
        losses.append(-math.log(math.exp(cosines[number] / TEMPERATURE) / total))
    assert float(contrastive_loss(real, reconstructed)) == pytest.approx(sum(losses) / 3, rel=1e-4)


def test_discriminator_of_the_vae_learns_to_find_the_image_of_a_reconstruction() -> None:
    training = VAETraining(tiny_data([6, 6]), tiny_recipe("vae"), RunContext(compute=CPU))  # type: ignore[arg-type]
    size = training.batch_size
    scores, features = torch.randn(3 * size), torch.randn(3 * size, NUM_FEATURES)  # real, reconstructed and drawn
    expected = F.relu(1 - scores[:size]).mean() + F.relu(1 + scores[size:]).mean()
    expected += contrastive_loss(features[:size], features[size : 2 * size])
    torch.testing.assert_close(training.discriminator_loss(scores, features), expected)
    real, labels = training.sample_real(training.clock)
    _, actual = training.discriminator.forward(training.discriminator.weights_P, real, labels)
    assert actual.shape == (size, NUM_FEATURES) and actual.std() > 0

    gradients: list[torch.Tensor] = []
    training.discriminator.update = lambda *args: gradients.append(args[0])  # type: ignore[method-assign]
    training._update_discriminator(training.clock)
    by_name = training.discriminator.layout.unflatten(gradients[0], torch.float32)
    assert by_name["head.weight"].any()


def test_reconstructions_have_the_class_of_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    training = VAETraining(tiny_data([6, 6]), tiny_recipe("vae"), RunContext(compute=CPU))  # type: ignore[arg-type]
    step, forward, labels = training.clock, training.generator.forward, []
    monkeypatch.setattr(training.generator, "forward", lambda *args: labels.append(args[2]) or forward(*args))
    real, classes = training.sample_real(step)
    assert torch.equal(training.make_fakes(real, classes, step)[1], classes.repeat(2))
    training.generator_loss([learner.weights_P for learner in training.learners], step)
    assert all(torch.equal(drawn, classes.repeat(2)) for drawn in labels) and len(labels) == 2


def test_vae_trains_decoder_encoder_and_discriminator() -> None:
    training = VAETraining(tiny_data([6, 6]), tiny_recipe("vae"), RunContext(compute=CPU))  # type: ignore[arg-type]
    learners = (training.generator, training.encoder, training.discriminator)
    before = [learner.weights_P.clone() for learner in learners]
    training.step()
    for learner, weights in zip(learners, before, strict=True):
        assert (learner.weights_P != weights).float().mean() > 0.5
