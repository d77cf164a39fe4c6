"""A stand-in for CUDA graphs on any device: the operations of a step are recorded and replayed, as CUDA does.

Numbers of the host become constants. A tensor from outside the step is identified by its storage, which is not kept
alive.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


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


class OperationRecorder(TorchDispatchMode):
    """Records the operations in its context; `replay` runs them again."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any]] = []
        self.created: dict[int, StepTensor] = {}
        self.alive: list[Tensor] = []  # during the capture, so that no id is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        references = tree_map(
            lambda leaf: (self.created.get(id(leaf)) or ExternalTensor(leaf)) if isinstance(leaf, Tensor) else leaf,
            (args, kwargs),
        )
        inputs = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        output = func(*args, **kwargs)
        for position, leaf in enumerate(tree_leaves(output)):
            if isinstance(leaf, Tensor) and id(leaf) not in inputs:
                self.created[id(leaf)] = StepTensor(len(self.operations), position)
                self.alive.append(leaf)
        self.operations.append((func, *references))
        return output

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.created.clear()
        self.alive.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Run all operations on the current values of the external tensors."""
        results: list[list[Any]] = []

        def resolve(leaf: Any) -> Any:
            if isinstance(leaf, StepTensor):
                return results[leaf.operation][leaf.output]
            return leaf.tensor() if isinstance(leaf, ExternalTensor) else leaf

        for func, *references in self.operations:
            args, kwargs = tree_map(
                resolve, tuple(references), is_leaf=lambda leaf: isinstance(leaf, StepTensor | ExternalTensor)
            )
            results.append(tree_leaves(func(*args, **kwargs)))


class RecordedGraph:
    """The part of `torch.cuda.CUDAGraph` that is used."""

    def __init__(self) -> None:
        self.recorder = OperationRecorder()

    def replay(self) -> None:
        self.recorder.replay()


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
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: graph.recorder)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: FakeStream())
    return graphs


def disable_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every step without a graph."""
    monkeypatch.setattr("condenset.engine.cuda_graph.supports_graphs", lambda device: False)
