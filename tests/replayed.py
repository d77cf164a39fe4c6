"""A stand-in for captured graphs on any device: a step's operations are recorded and replayed, as CUDA does.

Numbers of the host are baked in; a tensor from outside is known by its storage, which is not kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from condenset.engine import Place

USERS = ("train", "methods.matching", "methods.gradient", "methods.unrolled", "methods.labels")


class Made(NamedTuple):
    """A tensor that the step itself makes."""

    operation: int
    place: int


class Outside:
    """A tensor that was there before, by its address."""

    def __init__(self, tensor: Tensor) -> None:
        self.storage, self.dtype = weakref.ref(tensor.untyped_storage()), tensor.dtype
        self.layout = tensor.storage_offset(), tensor.size(), tensor.stride()

    def tensor(self) -> Tensor:
        storage = self.storage()
        assert storage is not None, "a captured step reads memory that nobody owns any more"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class Capture(TorchDispatchMode):
    """Records what is done under it; `replay` does it again."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any]] = []
        self.made: dict[int, Made] = {}
        self.alive: list[Tensor] = []  # while it captures: no id must be given twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = tree_map(
            lambda leaf: (self.made.get(id(leaf)) or Outside(leaf)) if isinstance(leaf, Tensor) else leaf,
            (args, kwargs),
        )
        given = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **kwargs)
        for place, each in enumerate(tree_leaves(out)):
            if isinstance(each, Tensor) and id(each) not in given:
                self.made[id(each)] = Made(len(self.operations), place)
                self.alive.append(each)
        self.operations.append((func, *known))
        return out

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.made.clear()
        self.alive.clear()

    @torch.no_grad()
    def replay(self) -> None:
        results: list[list[Any]] = []

        def real(leaf: Any) -> Any:
            if isinstance(leaf, Made):
                return results[leaf.operation][leaf.place]
            return leaf.tensor() if isinstance(leaf, Outside) else leaf

        for func, *given in self.operations:
            args, kwargs = tree_map(real, tuple(given), is_leaf=lambda leaf: isinstance(leaf, Made | Outside))
            results.append(tree_leaves(func(*args, **kwargs)))


class Graph:
    """`torch.cuda.CUDAGraph`, as far as it is used."""

    def __init__(self) -> None:
        self.capture = Capture()

    def replay(self) -> None:
        self.capture.replay()


class Stream:
    def wait_stream(self, other: object) -> None: ...


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Steps on CPU are captured by the very function that captures them on CUDA; gives the graphs as they are made."""
    from contextlib import nullcontext

    from condenset.engine import step

    graphs: list[Graph] = []

    def new_graph() -> Graph:
        graphs.append(Graph())
        return graphs[-1]

    def accelerate(function: Callable[[], None], state: Sequence[Tensor], place: Place) -> Callable[[], None]:
        return step._captured(function, state, place.device)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: graph.capture)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: Stream())
    for user in USERS:
        monkeypatch.setattr(f"condenset.{user}.accelerate", accelerate)
    return graphs
