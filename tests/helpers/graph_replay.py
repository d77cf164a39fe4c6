"""A stand-in for CUDA graphs on any device: the operations of a step are recorded and replayed, as CUDA does.

Numbers of the host become constants. A tensor from outside the step is identified by its storage, which is not kept
alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class StepTensor(NamedTuple):
    """A tensor that an operation of the step creates."""

    operation: int
    output: int


class ExternalTensor:
    """A tensor that existed before the step, by its address."""

    def __init__(self, tensor: Tensor) -> None:
        self.storage, self.dtype = weakref.ref(tensor.untyped_storage()), tensor.dtype
        self.layout = tensor.storage_offset(), tensor.size(), tensor.stride()

    def tensor(self) -> Tensor:
        """Return the tensor as it is now."""
        storage = self.storage()
        assert storage is not None, "a captured step reads memory that has been freed"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


def map_values(function: Callable[[Any], Any], values: Any) -> Any:
    """Apply a function to all values in nested lists and tuples; PyTorch's tree_map is several times slower."""
    if type(values) in (list, tuple):
        return type(values)([map_values(function, value) for value in values])
    return function(values)


def list_values(values: Any) -> list[Any]:
    """Return all values in nested lists and tuples."""
    return [value for item in values for value in list_values(item)] if type(values) in (list, tuple) else [values]


class OperationRecorder(TorchDispatchMode):
    """Records the operations in its context; `replay` runs them again."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any]] = []
        self.created: dict[int, StepTensor] = {}
        self.alive: list[Tensor] = []  # during the capture, so that no id is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        values = [args, list(kwargs.values())]
        references = map_values(self._reference, values)
        inputs = {id(value) for value in list_values(values) if isinstance(value, Tensor)}
        output = func(*args, **kwargs)
        for position, value in enumerate(list_values(output)):
            if isinstance(value, Tensor) and id(value) not in inputs:
                self.created[id(value)] = StepTensor(len(self.operations), position)
                self.alive.append(value)
        self.operations.append((func, list(kwargs), references))
        return output

    def _reference(self, value: Any) -> Any:
        return (self.created.get(id(value)) or ExternalTensor(value)) if isinstance(value, Tensor) else value

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.created.clear()
        self.alive.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operations on the current values of the external tensors."""
        results: list[list[Any]] = []

        def resolve(value: Any) -> Any:
            if isinstance(value, StepTensor):
                return results[value.operation][value.output]
            return value.tensor() if isinstance(value, ExternalTensor) else value

        for func, names, references in self.operations:
            args, options = map_values(resolve, references)
            results.append(list_values(func(*args, **dict(zip(names, options, strict=True)))))


class RecordedGraph:
    """The part of `torch.cuda.CUDAGraph` that is used."""

    def __init__(self) -> None:
        self.recorder = OperationRecorder()

    def replay(self) -> None:
        self.recorder.replay()

    def pool(self) -> None:
        """Return no memory pool: recorded operations allocate their own memory."""


class FakeStream:
    """The part of `torch.cuda.Stream` that is used."""

    def wait_stream(self, other: object) -> None: ...


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Capture steps on the CPU with the code that captures them on CUDA, and return the list of captured graphs."""
    graphs: list[RecordedGraph] = []

    def new_graph() -> RecordedGraph:
        graphs.append(RecordedGraph())
        return graphs[-1]

    monkeypatch.setattr("condenset.engine.cuda_graph.supports_graphs", lambda device: True)
    monkeypatch.setattr("condenset.engine.rng.uses_numpy", lambda key: False)  # only PyTorch's operations are recorded
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, stream: graph.recorder)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: FakeStream())
    return graphs


def disable_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every step without a graph."""
    monkeypatch.setattr("condenset.engine.cuda_graph.supports_graphs", lambda device: False)
