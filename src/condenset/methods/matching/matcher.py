"""Everything around the step of distribution matching: state, memory, chunks and the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import augment, networks
from condenset.augment import Transform
from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import format_ipc
from condenset.engine import rng
from condenset.engine.compile import Forward, uses_custom_kernels
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import MemoryEstimate, estimate_memory, images_per_pass, num_classes_that_fit
from condenset.errors import UserError
from condenset.io.bytesize import format_bytes
from condenset.methods.common import NUM_LOSSES, build_condensed_set, images_per_class
from condenset.methods.matching.objectives import Objective
from condenset.methods.matching.sets import Chunk, PaddingMask, Parametrization, SetGroup, SyntheticSets
from condenset.methods.registry import method_of
from condenset.methods.samplers import NetworkSampler, make_loop_step
from condenset.runs.context import RunContext
from condenset.runs.loop import run_loop

PIXELS = Parametrization()  # the images themselves
NO_MEMORY = MemoryEstimate(0, 0)


class Matcher(ABC):
    """State of a run that matches features of real and synthetic images, class by class.

    A subclass defines the step. Shapes: K classes, N images per class, F features.

    Args:
        data: The real images.
        recipes: One per set; sets of several sizes are learned at once.
        run: The run.
        network: Maps images to features, on the meta device.
        forward: The network as a function of its parameters and images.
        sampler: Samples the parameters of the network in every iteration.
        objective: Distance between the features of real and synthetic images.
        classify: The network with its classifier, as `forward`, for the calibration.
        calibration: Weight of the cross-entropy of synthetic images under a trained network; 0: none.
        parametrization: How the synthetic images are stored and updated.
        stages: Stages of the augmentation; none: no augmentation.
        dtype: Precision of the features.
        memory: Estimate of the memory that the run needs.
    """

    def __init__(
        self,
        data: ImageData,
        recipes: Sequence[Any],
        run: RunContext,
        *,
        network: nn.Module,
        forward: Forward,
        sampler: NetworkSampler,
        objective: Objective,
        classify: Forward | None = None,
        calibration: float = 0.0,
        parametrization: Parametrization = PIXELS,
        stages: augment.Stages,
        dtype: torch.dtype,
        memory: MemoryEstimate,
    ) -> None:
        device = run.compute.device
        self.data, self.recipe, self.run, self.dtype = data, recipes[0], run, dtype
        self.networks, self.objective, self.stages = sampler, objective, stages
        self.real_key, self.augment_key = (rng.make_key(run.seed, use, device=device) for use in ("real", "augment"))
        self.forward, self.classify, self.calibration = forward, classify, calibration
        self.images_per_pass = real_images_per_pass(network, data, run.compute)
        batch_norm = networks.uses_batch_norm(network)
        self.batch_size = min(self.recipe.batch_size, max(data.class_counts))
        self.store = ClassStore(data, device)
        self.sets = SyntheticSets(
            data,
            recipes,
            self.store,
            run.seed,
            batch_size=self.batch_size,
            separate=batch_norm,
            parametrization=parametrization,
        )
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)
        self.chunks = self.sets.split(max_classes_per_pass(data, run, memory, batch_norm=batch_norm))
        self.provenance: dict[str, Any] = {}

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one iteration to the next."""
        return {**self.sets.state, **self.networks.state, "losses": self.losses, "clock": self.clock}

    @abstractmethod
    def step(self) -> None:
        """Run the iteration that the clock shows, for all classes."""

    def sample_augmentation(self, chunk: Chunk) -> Transform | None:
        """Sample one augmentation per class, which real and synthetic images share."""
        if not self.stages:
            return None
        streams_K = self.store.stream_ids(chunk.classes_K)
        uniform_KU = rng.uniform(self.augment_key, self.clock, streams_K, augment.NUM_UNIFORMS)
        return augment.sample_transform(uniform_KU, self.stages, self.data.size)

    def sample_real(self, chunk: Chunk, transform: Transform | None) -> Tensor:
        """Sample (K, B, C, H, W) real images of each class, augmented."""
        ordered = chunk.real.weight_KN is not None  # padding comes last; without padding the order does not matter
        indices_KB = self.store.sample_class_indices(
            self.real_key, self.clock, chunk.classes_K, self.batch_size, ordered=ordered
        )
        if transform is None:
            return self.store.take_normalized(indices_KB)
        return self.store.take_augmented(indices_KB, transform, self.dtype)

    def augment(self, images_KICHW: Tensor, transform: Transform | None) -> Tensor:
        """Apply the augmentation of each class to its synthetic images."""
        return images_KICHW if transform is None else augment.apply(transform, images_KICHW, self.dtype)

    @torch.no_grad()
    def embed_real(self, network: dict[str, Tensor], images_KBCHW: Tensor, chunk: Chunk) -> Tensor:
        """Return (K, B, F) features of real images, without gradient."""
        return self._apply(self.forward, network, images_KBCHW, chunk.real, self.images_per_pass)

    def embed_synthetic(
        self, network: dict[str, Tensor], images_KICHW: Tensor, chunk: Chunk, group: SetGroup
    ) -> Tensor:
        """Return (K, I, F) features of synthetic images."""
        return self._apply(self.forward, network, images_KICHW, chunk.synthetic[group.index])

    def _apply(
        self,
        forward: Forward,
        network: dict[str, Tensor],
        images_KNCHW: Tensor,
        mask: PaddingMask,
        images_per_pass: int | None = None,
    ) -> Tensor:
        """Return (K, N, F) outputs; padding does not enter the network, because batch norm would see it."""
        images = images_KNCHW.flatten(0, 1).to(self.dtype)
        inputs = images if mask.positions is None else images[mask.positions]
        outputs = []
        for part in inputs.split(images_per_pass or len(inputs)):
            outputs.append(forward(network, part))
            if not torch.is_grad_enabled():  # real images, most of the work
                self.run.check_stop(len(part) / len(inputs) / len(self.chunks))
        features = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        if mask.positions is not None:
            features = features.new_zeros(len(images), features.shape[1]).index_copy(0, mask.positions, features)
        return features.view(*images_KNCHW.shape[:2], -1)

    def sample_classifier(self) -> dict[str, Tensor] | None:
        """Sample the trained network of the calibration, if there is one."""
        return self.networks.sample_classifier(self.clock, self.dtype) if self.calibration else None

    def calibrate(self, classifier: dict[str, Tensor], images_KICHW: Tensor, chunk: Chunk, group: SetGroup) -> Tensor:
        """Return the cross-entropy of synthetic images under a trained network: class means, summed and weighted."""
        assert self.classify is not None
        total = torch.zeros((), device=self.clock.device)
        mask = chunk.synthetic[group.index]
        labels_KI = chunk.classes_K[:, None].expand(images_KICHW.shape[:2])
        logits_KIL = self._apply(self.classify, classifier, images_KICHW, mask)
        entropy_KI = F.cross_entropy(logits_KIL.float().mT, labels_KI, reduction="none")
        for columns, weight_KI in group.split(mask):
            part_KI = entropy_KI[:, columns]
            total = total + (part_KI.mean(1) if weight_KI is None else (part_KI * weight_KI).sum(1)).sum()
        return self.calibration * total

    def distance(self, real_KBF: Tensor, synthetic_KIF: Tensor, chunk: Chunk, group: SetGroup) -> Tensor:
        """Return the objective, summed over the classes of a chunk and the sets of a group."""
        total = torch.zeros((), device=self.clock.device)
        for columns, weight_KI in group.split(chunk.synthetic[group.index]):
            distance_K = self.objective(real_KBF, synthetic_KIF[:, columns], chunk.real.weight_KN, weight_KI)
            total = total + distance_K.sum()
        return total

    def solve(self) -> list[CondensedSet]:
        """Run to the last iteration and return the sets."""
        run, slices = self.run, self.sets.slices
        ipcs = [set_slice.recipe.to_dict()["ipc"] for set_slice in slices]
        provenance = {**self.provenance, "together": ipcs} if len(ipcs) > 1 else self.provenance

        def result(index: int, seconds: float) -> CondensedSet:
            images_NCHW, labels = self.sets.result(slices[index])
            recipe: Any = slices[index].recipe
            partition = self.sets.parametrization.partition
            return build_condensed_set(
                images_NCHW, labels, self.data, recipe, run, seconds, partition=partition, **provenance
            )

        description = f"{method_of(self.recipe).name}, {', '.join(map(format_ipc, ipcs))} per class"
        seconds = run_loop(
            run, self.state, self.recipe.iterations, self.make_step, description, lambda seconds: result(0, seconds)
        )
        return [result(index, seconds) for index in range(len(slices))]

    def make_step(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        return make_loop_step(self.step, self.state, self.networks, self.run.compute)


def real_images_per_pass(network: nn.Module, data: ImageData, compute: ComputeDevice) -> int | None:
    """Return how many real images pass at a time: few on a CPU, all (None) on a GPU or with batch norm."""
    image = (data.channels, data.size, data.size)
    return None if networks.uses_batch_norm(network) else images_per_pass(network, compute, image)


def max_classes_per_pass(data: ImageData, run: RunContext, memory: MemoryEstimate, *, batch_norm: bool) -> int:
    """Return how many classes pass together: all with batch norm, else what fits."""
    num_classes = data.num_classes
    if batch_norm:
        if run.classes_per_chunk is not None and run.classes_per_chunk < num_classes:
            raise UserError(
                f"batch norm needs all {num_classes} classes in one pass, but got chunks of {run.classes_per_chunk}"
            )
        check_batch_norm_memory(memory, num_classes, run.memory_limit)
        return num_classes
    return run.classes_per_chunk or num_classes_that_fit(memory, run.compute, run.memory_limit)


def peak_memory(memory: MemoryEstimate, num_classes: int, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes of a run without batch norm, which processes as many classes at once as fit."""
    return memory.total(min(num_classes, num_classes_that_fit(memory, compute, memory_limit)))


def check_batch_norm_memory(memory: MemoryEstimate, num_classes: int, memory_limit: int | None) -> None:
    """Refuse a memory limit that smaller chunks cannot meet: with batch norm all classes pass together."""
    needed = memory.total(num_classes)
    if memory_limit is not None and needed > memory_limit:
        raise UserError(
            f"batch norm needs all {num_classes} classes in one pass, which takes about {format_bytes(needed)}, "
            f"but the memory limit is {format_bytes(memory_limit)}"
        )


def estimate_matching_memory(
    network: nn.Module,
    data: ImageData,
    recipes: Sequence[Any],
    compute: ComputeDevice,
    *,
    objective: MemoryEstimate = NO_MEMORY,
    network_bytes: int = 0,
    synthetic_factor: int = 1,
) -> MemoryEstimate:
    """Estimate the memory of matching with these recipes.

    Args:
        network: Maps images to features.
        data: The real images.
        recipes: One per set.
        compute: Device and precision.
        objective: Memory that the objective needs beyond the features.
        network_bytes: Bytes of the networks that the sampler holds.
        synthetic_factor: Passes of decoded images through networks per stored image.
    """
    largest_class = max(data.class_counts)
    ipcs = [max(images_per_class(data, recipe)) for recipe in recipes]
    estimate = estimate_memory(
        network,
        compute,
        (data.channels, data.size, data.size),
        real_per_class=min(recipes[0].batch_size, largest_class),
        synthetic_per_class=synthetic_factor * (max(ipcs) if networks.uses_batch_norm(network) else sum(ipcs)),
        custom_kernels=uses_custom_kernels(network, compute),
        num_stored=len(data.images),
        num_learned=data.num_classes * sum(ipcs),
        images_per_pass=real_images_per_pass(network, data, compute),
        objective_bytes=objective.bytes_per_class,
    )
    fixed_bytes = estimate.fixed_bytes + objective.fixed_bytes + network_bytes
    return MemoryEstimate(fixed_bytes, estimate.bytes_per_class)
