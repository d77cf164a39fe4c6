"""CAFE: condense a dataset by aligning features (Wang, Zhao, Peng, Zhu, Yang, Wang, Huang, Bilen, Wang and You, 2022).

The mean features of every layer are to be equal on real and on synthetic images, class by class, in networks that train
on the synthetic images. In addition, the features of a real image, multiplied with the mean synthetic features of each
class, are to classify it.

- Settings of the paper (CVPR 2022): 2,000 networks, learning rate 0.1, halved after 60, 80 and 90% of the run, 256 real
  images per class, images that start from noise, no augmentation, weights 0.1 of the earlier layers and 0.01 of the
  classification.
- Layers are compared before their pooling, the last one also after it, with weight 2.
- The paper ends the steps with a network once its accuracy changes little within ten, and its training once the
  accuracy changes by enough within ten epochs. Here the numbers are fixed: 20 to 30 steps, about what this rule gives,
  and ten epochs, which is its minimum and the usual case.

Shapes: K classes, B real and I synthetic images per class, F features of all layers, L of which of the last.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from condenset import kernels, networks
from condenset.config import check_non_negative_field
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.compile import functional_forward
from condenset.engine.memory import split_evenly
from condenset.methods.gradient.chunks import Chunk
from condenset.methods.gradient.dc import METHOD as DC
from condenset.methods.gradient.dc import digits_presets
from condenset.methods.gradient.gradient_matching import GradientMatching, solve
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.methods.samplers import remove_classifier
from condenset.runs.context import RunContext

EMBEDDING_WEIGHT = 2.0  # of the last layer after its pooling; before it, the weight is 1
Parameters = dict[str, Tensor]  # by name
HALVINGS = (0.6, 0.8, 0.9)  # shares of the run after which the learning rate is halved


@dataclass(frozen=True, kw_only=True)
class CAFERecipe(GradientMatchingRecipe):
    """Settings of CAFE.

    Attributes:
        outer_steps: Steps of the images with each network. None: by `ipc`.
        inner_epochs: Epochs of the network on the images between two of those steps. None: 10.
        layer_weight: Weight of the features of the layers before the last.
        discrimination: Weight of the cross-entropy of real images that synthetic class means classify.
    """

    published_loops: ClassVar[Mapping[int, tuple[int, int]]] = {1: (20, 10), 10: (25, 10), 50: (30, 10)}

    iterations: int = 2000
    init: str = "noise"
    augment: str = "none"
    layer_weight: float = 0.1
    discrimination: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative_field(self, "layer_weight")
        check_non_negative_field(self, "discrimination")


class FeatureAlignment(GradientMatching):
    """The loop of gradient matching, in which features of all layers are compared instead of gradients."""

    recipe: CAFERecipe

    def split_classes(self, counts: list[int], max_classes: int) -> list[Chunk]:
        """Return one chunk with all classes: the classification needs the means of all. Images pass in parts."""
        self.class_parts = split_evenly(len(counts), max_classes)
        return super().split_classes(counts, len(counts))

    def _compile(self, spec: str) -> None:
        """Build the functions that map parameters and images to features."""
        is_built_in = isinstance(self.network, networks.Network)
        kind = "unpooled" if is_built_in and hasattr(self.network, "blocks") else "last"
        embedding = networks.to_embedding(copy.deepcopy(self.network), kind)
        self.prefix = "" if is_built_in else "network."  # of the names of parameters within the embedding
        with kernels.disable_kernels(blocks_only=True):  # as in `embed_images`: decides whether to compile
            self.embed = functional_forward(embedding, self.run.compute, compiling=not self.networks.on_host)
        self.num_last = self.network.num_features if isinstance(self.network, networks.Network) else None
        weight_F = torch.tensor([1 + EMBEDDING_WEIGHT]) if kind == "last" else self._layer_weights(embedding)
        self.weight_F = weight_F.to(self.run.compute.device)

    def _layer_weights(self, embedding: Any) -> Tensor:
        """Return the weight of each feature of an embedding of blocks."""
        images = torch.empty(1, self.data.channels, self.data.size, self.data.size, device="meta")
        features = copy.deepcopy(embedding).to("meta").block_features(images)
        weights = [*[self.recipe.layer_weight] * (len(features) - 2), 1.0, EMBEDDING_WEIGHT]
        return torch.tensor(weights).repeat_interleave(torch.tensor([feature.shape[1] for feature in features]))

    @property
    def num_substeps(self) -> int:
        """The number of parts of real images and of steps of the network in a step."""
        return len(self.class_parts) + super().num_substeps

    def match(self) -> None:
        """Update the images of all classes by one step towards equal features."""
        self.update_batch_norm()
        (chunk,) = self.chunks
        leaf = self.images_NCHW.detach().clone().requires_grad_()
        real_KBCHW, images_KICHW = self.sample_batches(leaf, chunk)
        parameters = self.embedding_parameters()
        real_mean_KF, real_last_KBL = self.embed_real(parameters, real_KBCHW, chunk)
        mean_KF = self.embed_synthetic(parameters, images_KICHW, chunk)
        loss = self.loss(real_mean_KF, real_last_KBL, mean_KF, chunk)
        (gradient,) = torch.autograd.grad(loss, leaf)
        self.update(self.images_NCHW, self.velocity, gradient)
        self._check_stop()
        self.record_loss(loss)

    def loss(self, real_mean_KF: Tensor, real_last_KBL: Tensor, mean_KF: Tensor, chunk: Chunk) -> Tensor:
        """Return the weighted distance of the means, and the cross-entropy of the classification by the means."""
        distance = ((real_mean_KF - mean_KF).square() * self.weight_F).sum()
        logits_KBK = real_last_KBL @ mean_KF[:, -real_last_KBL.shape[2] :].mT
        labels_KB = chunk.classes_K[:, None].expand(logits_KBK.shape[:2])
        entropies = F.cross_entropy(logits_KBK.flatten(0, 1), labels_KB.flatten(), reduction="none")
        entropy = (entropies * (chunk.real_weight_KB > 0).flatten()).sum()  # without padding
        return distance + self.recipe.discrimination * entropy

    @torch.no_grad()
    def embed_real(self, parameters: Parameters, real_KBCHW: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return the mean features of all layers (K, F), and the features of the last layer (K, B, L)."""
        means, last = [], []
        for part in self.class_parts:
            features_KBF = self.embed_images(parameters, real_KBCHW[part])
            means.append(class_means(features_KBF, chunk.real_weight_KB[part]))
            last_KBL = features_KBF[:, :, -(self.num_last or features_KBF.shape[2]) :]
            last.append(last_KBL.to(torch.float32, copy=True))  # a view would keep the features of all layers
            self._check_stop()
        return torch.cat(means), torch.cat(last)

    def embed_synthetic(self, parameters: Parameters, images_KICHW: Tensor, chunk: Chunk) -> Tensor:
        """Return the mean features of all layers (K, F). If there are parts, the backward pass computes them again."""

        def embed_part(part: slice) -> Tensor:
            return class_means(self.embed_images(parameters, images_KICHW[part]), chunk.synthetic_weight_KI[part])

        if len(self.class_parts) == 1:
            return embed_part(self.class_parts[0])
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": self.networks.on_host}
        return torch.cat([checkpoint(embed_part, part, **options) for part in self.class_parts])

    def embedding_parameters(self) -> Parameters:
        """Return the current parameters and buffers of the network, without its classifier."""
        views = self.trainer.parameters.unflatten(self.trainer.weights, self.dtype)
        if self.prefix:
            return {f"{self.prefix}{name}": value for name, value in (views | self.buffers).items()}
        return remove_classifier(views) | self.buffers

    def embed_images(self, parameters: Parameters, images_KNCHW: Tensor) -> Tensor:
        """Return (K, N, F) features of all layers."""
        with kernels.disable_kernels(blocks_only=True):  # they do not return the maps before a pooling
            features: Tensor = self.embed(parameters, images_KNCHW.flatten(0, 1).to(self.dtype))
        return features.view(*images_KNCHW.shape[:2], -1)

    def update(self, images_NCHW: Tensor, velocity: Tensor, gradient: Tensor) -> None:
        """Update images by SGD with momentum and a learning rate that is halved three times."""
        share = self.clock / max(self.recipe.image_steps, 1)
        num_halvings = torch.stack([share >= start for start in HALVINGS]).sum()
        velocity.mul_(self.recipe.momentum).add_(gradient)
        images_NCHW.sub_(self.recipe.lr * 0.5**num_halvings * velocity)


def class_means(features_KNF: Tensor, weight_KN: Tensor) -> Tensor:
    """Return the (K, F) mean features of each class in float32; padding has weight 0."""
    return torch.bmm(weight_KN[:, None], features_KNF.float())[:, 0]


def condense(data: ImageData, recipe: CAFERecipe, run: RunContext) -> CondensedSet:
    """Learn images whose features in all layers are those of the real images."""
    return solve(FeatureAlignment, data, recipe, run)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the quick settings for the digits; images that start from noise need more and larger steps."""
    quick = digits_presets(ipc, dataset, size)
    return quick | {"iterations": 20, "lr": 0.5} if quick else {}


METHOD = dataclasses.replace(
    DC,
    name="cafe",
    recipe=CAFERecipe,
    condense=condense,
    summary="CAFE: align the features of all layers, and let synthetic class means classify real images.",
    source="Wang et al., CVPR 2022",
    presets=presets,
)
