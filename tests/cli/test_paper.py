"""`condenset paper`: every experiment at the scale tiny, its data and pools, and its resume after kills."""

from __future__ import annotations

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from condenset import CondensedSet
from condenset.data.reading import loading
from condenset.experiments import EXPERIMENTS, start
from condenset.pipeline import datasets
from helpers.command_line import (
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandProcess,
    CommandRunner,
    KillAtRename,
    list_files,
    read_records,
    replace_test_images,
    sets_equal,
    write_npz,
)

FILES = {"results.json", "table.md", "figure.png", "figure.svg", "experiment.toml"}
TINY_SCALE = ("--scale", "tiny", "--device", "cpu")


def test_paper_lists_the_experiments(condenset: CommandRunner) -> None:
    assert condenset("paper").out.splitlines()[0].split() == ["experiment", "description"]
    assert [row["name"] for row in json.loads(condenset("paper", "--json").out)] == list(EXPERIMENTS)


@pytest.mark.usefixtures("fast_tiny")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_at_the_scale_tiny(name: str, condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    dataset = () if name == "cost" else ("--dataset", toy)  # one experiment on its own dataset; the others save time
    result = condenset("paper", name, *dataset, *TINY_SCALE, "--out", "a")
    assert result.code == 0
    assert {path.name for path in (tmp_path / "a").iterdir() if path.is_file()} >= FILES
    rows = (tmp_path / "a/table.md").read_text().splitlines()[4:]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")]
    assert cells and all(cell in result.out for cell in cells)
    assert "its numbers mean nothing" in result.out


def test_the_sets_of_an_experiment_name_the_path_of_their_dataset(condenset: CommandRunner, toy: Path) -> None:
    options = ("--methods", "random", "--ipc", 1)
    assert condenset("paper", "sota", "--dataset", toy, *TINY_SCALE, *options, "--out", "a").code == 0
    (file,) = Path("a/parts").rglob("condensed.safetensors")
    assert CondensedSet.load(file).provenance["origin"] == {"dataset": str(toy)}
    assert condenset("evaluate", file, *TINY_EVALUATION).code == 0


def test_method_all_means_the_methods_of_the_experiment(condenset: CommandRunner) -> None:
    error_line = condenset("paper", "cost", "--methods", "all", "--set", "dd.steps=3").error_line
    assert "the method of a setting cannot be 'dd'" in error_line


def test_an_experiment_loads_its_data_once(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_loads, load = 0, loading.load_splits

    def counted_load(*args: Any, **options: Any) -> Any:
        nonlocal num_loads
        num_loads += 1
        return load(*args, **options)

    for module in (start, datasets):
        monkeypatch.setattr(module, "load_splits", counted_load)
    options = ("--method", "random", "--methods", "mmd,", "--set", "mmd.iterations=1", "--ipc", 2, "--sets", 2)
    protocol = ("--nets", 1, "--epochs", 0, "--whole-epochs", 0, "--memory", "1GiB")
    result = condenset("paper", "sizes", "--dataset", toy, *TINY_SCALE, *options, *protocol, "--out", "a")
    assert (result.code, num_loads) == (0, 1)
    config = tomllib.loads(Path("a/experiment.toml").read_text())
    assert (config["ipcs"], config["num_sets"], config["memory_limit"]) == ([2], 2, 2**30)
    assert result.out.splitlines()[0].startswith("images per class  random      mmd ")
    leftover = Path("a/parts/mmd-2/.checkpoint.x.tmp")  # as a kill leaves it
    leftover.touch()
    assert condenset("resume", "a").out == result.out
    assert not leftover.exists()
    assert num_loads == 2
    replace_test_images(toy)
    assert "has changed since a began" in condenset("resume", "a").error_line
    write_npz(toy, seed=1)
    assert "has changed since a began" in condenset("resume", "a").error_line


def test_an_experiment_stores_the_absolute_path_of_a_pool(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    paper = ("paper", "networks", "--dataset", toy, *TINY_SCALE, "--out", "a")
    assert f"{tmp_path / 'here'} is not a pool" in condenset(*paper, "--set", "dm.pool=here").error_line
    assert not Path("a").exists()
    assert "but got '~no-such-user/x'" in condenset(*paper, "--set", "dm.pool=~no-such-user/x").error_line
    network = ("--network", "convnet(width=16, depth=2)")
    assert condenset("networks", "train-pool", toy, "--num", 1, "--epochs", 1, *network, "--out", "here").code == 0
    assert condenset(*paper, "--set", "dm.pool=here", "--nets", 1, "--epochs", 0).code == 0
    assert tomllib.loads(Path("a/experiment.toml").read_text())["settings"] == [f"dm.pool={tmp_path / 'here'}"]
    Path("here").rename("a/parts/pool")
    for pool in ("a/parts/pool", "missing"):  # one inside what would be overwritten, and one that does not exist
        assert condenset(*paper, "--overwrite", "--set", f"dm.pool={pool}").error_line
        assert Path("a/results.json").exists() and Path("a/parts/pool/pool.json").exists()


def remove_costs(value: Any) -> Any:
    """Remove seconds and memory from records."""
    if isinstance(value, dict):
        names = [name for name in value if "seconds" not in name and "peak" not in name]
        return {name: remove_costs(value[name]) for name in names}
    return [remove_costs(item) for item in value] if isinstance(value, list) else value


COMPARE = ("compare", "toy.npz", "--ipc", 1, "--iterations", 2, "--no-whole", *TINY_NETWORK, "--set", "epochs=1")
COMPARE = (*COMPARE, "--method", "random,herding,dd,ld,dc,dm")
SOTA = ("paper", "sota", "--dataset", "toy.npz", "--methods", "random,herding,dsa,dm", *TINY_SCALE)


@pytest.mark.parametrize("arguments", [COMPARE, SOTA], ids=["compare", "paper sota"])
def test_a_command_killed_many_times_gives_the_same_result(arguments: tuple[object, ...], tmp_path: Path) -> None:
    write_npz(tmp_path / "toy.npz")
    arguments = (*arguments, *TINY_EVALUATION)
    assert CommandProcess((*arguments, "--out", "uninterrupted"), tmp_path).wait().code == 0
    code, num_starts = -signal.SIGKILL, 0
    while code == -signal.SIGKILL and num_starts < 99:
        command = ("resume", "killed") if num_starts else (*arguments, "--out", "killed")
        code, num_starts = CommandProcess(command, tmp_path, KillAtRename(6)).wait().code, num_starts + 1
    assert code == 0 and num_starts > 2
    assert list_files(tmp_path / "killed") == list_files(tmp_path / "uninterrupted")
    records, expected = (remove_costs(read_records(tmp_path / name)) for name in ("killed", "uninterrupted"))
    assert records == expected
    for path in (tmp_path / "uninterrupted").rglob("condensed.safetensors"):
        assert sets_equal(path, tmp_path / "killed" / path.relative_to(tmp_path / "uninterrupted"))
