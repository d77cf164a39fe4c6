"""Philox4x32-10 in one launch: the same numbers as `condenset.engine.rng.philox`."""

import torch
from torch import Tensor

from condenset.kernels.runtime import jit, launch, tl, triton

COUNTERS_PER_PROGRAM = 256


@jit
def _random_words(key, step, streams, out, num, UNIFORM: tl.constexpr, BLOCK: tl.constexpr):
    """Write a part of the `num` numbers of one stream: BLOCK counters of four words each."""
    parts = tl.cdiv(tl.cdiv(num, 4), BLOCK)
    row = tl.program_id(0) // parts
    block = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    step_index = tl.load(step)
    zero = block * 0
    c0 = (zero + (step_index & 0xFFFFFFFF)).to(tl.uint32)
    c1 = (zero + tl.load(streams + row)).to(tl.uint32)
    c2 = (zero + (step_index >> 32)).to(tl.uint32)
    k0 = (zero + tl.load(key)).to(tl.uint32)
    k1 = (zero + tl.load(key + 1)).to(tl.uint32)
    r0, r1, r2, r3 = tl.philox_impl(c0, c1, c2, block.to(tl.uint32), k0, k1, 10)
    target = out + row.to(tl.int64) * num + block * 4
    _store(target, r0, block * 4 < num, UNIFORM)
    _store(target + 1, r1, block * 4 + 1 < num, UNIFORM)
    _store(target + 2, r2, block * 4 + 2 < num, UNIFORM)
    _store(target + 3, r3, block * 4 + 3 < num, UNIFORM)


@jit
def _store(target, words, inside, UNIFORM: tl.constexpr):
    if UNIFORM:
        tl.store(target, (words >> 8).to(tl.float32) * 5.9604644775390625e-08, mask=inside)  # 2**-24
    else:
        tl.store(target, words.to(tl.int64), mask=inside)


def random_words(key: Tensor, step: Tensor, streams_S: Tensor, num: int, *, uniform: bool) -> Tensor:
    """Return (S, num) words as int64, or uniform numbers in [0, 1) as float32."""
    out = torch.empty(len(streams_S), num, dtype=torch.float32 if uniform else torch.int64, device=key.device)
    if out.numel() == 0:
        return out
    block = COUNTERS_PER_PROGRAM
    programs = len(streams_S) * triton.cdiv(triton.cdiv(num, 4), block)  # on axis 0: the others allow at most 65,535
    launch(_random_words, (programs,), key, step, streams_S.contiguous(), out, num, UNIFORM=uniform, BLOCK=block)
    return out
