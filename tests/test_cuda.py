"""What only a GPU can show: captured steps and streams do what the plain ones do, whatever else uses its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from condenset.engine import Place
from condenset.engine.step import accelerate
from condenset.recipes import Protocol
from condenset.train import Trainer, TrainingSet, side_by_side
from plain import tiny_data

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore", "error:running without"),  # the compiler warns of much
]


def litter() -> None:
    """Take what memory is free, small blocks and large, and leave numbers in it that are no index."""
    for size in (2, 64, 128, 256, 1024, 4096, 2**18):
        for block in [torch.empty(size, dtype=torch.int64, device="cuda") for _ in range(64)]:
            block.fill_(-(2**40))


def test_a_captured_step_reads_what_it_read_when_it_was_captured() -> None:
    place, state = Place.best("cuda"), torch.zeros(200, device="cuda", dtype=torch.int64)

    def made() -> Callable[[], None]:
        ahead = torch.arange(200, device="cuda")  # nobody else's

        def add() -> None:
            state.add_(ahead)

        return accelerate(add, [state], place)

    step = made()
    for _ in range(3):
        litter()
        step()
    assert torch.equal(state, 3 * torch.arange(200, device="cuda"))


def trainers(num: int, monkeypatch: pytest.MonkeyPatch, *, captured: bool) -> list[Trainer]:
    """Networks for a set of two whole batches and a part of one."""
    if not captured:
        monkeypatch.setattr("condenset.train.accelerate", lambda step, *_: step)
    data = TrainingSet.of(tiny_data([40, 40]), torch.device("cuda"))
    protocol = Protocol(network="convnet(width=16, depth=2)", epochs=4, batch=32)
    return [Trainer(protocol.network, data, protocol, Place.best("cuda")) for _ in range(num)]


def weights(monkeypatch: pytest.MonkeyPatch, *, captured: bool, beside: bool) -> torch.Tensor:
    """What three networks learn, each trainer having trained another before."""
    with monkeypatch.context() as patched:
        found = trainers(3, patched, captured=captured)
        for seed in (1, 2):
            runs = [trainer.training(seed, place) for place, trainer in enumerate(found)]
            if beside:
                for _ in side_by_side(runs, torch.device("cuda")):
                    litter()
            else:
                for run in runs:
                    for _ in run:
                        litter()
        return torch.stack([trainer.weights for trainer in found])


@pytest.mark.parametrize("beside", [False, True])
def test_captured_training_is_plain_training(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = weights(monkeypatch, captured=False, beside=False)
    assert plain.isfinite().all()
    assert torch.equal(weights(monkeypatch, captured=True, beside=beside), plain)
