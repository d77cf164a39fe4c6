"""Run the code of a user, such as a network or a sampler of networks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from condenset.engine import rng
from condenset.errors import wrap_errors
from condenset.networks.building import seed_global_rng


@contextlib.contextmanager
def run_user_code(description: str, device: torch.device, seed: int, *tags: str | int) -> Iterator[None]:
    """Run the block under global generators that are seeded for these tags. Its errors become one line.

    Args:
        description: What the code belongs to, such as "network 'mine'".
        device: The device whose generator is seeded too.
        seed: The seed of the run.
        tags: The purpose of the random numbers.
    """
    with wrap_errors(description), seed_global_rng(int(rng.make_key(seed, *tags)[0]), device):
        yield
