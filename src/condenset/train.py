"""The only loop that trains a network."""

from __future__ import annotations

import contextlib
import copy
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import augment, draws, kernels, networks
from condenset.engine import Place
from condenset.engine.memory import networks_together
from condenset.engine.step import accelerate, by_hand, forward_of, mixed, network_for
from condenset.kernels.descent import descend
from condenset.recipes import Protocol
from condenset.types import CondensedSet, ImageData

TEST_BATCH = 1000
REST_AFTER = 100  # steps on a GPU, which take it a twentieth of a second; elsewhere one may take a second
TOGETHER = 5  # networks on one GPU, where a step of one leaves part of it idle; 4 and 8 are as good, 20 are 4 times 5


@dataclass(frozen=True)
class TrainingSet:
    """Images on the device, float and normalised or still uint8, with hard or soft labels."""

    images_NCHW: Tensor
    labels: Tensor
    scale_C11: Tensor  # of uint8 pixels
    shift_C11: Tensor
    can_flip: bool
    num_classes: int

    @classmethod
    def of(cls, source: CondensedSet | ImageData, device: torch.device) -> TrainingSet:
        images = source.normalised() if isinstance(source, CondensedSet) else source.images
        mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (source.mean, source.std))
        labels = source.labels.to(device)
        return cls(images.to(device), labels, 1 / (255 * std), -mean / std, source.can_flip, source.num_classes)

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor | slice) -> Tensor:
        """The images at these places, normalised."""
        images = self.images_NCHW[index]
        return images.float() * self.scale_C11 + self.shift_C11 if images.dtype == torch.uint8 else images


class Forgetting:
    """How often each image of a set went from right to wrong while a network trained on it (Toneva et al., 2019).

    All of it stays on the device, so that looking on takes no wait and can be captured with the training step.
    """

    def __init__(self, num: int, device: torch.device) -> None:
        self.events_N = torch.zeros(num, dtype=torch.int64, device=device)
        self.right_N = torch.zeros(num, dtype=torch.bool, device=device)  # when it was last seen
        self.learned_N = torch.zeros(num, dtype=torch.bool, device=device)  # right at least once

    @property
    def state(self) -> dict[str, Tensor]:
        """All that `see` changes."""
        return {"events": self.events_N, "right": self.right_N, "learned": self.learned_N}

    @property
    def counts_N(self) -> Tensor:
        """(N,) events of each image; one that was never learned counts as more forgotten than any that was."""
        return torch.where(self.learned_N, self.events_N, self.events_N.max() + 1)

    def reset(self) -> None:
        for tensor in self.state.values():
            tensor.zero_()

    def see(self, index: Tensor, right: Tensor) -> None:
        """Note which of the images at `index`, each named once, the network now gets right."""
        self.events_N.index_add_(0, index, (self.right_N[index] & ~right).long())
        self.learned_N.index_copy_(0, index, self.learned_N[index] | right)
        self.right_N.index_copy_(0, index, right)


class Trainer:
    """Trains network after network of one architecture on one set; each is a function of its seed and tags alone.

    A module in place of a spec is somebody else's, whose code may do anything: it starts as it stands, computes under
    autocast since it may not bear weights in another precision, and is neither compiled nor captured.
    """

    def __init__(
        self,
        architecture: str | nn.Module,
        data: TrainingSet,
        protocol: Protocol,
        place: Place,
        *,
        forgetting: Forgetting | None = None,  # looks on; needs hard labels
        compiling: bool = True,
    ) -> None:
        channels, self.size = data.images_NCHW.shape[1], data.images_NCHW.shape[-1]
        self.data, self.protocol, self.place, device = data, protocol, place, place.device
        self.is_ours = isinstance(architecture, str)
        self.network: nn.Module
        if isinstance(architecture, str):
            shape, batches = (channels, self.size, data.num_classes), frozenset(self._sizes)
            found = network_for(architecture, *shape, place, batches=batches, compiling=compiling)
            self.network, self.forward = found
            self.dtype, self.plain = place.dtype, forward_of(self.network, place, compiling=False)
        else:
            self.network = architecture.to(device)
            self.dtype, self.plain = torch.float32, mixed(forward_of(self.network, place, compiling=False), place)
            self.forward = self.plain
        self.network.train()  # but while it is tested
        self._fresh = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        self._own_buffers = {name: buffer.clone() for name, buffer in self._fresh.items()} if self.is_ours else {}
        xavier = protocol.own_steps  # which were learned for networks that start so
        self.parameters = networks.Parameters(self.network, device, xavier=xavier, as_built=not self.is_ours)
        self.operations = augment.parse(protocol.augment, can_flip=data.can_flip)
        self.weights = torch.zeros(self.parameters.num, device=device)
        self.velocity = torch.zeros_like(self.weights)
        self.lr = torch.zeros((), device=device)
        self.augment_key = torch.zeros(2, dtype=torch.int64, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)
        self.forgetting = forgetting
        # The order of a pass, drawn and walked through on the device: the host only says what comes next.
        self.order = torch.zeros(len(data), dtype=torch.int64, device=device)
        self.order_key = torch.zeros_like(self.augment_key)
        self.pass_number, self.position = torch.zeros_like(self.clock), torch.zeros_like(self.clock)
        self._steps: dict[int, Callable[[], None]] = {}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Batch norm's running statistics and the like, as they are now."""
        return self._own_buffers if self.is_ours else dict(self.network.named_buffers())

    def is_finite(self) -> bool:
        """Whether the network is numbers still; one that diverged classes all images alike."""
        return math.isfinite(self.weights.sum())  # a sum needs no memory, and keeps NaN

    @property
    def num_steps(self) -> int:
        """Steps of a training."""
        return self.protocol.length(len(self.data))[0]

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one step to the next: a training goes on from it to the same network."""
        names = ("weights", "velocity", "lr", "clock", "order", "position")
        buffers = {f"buffers.{name}": buffer for name, buffer in self.buffers.items()}
        seen = self.forgetting.state if self.forgetting else {}
        return {name: getattr(self, name) for name in names} | buffers | seen

    @property
    def _sizes(self) -> list[int]:
        """Images in each step of a pass."""
        num, batch = len(self.data), self.protocol.batch
        return [min(batch, num - first) for first in range(0, num, batch)]

    def train(
        self,
        seed: int,
        *tags: str | int,
        report: Callable[[int], None] = lambda _: None,
        after_pass: Callable[[int], None] = lambda _: None,
        after_step: Callable[[], None] = lambda: None,
        restore: Callable[[Mapping[str, Tensor]], int] = lambda _: 0,
    ) -> None:
        """Draw a fresh network and train it, or go on where restore(state), which may fill the state, says.

        after_step() is called as a step ends, after_pass(n) as pass n, from 1; report(n), when n steps are done but
        not all, so often that a person who watches or wants to stop need not wait long.
        """
        a_pass = len(self._sizes)
        for done in self.training(seed, *tags, after_step=after_step, restore=restore):
            if done < self.num_steps:  # then there is nothing left to stop, and much to lose
                report(done)
            if done % a_pass == 0 or done == self.num_steps:
                after_pass(-(-done // a_pass))

    def training(
        self,
        seed: int,
        *tags: str | int,
        after_step: Callable[[], None] = lambda: None,
        restore: Callable[[Mapping[str, Tensor]], int] = lambda _: 0,
    ) -> Iterator[int]:
        """The same, with a rest after each pass and, in a long one, on the way: the steps done by then."""
        self._draw(seed, *tags)
        first = restore(self.state)
        sizes, order_key = self._sizes, draws.make_key(seed, *tags, "order", device=self.place.device)
        num_steps, drop_after = self.protocol.length(len(self.data))
        rest_after = REST_AFTER if self.place.device.type == "cuda" else 1
        for done in range(first + 1, num_steps + 1):
            number, place = divmod(done - 1, len(sizes))
            if place == 0:
                self._begin_pass(order_key, number + 1)
            self._step_of(sizes[place])()
            after_step()
            if done == drop_after:
                self.lr.mul_(0.1)
                self.velocity.zero_()
            if place + 1 == len(sizes) or done == num_steps or (place + 1) % rest_after == 0:
                yield done

    def descending(
        self, seed: int, *tags: str | int, schedule: Sequence[Tensor], step_sizes: Sequence[float]
    ) -> Iterator[int]:
        """Instead of passes a step of each size, on the images at each of the schedule's places: how many are done."""
        self._draw(seed, *tags)
        for done, (places, size) in enumerate(zip(schedule, step_sizes, strict=True), start=1):
            self.order[: len(places)].copy_(places)
            self.position.zero_()
            self.lr.fill_(size)
            self._step_of(len(places))()
            yield done

    def _draw(self, seed: int, *tags: str | int) -> None:
        device = self.place.device
        key, augment_key = (draws.make_key(seed, *tags, use, device=device) for use in ("network", "augment"))
        self.start(self.parameters.initial(draws.flat_uniform(key, 0, self.parameters.num)), augment_key)

    def start(self, weights_P: Tensor, augment_key: Tensor) -> None:
        """Begin anew with these weights: nothing of the network before is remembered."""
        self.weights.copy_(weights_P)
        for name, buffer in self.buffers.items():
            buffer.copy_(self._fresh[name])
        self.augment_key.copy_(augment_key)
        torch.arange(len(self.order), out=self.order)
        self.velocity.zero_()
        self.clock.zero_()
        if self.forgetting:
            self.forgetting.reset()
        self.lr.fill_(self.protocol.lr)

    def ready(self) -> None:
        """Make the steps of a pass ready now, where whoever waits for them expects it."""
        for num in dict.fromkeys([*self._sizes, *([0] if len(self._sizes) > 1 else [])]):
            self._step_of(num)

    def one_pass(self, order_key: Tensor, number: int | Tensor) -> None:
        """A step on every batch of the set, in the order drawn for this number."""
        self._begin_pass(order_key, number)
        for num in self._sizes:
            self._step_of(num)()

    def release(self) -> None:
        """Give back the memory that captured steps hold, for those who train one architecture after another."""
        self._steps.clear()
        if self.place.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def result(self) -> nn.Module:
        """The network as it is trained, its own copy: in float32 and evaluation mode."""
        network = copy.deepcopy(self.network)
        views = self.parameters.views(self.weights, torch.float32)
        for name, parameter in network.named_parameters():
            parameter.copy_(views[name])
        for name, buffer in network.named_buffers():
            buffer.copy_(self.buffers[name])
        return network.eval()

    @torch.no_grad()
    def accuracy(self, test: TrainingSet, after_batch: Callable[[], None] = lambda: None) -> float:
        """The share of the test images that the trained network gets right."""
        views = self.parameters.views(self.weights, self.dtype) | self._own_buffers
        right = torch.zeros((), device=self.place.device)
        self.network.eval()
        try:
            for first in range(0, len(test), TEST_BATCH):
                part = slice(first, first + TEST_BATCH)
                logits = self.plain(views, test.images(part).to(self.dtype))  # not worth compiling for another batch
                right += (logits.argmax(1) == test.labels[part]).sum()
                after_batch()
        finally:
            self.network.train()
        return float(right) / len(test)

    def _begin_pass(self, order_key: Tensor, number: int | Tensor) -> None:
        if len(self.data) <= self.protocol.batch:  # one step has all images, to which their order is nothing
            self.position.zero_()
            return
        self.order_key.copy_(order_key)
        self.pass_number.fill_(number)
        self._step_of(0)()

    def _step_of(self, num: int) -> Callable[[], None]:
        """A step on the next `num` images, fewer for a set's last batch; with 0, the shuffling before a pass."""
        if num not in self._steps:
            state = list(self.state.values())
            ahead = torch.arange(num, device=self.place.device)
            me = weakref.proxy(self)  # a step that held its trainer would keep it, and its GPU memory, for long
            step = (lambda: me._step(ahead)) if num else (lambda: me._shuffle())
            self._steps[num] = accelerate(step, state, self.place) if self.is_ours or num == 0 else step
        return self._steps[num]

    def _shuffle(self) -> None:
        """Draw the order of the pass that begins."""
        self.order.copy_(draws.permutation(self.order_key, self.pass_number, len(self.data)))
        self.position.zero_()

    def _step(self, ahead: Tensor) -> None:
        """One step of SGD with momentum and weight decay on the images that lie so far ahead in the order."""
        index = self.order[(self.position + ahead).clamp(max=len(self.data) - 1)]  # trying it out may walk past the end
        images, labels = self.data.images(index), self.data.labels[index]
        if self.operations:
            uniform = draws.uniform(self.augment_key, self.clock, ahead, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform, self.operations, self.size, shared=True)
            images = augment.apply(transform, images[:, None], self.dtype)[:, 0]
        weights = self.weights.detach().requires_grad_()
        views = self.parameters.views(weights, self.dtype)
        logits = self.forward(views | self._own_buffers, images.to(self.dtype))
        loss = F.cross_entropy(logits.float(), labels)
        (gradient,) = torch.autograd.grad(loss, weights)
        self._descend(gradient, len(ahead))
        if self.forgetting:
            with torch.no_grad():
                self.forgetting.see(index, logits.argmax(1) == labels)

    @torch.no_grad()
    def _descend(self, gradient_P: Tensor, num: int) -> None:
        momentum, decay = self.protocol.momentum, self.protocol.weight_decay
        if kernels.available(self.weights):
            state = (self.weights, self.velocity, gradient_P, self.lr, self.clock, self.position)
            descend(*state, num, momentum=momentum, decay=decay)
            return
        self.velocity.mul_(momentum).add_(gradient_P.add(self.weights, alpha=decay))
        self.weights.sub_(self.lr * self.velocity)
        self.clock += 1
        self.position += num


def side_by_side(trainings: Sequence[Iterator[int]], device: torch.device) -> Iterator[int]:
    """Go on with each training in turn to its next rest, all having as many: the number that they rest at.

    On a GPU each has a stream, and they fill it together. A network's result does not depend on its neighbours.
    """
    streams = [torch.cuda.Stream(device) for _ in trainings] if device.type == "cuda" else []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(device))
    number: int | None = None
    try:
        while True:
            for place, passes in enumerate(trainings):
                with torch.cuda.stream(streams[place]) if streams else contextlib.nullcontext():
                    number = next(passes, None)
            if number is None:
                break
            yield number
    finally:  # also when they are left midway: what they write to is free then
        for stream in streams:
            torch.cuda.current_stream(device).wait_stream(stream)


def together(protocol: Protocol, data: TrainingSet, place: Place) -> int:
    """How many networks train side by side: several, if they fit, where kernels of our own leave a GPU half idle."""
    if place.device.type != "cuda":
        return 1
    channels, size = data.images_NCHW.shape[1], data.images_NCHW.shape[-1]
    with torch.device("meta"):
        network = networks.build(protocol.network, channels=channels, size=size, num_classes=data.num_classes)
    if not by_hand(network, place):
        return 1
    fitting = networks_together(network, place, (channels, size, size), min(protocol.batch, len(data)))
    return max(1, min(TOGETHER, fitting))


def dealt(labels_N: Tensor, steps: int, epochs: int) -> list[Tensor]:
    """The images that each step trains on: the set is dealt into as many groups as there are steps, class by class.

    With fewer images a class than steps, every image is a group's own and the groups come round again.
    """
    labels = labels_N.cpu()
    counts, order = labels.bincount(), labels.argsort(stable=True)
    place_N = torch.empty_like(labels)  # within its class
    place_N[order] = torch.cat([torch.arange(count) for count in counts.tolist()])
    num = min(steps, int(counts.max()))
    groups = [(place_N % num == group).nonzero()[:, 0].to(labels_N.device) for group in range(num)]
    return [groups[step % num] for step in range(steps)] * epochs
