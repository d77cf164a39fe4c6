"""Estimate the memory of a run from the layers of its network, and split work so that it fits."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from condenset.engine.device import ComputeDevice
from condenset.errors import UserError, warn_user, wrap_errors
from condenset.io.bytesize import format_bytes
from condenset.io.files import available_host_memory, physical_memory
from condenset.networks.building import build
from condenset.networks.layers import Block
from condenset.networks.parameters import allocate

GIB = 2**30
GPU_TARGET_BYTES = 3 * GIB  # enough to keep a GPU busy; more is not faster
CPU_TARGET_BYTES = GIB // 16  # about one chunk of synthetic images; more would not fit in the caches
USABLE_SHARE = 0.8  # of the memory that is free
CPU_CACHE_NUMBERS = 2**22  # numbers of a layer's maps that fit into the caches of a CPU
NUM_TRIAL_IMAGES = 2  # of a pass that measures a network; batch norm refuses a single image
STATE_COPIES = 4  # images and velocity, and both again while a graph is captured or a checkpoint is written


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a matching run needs.

    Attributes:
        fixed_bytes: Bytes that it always needs.
        bytes_per_class: Bytes per class that passes through the network at once.
        buffer_bytes: Bytes per class of images that are read ahead. 0: the images are in memory.
    """

    fixed_bytes: int
    bytes_per_class: int
    buffer_bytes: int = 0

    @property
    def is_streamed(self) -> bool:
        """Whether the images stay on disk and batches are read ahead."""
        return self.buffer_bytes > 0

    def total(self, num_classes: int) -> int:
        """Return the peak bytes when `num_classes` classes pass through the network at once."""
        return self.fixed_bytes + num_classes * (self.bytes_per_class + self.buffer_bytes)


class _LayerSize(NamedTuple):
    """Numbers per image that a layer stores: its input, intermediate values and its output."""

    input: int
    inner: int
    output: int


def estimate_memory(
    network: nn.Module,
    compute: ComputeDevice,
    image_shape: tuple[int, int, int],
    *,
    real_per_class: int,
    synthetic_per_class: int,
    custom_kernels: bool,
    num_stored: int,
    stored_bytes: int,
    num_learned: int,
    images_per_pass: int | None = None,
    objective_bytes: int = 0,
) -> MemoryEstimate:
    """Estimate the memory of a run that learns images.

    Args:
        network: The network, on the meta device.
        compute: Device and precision.
        image_shape: (C, H, W).
        real_per_class: Real images per class in a batch.
        synthetic_per_class: Synthetic images per class in a batch.
        custom_kernels: Whether custom kernels compute the blocks of the network.
        num_stored: Images of the dataset.
        stored_bytes: Bytes that they take.
        num_learned: Synthetic images of all classes.
        images_per_pass: Real images that pass through the network at a time. None: those of all classes at once.
        objective_bytes: Bytes per class that the objective needs.
    """
    itemsize = torch.finfo(compute.dtype).bits // 8
    layers = _layer_sizes(network, image_shape, custom_kernels)
    pixels = image_shape[0] * image_shape[1] * image_shape[2]
    largest = max((sum(layer) for layer in layers), default=0)  # without gradients, one layer at a time
    retained = sum(layer.inner + layer.output for layer in layers)  # with gradients, the maps of all layers
    features = layers[-1].output if layers else pixels
    real_bytes = real_per_class * itemsize * ((features if images_per_pass else largest) + 4 * pixels)
    synthetic_bytes = synthetic_per_class * ((retained + 2 * largest) * itemsize + 24 * pixels)
    synthetic_bytes += real_per_class * features * itemsize
    weight_bytes = _weight_bytes(network, compute)
    pass_bytes = min(images_per_pass or 0, num_stored) * largest * itemsize
    fixed_bytes = stored_bytes + STATE_COPIES * 4 * num_learned * pixels + weight_bytes + pass_bytes
    return MemoryEstimate(fixed_bytes, max(real_bytes, synthetic_bytes + objective_bytes, 1))


def num_classes_that_fit(estimate: MemoryEstimate, compute: ComputeDevice, memory_limit: int | None = None) -> int:
    """Return how many classes to process at once: enough to keep the device busy, within the memory limit."""
    if memory_limit is not None and estimate.total(1) > memory_limit:
        warn_user(
            f"one class needs about {format_bytes(estimate.total(1))}, more than the memory limit of "
            f"{format_bytes(memory_limit)}: processing one class at a time"
        )
    num = _target_bytes(compute) // estimate.bytes_per_class  # the same for images in memory and on disk
    if memory_limit is not None:
        num = min(num, (memory_limit - estimate.fixed_bytes) // (estimate.bytes_per_class + estimate.buffer_bytes))
    return max(1, num)


def peak_memory(memory: MemoryEstimate, num_classes: int, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes of a run that processes as many classes at once as fit."""
    return memory.total(min(num_classes, num_classes_that_fit(memory, compute, memory_limit)))


def check_single_pass_memory(cause: str, memory: MemoryEstimate, num_classes: int, memory_limit: int | None) -> None:
    """Refuse a memory limit that chunks cannot meet: the cause, such as batch norm, needs all classes in one pass."""
    needed = memory.total(num_classes)
    if memory_limit is not None and needed > memory_limit:
        raise UserError(
            f"{cause} needs all {num_classes} classes in one pass, which takes about {format_bytes(needed)}, "
            f"but the memory limit is {format_bytes(memory_limit)}"
        )


def default_memory_limit(compute: ComputeDevice, memory_limit: int | None) -> int | None:
    """Return `memory_limit`; if it is None, most of the memory of a GPU, or None (no limit) on other devices."""
    if memory_limit is not None or compute.device.type != "cuda":
        return memory_limit
    return int(USABLE_SHARE * torch.cuda.mem_get_info(compute.device)[1])


def num_networks_that_fit(
    network: nn.Module, compute: ComputeDevice, image_shape: tuple[int, int, int], batch_size: int
) -> int:
    """Return how many networks with custom kernels can train at once in the free memory of a GPU."""
    estimate = estimate_memory(
        network,
        compute,
        image_shape,
        real_per_class=0,
        synthetic_per_class=batch_size,
        custom_kernels=True,
        num_stored=0,
        stored_bytes=0,
        num_learned=0,
    )
    return int(USABLE_SHARE * available_memory(compute)) // estimate.total(1)


def split_evenly(num: int, max_size: int) -> list[slice]:
    """Split `num` items into as few parts of at most `max_size` as possible, of nearly equal size."""
    size = -(-num // -(-num // max_size))
    return [slice(start, min(start + size, num)) for start in range(0, num, size)]


def images_per_pass(network: nn.Module, compute: ComputeDevice, image_shape: tuple[int, int, int]) -> int | None:
    """Return how many images can pass through a layer within the caches of a CPU; None (no limit) elsewhere."""
    if compute.device.type != "cpu":
        return None
    layers = _layer_sizes(network, image_shape, custom_kernels=False)
    return max(1, CPU_CACHE_NUMBERS // max((sum(layer) for layer in layers), default=1))


def check_network_fits(spec: str, compute: ComputeDevice, *, channels: int, size: int, num_classes: int) -> None:
    """Check, without allocating it, that a network can be built and that its weights fit into the memory."""
    with torch.device("meta"):
        network = build(spec, channels=channels, size=size, num_classes=num_classes)
    needed, is_cuda = _weight_bytes(network, compute), compute.device.type == "cuda"
    total = torch.cuda.mem_get_info(compute.device)[1] if is_cuda else physical_memory()
    if needed > total:
        raise UserError(
            f"the network {spec} needs about {format_bytes(needed)} for its weights, but the device has "
            f"{format_bytes(total)}: choose a smaller network"
        )


def _weight_bytes(network: nn.Module, compute: ComputeDevice) -> int:
    """Return the bytes for weights: sampling them needs 8-byte integers; without kernels, several times."""
    bytes_per_parameter = 16 if compute.device.type == "cuda" else 64
    return sum(parameter.numel() for parameter in network.parameters()) * bytes_per_parameter


def available_memory(compute: ComputeDevice) -> int:
    """Return the bytes of memory of a device that are free or can be freed; all of it where the system does not say."""
    if compute.device.type == "cuda":
        reusable = torch.cuda.memory_reserved(compute.device) - torch.cuda.memory_allocated(compute.device)
        return torch.cuda.mem_get_info(compute.device)[0] + reusable
    return available_host_memory()


def _target_bytes(compute: ComputeDevice) -> int:
    if compute.device.type == "cpu":
        return CPU_TARGET_BYTES
    if compute.device.type != "cuda":
        return GPU_TARGET_BYTES
    return min(GPU_TARGET_BYTES, int(USABLE_SHARE * available_memory(compute)))


def count_features(network: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Return the numbers that a network on the meta device returns per image."""
    return _numel(_run_zeros(_allocate_zeros(network), image_shape)) // NUM_TRIAL_IMAGES


def _layer_sizes(network: nn.Module, image_shape: tuple[int, int, int], custom_kernels: bool) -> list[_LayerSize]:
    """Return the sizes of all layers that leave a map in memory, from a forward pass on the CPU."""
    network = _allocate_zeros(network)
    sizes: list[_LayerSize] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        inner = 4 * _numel(output) if isinstance(module, Block) and not module.fuses_convolution else 0
        sizes.append(_LayerSize(*(num // NUM_TRIAL_IMAGES for num in (_numel(args), inner, _numel(output)))))

    def is_layer(module: nn.Module) -> bool:
        return isinstance(module, Block) if custom_kernels else not any(True for _ in module.children())

    for module in network.modules():
        if is_layer(module):
            module.register_forward_hook(record)
    _run_zeros(network, image_shape)
    return sizes


def _allocate_zeros(network: nn.Module) -> nn.Module:
    """Return a copy on the CPU with values of zero. On the meta device, group norm would load the compiler."""
    network = allocate(copy.deepcopy(network), torch.device("cpu"))
    for tensor in itertools.chain(network.parameters(), network.buffers()):
        tensor.data.zero_()  # index buffers must stay valid
    return network


@torch.no_grad()
def _run_zeros(network: nn.Module, image_shape: tuple[int, int, int]) -> Any:
    with wrap_errors(f"the network on images of {'x'.join(map(str, image_shape))}"):
        return network(torch.zeros(NUM_TRIAL_IMAGES, *image_shape))


def _numel(tensors: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))
