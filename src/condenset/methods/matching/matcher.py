"""Everything around the step of distribution matching: state, memory, chunks and the loop."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import augment, networks
from condenset.augment import Transform
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.stores.batch_stream import BatchStream
from condenset.data.stores.class_store import ClassStore, ImageBatch
from condenset.data.stores.streamed_store import StreamedStore
from condenset.engine import cuda_graph, rng
from condenset.engine.compile import Forward
from condenset.engine.memory import MemoryEstimate
from condenset.methods.common import build_condensed_set, describe_job
from condenset.methods.matching.memory import max_classes_per_pass, real_images_per_pass
from condenset.methods.matching.objectives import make_objective
from condenset.methods.matching.sets import Chunk, PaddingMask, Parametrization, SyntheticSets
from condenset.methods.matching.streamed_step import capture_streamed_step
from condenset.methods.problem import LearningProblem
from condenset.methods.samplers import NetworkSampler
from condenset.runs.context import RunContext

PIXELS = Parametrization()  # the images themselves


class Matcher(LearningProblem):
    """State of a run that matches features of real and synthetic images, class by class.

    A subclass defines the step. Shapes: K classes, N images per class, F features.

    Args:
        data: The real images.
        recipes: One per set; sets of several sizes are learned at once.
        run: The run.
        network: Maps images to features, on the meta device.
        forward: The network as a function of its parameters and images.
        sampler: Samples the parameters of the network in every iteration.
        classify: The network with its classifier, as `forward`, for the calibration.
        calibration: Weight of the cross-entropy of synthetic images under a trained network; 0: none.
        parametrization: How the synthetic images are stored and updated.
        stages: Stages of the augmentation; none: no augmentation.
        dtype: Precision of the features.
        memory: Estimate of the memory that the run needs.
        provenance: How the networks were trained, for the provenance of the sets.
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
        classify: Forward | None = None,
        calibration: float = 0.0,
        parametrization: Parametrization = PIXELS,
        stages: augment.Stages,
        dtype: torch.dtype,
        memory: MemoryEstimate,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data, recipes[0], run)
        device, self.dtype = run.compute.device, dtype
        self.networks, self.stages = sampler, stages
        self.objective = make_objective(self.recipe.objective, run.seed, self.clock)
        self.real_key, self.augment_key = map(self.make_key, ("real", "augment"))
        self.forward, self.classify, self.calibration = forward, classify, calibration
        self.images_per_pass = real_images_per_pass(network, data, run.compute)
        batch_norm = networks.uses_batch_norm(network)
        self.batch_size = min(self.recipe.batch_size, data.largest_class)
        self.memory = memory
        self.stream: BatchStream | None = None  # of a streamed store, while the loop runs
        self.fixed_batch: ImageBatch | None = None  # of a captured step of a streamed store
        self.store = StreamedStore(data, device) if memory.is_streamed else ClassStore(data, device)
        self.sets = SyntheticSets(
            data,
            recipes,
            self.store,
            run.seed,
            batch_size=self.batch_size,
            parametrization=parametrization,
        )
        max_classes = max_classes_per_pass(data, run, memory, batch_norm=batch_norm)
        self.chunks = self.sets.split(max_classes, self.recipe.calibration_images if calibration else 0)
        self.provenance = provenance or {}

    @property
    def learned(self) -> dict[str, Tensor]:
        return {**self.sets.state, **self.networks.state}

    @abstractmethod
    def match(self, network: dict[str, Tensor], classifier: dict[str, Tensor] | None, chunk: Chunk) -> Tensor:
        """Update the synthetic images of a chunk of classes, and return their loss before the update."""

    def step(self) -> None:
        """Run one iteration for all classes: sample a network, then match class by class."""
        network, classifier = self.sample_networks()
        total_loss = torch.zeros((), device=self.clock.device)
        for chunk in self.chunks:  # the loss is a sum over classes, so chunks do not change the result
            total_loss += self.match(network, classifier, chunk)
        self.end_step(total_loss)

    def sample_networks(self) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Sample the network of an iteration, and the trained network of its calibration, if there is one."""
        classifier = self.networks.sample_classifier(self.clock, self.dtype) if self.calibration else None
        return self.networks.sample(self.clock, self.dtype), classifier

    def end_step(self, total_loss: Tensor) -> None:
        """Train the networks, if the sampler does so, and advance the clock."""
        self.networks.train(self.clock, self.sets)
        self.record_loss(total_loss)

    def sample_augmentation(self, chunk: Chunk) -> Transform | None:
        """Sample one augmentation per class, which real and synthetic images share."""
        if not self.stages:
            return None
        streams_K = self.store.stream_ids(chunk.classes_K)
        uniform_KU = rng.uniform(self.augment_key, self.clock, streams_K, augment.NUM_UNIFORMS)
        return augment.sample_transform(uniform_KU, self.stages, self.data.size)

    def sample_real(self, chunk: Chunk, transform: Transform | None) -> Tensor:
        """Sample (K, B, C, H, W) real images of each class, augmented."""
        with self._next_batch(chunk) as batch:
            if transform is None:
                return self.store.normalize(batch)
            return self.store.augment(batch, transform, self.dtype)

    def _next_batch(self, chunk: Chunk) -> AbstractContextManager[ImageBatch]:
        if self.fixed_batch is not None:
            return contextlib.nullcontext(self.fixed_batch)
        if self.stream is not None:
            return self.stream.next_batch()
        return contextlib.nullcontext(self.store.batch(self._sample_indices(chunk, self.clock)))

    def _sample_indices(self, chunk: Chunk, step: int | Tensor) -> Tensor:
        """Sample (K, B) indices of the real images of a step."""
        ordered = chunk.real.weight_KN is not None  # padding comes last; without padding the order does not matter
        return self.store.sample_class_indices(self.real_key, step, chunk.classes_K, self.batch_size, ordered=ordered)

    def augment(self, images_KICHW: Tensor, transform: Transform | None) -> Tensor:
        """Apply the augmentation of each class to its synthetic images."""
        return images_KICHW if transform is None else augment.apply(transform, images_KICHW, self.dtype)

    @torch.no_grad()
    def embed_real(self, network: dict[str, Tensor], images_KBCHW: Tensor, chunk: Chunk) -> Tensor:
        """Return (K, B, F) features of real images, without gradient."""
        return self._apply(self.forward, network, images_KBCHW, chunk.real, self.images_per_pass)

    def embed_synthetic(self, network: dict[str, Tensor], images_KICHW: Tensor, chunk: Chunk) -> Tensor:
        """Return (K, I, F) features of synthetic images."""
        return self._apply(self.forward, network, images_KICHW, chunk.synthetic)

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

    def calibrate(self, classifier: dict[str, Tensor], images_KICHW: Tensor, chunk: Chunk) -> Tensor:
        """Return the cross-entropy of synthetic images under a trained network: class means, summed and weighted."""
        assert self.classify is not None
        mask, columns, batches = chunk.synthetic, self.sets.decoded_columns, chunk.calibration
        if batches is not None:
            images_KICHW, mask, columns = batches.select(images_KICHW, self.clock), batches.mask, batches.columns
        labels_KI = (self.data.first_class + chunk.classes_K)[:, None].expand(images_KICHW.shape[:2])
        logits_KIL = self._apply(self.classify, classifier, images_KICHW, mask)
        entropy_KI = F.cross_entropy(logits_KIL.float().mT, labels_KI, reduction="none")
        total = torch.zeros((), device=self.clock.device)
        for part in columns:
            part_KI, weight_KI = entropy_KI[:, part], mask.weights(part)
            total = total + (part_KI.mean(1) if weight_KI is None else (part_KI * weight_KI).sum(1)).sum()
        return self.calibration * total

    def distance(self, real_KBF: Tensor, synthetic_KIF: Tensor, chunk: Chunk) -> Tensor:
        """Return the objective, summed over the classes of a chunk and the sets."""
        total = torch.zeros((), device=self.clock.device)
        for columns in self.sets.decoded_columns:
            weights = chunk.real.weight_KN, chunk.synthetic.weights(columns)
            distance_K = self.objective(real_KBF, synthetic_KIF[:, columns], *weights)
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
            layout = self.sets.parametrization.layout
            return build_condensed_set(
                images_NCHW, labels, self.data, recipe, run, seconds, layout=layout, **provenance
            )

        def make_sets(seconds: float) -> list[CondensedSet]:
            return [result(index, seconds) for index in range(len(slices))]

        description = describe_job(*(set_slice.recipe for set_slice in slices))
        description += ", images streamed" if self.memory.is_streamed else ""
        try:
            seconds = self.learn(make_sets, description=description)
        finally:
            self.close()
        return make_sets(seconds)

    def make_step(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        if not isinstance(self.store, StreamedStore):
            return super().make_step()
        max_images = max(len(chunk.classes_K) for chunk in self.chunks) * self.batch_size
        captured = cuda_graph.supports_graphs(self.run.compute.device) and not self.networks.on_host
        step = self._capture_streamed_step() if captured else None
        self.stream = stream = BatchStream(self.store, self._iter_indices(int(self.clock)), max_images)
        if step is not None:
            return lambda iteration: step(stream)
        return super().make_step()

    def _capture_streamed_step(self) -> Callable[[BatchStream], None]:
        def match(number: int, batch: ImageBatch) -> Tensor:
            self.fixed_batch = batch
            return self.match(*self.sample_networks(), self.chunks[number])  # sampling again is cheap

        shapes = [(len(chunk.classes_K), self.batch_size) for chunk in self.chunks]
        state, image_shape = list(self.state.values()), self.store.image_shape
        return capture_streamed_step(match, self.end_step, shapes, image_shape, state, self.run.compute)

    def _iter_indices(self, first: int) -> Iterator[Tensor]:
        """Yield the indices of all batches from iteration `first` on."""
        for step in range(first, self.recipe.iterations):
            for chunk in self.chunks:
                yield self._sample_indices(chunk, step)

    def close(self) -> None:
        """End the threads that read images ahead."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None  # it refers to this object
