"""The network that coreset methods share: trained once per run, stored, and read back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.io.files import read_tensors, write_tensors
from condenset.io.progress import NullProgress
from condenset.methods import METHODS, Recipe, make_recipe
from condenset.methods.reference_network import get_reference_network
from condenset.runs import directory
from condenset.runs.context import RunContext
from condenset.runs.identity import IDENTITY, open_directory
from condenset.runs.loop import Interrupted
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
NETWORK_METHODS = ("herding", "kcenter", "forgetting")
FIELDS = {"network": "convnet(width=8, depth=2)", "epochs": 3, "batch_size": 8}


def tiny_recipe(method: str, **fields: Any) -> Recipe:
    return make_recipe(method, **{"ipc": 2, "name": "tiny", "size": 8, **FIELDS, **fields})


def condense(method: str, data: cs.ImageData, run: RunContext, **fields: Any) -> cs.CondensedSet:
    return METHODS[method].condense(data, tiny_recipe(method, **fields), run)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """A list that gets the seed and tags of every network that is trained."""
    calls: list[tuple[object, ...]] = []
    train = Trainer.train

    def record(self: Trainer, *args: Any, **options: Any) -> None:
        calls.append(args)
        train(self, *args, **options)

    monkeypatch.setattr(Trainer, "train", record)
    return calls


@pytest.mark.parametrize("on_disk", [False, True])
def test_all_methods_and_sizes_of_a_run_share_one_network(
    on_disk: bool, trainings: list[tuple[object, ...]], tmp_path: Path
) -> None:
    data, path = tiny_data([6, 6]), tmp_path if on_disk else None
    jobs = [(method, ipc) for ipc in (1, 3) for method in NETWORK_METHODS]
    run = RunContext(compute=CPU, directory=path)
    sets = [condense(method, data, run, ipc=ipc) for method, ipc in jobs]
    assert len(trainings) == 1
    assert len(list(tmp_path.rglob("*.safetensors"))) == int(on_disk)
    resumed_run = RunContext(compute=CPU, directory=path)
    repeated = [condense(method, data, resumed_run, ipc=ipc) for method, ipc in jobs]
    assert len(trainings) == (1 if on_disk else 2)
    for first, second in zip(sets, repeated, strict=True):
        assert torch.equal(first.images, second.images)
    if on_disk:  # the recorded time includes the training
        training_seconds = run.read_events("trained")[0]["seconds"]
        assert all(condensed.provenance["seconds"] >= training_seconds for condensed in repeated)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"epochs": 2},
        {"network_lr": 0.1},
        {"batch_size": 4},
        {"augment": "crop"},
        {"network": "convnet(width=4, depth=2)"},
        {"mean": (0.4,) * 3},
        {"class_names": ("a", "b")},
        {"allow_hflip": False},
        {"compute": ComputeDevice.select("cpu", "bfloat16")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_settings_train_another_network(
    change: dict[str, Any], trainings: list[tuple[object, ...]], tmp_path: Path
) -> None:
    data = tiny_data([6, 6])
    condense("herding", data, RunContext(compute=CPU, directory=tmp_path))
    run_fields = {key: value for key, value in change.items() if key in ("seed", "compute")}
    data_fields = {key: value for key, value in change.items() if key in ("mean", "class_names", "allow_hflip")}
    fields = {key: value for key, value in change.items() if key not in (run_fields | data_fields)}
    run = RunContext(**{"compute": CPU, "directory": tmp_path, **run_fields})
    condense("herding", dataclasses.replace(data, **data_fields), run, **fields)
    assert len(trainings) == 2
    assert len(list((tmp_path / "networks").iterdir())) == 2


def test_equivalent_specs_share_one_network(trainings: list[tuple[object, ...]], tmp_path: Path) -> None:
    for spec in ("convnet(width=8)", "convnet(depth=2, width=8, norm='instance')"):
        condense("herding", tiny_data([6, 6]), RunContext(compute=CPU, directory=tmp_path), network=spec)
    assert len(trainings) == 1


def store_network(path: Path) -> Path:
    """Train a network in the run directory and return its file."""
    condense("herding", tiny_data([6, 6]), RunContext(compute=CPU, directory=path))
    (file,) = (path / "networks").iterdir()
    return file


@pytest.mark.parametrize(
    "damage",
    [
        "truncated",
        "text",
        "no metadata",
        "number as metadata",
        "deep metadata",
        "other seed",
        "huge seconds",
        "missing tensor",
        "wrong shape",
        "wrong type",
        "nan",
    ],
)
def test_damaged_or_foreign_files_are_refused(damage: str, tmp_path: Path) -> None:
    path = store_network(tmp_path)
    tensors, metadata = read_tensors(path)
    weight = "network.classifier.weight"
    texts = {"no metadata": {}, "number as metadata": {"network": "3"}, "deep metadata": {"network": "[" * 9999}}
    changes = {"other seed": {"seed": 5}, "huge seconds": {"seconds": 10**400}}
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "text":
        path.write_text("not a network")
    elif damage in texts:
        write_tensors(path, tensors, texts[damage])
    elif damage in changes:
        content = json.loads(metadata["network"]) | changes[damage]
        write_tensors(path, tensors, {"network": json.dumps(content)})
    else:
        damaged_tensors = {
            "missing tensor": {name: tensor for name, tensor in tensors.items() if name != "forgetting"},
            "wrong shape": tensors | {"forgetting": torch.zeros(3, dtype=torch.int64)},
            "wrong type": tensors | {weight: tensors[weight].double()},
            "nan": tensors | {weight: torch.full_like(tensors[weight], torch.nan)},
        }
        write_tensors(path, damaged_tensors[damage], metadata)
    with pytest.raises(cs.UserError, match=f"{path}.*; delete it to train the network again") as caught:
        condense("kcenter", tiny_data([6, 6]), RunContext(compute=CPU, directory=tmp_path))
    assert "\n" not in str(caught.value)


def test_overwriting_a_run_removes_only_its_networks(tmp_path: Path) -> None:
    path = store_network(tmp_path)
    (tmp_path / "recipe.toml").write_text("# condenset 0\n")
    (path.parent / f".{path.name}.x1.tmp").write_text("left by a kill")
    foreign = path.parent / "foreign.safetensors"
    foreign.write_text("foreign")
    directory.create_run_directory(tmp_path, overwrite=True)
    assert list(path.parent.iterdir()) == [foreign]
    foreign.unlink()
    (tmp_path / "recipe.toml").write_text("# condenset 0\n")
    directory.create_run_directory(tmp_path, overwrite=True)
    assert not path.parent.exists()


class StopAtUpdate(NullProgress):
    """Ask the run to stop at an update, and record what is displayed."""

    def __init__(self, run: RunContext, number: int) -> None:
        self.run, self.number = run, number
        self.loops: list[str] = []
        self.updates: list[float] = []

    def start(self, description: str, total: int, done: int = 0) -> None:
        assert not self.run.stop.listening
        self.loops.append(f"{description}: {total}")

    def update(self, done: float, note: str = "") -> None:
        assert self.run.stop.listening
        self.updates.append(done)
        self.run.stop.requested = int(len(self.updates) == self.number)


def make_run(tmp_path: Path | None, stop_at: int) -> tuple[RunContext, StopAtUpdate]:
    run = RunContext(seed=1, compute=CPU, directory=tmp_path)
    run.progress = progress = StopAtUpdate(run, stop_at)
    return run, progress


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_interruption_during_training_and_selection(
    method: str, trainings: list[tuple[object, ...]], tmp_path: Path
) -> None:
    data = tiny_data([6, 6, 6])
    expected = condense(method, data, RunContext(seed=1, compute=CPU)).images
    # First in the second of four epochs with three steps each, then after one of three classes.
    for stop_at, num_networks, updates in ((5, 0, [1, 2, 3, 4, 5]), (7, 1, [6, 7, 8, 9, 10, 11, 1])):
        run, progress = make_run(tmp_path, stop_at)
        with pytest.raises(Interrupted):
            condense(method, data, run)
        assert not run.stop.listening
        assert progress.updates == updates
        assert (tmp_path / "checkpoint").exists() == (num_networks == 0)
        assert len(list((tmp_path / "networks").glob("*"))) == num_networks
    run, progress = make_run(tmp_path, 99)
    assert torch.equal(condense(method, data, run).images, expected)
    assert len(trainings) == 3
    assert progress.loops == [f"{method}, 2 per class: 3"]
    run, progress = make_run(None, 99)
    condense(method, data, run)
    assert progress.loops == ["training a network on the whole dataset: 12", f"{method}, 2 per class: 3"]
    assert progress.updates == [*range(1, 12), 1, 2, 3]  # the last step of the training is not reported


@pytest.mark.parametrize("checkpoint_seconds", [30.0, 0.0])
def test_divergence_is_an_error_and_nothing_is_stored(
    checkpoint_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.checkpoint.CHECKPOINT_SECONDS", checkpoint_seconds)
    run = RunContext(compute=CPU, directory=tmp_path)
    fields = {"network_lr": 1e9, "epochs": 20, "network": "convnet(width=8, depth=2, norm='none')"}
    with pytest.raises(cs.UserError, match=r"diverged: .* after epoch \d+\. Try a smaller network_lr"):
        condense("herding", tiny_data([6, 6]), run, **fields)
    assert not (tmp_path / "networks").exists()


def test_nothing_is_stored_in_a_deleted_directory(tmp_path: Path) -> None:
    run = RunContext(compute=CPU, directory=tmp_path, identity=open_directory(tmp_path, {}))
    (tmp_path / IDENTITY).unlink()
    with pytest.raises(cs.UserError, match="was deleted, or belongs to another run now"):
        condense("herding", tiny_data([6, 6]), run)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    data = tiny_data([6, 6, 6])
    run, _ = make_run(tmp_path, 5)
    protocols = [Protocol(network="convnet(width=8, depth=2)", epochs=3, batch_size=8, lr=lr) for lr in (0.5, 0.01)]
    with pytest.raises(Interrupted):
        get_reference_network(data, protocols[0], run)
    with pytest.raises(cs.UserError, match="training"):
        get_reference_network(data, protocols[1], RunContext(seed=1, compute=CPU, directory=tmp_path))


def test_features_do_not_depend_on_the_batch_size() -> None:
    data = tiny_data([9, 9])
    protocol = Protocol(network="convnet(width=8, depth=2, norm='batch')", epochs=2, batch_size=8, augment="none")
    network = get_reference_network(data, protocol, RunContext(compute=CPU))
    dataset, index = DeviceDataset.from_data(data, CPU.device), torch.arange(18)
    features = network.features(dataset, index)
    assert features.shape[0] == 18
    torch.testing.assert_close(dataclasses.replace(network, batch_size=4).features(dataset, index), features)
    assert not any(parameter.requires_grad for parameter in network.network.parameters())
