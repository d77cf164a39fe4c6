"""Use PyTorch's default settings, whatever the caller has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Compute with gradients, new tensors on the CPU and in float32; restore the caller's settings at the end.

    The functions of the Python interface use it as a decorator, so that `torch.no_grad`, `torch.inference_mode`,
    `torch.set_default_device` and `torch.set_default_dtype` of the caller do not change results.
    """
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # a device context slows down every call
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
