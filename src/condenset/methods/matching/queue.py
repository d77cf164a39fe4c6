"""A queue of networks that train on the synthetic images while these are learned (IDM: Zhao et al., CVPR 2023).

Shapes: Q networks of the queue, T parameters of a network, N images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import augment
from condenset.engine import rng
from condenset.engine.compile import Forward
from condenset.methods.matching.sets import SyntheticSets
from condenset.methods.samplers import NetworkSampler, remove_classifier
from condenset.networks import FlatParameters

NUM_NETWORKS = 100  # at most
MAX_STEPS = 100  # training steps of a network, after which a new one takes its place
BATCH_SIZE = 256  # synthetic images per training step
LR = 0.01


class NetworkQueue(NetworkSampler):
    """Sample one of the networks of a queue, and train it by one step on the synthetic images after the iteration.

    Args:
        network: The network with its classifier.
        classify: The network as a function of its parameters and images.
        seed: The seed of the run.
        device: The device.
        dtype: Precision of the computation.
        stages: Stages of the augmentation of the training.
        size: The image size.
        iterations: The number of iterations.
    """

    def __init__(
        self,
        network: nn.Module,
        classify: Forward,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        stages: augment.Stages,
        size: int,
        iterations: int,
    ) -> None:
        self.parameters, self.classify, self.dtype = FlatParameters(network, device), classify, dtype
        self.stages, self.size = stages, size
        self.num_networks = queue_size(iterations)
        self.keys = {
            use: rng.make_key(seed, use, device=device) for use in ("network", "queue", "queue batch", "queue augment")
        }
        numbers = range(self.num_networks)
        self.weights_QT = torch.stack([self._initialize(torch.tensor(number, device=device)) for number in numbers])
        # Ages are staggered, so that networks are not replaced all at once.
        self.ages_Q = torch.arange(self.num_networks, device=device) * MAX_STEPS // self.num_networks

    def _initialize(self, number: Tensor) -> Tensor:
        return self.parameters.initialize(rng.flat_uniform(self.keys["network"], number, self.parameters.num))

    @property
    def state(self) -> dict[str, Tensor]:
        return {"queue.weights": self.weights_QT, "queue.ages": self.ages_Q}

    def _index(self, clock: Tensor) -> Tensor:
        return rng.random_index(self.keys["queue"], clock, self.num_networks)

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.weights_QT.index_select(0, self._index(clock))[0]

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return remove_classifier(self.sample_classifier(clock, dtype))

    def sample_classifier(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return self.unflatten(self.sample_weights(clock), dtype)

    def train(self, clock: Tensor, sets: SyntheticSets) -> None:
        """Train the network of this iteration by one step of SGD; replace it if it is old."""
        images_NCHW, labels_N = self._sample_batch(clock, sets)
        index = self._index(clock)
        weights_T = self.weights_QT.index_select(0, index)[0].requires_grad_()
        logits = self.classify(self.parameters.unflatten(weights_T, self.dtype), images_NCHW.to(self.dtype))
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits.float(), labels_N), weights_T)
        age = self.ages_Q.index_select(0, index) + 1
        is_old = age >= MAX_STEPS
        new_T = self._initialize(clock + self.num_networks)
        weights_1T = torch.where(is_old, new_T, weights_T.detach() - LR * gradient)[None]
        self.weights_QT.index_copy_(0, index, weights_1T)
        self.ages_Q.index_copy_(0, index, torch.where(is_old, 0, age))

    def _sample_batch(self, clock: Tensor, sets: SyntheticSets) -> tuple[Tensor, Tensor]:
        """Sample augmented synthetic images of all classes and their labels."""
        indices = torch.arange(len(sets.labels_N), device=clock.device)
        if len(indices) > BATCH_SIZE:
            indices = rng.permutation(self.keys["queue batch"], clock, len(indices))[:BATCH_SIZE]
        images, labels = sets.decode_images(indices)
        if self.stages:
            rows = torch.arange(len(images), device=images.device)
            uniform_NU = rng.uniform(self.keys["queue augment"], clock, rows, augment.NUM_UNIFORMS)
            transform = augment.sample_transform(uniform_NU, self.stages, self.size, shared=True)
            images = augment.apply(transform, images[:, None], self.dtype)[:, 0]
        return images, labels


def queue_size(iterations: int) -> int:
    """Return the number of networks of a queue. A short run has fewer, so that each trains."""
    return min(NUM_NETWORKS, max(2, iterations // MAX_STEPS))
