"""Random numbers as a function of (key, step, stream, index), on every device and for any split of the work.

The generator is the counter-based Philox4x32-10 (Salmon et al., SC 2011). A number depends on its key and its counter
alone, so classes can be processed together, in chunks or on many machines, and a run can be interrupted and resumed.
Every class has its own stream. This module uses integer arithmetic of NumPy or PyTorch. On a GPU, a kernel computes the
same numbers in one launch.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from condenset import kernels
from condenset.kernels import philox as philox_kernel

IntArray = npt.NDArray[np.int64]
Words = TypeVar("Words", Tensor, IntArray)

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_INDEX_BITS = 31


def make_key(seed: int, *tags: str | int, device: torch.device | str = "cpu") -> Tensor:
    """Return the (2,) int64 Philox key for one purpose, such as `make_key(seed, "dm", "network")`."""
    digest = hashlib.blake2b(repr((seed, *tags)).encode(), digest_size=8).digest()
    words = [int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")]
    return torch.tensor(words, dtype=torch.int64, device=device)


def class_stream_id(name: str, *tags: int) -> int:
    """Return the stream of a class, which depends on its name and not on the other classes.

    It has 31 bits. In the rare case that two classes get the same stream, they share random numbers.
    """
    return int(make_key(0, "class", name, *tags)[0]) >> 1


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Any, Any]) -> tuple[Words, ...]:
    """Return four 32-bit words (as int64) for each broadcast counter: tensors or NumPy arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # exact: 64 bits, as signed numbers
        high0, high1 = (product0 >> 32) & _MASK, (product1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _MASK, high0 ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def random_bits(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
    """Return (S, num) words in 0..2³²-1, as int64. A row depends on its own stream only."""
    if not len(streams_S):
        return streams_S.new_empty(0, num, dtype=torch.int64)
    if kernels.available(key):
        step = torch.as_tensor(step, dtype=torch.int64, device=key.device)
        return philox_kernel.random_words(key, step, streams_S, num, uniform=False)
    if uses_numpy(key):
        return _random_bits_in_numpy(key.tolist(), int(step), streams_S.numpy(), num)
    return _random_bits_in_pytorch(key, step, streams_S, num)


def uses_numpy(key: Tensor) -> bool:
    """Return whether NumPy computes the numbers on the host."""
    return key.device.type == "cpu"


def _random_bits_in_numpy(key: list[int], step: int, streams_S: IntArray, num: int) -> Tensor:
    """Compute the words on a CPU. NumPy's small operations cost a quarter of PyTorch's."""
    blocks = np.arange(-(-num // 4))[None]
    counter = (np.full((1, 1), step & _MASK), streams_S[:, None], np.full((1, 1), step >> 32), blocks)
    words = np.stack(np.broadcast_arrays(*philox(counter, (key[0], key[1]))), axis=-1)
    return torch.from_numpy(words).flatten(1)[:, :num]


def _random_bits_in_pytorch(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
    """Compute the words on any device."""
    step = torch.as_tensor(step, dtype=torch.int64, device=key.device)
    blocks = torch.arange(-(-num // 4), device=key.device)[None]
    # The first round multiplies words 0 and 2. There, compilers would turn a bare arange into 32-bit arithmetic.
    counter = (step & _MASK, streams_S[:, None], step >> 32, blocks)
    words = torch.broadcast_tensors(*philox(counter, (key[0], key[1])))
    return torch.stack(words, dim=-1).flatten(1)[:, :num]


def uniform(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
    """Return (S, num) float32 numbers, uniform in [0, 1)."""
    if kernels.available(key):
        step = torch.as_tensor(step, dtype=torch.int64, device=key.device)
        return philox_kernel.random_words(key, step, streams_S, num, uniform=True)
    return (random_bits(key, step, streams_S, num) >> 8).float() * 2.0**-24


def flat_uniform(key: Tensor, step: int | Tensor, num: int) -> Tensor:
    """Return (num,) float32 numbers, uniform in [0, 1), for what does not belong to a class."""
    return uniform(key, step, torch.zeros(1, dtype=torch.int64, device=key.device), num)[0]


def normal(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
    """Return (S, num) float32 numbers, standard normal (Box-Muller)."""
    half = -(-num // 2)
    u = uniform(key, step, streams_S, 2 * half)
    radius, angle = torch.sqrt(-2 * torch.log1p(-u[:, :half])), 2 * math.pi * u[:, half:]
    return torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)), dim=1)[:, :num]


def sample_without_replacement(
    key: Tensor,
    step: int | Tensor,
    streams_S: Tensor,
    counts_S: Tensor,
    max_count: int,
    num: int,
    *,
    ordered: bool = True,
) -> Tensor:
    """Sample `num` of the indices 0..count-1 per stream, without replacement, in random order.

    Args:
        key: The key.
        step: The step.
        streams_S: The stream of each sample.
        counts_S: The count of each sample.
        max_count: The largest count.
        num: The number of indices per sample.
        ordered: Return the indices in their random order. False is faster, and returns the same indices in any order;
            all counts must then be at least `num`.

    Returns:
        Indices of shape (S, num). If a count is below `num`, its row has all its indices first, then zeros.
    """
    index = torch.arange(max_count, device=key.device)
    # The low bits are the index itself. It is read back below, and it breaks ties.
    sort_keys = (random_bits(key, step, streams_S, max_count) << _INDEX_BITS) | index
    sort_keys = torch.where(index < counts_S[:, None], sort_keys, torch.iinfo(torch.int64).max)
    smallest = torch.topk(sort_keys, num, dim=1, largest=False, sorted=ordered).values
    indices = smallest & ((1 << _INDEX_BITS) - 1)
    return torch.where(torch.arange(num, device=key.device) < counts_S[:, None], indices, 0)


def random_index(key: Tensor, step: int | Tensor, num: int) -> Tensor:
    """Return one of 0..num-1, of shape (1,), with equal probabilities."""
    stream = torch.zeros(1, dtype=torch.int64, device=key.device)
    return (random_bits(key, step, stream, 1)[0] * num) >> 32


def permutation(key: Tensor, step: int | Tensor, num: int) -> Tensor:
    """Return a random order of 0..num-1, of shape (num,)."""
    stream = torch.zeros(1, dtype=torch.int64, device=key.device)
    sort_keys = (random_bits(key, step, stream, num)[0] << _INDEX_BITS) | torch.arange(num, device=key.device)
    return torch.sort(sort_keys).values & ((1 << _INDEX_BITS) - 1)
