"""The training of a conditional generator against a discriminator, which GANs and DC-VAE share.

Shapes: B images of a batch, P weights of the generator, Z numbers of a latent.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import augment, networks
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.methods.generative.discriminators import Discriminator
from condenset.methods.generative.generators import ConvGenerator, ImageGenerator
from condenset.methods.generative.learner import Learner, average_decay, load_weights
from condenset.methods.generative.recipe import AdversarialRecipe
from condenset.methods.generative.training import GeneratorTraining
from condenset.runs.context import RunContext

# Our choice. The published models take 4 (BigGAN) or 5 (DC-VAE) steps, in smaller batches and in longer trainings.
DISCRIMINATOR_STEPS = 2  # per step of the generator
AVERAGE_DECAY = 0.999  # of the running average of the generator's weights
NUM_STATISTICS_BATCHES = 8  # after the training, for the statistics of batch norm


def hinge_loss(real_N: Tensor, fake_N: Tensor) -> Tensor:
    """Return the loss of a discriminator, given its scores of real and generated images."""
    return F.relu(1 - real_N).mean() + F.relu(1 + fake_N).mean()


def build_generator(data: ImageData, recipe: Any, *, spectral: bool = True) -> ConvGenerator:
    """Build the generator of a recipe for the images of a dataset. Its weights are random."""
    with networks.seed_global_rng(0, torch.device("cpu")):
        return ConvGenerator(
            channels=data.channels,
            size=data.size,
            num_classes=data.num_classes,
            width=recipe.width,
            mean=data.mean,
            std=data.std,
            spectral=spectral,
        )


class AdversarialTraining(GeneratorTraining):
    """A training in which a discriminator separates real images from generated ones.

    The result is a running average of the generator's weights.

    Attributes:
        num_features: Number of features of the discriminator, if a loss compares them.
    """

    num_features: int | None = None

    def __init__(self, data: ImageData, recipe: AdversarialRecipe, run: RunContext) -> None:
        super().__init__(data, recipe, run)
        shape: dict[str, Any] = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
        self.stages = augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip)
        self.batch_size = recipe.batch_size
        self.generator = Learner("generator", lambda: build_generator(data, recipe), run.seed, run.compute)

        def build_discriminator() -> Discriminator:
            return Discriminator(width=recipe.width, num_features=self.num_features, **shape)

        self.discriminator = Learner("discriminator", build_discriminator, run.seed, run.compute)
        self.average_P = self.generator.weights_P.clone()
        purposes = ("real", "latents", "augmentation", "statistics")
        self.keys = {purpose: self.make_key(purpose) for purpose in purposes}
        self.stream = torch.zeros(1, dtype=torch.int64, device=self.clock.device)

    @property
    def learners(self) -> tuple[Learner, ...]:
        """The networks that are trained together with the generator."""
        return (self.generator,)

    @property
    def learned(self) -> dict[str, Tensor]:
        states = [learner.state for learner in (*self.learners, self.discriminator)]
        return {"average": self.average_P} | {name: tensor for state in states for name, tensor in state.items()}

    def step(self) -> None:
        """Train the discriminator, then the generator, on batches of their own."""
        num_parts = DISCRIMINATOR_STEPS + 1
        loss = torch.zeros_like(self.losses[0])
        for number in range(DISCRIMINATOR_STEPS):
            loss = self._update_discriminator(self.clock * num_parts + number)
            self.run.check_stop(1 / num_parts)
        self._update_generator(self.clock * num_parts + DISCRIMINATOR_STEPS)
        self.average_P.lerp_(self.generator.weights_P, 1 - average_decay(self.clock, AVERAGE_DECAY))
        self.record_loss(loss)

    def sample_real(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return random real images, with replacement, and their labels."""
        num = len(self.store.labels_N)
        index_B = (rng.random_bits(self.keys["real"], step, self.stream, self.batch_size)[0] * num) >> 32
        return self.store.take_normalized(index_B), self.store.labels_N[index_B]

    def sample_latents(self, step: Tensor) -> Tensor:
        """Return (B, Z) random latents."""
        return ConvGenerator.sample_latents(self.keys["latents"], step, self.stream, self.batch_size)[0]

    def judge(self, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor, step: Tensor) -> Any:
        """Return the discriminator's scores and features of augmented images, each with its own augmentation."""
        if self.stages:
            rows_N = torch.arange(len(images_NCHW), device=self.clock.device)
            uniform_NU = rng.uniform(self.keys["augmentation"], step, rows_N, augment.NUM_UNIFORMS)
            transform = augment.sample_transform(uniform_NU, self.stages, self.data.size)
            images_NCHW = augment.apply(transform, images_NCHW[:, None])[:, 0]
        return self.discriminator.forward(weights_P, images_NCHW, labels_N)

    @torch.no_grad()
    def make_fakes(self, real_BCHW: Tensor, labels_B: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return generated images for a step of the discriminator, and their labels."""
        images = self.generator.forward(self.generator.weights_P, self.sample_latents(step), labels_B)
        return images, labels_B

    def generator_loss(self, weights: list[Tensor], step: Tensor) -> Tensor:
        """Return the loss of the generator, given the weights of all learners."""
        _, labels_B = self.sample_real(step)
        images = self.generator.forward(weights[0], self.sample_latents(step), labels_B)
        scores, _ = self.judge(self.discriminator.weights_P, images, labels_B, step)
        loss: Tensor = -scores.mean()
        return loss

    def discriminator_loss(self, scores_N: Tensor, features_NF: Tensor) -> Tensor:
        """Return the loss of the discriminator, given its output for a batch of real images and the generated ones."""
        return hinge_loss(scores_N[: self.batch_size], scores_N[self.batch_size :])

    def _update_discriminator(self, step: Tensor) -> Tensor:
        real_BCHW, labels_B = self.sample_real(step)
        fakes, fake_labels = self.make_fakes(real_BCHW, labels_B, step)
        weights = self.discriminator.require_grad()
        images, labels = torch.cat((real_BCHW, fakes)), torch.cat((labels_B, fake_labels))
        loss = self.discriminator_loss(*self.judge(weights, images, labels, step))
        (gradient,) = torch.autograd.grad(loss, weights)
        num_updates = step - step // (DISCRIMINATOR_STEPS + 1)
        self.discriminator.update(gradient, num_updates, self.lr)
        return loss.detach()

    def _update_generator(self, step: Tensor) -> None:
        weights = [learner.require_grad() for learner in self.learners]
        gradients = torch.autograd.grad(self.generator_loss(weights, step), weights)
        for learner, gradient in zip(self.learners, gradients, strict=True):
            learner.update(gradient, self.clock, self.lr)

    @torch.no_grad()
    def finish(self) -> ImageGenerator:
        """Return the generator with averaged weights, and with the statistics of batch norm for these weights."""
        generator = self.generator.network
        assert isinstance(generator, ConvGenerator)
        load_weights(generator, self.average_P)
        for module in generator.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None  # the mean over all batches
        for number in range(NUM_STATISTICS_BATCHES):
            latents = ConvGenerator.sample_latents(self.keys["statistics"], number, self.stream, self.batch_size)[0]
            _, labels = self.sample_real(torch.as_tensor(number, device=self.clock.device))
            generator(latents, labels)
        return generator.eval()
