"""Random numbers as a function of (key, step, row): the same on every device, however the work is split or resumed.

The generator is Philox4x32-10 (Salmon et al., SC 2011), counter-based: a draw depends on its key and its place alone,
so classes can run together, in chunks or on many machines, and a run can stop and go on, without changing a number.
Here it is plain integer tensor arithmetic; on a GPU a kernel gives the same words in one launch.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from condenset import kernels
from condenset.kernels import philox as philox_kernel

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_INDEX_BITS = 31


def make_key(seed: int, *tags: str | int, device: torch.device | str = "cpu") -> Tensor:
    """A (2,) int64 Philox key for one use of randomness, such as `make_key(seed, "dm", "network")`."""
    digest = hashlib.blake2b(repr((seed, *tags)).encode(), digest_size=8).digest()
    words = [int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")]
    return torch.tensor(words, dtype=torch.int64, device=device)


def row_of(name: str, *tags: int) -> int:
    """The row of a class that is known by its name alone, whichever other classes there are."""
    return (
        int(make_key(0, "class", name, *tags)[0]) >> 1
    )  # 31 bits: where two classes of thousands meet, they share draws


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four 32-bit words (as int64) for each broadcast counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # wraps at 64 bits, which keeps all 64 of them
        high0, high1 = (product0 >> 32) & _MASK, (product1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _MASK, high0 ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def bits(key: Tensor, step: int | Tensor, rows: Tensor, num: int) -> Tensor:
    """(rows, num) words in 0..2³²-1, as int64; row r of any call is the same numbers, whatever rows come with it."""
    step = torch.as_tensor(step, dtype=torch.int64, device=key.device)
    if kernels.available(key):
        return philox_kernel.words(key, step, rows, num, uniform=False)
    blocks = torch.arange(-(-num // 4), device=key.device)[None]
    # The first round multiplies the first and third words: compilers make 32-bit arithmetic of a bare arange there.
    counter = (step & _MASK, rows[:, None], step >> 32, blocks)
    words = torch.broadcast_tensors(*philox(counter, (key[0], key[1])))
    return torch.stack(words, dim=-1).flatten(1)[:, :num]


def uniform(key: Tensor, step: int | Tensor, rows: Tensor, num: int) -> Tensor:
    """(rows, num) float32, uniform in [0, 1)."""
    if kernels.available(key):
        step = torch.as_tensor(step, dtype=torch.int64, device=key.device)
        return philox_kernel.words(key, step, rows, num, uniform=True)
    return (bits(key, step, rows, num) >> 8).float() * 2.0**-24


def flat_uniform(key: Tensor, step: int | Tensor, num: int) -> Tensor:
    """(num,) float32, uniform in [0, 1): one row, for what does not belong to a class."""
    return uniform(key, step, torch.zeros(1, dtype=torch.int64, device=key.device), num)[0]


def normal(key: Tensor, step: int | Tensor, rows: Tensor, num: int) -> Tensor:
    """(rows, num) float32, standard normal (Box-Muller)."""
    half = -(-num // 2)
    u = uniform(key, step, rows, 2 * half)
    radius, angle = torch.sqrt(-2 * torch.log1p(-u[:, :half])), 2 * math.pi * u[:, half:]
    return torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)), dim=1)[:, :num]


def subsets(
    key: Tensor, step: int | Tensor, rows: Tensor, counts: Tensor, max_count: int, num: int, *, ordered: bool = True
) -> Tensor:
    """(rows, num) indices: for each row, num of 0..count-1 without replacement, in random order.

    Where a row's count is below num its first `count` places hold all of them and the rest hold 0. Not `ordered`, for
    counts that are all enough: the same indices in any order, sooner.
    """
    place = torch.arange(max_count, device=key.device)
    ranked = (bits(key, step, rows, max_count) << _INDEX_BITS) | place  # the index breaks ties, and rides along
    ranked = torch.where(place < counts[:, None], ranked, torch.iinfo(torch.int64).max)
    chosen = torch.topk(ranked, num, dim=1, largest=False, sorted=ordered).values & ((1 << _INDEX_BITS) - 1)
    return torch.where(torch.arange(num, device=key.device) < counts[:, None], chosen, 0)


def choice(key: Tensor, step: int | Tensor, num: int) -> Tensor:
    """(1,) one of 0..num-1, all alike: which of a few things is this step's."""
    row = torch.zeros(1, dtype=torch.int64, device=key.device)
    return (bits(key, step, row, 1)[0] * num) >> 32


def permutation(key: Tensor, step: int | Tensor, num: int) -> Tensor:
    """(num,) a random order of 0..num-1."""
    row = torch.zeros(1, dtype=torch.int64, device=key.device)
    ranked = (bits(key, step, row, num)[0] << _INDEX_BITS) | torch.arange(num, device=key.device)
    return torch.sort(ranked).values & ((1 << _INDEX_BITS) - 1)
