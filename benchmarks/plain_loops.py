"""Plain loops, as a research script writes them: a module, a loop over classes, an optimiser of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import ImageData, augment, networks
from condenset.engine import ComputeDevice, rng
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.matching.dm import DistributionMatching
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol


class PlainMatching:
    """What the plain loops of distribution matching and gradient matching share.

    Args:
        data: The real images.
        images: Synthetic images by class; the loop learns copies of them.
        stages: Stages of the augmentation.
        key: Key of the augmentation's random numbers.
        lr: Learning rate of the images.
    """

    def __init__(
        self, data: ImageData, images: list[Tensor], stages: augment.Stages, key: Tensor, *, lr: float
    ) -> None:
        self.data, self.stages, self.key, self.device = data, stages, key, images[0].device
        self.images = [class_images.clone().requires_grad_() for class_images in images]
        self.optimizer = torch.optim.SGD(self.images, lr=lr, momentum=0.5)
        self.real_images = [data.images[data.labels == label].to(self.device) for label in range(data.num_classes)]
        self.step_number = 0

    def build_network(self, spec: str, seed: int = 0) -> networks.Network:
        """Return a new network on the device."""
        shape = {"channels": self.data.channels, "size": self.data.size, "num_classes": self.data.num_classes}
        return networks.build(spec, **shape, seed=seed).to(self.device)

    def sample_real(self, label: int, num: int) -> Tensor:
        """Return normalised random real images of a class."""
        images = self.real_images[label]
        index = torch.randperm(len(images), device=self.device)[:num]
        return (images[index].float() / 255 - 0.5) / 0.25

    def sample_augmentation(self, label: int) -> augment.Transform:
        """Return the augmentation that real and synthetic images of a class share in this step."""
        row = torch.tensor([label], device=self.device)
        uniform = rng.uniform(self.key, self.step_number, row, augment.NUM_UNIFORMS)
        return augment.sample_transform(uniform, self.stages, self.data.size)

    def update(self, loss: Tensor) -> None:
        """Update the synthetic images."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_number += 1


class PlainDistributionMatching(PlainMatching):
    """Algorithm 1 of the paper, class by class."""

    def __init__(self, problem: DistributionMatching, data: ImageData) -> None:
        images = list(problem.sets.images_KICHW)
        super().__init__(data, images, problem.stages, problem.augment_key, lr=1.0)
        self.recipe = problem.recipe

    def step(self) -> None:
        """Run one iteration."""
        network = self.build_network(self.recipe.network, seed=self.step_number)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        loss = torch.zeros((), device=self.device)
        for label, images in enumerate(self.images):
            transform = self.sample_augmentation(label)
            real = augment.apply(transform, self.sample_real(label, self.recipe.batch_size)[None])[0]
            synthetic = augment.apply(transform, images[None])[0]
            with torch.no_grad():
                target = network.embed(real).mean(0)
            loss = loss + (target - network.embed(synthetic).mean(0)).square().sum()
        self.update(loss)


class PlainGradientMatching(PlainMatching):
    """Gradient matching with two forward and two backward passes per class."""

    def __init__(self, problem: GradientMatching, data: ImageData) -> None:
        images = list(problem.images_NCHW.unflatten(0, (data.num_classes, -1)))
        super().__init__(data, images, problem.stages, problem.keys["augment"], lr=0.1)
        self.recipe, self.labels, self.training_key = (
            problem.recipe,
            problem.trainer.data.labels,
            problem.keys["training"],
        )
        self.network = self.build_network(self.recipe.network)
        self.network_optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01)

    def match(self) -> None:
        """Update the images once."""
        loss = torch.zeros((), device=self.device)
        weights = [weight for weight in self.network.parameters() if weight.dim() > 1]
        for label, synthetic in enumerate(self.images):
            real, transform = self.sample_real(label, self.recipe.batch_size), self.sample_augmentation(label)
            gradients = []
            for images, create_graph in ((real, False), (synthetic, True)):
                augmented = augment.apply(transform, images[None])[0]
                labels = torch.full((len(augmented),), label, device=self.device)
                class_loss = F.cross_entropy(self.network(augmented), labels)
                gradients.append(torch.autograd.grad(class_loss, weights, create_graph=create_graph))
            for real_gradient, gradient in zip(*gradients, strict=True):
                loss = loss + (1 - F.cosine_similarity(real_gradient.flatten(1), gradient.flatten(1), dim=1)).sum()
        self.update(loss)

    def step(self) -> None:
        """Update the images once, then train the network for the inner epochs."""
        self.match()
        images = torch.cat([class_images.detach() for class_images in self.images])
        for _ in range(self.recipe.loops[1]):
            for index in torch.randperm(len(images), device=self.device).split(256):
                rows = torch.arange(len(index), device=self.device)
                uniform = rng.uniform(self.training_key, self.step_number, rows, augment.NUM_UNIFORMS)
                transform = augment.sample_transform(uniform, self.stages, self.data.size, shared=True)
                batch = augment.apply(transform, images[index][:, None])[:, 0]
                self.network_optimizer.zero_grad()
                F.cross_entropy(self.network(batch), self.labels[index]).backward()
                self.network_optimizer.step()


def make_plain_epoch(data: DeviceDataset, protocol: Protocol, compute: ComputeDevice) -> Callable[[], None]:
    """Return a function that trains a network for one epoch: a module and PyTorch's SGD."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    network = networks.build(protocol.network, **shape).to(compute.device).train()
    sgd = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    stages, key = augment.parse_strategy(protocol.augment), rng.make_key(0, "plain", device=compute.device)
    step = 0

    def train_epoch() -> None:
        nonlocal step
        for index in torch.randperm(len(data), device=compute.device).split(protocol.batch_size):
            rows = torch.arange(len(index), device=compute.device)
            uniform = rng.uniform(key, step, rows, augment.NUM_UNIFORMS)
            transform = augment.sample_transform(uniform, stages, data.size, shared=True)
            images = augment.apply(transform, data.images(index)[:, None])[:, 0]
            sgd.zero_grad()
            F.cross_entropy(network(images), data.labels[index]).backward()
            sgd.step()
            step += 1

    return train_epoch
