"""Store all parameters of a network in one vector, to initialise, train and cast them at once."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from condenset import kernels
from condenset.kernels.parameters import ChannelsLastLayout

Module = TypeVar("Module", bound=nn.Module)

BatchNorm = _BatchNorm  # the base class of BatchNorm1d, 2d, 3d and SyncBatchNorm
NORM_LAYERS = BatchNorm | nn.LayerNorm | nn.GroupNorm


class InitSpec(NamedTuple):
    """The initialisation of a parameter: uniform in ±bound, or the constant `fill` if the bound is 0."""

    name: str
    shape: torch.Size
    bound: float
    fill: float


def init_specs(network: nn.Module, *, xavier: bool = False) -> list[InitSpec]:
    """Return the initialisation of every parameter, in the order of `named_parameters`.

    Args:
        network: A network of convolutions, linear layers and norms.
        xavier: Use Xavier's rule instead of PyTorch's default. It has no effect on a network with norms, which
            rescale the activations themselves.
    """
    xavier = xavier and not any(isinstance(module, NORM_LAYERS) for module in network.modules())
    specs: list[InitSpec] = []
    for prefix, module in network.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            bound = fill = 0.0
            if isinstance(module, nn.Conv2d | nn.Linear):
                fan_in, fan_out = module.weight[0].numel(), module.weight[:, 0].numel()
                bound = 1 / math.sqrt(fan_in)
                if xavier:
                    bound = math.sqrt(6 / (fan_in + fan_out)) if name == "weight" else 0.0
            elif isinstance(module, NORM_LAYERS):
                fill = 1.0 if name == "weight" else 0.0
            else:
                kind = type(module).__name__
                raise TypeError(f"no default initialisation for the parameters of {kind}: set default_init=False")
            specs.append(InitSpec(f"{prefix}.{name}" if prefix else name, parameter.shape, bound, fill))
    return specs


class FlatParameters:
    """The layout of a network's parameters in a vector of `num` numbers, and their initialisation.

    Args:
        network: The network, on any device.
        device: The device of the vector.
        xavier: Initialise a network without norms by Xavier's rule, with zero biases.
        as_built: Initialise with the network's current values. The layout has the trainable parameters only, and the
            layers may be of any kind.
    """

    def __init__(
        self, network: nn.Module, device: torch.device, *, xavier: bool = False, as_built: bool = False
    ) -> None:
        if as_built:
            trainable = _trainable(network)
            self.specs = [InitSpec(name, parameter.shape, 0.0, 0.0) for name, parameter in trainable.items()]
        else:
            self.specs = init_specs(network, xavier=xavier)
        self.sizes = [spec.shape.numel() for spec in self.specs]
        self.num = sum(self.sizes)
        repeats = torch.tensor(self.sizes, dtype=torch.int64, device="cpu")
        bounds = torch.tensor([spec.bound for spec in self.specs], device="cpu")
        fills = torch.tensor([spec.fill for spec in self.specs], device="cpu")
        self._lows = (fills - bounds).repeat_interleave(repeats).to(device)
        self._spans = (2 * bounds).repeat_interleave(repeats).to(device)
        if as_built and not any(parameter.is_meta for parameter in network.parameters()):
            self._lows = flatten_parameters(network).to(device)
        norms = _batch_norm_names(network)
        self._layouts: dict[torch.dtype, ChannelsLastLayout] = {}
        self._float32_names = {spec.name for spec in self.specs if spec.name.rpartition(".")[0] in norms}

    def initialize(self, uniform_P: Tensor) -> Tensor:
        """Return the (num,) parameters of a new network, from uniform numbers in [0, 1)."""
        return torch.addcmul(self._lows, uniform_P, self._spans)

    def unflatten(self, flat_P: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the parameters by name, in the dtype to compute with, for `torch.func.functional_call`."""
        casts, originals = flat_P.to(dtype).split(self.sizes), flat_P.split(self.sizes)
        parameters = {
            spec.name: (original if spec.name in self._float32_names else cast).view(spec.shape)
            for spec, cast, original in zip(self.specs, casts, originals, strict=True)
        }
        if flat_P.device.type != "cuda":
            return parameters
        # CUDA convolutions need filters in channels-last layout: convert once here, not in every forward pass.
        return {
            name: parameter.contiguous(memory_format=_memory_format(parameter.shape))
            for name, parameter in parameters.items()
        }

    def cast(self, flat_P: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Do what `unflatten` does with fewer launches. The gradient of the result has no gradient."""
        if self._float32_names or not kernels.available(flat_P):
            return self.unflatten(flat_P, dtype)
        if dtype not in self._layouts:
            shapes = [spec.shape for spec in self.specs]
            are_filters = [_memory_format(shape) == torch.channels_last for shape in shapes]
            self._layouts[dtype] = ChannelsLastLayout(shapes, are_filters, flat_P.device, dtype)
        return dict(zip((spec.name for spec in self.specs), self._layouts[dtype].cast(flat_P), strict=True))


def _memory_format(shape: torch.Size) -> torch.memory_format:
    is_filter = len(shape) == 4 and shape[1] > 4  # filters for images have another kernel
    return torch.channels_last if is_filter else torch.contiguous_format


def _batch_norm_names(network: nn.Module) -> set[str]:
    """Return the names of the batch norms, whose tensors stay in float32 in any precision."""
    return {name for name, module in network.named_modules() if isinstance(module, BatchNorm)}


def _trainable(network: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in network.named_parameters() if parameter.requires_grad}


def flatten_parameters(network: nn.Module) -> Tensor:
    """Return the trainable parameters as one vector, in the layout of `FlatParameters(network, as_built=True)`."""
    return torch.cat([parameter.flatten() for parameter in _trainable(network).values()])


def fixed_tensors(network: nn.Module, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what `flatten_parameters` leaves out, by name: the buffers and the frozen parameters.

    Floating-point tensors are cast to the dtype to compute with, except those of batch norm.
    """
    norms = _batch_norm_names(network)
    frozen = {name: value.detach() for name, value in network.named_parameters() if not value.requires_grad}
    return {
        name: value.to(device, dtype if value.is_floating_point() and name.rpartition(".")[0] not in norms else None)
        for name, value in (frozen | dict(network.named_buffers())).items()
    }


def allocate(network: Module, device: torch.device) -> Module:
    """Move a network from the meta device to another one, with undefined values.

    It does what `network.to_empty` does. For tensors on the meta device, that loads sympy, which takes half a second.
    """

    def allocate_tensor(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    allocated: Module = network._apply(allocate_tensor)  # type: ignore[no-untyped-call]
    return allocated


@torch.no_grad()
def initialize(network: Module, uniform_P: Tensor) -> Module:
    """Initialise a network in place from uniform numbers in [0, 1), and reset the statistics of batch norm."""
    layout = FlatParameters(network, uniform_P.device)
    values = layout.unflatten(layout.initialize(uniform_P), uniform_P.dtype)
    for name, parameter in network.named_parameters():
        parameter.copy_(values[name])
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.reset_running_stats()
    return network


def contains_batch_norm(network: nn.Module) -> bool:
    """Return whether a module contains batch norm of any dimension."""
    return any(isinstance(module, BatchNorm) for module in network.modules())


def use_batch_statistics(network: Module) -> Module:
    """Make every batch norm, in place, use the statistics of its batch in any mode, without running statistics."""
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network
