"""VAE: a class-conditional variational autoencoder with an adversarial and contrastive decoder, as in DC-VAE.

There is no loss on pixels. The features of a reconstruction, taken from the discriminator, must be closer to those of
its own image than to those of the other images of the batch, and reconstructions and samples must look real. The
discriminator is trained for both aims.
Shapes: B images of a batch, F features, Z numbers of a latent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.config import check_positive_fields
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.methods.generative.adversarial import AdversarialTraining, build_generator
from condenset.methods.generative.discriminators import Encoder
from condenset.methods.generative.gan import adversarial_presets
from condenset.methods.generative.learner import Learner
from condenset.methods.generative.recipe import AdversarialRecipe
from condenset.methods.generative.training import condense_by_generator
from condenset.methods.registry import Method
from condenset.runs.context import RunContext

TEMPERATURE = 0.1  # of the contrastive loss; our choice, 0.07 in the published code
NUM_FEATURES = 16  # that the contrastive loss compares


@dataclass(frozen=True, kw_only=True)
class VAERecipe(AdversarialRecipe):
    """Settings of the VAE, with the fields of `AdversarialRecipe`.

    Attributes:
        kl_weight: Weight of the divergence of the latents from the standard normal distribution.
    """

    kl_weight: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_fields(self, "kl_weight")


def condense(data: ImageData, recipe: VAERecipe, run: RunContext) -> CondensedSet:
    """Train a DC-VAE (Parmar et al., CVPR 2021), and draw the set from its decoder."""
    return condense_by_generator(data, recipe, run, build_generator, VAETraining)


def kl_divergence(mean_BZ: Tensor, log_variance_BZ: Tensor) -> Tensor:
    """Return the mean divergence of normal distributions from the standard normal distribution."""
    terms_BZ = mean_BZ.square() + log_variance_BZ.exp() - 1 - log_variance_BZ
    return terms_BZ.sum(1).mean() / 2


def contrastive_loss(real_BF: Tensor, reconstructed_BF: Tensor) -> Tensor:
    """Return the cross-entropy of finding the image of each reconstruction by the cosine of their features."""
    real_BF, reconstructed_BF = F.normalize(real_BF, dim=1), F.normalize(reconstructed_BF, dim=1)
    targets_B = torch.arange(len(real_BF), device=real_BF.device)
    return F.cross_entropy(reconstructed_BF @ real_BF.mT / TEMPERATURE, targets_B)


class VAETraining(AdversarialTraining):
    """The training of encoder and decoder against a discriminator, whose features the contrastive loss compares."""

    num_features = NUM_FEATURES

    def __init__(self, data: ImageData, recipe: VAERecipe, run: RunContext) -> None:
        super().__init__(data, recipe, run)

        def build_encoder() -> Encoder:
            return Encoder(channels=data.channels, size=data.size, width=recipe.width)

        self.encoder = Learner("encoder", build_encoder, run.seed, run.compute)
        self.keys["noise"] = self.make_key("noise")

    @property
    def learners(self) -> tuple[Learner, ...]:
        """The networks that are trained together: decoder and encoder."""
        return self.generator, self.encoder

    def encode(self, weights_P: Tensor, real_BCHW: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, Z) random latents of images, and the mean divergence of their distribution."""
        mean_BZ, log_variance_BZ = self.encoder.forward(weights_P, real_BCHW)
        noise_BZ = rng.normal(self.keys["noise"], step, self.stream, mean_BZ.numel()).view_as(mean_BZ)
        return mean_BZ + (log_variance_BZ / 2).exp() * noise_BZ, kl_divergence(mean_BZ, log_variance_BZ)

    @torch.no_grad()
    def make_fakes(self, real_BCHW: Tensor, labels_B: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return reconstructions and samples for a step of the discriminator, and their labels."""
        latents_BZ, _ = self.encode(self.encoder.weights_P, real_BCHW, step)
        labels = labels_B.repeat(2)
        latents = torch.cat((latents_BZ, self.sample_latents(step)))
        return self.generator.forward(self.generator.weights_P, latents, labels), labels

    def discriminator_loss(self, scores_N: Tensor, features_NF: Tensor) -> Tensor:
        """Return the loss of the discriminator: also the contrastive loss of images that are augmented separately."""
        real_BF, reconstructed_BF = features_NF.split(self.batch_size)[:2]
        return super().discriminator_loss(scores_N, features_NF) + contrastive_loss(real_BF, reconstructed_BF)

    def generator_loss(self, weights: list[Tensor], step: Tensor) -> Tensor:
        """Return the loss of encoder and decoder: divergence, contrastive and adversarial loss."""
        generator_P, encoder_P = weights
        real_BCHW, labels_B = self.sample_real(step)
        latents_BZ, divergence = self.encode(encoder_P, real_BCHW, step)
        labels = labels_B.repeat(2)
        images = self.generator.forward(generator_P, torch.cat((latents_BZ, self.sample_latents(step))), labels)
        critic_P = self.discriminator.weights_P
        scores, _ = self.judge(critic_P, images, labels, step)
        _, features = self.discriminator.forward(critic_P, torch.cat((real_BCHW, images[: self.batch_size])), labels)
        loss: Tensor = contrastive_loss(*features.chunk(2)) + self.recipe.kl_weight * divergence - scores.mean()
        return loss


METHOD = Method(
    name="vae",
    recipe=VAERecipe,
    condense=condense,
    summary="Draw images from a class-conditional autoencoder with an adversarial and contrastive decoder (DC-VAE).",
    source="Parmar et al., CVPR 2021",
    presets=adversarial_presets,
    tiny={"iterations": 2, "batch_size": 8, "width": 4},
)
