"""All parameters of a network as one flat vector: drawn afresh, trained and cast in one go."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


NORMS = nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm


class ParameterStart(NamedTuple):
    """How a parameter starts: uniform in ±bound, or all `fill` where bound is 0."""

    name: str
    shape: torch.Size
    bound: float
    fill: float


def parameter_starts(network: nn.Module, *, xavier: bool = False) -> list[ParameterStart]:
    """How every parameter starts, in the order of `named_parameters`: as PyTorch has it, or by Xavier's rule.

    The latter only where there are no norms: these take care of what comes through the layers.
    """
    xavier = xavier and not any(isinstance(module, NORMS) for module in network.modules())
    rows: list[ParameterStart] = []
    for prefix, module in network.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            bound = fill = 0.0
            if isinstance(module, nn.Conv2d | nn.Linear):
                fan_in, fan_out = module.weight[0].numel(), module.weight[:, 0].numel()
                bound = 1 / math.sqrt(fan_in)
                if xavier:
                    bound = math.sqrt(6 / (fan_in + fan_out)) if name == "weight" else 0.0
            elif isinstance(module, NORMS):
                fill = 1.0 if name == "weight" else 0.0
            else:
                raise TypeError(f"no default initialisation is known for the parameters of {type(module).__name__}")
            rows.append(ParameterStart(f"{prefix}.{name}" if prefix else name, parameter.shape, bound, fill))
    return rows


class Parameters:
    """The layout of a network's parameters in a vector of `num` numbers, and how PyTorch's default starts them.

    xavier: a network without norms by Xavier's rule instead, with biases of 0: far more of an image comes through.
    as_built: of somebody else's network, whose layers may be any: it starts as it stands, and keeps what is frozen.
    """

    def __init__(
        self, network: nn.Module, device: torch.device, *, xavier: bool = False, as_built: bool = False
    ) -> None:
        learned = [(name, each.detach()) for name, each in network.named_parameters() if each.requires_grad]
        built = [ParameterStart(name, each.shape, 0.0, 0.0) for name, each in learned]
        self.rows = built if as_built else parameter_starts(network, xavier=xavier)
        self.sizes = [row.shape.numel() for row in self.rows]
        self.num = sum(self.sizes)
        repeats = torch.tensor(self.sizes, dtype=torch.int64, device="cpu")
        bounds, fills = (torch.tensor([row[place] for row in self.rows], device="cpu") for place in (2, 3))
        self._lows = (fills - bounds).repeat_interleave(repeats).to(device)
        self._spans = (2 * bounds).repeat_interleave(repeats).to(device)
        if as_built:
            self._lows = torch.cat([each.flatten() for _, each in learned]).to(device)
        # Batch norm keeps float32: its parameters go with its running statistics.
        norms = {name for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
        self._kept = {row.name for row in self.rows if row.name.rpartition(".")[0] in norms}

    def initial(self, uniform_P: Tensor) -> Tensor:
        """(num,) a fresh network from uniforms in [0, 1): weights and biases in ± their bounds, norms at 1 and 0."""
        return torch.addcmul(self._lows, uniform_P, self._spans)

    def views(self, flat_P: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every parameter by name, in the dtype to compute with, for `torch.func.functional_call`."""
        parts = zip(self.rows, flat_P.to(dtype).split(self.sizes), flat_P.split(self.sizes), strict=True)
        views = {row.name: (full if row.name in self._kept else cast).view(row.shape) for row, cast, full in parts}
        if flat_P.device.type != "cuda":
            return views
        # Convolutions there want filters channels last: once for all that follows, not in every pass.
        return {name: view.contiguous(memory_format=_layout(view)) for name, view in views.items()}


def _layout(parameter: Tensor) -> torch.memory_format:
    filters = parameter.ndim == 4 and parameter.shape[1] > 4  # those of images have a kernel of their own
    return torch.channels_last if filters else torch.contiguous_format


@torch.no_grad()
def initialise(network: Module, uniform_P: Tensor) -> Module:
    """Start the network afresh in place: parameters from uniforms in [0, 1), batch norm's statistics reset."""
    parameters = Parameters(network, uniform_P.device)
    views = parameters.views(parameters.initial(uniform_P), uniform_P.dtype)
    for name, parameter in network.named_parameters():
        parameter.copy_(views[name])
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    return network


def batch_statistics(network: Module) -> Module:
    """Make every batch norm, in place, use its batch's statistics in any mode, and keep none."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network


def headless(network: Module) -> Module:
    """Take the classifier off, in place: the network then gives its embedding."""
    network.classifier = nn.Identity()
    return network
