"""t-SNE: coordinates of a map from features."""

from __future__ import annotations

import torch
from torch import Tensor


def tsne(features_NF: Tensor, seed: int, max_iter: int = 1000) -> Tensor:
    """Return (N, 2) coordinates in which similar features are close (van der Maaten and Hinton, 2008)."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features_NF.double().numpy()
    if min(values.shape) > 50:  # the usual first step: it is much faster and hardly changes the distances
        values = PCA(50, random_state=seed % 2**32).fit_transform(values)
    perplexity = min(30.0, (len(values) - 1) / 3)
    model = TSNE(perplexity=perplexity, init="pca", max_iter=max_iter, random_state=seed % 2**32)
    coordinates = model.fit_transform(values)
    return torch.from_numpy(coordinates).float()
