"""How many classes may pass through a network together: counted from its layers, not tried on the user's time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from condenset.engine.place import Place
from condenset.networks.layers import Block
from condenset.sizes import shown

GIB = 2**30
DEFAULT = 3 * GIB  # a GPU is busy with less: more memory would make nothing faster
CPU_DEFAULT = GIB // 16  # about a slice of synthetic images; more leaves the caches and makes everything slower
SHARE_OF_FREE = 0.8
CACHED = 2**22  # numbers of a layer's maps
COPIES = 4  # of the learned images and their velocity: both, and both again while a graph or a checkpoint is made


@dataclass(frozen=True)
class Need:
    """Bytes that a matching run takes: at any time, and for every class that passes through the network at once."""

    held: int
    a_class: int

    def of(self, classes: int) -> int:
        """Bytes at most in use when so many classes pass together."""
        return self.held + classes * self.a_class


def need(
    network: nn.Module,
    place: Place,
    image: tuple[int, int, int],
    *,
    real: int,
    synthetic: int,
    by_hand: bool,
    stored: int,
    learned: int,
    sliced: int | None = None,
    beside: int = 0,
) -> Need:
    """What so many images of each class take, beside the `stored` images of the dataset, all `learned` ones and the
    drawing of weights, which is integer arithmetic of 8 bytes without kernels of our own.

    network: on the meta device; image: (C, H, W); by_hand: whether kernels of our own do its blocks; sliced:
    real images that pass it at a time (None: those of all classes together); beside: bytes a class of the objective.
    """
    item = torch.finfo(place.dtype).bits // 8
    maps = list(_maps(network, image, by_hand))
    pixels = image[0] * image[1] * image[2]
    largest = max((sum(layer) for layer in maps), default=0)  # without gradients, a layer at a time
    kept = sum(inside + after for _, inside, after in maps)  # with gradients, all layers' maps stay
    features = maps[-1][-1] if maps else pixels
    of_real = real * item * ((features if sliced else largest) + 4 * pixels)
    of_synthetic = synthetic * ((kept + 2 * largest) * item + 24 * pixels) + real * features * item
    drawn = sum(parameter.numel() for parameter in network.parameters()) * (16 if place.device.type == "cuda" else 64)
    in_slice = min(sliced or 0, stored) * largest * item
    held = stored * pixels + COPIES * 4 * learned * pixels + drawn + in_slice
    return Need(held, max(of_real, of_synthetic + beside, 1))


def classes_together(need: Need, place: Place, memory: int | None = None) -> int:
    """How many classes keep the device busy, and no more than fit `memory` bytes with all that is held beside."""
    if memory is not None and need.of(1) > memory:
        warnings.warn(
            f"one class alone takes about {shown(need.of(1))}, more than the memory of {shown(memory)} given: "
            "going on with one class at a time",
            stacklevel=2,
        )
    free = _default(place) if memory is None else min(_default(place), memory - need.held)
    return max(1, free // need.a_class)


def bound(place: Place, memory: int | None) -> int | None:
    """Bytes that a run may take: those given, else most of a GPU's; None: nobody says."""
    if memory is not None or place.device.type != "cuda":
        return memory
    return int(SHARE_OF_FREE * torch.cuda.mem_get_info(place.device)[1])


def networks_together(network: nn.Module, place: Place, image: tuple[int, int, int], batch: int) -> int:
    """How many trainings by kernels of our own, in batches of so many images, fit what is free of a GPU."""
    wanted = need(network, place, image, real=0, synthetic=batch, by_hand=True, stored=0, learned=0)
    held = torch.cuda.memory_reserved(place.device) - torch.cuda.memory_allocated(place.device)  # for whoever asks next
    return int(SHARE_OF_FREE * (torch.cuda.mem_get_info(place.device)[0] + held)) // wanted.of(1)


def parts(num: int, most: int) -> list[slice]:
    """Cut `num` classes into as few parts of at most `most` as there can be, and these as even as can be."""
    size = -(-num // -(-num // most))
    return [slice(first, min(first + size, num)) for first in range(0, num, size)]


def groups_left(num: int, most: int, left: Collection[int]) -> list[list[int]]:
    """Those of `num` networks that are left, in groups that train side by side: cut from all, so that they are the
    same after a stop, whatever is done by then."""
    groups = [[each for each in range(num)[part] if each in left] for part in parts(num, most)]
    return [group for group in groups if group]


def images_together(network: nn.Module, place: Place, image: tuple[int, int, int]) -> int | None:
    """How many images pass a layer while its maps stay in a CPU's caches; None: as many as there are."""
    if place.device.type != "cpu":
        return None
    return max(1, CACHED // max((sum(layer) for layer in _maps(network, image, by_hand=False)), default=1))


def _default(place: Place) -> int:
    if place.device.type == "cpu":
        return CPU_DEFAULT
    if place.device.type != "cuda":
        return DEFAULT
    free, _ = torch.cuda.mem_get_info(place.device)
    return min(DEFAULT, int(SHARE_OF_FREE * free))


def _maps(network: nn.Module, image: tuple[int, int, int], by_hand: bool) -> Iterator[tuple[int, int, int]]:
    """Numbers an image takes before, within and after each layer that leaves a map in memory."""
    network = copy.deepcopy(network).to_empty(device="cpu")  # the meta device would load the compiler to run group norm
    for parameter in network.parameters():
        parameter.data.zero_()
    found: list[tuple[int, int, int]] = []

    def note(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        inside = out.numel() * 4 if isinstance(module, Block) and not module.is_first else 0
        found.append((given[0].numel(), inside, out.numel()))

    def is_layer(module: nn.Module) -> bool:
        return isinstance(module, Block) if by_hand else not any(True for _ in module.children())

    hooks = [module.register_forward_hook(note) for module in network.modules() if is_layer(module)]
    with torch.no_grad():
        network(torch.zeros(1, *image))
    for hook in hooks:
        hook.remove()
    yield from found
