"""Statistics of batch norm that stay fixed while gradients are matched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm  # BatchNorm1d, 2d, 3d and SyncBatchNorm

from condenset.data.stores.class_store import ClassStore
from condenset.methods.common import mean_weights
from condenset.networks.gradients import Forward

NORM_IMAGES = 16  # real images per class that batch norm takes its statistics from


class BatchNormStatistics:
    """Set the statistics of batch norm from some real images of every class. They hold until the next update.

    Args:
        network: The network, in evaluation mode.
        store: The real images.
        class_counts: The number of images of each class.
        key: The key of the random images.
    """

    def __init__(self, network: nn.Module, store: ClassStore, class_counts: Sequence[int], key: Tensor) -> None:
        self.network, self.store, self.key = network, store, key
        for module in network.modules():
            if isinstance(module, BatchNorm):
                module.momentum = 1.0  # the statistics of the last batch alone
        self.num = min(NORM_IMAGES, max(class_counts))
        weights = mean_weights([min(self.num, count) for count in class_counts], self.num)
        self.index = weights.to(store.counts.device).nonzero()  # excludes padding

    @torch.no_grad()
    def update(self, forward: Forward, parameters: dict[str, Tensor], clock: Tensor) -> None:
        """Set the statistics of the network with these parameters and buffers."""
        classes_K = torch.arange(len(self.store.counts), device=clock.device)
        images_KSCHW = self.store.take_normalized(self.store.sample_class_indices(self.key, clock, classes_K, self.num))
        self.network.train()
        forward(parameters, images_KSCHW[self.index[:, 0], self.index[:, 1]])
        self.network.eval()
