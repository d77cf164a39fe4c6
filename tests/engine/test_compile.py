"""Compilation and its fallback."""

from __future__ import annotations

import pytest
import torch

from condenset.engine import ComputeDevice
from condenset.engine.compile import compile_or_fallback

GPU = ComputeDevice(torch.device("cuda"), torch.float32)


def fail_to_compile(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)


def test_without_a_compiler_the_function_runs_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_compile(RuntimeError("no compiler"), monkeypatch)
    add = compile_or_fallback(lambda x: x + 1, GPU)
    with pytest.warns(UserWarning, match="running without the compiler, several times slower: no compiler"):
        assert add(1) == 2
    assert add(1) == 2


def test_exhausted_memory_is_not_blamed_on_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_compile(torch.OutOfMemoryError("no memory"), monkeypatch)
    add = compile_or_fallback(lambda x: x + 1, GPU)
    for _ in range(2):  # the compiled function is still used afterwards
        with pytest.raises(torch.OutOfMemoryError):
            add(1)
