"""Networks as embeddings: the features that enter the classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from condenset.errors import UserError
from condenset.networks.base import Network


def to_embedding(network: nn.Module, features: str = "last") -> nn.Module:
    """Return a module that maps images (N, C, H, W) to their embedding (N, F).

    Args:
        network: The network.
        features: "last" for the embedding; "blocks", "attention" or "unpooled" for features of all blocks of a built-in
            network, as `list_features` computes them.

    Returns:
        A module with the same parameters, except those of the classifier:

    - A `Network` loses its classifier, in place.
    - For any other module with an `embed` method, the embedding is the result of that method.
    - Otherwise it is the input of the linear layer that runs last.

    Modules other than `Network` are put into evaluation mode, so that dropout does not depend on a global generator.
    """
    has_blocks = isinstance(network, Network) and hasattr(network, "blocks")
    if features != "last" and not has_blocks:
        raise UserError(f"features must be 'last' for a network without blocks, but got {features!r}")
    if isinstance(network, Network):
        network.feature_kind = features
        network.classifier = nn.Identity()  # type: ignore[assignment]
        return network
    if callable(getattr(network, "embed", None)):
        return _EmbedMethod(network)
    return _LastLinearInput(network)


class _EmbedMethod(nn.Module):
    """Compute the embedding with the network's `embed` method."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        features = self.network.embed(images)
        if not isinstance(features, Tensor) or features.ndim < 2 or len(features) != len(images):
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(f"`embed` must return features of shape ({len(images)}, F), but got {shape}")
        return features.flatten(1)


class _LastLinearInput(nn.Module):
    """Run the network and return the input of the linear layer that runs last."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        inputs: list[Tensor] = []

        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs.append(args[0])

        layers = [module for module in self.network.modules() if isinstance(module, nn.Linear)]
        hooks = [layer.register_forward_pre_hook(record) for layer in layers]
        try:
            self.network(images)
        finally:
            for hook in hooks:
                hook.remove()
        if not inputs or len(inputs[-1]) != len(images):
            raise UserError(
                f"cannot find the embedding of {type(self.network).__name__}: no nn.Linear has one row per image; "
                "give the network a method embed(images) -> features"
            )
        return inputs[-1].flatten(1)
