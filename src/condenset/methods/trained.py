"""A network trained on the whole real set: once in a run, for all methods that choose by what it has learned."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condenset import networks
from condenset.engine.memory import images_together
from condenset.errors import UserError
from condenset.files import hashed, read_tensors, write_tensors
from condenset.folders import writable
from condenset.midway import Midway
from condenset.recipes import Protocol
from condenset.runs import Run, reported
from condenset.train import TEST_BATCH, Forgetting, Trainer, TrainingSet
from condenset.types import ImageData


@dataclass(frozen=True, eq=False)
class Trained:
    """The network, in evaluation mode and float32 since choices hang on small differences, and how it was learned."""

    network: networks.Network
    forgetting_N: Tensor  # see train.Forgetting.counts_N
    seconds: float  # that the training took, whenever that was
    batch: int  # images that pass together

    @torch.no_grad()
    def features(self, data: TrainingSet, places_N: Tensor) -> Tensor:
        """(N, F) embeddings of the images at these places."""
        return torch.cat([self.network.embed(data.images(part)).float() for part in places_N.split(self.batch)])


def trained(data: ImageData, protocol: Protocol, run: Run) -> Trained:
    """The network that data, protocol and seed make: trained unless this run did so before, also before a stop."""
    about = about_training(data, protocol, run)
    name = hashed(about)[:12]
    if name not in run.shared:
        path = run.networks_folder / f"{name}.safetensors" if run.networks_folder else None
        run.shared[name] = _found_or_trained(path, about, data, protocol, run)
    known: Trained = run.shared[name]
    return known


def _found_or_trained(
    path: Path | None, about: dict[str, Any], data: ImageData, protocol: Protocol, run: Run
) -> Trained:
    image = (data.channels, data.size, data.size)
    network = networks.build(protocol.network, channels=data.channels, size=data.size, num_classes=data.num_classes)
    if path and path.exists():
        tensors, seconds = _read(path, about, _layout(network, data))
    else:
        tensors, seconds = _train(data, protocol, run, about)
        if path:
            with writable(path):
                write_tensors(path, tensors, {"network": json.dumps(about | {"seconds": seconds})})
            run.drop_checkpoint()  # of the training
    device, together = run.place.device, images_together(network, run.place, image) or TEST_BATCH
    return Trained(_loaded(network, tensors).to(device), tensors["forgetting"].to(device), seconds, together)


def about_training(data: ImageData, protocol: Protocol, run: Run) -> dict[str, Any]:
    """All that decides the network, as JSON has it."""
    return {
        **{key: value for key, value in dataclasses.asdict(protocol).items() if key != "nets"},
        "network": networks.canonical(protocol.network, size=data.size),
        "seed": run.seed,
        "precision": run.place.precision,
        "fingerprint": data.fingerprint,
        "mean": list(data.mean),
        "std": list(data.std),
        "can_flip": data.can_flip,
    }


def _train(data: ImageData, protocol: Protocol, run: Run, about: dict[str, Any]) -> tuple[dict[str, Tensor], float]:
    """What a file holds of the network, and the seconds it took."""
    device = run.place.device
    seen = Forgetting(len(data), device)
    trainer = Trainer(protocol.network, TrainingSet.of(data, device), protocol, run.place, forgetting=seen)
    midway = Midway(run, [trainer], recipe={**run.recipe, "training": hashed(about)})

    def after_rest(done: int) -> None:
        run.progress.update(done)
        midway.rest(done)

    def after_pass(number: int) -> None:
        if not trainer.is_finite():
            raise UserError(f"the network is no longer numbers after pass {number}: a smaller network_lr may help")

    (restore,) = midway.restores
    with reported(run, "training a network on the whole set", trainer.num_steps):
        trainer.train(run.seed, "trained", report=after_rest, after_pass=after_pass, restore=restore)
    seconds, accuracy = round(midway.seconds, 3), float(seen.right_N.float().mean())
    run.event("trained", network=protocol.network, passes=protocol.passes, train_accuracy=accuracy, seconds=seconds)
    buffers = {f"buffers.{name}": buffer.clone() for name, buffer in trainer.buffers.items()}
    return {"weights": trainer.weights, "forgetting": seen.counts_N, **buffers}, seconds


def _layout(network: networks.Network, data: ImageData) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The type and shape of every tensor that a file of this network must hold."""
    num = sum(parameter.numel() for parameter in network.parameters())
    buffers = {f"buffers.{name}": (each.dtype, tuple(each.shape)) for name, each in network.named_buffers()}
    return {"weights": (torch.float32, (num,)), "forgetting": (torch.int64, (len(data),)), **buffers}


def _read(
    path: Path, about: dict[str, Any], layout: dict[str, tuple[torch.dtype, tuple[int, ...]]]
) -> tuple[dict[str, Tensor], float]:
    """A network that this run trained before; anything else is refused."""
    hint = "delete it to train the network again"
    try:
        tensors, metadata = read_tensors(path)
    except UserError as error:
        raise UserError(f"{error}; {hint}") from None
    try:
        meta = json.loads(metadata["network"])
        seconds = float(meta.pop("seconds"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise UserError(f"{path} is not a network of condenset; {hint}") from None
    if meta != about:
        raise UserError(f"{path} is a network that was trained otherwise; {hint}")
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    if found != layout or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise UserError(f"{path} holds other tensors than this network; {hint}")
    return tensors, seconds


def _loaded(network: networks.Network, tensors: dict[str, Tensor]) -> networks.Network:
    """The network as it was trained, ready to be asked."""
    views = networks.Parameters(network, torch.device("cpu")).views(tensors["weights"], torch.float32)
    buffers = {name.removeprefix("buffers."): each for name, each in tensors.items() if name.startswith("buffers.")}
    network.load_state_dict({**views, **buffers})
    return network.eval().requires_grad_(False)
