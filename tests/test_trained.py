"""The network that coresets share: what it forgets while it trains, and how a run trains it but once."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import condenset as cs
from condenset import folders
from condenset.engine import Place
from condenset.files import read_tensors, write_tensors
from condenset.methods import METHODS
from condenset.methods.trained import trained
from condenset.presets import make_recipe
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run, Silent
from condenset.train import Forgetting, Trainer, TrainingSet
from plain import tiny_data

CPU = Place.best("cpu")
DEVICE = torch.device("cpu")
BY_NETWORK = ("herding", "kcenter", "forgetting")
FIELDS = {"network": "convnet(width=8, depth=2)", "epochs": 3, "batch": 8}


def tiny_recipe(method: str, **fields: object) -> object:
    return make_recipe(method, **{"ipc": 2, "name": "tiny", "size": 8, **FIELDS, **fields})  # type: ignore[arg-type]


def plain_count(rights: list[bool]) -> tuple[int, bool]:
    return sum(before and not now for before, now in itertools.pairwise(rights)), any(rights)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=9), st.data())
def test_forgetting_is_counted_by_image_in_whatever_order_they_come(
    passes: list[list[bool]], data: st.DataObject
) -> None:
    seen = Forgetting(3, DEVICE)
    seen.see(torch.tensor([0, 2]), torch.tensor([True, False]))
    seen.reset()  # nothing is left of an earlier network
    for rights in passes:
        order = torch.tensor(data.draw(st.permutations(range(3))))
        for part in order.split(2):
            seen.see(part, torch.tensor(rights)[part])
    plain = [plain_count([rights[image] for rights in passes]) for image in range(3)]
    most = max(events for events, _ in plain)
    assert seen.counts_N.tolist() == [events if learned else most + 1 for events, learned in plain]


def test_forgetting_by_hand() -> None:
    seen = Forgetting(4, DEVICE)
    for rights in ("0110", "1010", "0110", "1000"):  # a letter an image
        seen.see(torch.arange(4), torch.tensor([letter == "1" for letter in rights]))
    assert seen.events_N.tolist() == [1, 2, 1, 0]
    assert seen.counts_N.tolist() == [1, 2, 1, 3]  # the last was never learned


@pytest.mark.parametrize("batch", [8, 21])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_the_trainer_counts_what_its_own_steps_got_right_and_trains_as_ever(norm: str, batch: int) -> None:
    data = tiny_data([7, 7, 7])
    data = dataclasses.replace(data, labels=data.labels.roll(1))  # hard to learn, so easy to forget
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    protocol = Protocol(network=spec, epochs=20, batch=batch, augment="none", lr=0.1)
    seen, real = Forgetting(len(data), DEVICE), TrainingSet.of(data, DEVICE)
    trainer, plain = Trainer(spec, real, protocol, CPU, forgetting=seen), Trainer(spec, real, protocol, CPU)
    passes: list[list[bool]] = []
    after: list[Tensor] = []

    def note(number: int) -> None:
        passes.append(seen.right_N.tolist())
        if number > 1 and batch == len(data):  # one step a pass, which judges by the weights before it
            trainer.network.train()
            logits = trainer.forward(trainer.parameters.views(after[-1], torch.float32), real.images(slice(None)))
            assert (logits.argmax(1) == data.labels).tolist() == passes[-1]
        after.append(trainer.weights.clone())

    for net in range(2):
        passes.clear()
        trainer.train(0, net, after_pass=note)
        counts = [plain_count([rights[image] for rights in passes]) for image in range(len(data))]
        assert seen.events_N.tolist() == [events for events, _ in counts]
        assert seen.learned_N.tolist() == [learned for _, learned in counts]
        assert sum(seen.events_N) > 0
    if norm == "instance" or batch == 8:  # the look above moves batch norm's statistics
        plain.train(0, 1)
        assert torch.equal(trainer.weights, plain.weights)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The seeds and tags of the networks that were trained."""
    made: list[tuple[object, ...]] = []
    train = Trainer.train

    def noted(self: Trainer, *args: object, **kwargs: object) -> None:
        made.append(args)
        train(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "train", noted)
    return made


@pytest.mark.parametrize("on_disk", [False, True])
def test_one_network_serves_all_methods_and_sizes_of_a_run(
    on_disk: bool, trainings: list[tuple[object, ...]], tmp_path: Path
) -> None:
    data = tiny_data([6, 6])
    run = Run(place=CPU, folder=tmp_path if on_disk else None)
    sets = [METHODS[m](data, tiny_recipe(m, ipc=ipc), run) for ipc in (1, 3) for m in BY_NETWORK]
    assert len(trainings) == 1
    assert len(list(tmp_path.rglob("*.safetensors"))) == int(on_disk)
    again = Run(place=CPU, folder=run.folder)  # as after a stop
    repeated = [METHODS[m](data, tiny_recipe(m, ipc=ipc), again) for ipc in (1, 3) for m in BY_NETWORK]
    assert len(trainings) == (1 if on_disk else 2)
    for one, two in zip(sets, repeated, strict=True):
        assert torch.equal(one.images, two.images)
    if on_disk:  # the training's seconds count, also where it was done before
        spent = run.events("trained")[0]["seconds"]
        assert all(each.provenance["seconds"] >= spent for each in repeated)


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"epochs": 2},
        {"network_lr": 0.1},
        {"batch": 4},
        {"augment": "crop"},
        {"network": "convnet(width=4, depth=2)"},
        {"mean": (0.4,) * 3},
        {"class_names": ("a", "b")},
        {"can_flip": False},
        {"place": Place.best("cpu", "bfloat16")},
    ],
)
def test_whatever_decides_the_network_makes_another(
    changed: dict[str, object], trainings: list[tuple[object, ...]], tmp_path: Path
) -> None:
    data = tiny_data([6, 6])
    METHODS["herding"](data, tiny_recipe("herding"), Run(place=CPU, folder=tmp_path))
    of_run = {key: value for key, value in changed.items() if key in ("seed", "place")}
    of_data = {key: value for key, value in changed.items() if key in ("mean", "class_names", "can_flip")}
    fields = {key: value for key, value in changed.items() if key not in (of_run | of_data)}
    other = dataclasses.replace(data, **of_data)  # type: ignore[arg-type]
    run = Run(**{"place": CPU, "folder": tmp_path, **of_run})  # type: ignore[arg-type]
    METHODS["herding"](other, tiny_recipe("herding", **fields), run)
    assert len(trainings) == 2
    assert len(list((tmp_path / "networks").iterdir())) == 2


def test_a_network_spelled_out_is_the_same_network(trainings: list[tuple[object, ...]], tmp_path: Path) -> None:
    for spec in ("convnet(width=8)", "convnet(depth=2, width=8, norm='instance')"):
        METHODS["herding"](tiny_data([6, 6]), tiny_recipe("herding", network=spec), Run(place=CPU, folder=tmp_path))
    assert len(trainings) == 1


def with_file(folder: Path) -> Path:
    METHODS["herding"](tiny_data([6, 6]), tiny_recipe("herding"), Run(place=CPU, folder=folder))
    (path,) = (folder / "networks").iterdir()
    return path


@pytest.mark.parametrize(
    "damage", ["cut", "text", "no meta", "no table", "deep", "another", "seconds", "no counts", "shape", "type", "nan"]
)
def test_a_damaged_or_foreign_network_is_refused_in_a_line(damage: str, tmp_path: Path) -> None:
    path = with_file(tmp_path)
    tensors, meta = read_tensors(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "text":
        path.write_text("not a network")
    elif damage in ("no meta", "no table", "deep"):
        write_tensors(
            path, tensors, {"no meta": {}, "no table": {"network": "3"}, "deep": {"network": "[" * 9999}}[damage]
        )
    elif damage in ("another", "seconds"):
        change = {"another": {"seed": 5}, "seconds": {"seconds": 10**400}}[damage]
        write_tensors(path, tensors, {"network": json.dumps(json.loads(meta["network"]) | change)})
    else:
        spoiled = {
            "no counts": {name: tensor for name, tensor in tensors.items() if name != "forgetting"},
            "shape": tensors | {"forgetting": torch.zeros(3, dtype=torch.int64)},
            "type": tensors | {"weights": tensors["weights"].double()},
            "nan": tensors | {"weights": tensors["weights"].fill_(torch.nan)},
        }[damage]
        write_tensors(path, spoiled, meta)
    with pytest.raises(cs.UserError, match=f"{path}.*; delete it to train the network again") as caught:
        METHODS["kcenter"](tiny_data([6, 6]), tiny_recipe("kcenter"), Run(place=CPU, folder=tmp_path))
    assert "\n" not in str(caught.value)


def test_overwriting_a_run_removes_its_networks_and_nothing_else(tmp_path: Path) -> None:
    path = with_file(tmp_path)
    (tmp_path / "recipe.toml").write_text("# condenset 0\n")
    (path.parent / f".{path.name}.x1.tmp").write_text("left by a kill")
    (path.parent / "mine.safetensors").write_text("mine")
    folders.new_folder(tmp_path, overwrite=True)
    assert [each.name for each in path.parent.iterdir()] == ["mine.safetensors"]
    (path.parent / "mine.safetensors").unlink()
    (tmp_path / "recipe.toml").write_text("# condenset 0\n")
    folders.new_folder(tmp_path, overwrite=True)
    assert not path.parent.exists()


class StopAt(Silent):
    """Asks the run to stop after so many updates; notes what it was told."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.number = run, number
        self.texts: list[str] = []
        self.seen: list[int] = []

    def start(self, text: str, total: int, done: int = 0) -> None:
        assert not self.run.listening
        self.texts.append(f"{text}: {total}")

    def update(self, done: int, note: str = "") -> None:
        assert self.run.listening
        self.seen.append(done)
        self.run.stop_requested = len(self.seen) == self.number


@pytest.mark.parametrize("method", BY_NETWORK)
def test_stopped_while_training_and_while_choosing(
    method: str, trainings: list[tuple[object, ...]], tmp_path: Path
) -> None:
    data, recipe = tiny_data([6, 6, 6]), tiny_recipe(method)
    expected = METHODS[method](data, recipe, Run(seed=1, place=CPU)).images
    # In the second of four passes of three steps; after one of three classes.
    for number, left, told in ((5, 0, [1, 2, 3, 4, 5]), (7, 1, [6, 7, 8, 9, 10, 11, 1])):
        run = Run(seed=1, place=CPU, folder=tmp_path)
        run.progress = progress = StopAt(run, number)
        with pytest.raises(Interrupted):
            METHODS[method](data, recipe, run)
        assert not run.listening
        assert progress.seen == told
        assert (tmp_path / "checkpoint").exists() == (left == 0)
        assert len(list((tmp_path / "networks").glob("*"))) == left
    run = Run(seed=1, place=CPU, folder=tmp_path)
    run.progress = progress = StopAt(run, 99)
    assert torch.equal(METHODS[method](data, recipe, run).images, expected)
    assert len(trainings) == 3
    assert progress.texts == [f"{method}, 2 a class: 3"]
    run = Run(seed=1, place=CPU)
    run.progress = progress = StopAt(run, 99)
    METHODS[method](data, recipe, run)
    assert progress.texts == ["training a network on the whole set: 12", f"{method}, 2 a class: 3"]
    assert progress.seen == [*range(1, 12), 1, 2, 3]  # the last step of twelve is told by what comes then


@pytest.mark.parametrize("seconds", [30.0, 0.0])
def test_a_network_that_diverges_is_one_line_and_leaves_nothing(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.CHECKPOINT_SECONDS", seconds)
    recipe = tiny_recipe("herding", network_lr=1e30, epochs=20)
    with pytest.raises(cs.UserError, match=r"no longer numbers after pass \d+: a smaller network_lr may help"):
        METHODS["herding"](tiny_data([6, 6]), recipe, Run(place=CPU, folder=tmp_path))
    assert not (tmp_path / "networks").exists()


def test_the_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    data = tiny_data([6, 6, 6])
    run = Run(place=CPU, folder=tmp_path)
    run.progress = StopAt(run, 5)
    protocols = [Protocol(network="convnet(width=8, depth=2)", epochs=3, batch=8, lr=lr) for lr in (0.5, 0.01)]
    with pytest.raises(Interrupted):
        trained(data, protocols[0], run)
    with pytest.raises(cs.UserError, match="it differs in training"):
        trained(data, protocols[1], Run(place=CPU, folder=tmp_path))


def test_the_network_is_asked_in_evaluation_mode_whole_or_in_parts() -> None:
    data = tiny_data([9, 9])
    protocol = Protocol(network="convnet(width=8, depth=2, norm='batch')", epochs=2, batch=8, augment="none")
    known, real = trained(data, protocol, Run(place=CPU)), TrainingSet.of(data, DEVICE)
    parts = dataclasses.replace(known, batch=4)
    places = torch.arange(18)
    assert known.features(real, places).shape == (18, known.network.num_features)
    torch.testing.assert_close(parts.features(real, places), known.features(real, places))
    assert not any(parameter.requires_grad for parameter in known.network.parameters())
