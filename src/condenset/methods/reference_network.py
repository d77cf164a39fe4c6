"""The network trained on the whole dataset that coreset methods share; a run trains it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.engine.memory import images_per_pass
from condenset.errors import UserError
from condenset.io.files import json_hash
from condenset.methods.trained_files import load_or_train, training_metadata
from condenset.runs.context import RunContext
from condenset.runs.loop import track_progress
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.dataset import DeviceDataset
from condenset.training.forgetting import ForgettingCounter
from condenset.training.model import max_test_batch
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class ReferenceNetwork:
    """A network trained on the whole dataset, in evaluation mode.

    It computes in float32, because the selection of images depends on small differences.

    Attributes:
        network: Maps images to the embedding.
        forgetting_N: Forgetting events of each image, see `ForgettingCounter.counts_N`.
        seconds: Time of its training, even if an earlier job trained it.
        batch_size: Images per forward pass.
    """

    network: nn.Module
    forgetting_N: Tensor
    seconds: float
    batch_size: int

    @torch.no_grad()
    def features(self, data: DeviceDataset, index_N: Tensor) -> Tensor:
        """Return (N, F) embeddings of the images at these indices."""
        batches = index_N.split(self.batch_size)
        return torch.cat([self.network(data.images(batch)).float() for batch in batches])


def get_reference_network(data: ImageData, protocol: Protocol, run: RunContext) -> ReferenceNetwork:
    """Return the network that data, protocol and seed define; train it unless the run has it already."""
    metadata = training_metadata(data, protocol, run)
    return load_or_train(
        "network",
        metadata,
        run,
        train=lambda: _train(data, protocol, run, metadata),
        make_expected=lambda: _name_tensors(_build(data, protocol), torch.zeros(len(data), dtype=torch.int64)),
        restore=lambda tensors, seconds: _restore(tensors, seconds, data, protocol, run),
    )


def _build(data: ImageData, protocol: Protocol) -> nn.Module:
    return networks.build(protocol.network, channels=data.channels, size=data.size, num_classes=data.num_classes)


def _restore(
    tensors: Mapping[str, Tensor], seconds: float, data: ImageData, protocol: Protocol, run: RunContext
) -> ReferenceNetwork:
    """Return the network with trained tensors."""
    network, device = _build(data, protocol), run.compute.device
    image_shape = (data.channels, data.size, data.size)
    batch_size = images_per_pass(network, run.compute, image_shape) or max_test_batch(data.size)
    network.load_state_dict({name: tensors[f"network.{name}"] for name in network.state_dict()})
    embedding = networks.to_embedding(network.to(device).eval().requires_grad_(False))
    return ReferenceNetwork(embedding, tensors["forgetting"].to(device), seconds, batch_size)


def _train(
    data: ImageData, protocol: Protocol, run: RunContext, metadata: dict[str, Any]
) -> tuple[dict[str, Tensor], float]:
    """Train the network; return the tensors to store and the seconds of the training."""
    device = run.compute.device
    forgetting = ForgettingCounter(len(data), device)
    trainer = Trainer(
        protocol.network, DeviceDataset.from_data(data, device), protocol, run.compute, forgetting=forgetting
    )
    checkpoint = TrainingCheckpoint(run, [trainer], recipe={**run.recipe, "training": json_hash(metadata)})

    def report(done: int) -> None:
        run.progress.update(done)
        checkpoint.save_if_due(done)

    def check_finite(epoch: int) -> None:
        if not trainer.is_finite():
            raise UserError(
                f"Training diverged: the weights contain NaN or infinity after epoch {epoch}. Try a smaller network_lr."
            )

    (load_state,) = checkpoint.state_loaders
    with track_progress(run, "training a network on the whole dataset", trainer.num_steps):
        trainer.train(run.seed, "trained", report=report, after_epoch=check_finite, load_state=load_state)
    seconds, accuracy = round(checkpoint.seconds, 3), float(forgetting.right_N.float().mean())
    run.log_event(
        "trained", network=protocol.network, epochs=protocol.total_epochs, train_accuracy=accuracy, seconds=seconds
    )
    return _name_tensors(trainer.export_network(), forgetting.counts_N), seconds


def _name_tensors(network: nn.Module, forgetting_N: Tensor) -> dict[str, Tensor]:
    state = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    return {"forgetting": forgetting_N, **state}
