"""Train a network: the only training loop."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from condenset import augment
from condenset.engine import ComputeDevice, rng
from condenset.engine.cuda_graph import capture_step
from condenset.training import cutmix
from condenset.training.cross_entropy import logit_gradient
from condenset.training.dataset import DeviceDataset, take_batch
from condenset.training.forgetting import ForgettingCounter
from condenset.training.model import Model
from condenset.training.protocol import Protocol
from condenset.training.sgd import update_weights

YIELD_EVERY = 100  # steps on a GPU, about 50 ms; on a CPU one step may take a second


class Trainer:
    """Train networks of one architecture on one set, one after another.

    Each result is a function of the seed and the tags alone.

    Args:
        spec: The network.
        data: The training set.
        protocol: The optimiser, the number of epochs and the augmentation.
        compute: The device and precision.
        forgetting: A counter to update after every step. It needs hard labels.
        compiling: Whether to compile the network, which takes 10 to 20 seconds on a GPU.
    """

    def __init__(
        self,
        spec: str,
        data: DeviceDataset,
        protocol: Protocol,
        compute: ComputeDevice,
        *,
        forgetting: ForgettingCounter | None = None,
        compiling: bool = True,
    ) -> None:
        self.data, self.protocol, self.compute, device = data, protocol, compute, compute.device
        self.model = Model(
            spec,
            data,
            compute,
            batch_sizes=frozenset(self._batch_sizes),
            xavier=protocol.learned_steps,  # step sizes are learned for networks with this initialisation
            compiling=compiling,
        )
        self.parameters = self.model.parameters
        self.stages = augment.parse_strategy(protocol.augment, allow_hflip=data.allow_hflip)
        self.weights = torch.zeros(self.parameters.num, device=device)
        self.velocity = torch.zeros_like(self.weights)
        self.lr = torch.zeros((), device=device)
        self.augment_key = torch.zeros(2, dtype=torch.int64, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)
        self.forgetting = forgetting
        # The order of the images in an epoch is drawn and followed on the device, so that steps can be captured.
        self.order = torch.zeros(len(data), dtype=torch.int64, device=device)
        self.order_key = torch.zeros_like(self.augment_key)
        self.epoch, self.position = torch.zeros_like(self.clock), torch.zeros_like(self.clock)
        self._steps: dict[int, Callable[[], None]] = {}

    @property
    def is_resumable(self) -> bool:
        """Whether `state` is complete. A user's network may have other state."""
        return self.model.has_default_init

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The current buffers of the network, such as the running statistics of batch norm."""
        return self.model.buffers

    @property
    def num_steps(self) -> int:
        """The number of steps of a training."""
        return self.protocol.training_steps(len(self.data))

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of an epoch."""
        return len(self._batch_sizes)

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors that a step changes. A training that continues from them has the same result."""
        names = ("weights", "velocity", "lr", "clock", "order", "position")
        buffers = {f"buffers.{name}": buffer for name, buffer in self.buffers.items()}
        forgetting = self.forgetting.state if self.forgetting else {}
        return {name: getattr(self, name) for name in names} | buffers | forgetting

    @property
    def _batch_sizes(self) -> list[int]:
        """The number of images in each step of an epoch."""
        num, batch_size = len(self.data), self.protocol.batch_size
        return [min(batch_size, num - first) for first in range(0, num, batch_size)]

    def is_finite(self) -> bool:
        """Return whether the weights are free of NaN and infinity."""
        return math.isfinite(self.weights.sum())  # a sum needs no memory and propagates NaN

    def train(
        self,
        seed: int,
        *tags: str | int,
        report: Callable[[int], None] = lambda _: None,
        after_epoch: Callable[[int], None] = lambda _: None,
        load_state: Callable[[Mapping[str, Tensor]], int] = lambda _: 0,
    ) -> None:
        """Initialise and train a network.

        Args:
            seed: The seed.
            tags: The purpose of the network, which selects its random numbers.
            report: Called with the number of steps done, often enough for progress and stop requests. It is not called
                after the last step, so that a stop request does not discard a trained network.
            after_epoch: Called with the number of the epoch, from 1.
            load_state: Called with the initial state, which it may replace. Returns the number of steps already done.
        """
        for done in self.iter_train(seed, *tags, load_state=load_state):
            if done < self.num_steps:
                report(done)
            if done % self.steps_per_epoch == 0 or done == self.num_steps:
                after_epoch(-(-done // self.steps_per_epoch))

    def iter_train(
        self,
        seed: int,
        *tags: str | int,
        after_step: Callable[[], None] = lambda: None,
        load_state: Callable[[Mapping[str, Tensor]], int] = lambda _: 0,
    ) -> Iterator[int]:
        """Train as `train` does, and yield the number of steps done after every epoch and in between."""
        return self._isolate(self._iter_steps(seed, *tags, after_step=after_step, load_state=load_state), seed, *tags)

    def train_with_step_sizes(
        self, seed: int, *tags: str | int, batches: Sequence[Tensor], step_sizes: Sequence[float]
    ) -> Iterator[int]:
        """Take one step per step size on the images at these positions, and yield the number of steps done."""
        return self._isolate(self._iter_step_sizes(seed, *tags, batches=batches, step_sizes=step_sizes), seed, *tags)

    def _iter_steps(
        self,
        seed: int,
        *tags: str | int,
        after_step: Callable[[], None],
        load_state: Callable[[Mapping[str, Tensor]], int],
    ) -> Iterator[int]:
        self._initialize(seed, *tags)
        first = load_state(self.state)
        batch_sizes, order_key = self._batch_sizes, rng.make_key(seed, *tags, "order", device=self.compute.device)
        num_steps, lr_factors = self.num_steps, self.protocol.lr_factors(len(self.data))
        yield_every = YIELD_EVERY if self.compute.device.type == "cuda" else 1
        for done in range(first + 1, num_steps + 1):
            epoch, batch = divmod(done - 1, len(batch_sizes))
            if batch == 0:
                self._begin_epoch(order_key, epoch + 1)
            self._get_step(batch_sizes[batch])()
            after_step()
            if done in lr_factors:
                self.lr.mul_(lr_factors[done])
                if self.protocol.resets_momentum:
                    self.velocity.zero_()
            if batch + 1 == len(batch_sizes) or done == num_steps or (batch + 1) % yield_every == 0:
                yield done

    def _iter_step_sizes(
        self, seed: int, *tags: str | int, batches: Sequence[Tensor], step_sizes: Sequence[float]
    ) -> Iterator[int]:
        self._initialize(seed, *tags)
        for done, (index, step_size) in enumerate(zip(batches, step_sizes, strict=True), start=1):
            self.order[: len(index)].copy_(index)
            self.position.zero_()
            self.lr.fill_(step_size)
            self._get_step(len(index))()
            yield done

    def _isolate(self, steps: Iterator[int], seed: int, *tags: str | int) -> Iterator[int]:
        """Advance the training of a user's network under seeded global generators and with one-line errors."""
        if self.model.has_default_init:
            yield from steps
            return
        for part in itertools.count():
            with self.model.user_code(seed, *tags, "builder", part):
                done = next(steps, None)
            if done is None:
                return
            yield done

    def _initialize(self, seed: int, *tags: str | int) -> None:
        """Begin the training of a new network."""
        augment_key = rng.make_key(seed, *tags, "augment", device=self.compute.device)
        self.start(self.model.initialize(seed, *tags), augment_key)

    def start(self, weights_P: Tensor, augment_key: Tensor) -> None:
        """Begin the training of a network with these weights."""
        self.weights.copy_(weights_P)
        self.model.reset_buffers()
        self.augment_key.copy_(augment_key)
        torch.arange(len(self.order), out=self.order)
        self.velocity.zero_()
        self.clock.zero_()
        if self.forgetting:
            self.forgetting.reset()
        self.lr.fill_(self.protocol.lr)

    def compile_steps(self) -> None:
        """Compile and capture the steps of an epoch now instead of when they first run."""
        shuffles = len(self._batch_sizes) > 1 or self.protocol.cutmix
        for num in dict.fromkeys([*self._batch_sizes, *([0] if shuffles else [])]):
            self._get_step(num)

    def train_epoch(
        self,
        order_key: Tensor,
        epoch: int | Tensor,
        after_step: Callable[[], None] = lambda: None,
        max_steps: int | None = None,
    ) -> None:
        """Take one step on every batch, or on the first `max_steps` of them, in the order drawn for this epoch."""
        self._begin_epoch(order_key, epoch)
        for num in self._batch_sizes[:max_steps]:
            self._get_step(num)()
            after_step()

    def release(self) -> None:
        """Free the GPU memory of captured steps."""
        self._steps.clear()
        if self.compute.device.type == "cuda":
            torch.cuda.empty_cache()

    def export_network(self) -> nn.Module:
        """Return a copy of the trained network, in float32 and evaluation mode."""
        return self.model.export(self.weights)

    def predict(self, test_set: DeviceDataset, after_batch: Callable[[], None] = lambda: None) -> Tensor:
        """Return the class that the trained network predicts for each test image, (N,) on the device."""
        return self.model.predict(self.weights, test_set, after_batch)

    def accuracy(self, test_set: DeviceDataset) -> float:
        """Return the fraction of test images that the trained network classifies correctly."""
        return int((self.predict(test_set) == test_set.labels).sum()) / len(test_set)

    def _begin_epoch(self, order_key: Tensor, epoch: int | Tensor) -> None:
        is_one_step = len(self.data) <= self.protocol.batch_size
        if is_one_step and not self.protocol.cutmix:  # the order does not matter, except for neighbours of CutMix
            self.position.zero_()
            return
        self.order_key.copy_(order_key)
        self.epoch.fill_(epoch)
        self._get_step(0)()

    def _get_step(self, num: int) -> Callable[[], None]:
        """Return a step on the next `num` images, captured if possible; for 0, the shuffling before an epoch."""
        if num not in self._steps:
            offsets = torch.arange(num, device=self.compute.device)
            streams = self._random_streams(offsets)
            trainer = weakref.proxy(self)  # a step that holds its trainer would keep its GPU memory allocated
            step = (lambda: trainer._step(offsets, streams)) if num else (lambda: trainer._shuffle())
            capture = self.model.has_default_init or num == 0
            self._steps[num] = capture_step(step, list(self.state.values()), self.compute) if capture else step
        return self._steps[num]

    def _shuffle(self) -> None:
        """Draw the order of the images for an epoch."""
        self.order.copy_(rng.permutation(self.order_key, self.epoch, len(self.data)))
        self.position.zero_()

    def _random_streams(self, offsets: Tensor) -> Tensor:
        """Return the streams of the random numbers of a step: one per augmented image, then that of CutMix."""
        cutmix_stream = offsets.new_full((1,), cutmix.STREAM) if self.protocol.cutmix else offsets[:0]
        return torch.cat((offsets if self.stages else offsets[:0], cutmix_stream))

    def _step(self, offsets: Tensor, streams_S: Tensor) -> None:
        """Take one step of SGD with momentum and weight decay on the next images."""
        index, labels = take_batch(self.order, self.position, self.data.labels, offsets)
        uniform_SU = rng.uniform(self.augment_key, self.clock, streams_S, augment.NUM_UNIFORMS)
        images, share = self._take_images(index, uniform_SU), None
        if self.protocol.cutmix:
            images, share = cutmix.mix_images(images, uniform_SU[-1, : cutmix.NUM_UNIFORMS], self.protocol.cutmix)
        weights = self.weights.detach().requires_grad_()
        logits = self.model.logits(weights, images)
        (gradient,) = torch.autograd.grad(logits, weights, logit_gradient(logits, labels, share))
        state = (self.weights, self.velocity, gradient, self.lr, self.clock, self.position)
        momentum, weight_decay = self.protocol.momentum, self.protocol.weight_decay
        update_weights(*state, len(offsets), momentum=momentum, weight_decay=weight_decay)
        if self.forgetting:
            self.forgetting.update(index, logits.argmax(1) == labels)

    def _take_images(self, index: Tensor, uniform_SU: Tensor) -> Tensor:
        """Return the images at these positions, normalised and augmented."""
        if not self.stages:
            return self.data.images(index)
        transform = augment.sample_transform(uniform_SU[: len(index)], self.stages, self.data.size, shared=True)
        return self.data.take_augmented(index, transform, self.model.dtype)
