"""Coresets: select real images of every class using a network trained on the whole dataset."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from condenset.config import check_int_fields, check_positive_fields
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.methods.common import build_condensed_set, describe_job, images_per_class
from condenset.methods.recipe import TINY_NETWORK, Recipe
from condenset.methods.reference_network import ReferenceNetwork, get_reference_network
from condenset.runs.context import RunContext
from condenset.runs.loop import track_progress
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import DIGITS, DIGITS_NETWORK, Protocol

TINY = {"network": TINY_NETWORK, "batch_size": 32, "epochs": 2}


@dataclass(frozen=True, kw_only=True)
class NetworkCoresetRecipe(Recipe):
    """Settings of methods that select images using a network trained on the whole dataset.

    The default has no augmentation. Augmented training would count an image as forgotten when only its crop was harder.

    Attributes:
        network: Spec of the network.
        epochs: Epochs of training. `forgetting` selects images that were never learned first, so train long enough.
        network_lr: Learning rate of the network.
        batch_size: Batch size of the network's training.
        augment: Augmentation strategy of the network's training.
    """

    network: str = "convnet"
    epochs: int = 200
    network_lr: float = 0.01
    batch_size: int = 256
    augment: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_fields(self, "network_lr")
        check_int_fields(self, 0, "epochs")
        check_int_fields(self, 1, "batch_size")
        _ = self.protocol  # checks the other fields

    @property
    def protocol(self) -> Protocol:
        """The protocol that the network is trained by."""
        return Protocol(
            network=self.network,
            num_networks=1,
            epochs=self.epochs,
            lr=self.network_lr,
            batch_size=self.batch_size,
            augment=self.augment,
        )


def coreset_presets(ipc: int, dataset: str, size: int) -> dict[str, object]:
    """Return the quick settings for the digits."""
    return {"network": DIGITS_NETWORK, "epochs": 40} if (dataset, size) == DIGITS else {}


class ClassCandidates(NamedTuple):
    """The images of one class to select from."""

    stream_id: int  # the class's stream of random numbers
    indices_N: Tensor  # of the images in the dataset
    num: int  # images to select
    dataset: DeviceDataset
    network: ReferenceNetwork

    def features(self) -> Tensor:
        """Return (N, F) embeddings of unit length (Rebuffi et al., 2017).

        Without normalisation the image nearest the mean has a short embedding: the network responds little to it.
        """
        return normalize(self.network.features(self.dataset, self.indices_N), dim=1)


def select_coreset(
    data: ImageData, recipe: NetworkCoresetRecipe, run: RunContext, select: Callable[[ClassCandidates], Tensor]
) -> CondensedSet:
    """Build the set of the images that `select` returns for every class, as positions among its candidates.

    The recorded seconds include the training of the network, even if an earlier job trained it.
    """
    counts, device = images_per_class(data, recipe), run.compute.device
    run.compute.reset_peak_memory()
    network = get_reference_network(data, recipe.protocol, run)
    start = time.monotonic()
    dataset = DeviceDataset.from_data(data, device)
    indices_by_class = torch.argsort(data.labels, stable=True).to(device).split(data.class_counts)
    stream_ids = data.class_stream_ids or range(data.num_classes)
    selected = []
    with track_progress(run, describe_job(recipe), data.num_classes) as report:
        for stream_id, indices_N, num in zip(stream_ids, indices_by_class, counts, strict=True):
            candidates = ClassCandidates(stream_id, indices_N, num, dataset, network)
            selected.append(indices_N[select(candidates)])
            report(len(selected))
    index = torch.cat(selected)
    images_NCHW, labels = dataset.images(index).cpu(), dataset.labels[index]
    seconds = network.seconds + time.monotonic() - start
    return build_condensed_set(images_NCHW, labels, data, recipe, run, seconds)
