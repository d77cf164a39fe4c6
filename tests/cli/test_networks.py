"""`condenset networks`: the list, and a pool of networks that a run uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from condenset import CondensedSet, NetworkPool
from helpers.command_line import TINY_NETWORK, CommandRunner, list_files, read_files, write_npz

POOL_OPTIONS = ("--num", 2, *TINY_NETWORK, "--epochs", 2)


def test_networks_lists_the_architectures(condenset: CommandRunner) -> None:
    assert condenset("networks").out.splitlines()[0].split() == ["network", "description", "options"]
    rows = json.loads(condenset("networks", "--json").out)
    assert {"convnet", "mlp"} <= {row["name"] for row in rows}
    (norm,) = [item for row in rows if row["name"] == "vgg11" for item in row["options"]]
    choices = ["instance", "batch"]
    assert norm == {"name": "norm", "type": "str", "default": "instance", "choices": choices}
    assert "train-pool" in condenset("networks", "--help").out
    assert "train-pools" in condenset("networks", "train-pools").error_line


def test_a_pool_is_trained_once_and_used_by_dm(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    result = condenset("networks", "train-pool", toy, "--out", "p", *POOL_OPTIONS)
    assert result.code == 0
    assert result.err.startswith(f"Training 2 networks on {toy}\nDevice: ") and "Directory: p\n" in result.err
    assert result.out.splitlines()[-1].split() == ["all", str(len(NetworkPool.load("p").states))]
    assert repr(NetworkPool.load("p")).startswith("NetworkPool('p': 2 x convnet(width=8")
    assert list_files(tmp_path / "p") == ["0000.safetensors", "0001.safetensors", "pool.json"]
    before = read_files(tmp_path / "p")
    repeated = json.loads(condenset("networks", "train-pool", toy, "--out", "p", *POOL_OPTIONS, "--json").out)
    assert read_files(tmp_path / "p") == before
    assert repeated["networks"] == 2
    fewer = condenset("networks", "train-pool", toy, "--out", "p", "--num", 1, *POOL_OPTIONS[2:])
    assert "already has 2 networks, more than --num 1" in fewer.err and fewer.out == result.out
    assert "already" not in result.err and read_files(tmp_path / "p") == before
    job = f'method = "dm"\nipc = 1\nnetwork = "{TINY_NETWORK[1]}"\niterations = 2\npool = "p"\n'
    Path("recipe.toml").write_text(f'dataset = "{toy}"\ndevice = "cpu"\n[[jobs]]\n{job}')
    assert condenset("condense", "--config", "recipe.toml", "--out", "c").code == 0
    provenance = CondensedSet.load("c/sets/dm-1.safetensors").provenance
    assert provenance["pool"]["fingerprint"] == NetworkPool.load("p").fingerprint
    assert provenance["recipe"]["pool"] == str(tmp_path / "p")
    assert "group=all" in condenset("show", "c").out


def test_an_unwritable_directory_is_reported_on_one_line(condenset: CommandRunner, toy: Path) -> None:
    result = condenset("networks", "train-pool", toy, "--out", toy / "p", *POOL_OPTIONS)
    assert f"cannot write to {toy / 'p'}" in result.error_line and len(result.err.splitlines()) == 1


def test_a_pool_has_the_groups_and_the_seed_of_the_options(condenset: CommandRunner, toy: Path) -> None:
    options = ("--num", 1, *TINY_NETWORK, "--epochs", 0, "--edges", "0,50", "--seed", 5, "--precision", "bfloat16")
    assert condenset("networks", "train-pool", toy, "--out", "p", *options).code == 0
    metadata = NetworkPool.load("p").metadata
    expected = {"edges": [0.0, 50.0], "seed": 5, "epochs": 0, "precision": "bfloat16"}
    assert {name: metadata[name] for name in expected} == expected
    assert metadata["network"].startswith("convnet(width=8, depth=1")


@pytest.mark.filterwarnings("always:the networks of")
def test_a_pool_of_other_images_gives_one_warning(
    condenset: CommandRunner, toy: Path, recwarn: pytest.WarningsRecorder
) -> None:
    assert condenset("networks", "train-pool", toy, "--out", "p", *POOL_OPTIONS).code == 0
    write_npz(Path("other.npz"), seed=1)
    options = ("--ipc", 1, "--iterations", 2, "--set", "pool=p", *TINY_NETWORK, "--out", "c")
    result = condenset("condense", "other.npz", *options)
    assert result.code == 0 and not recwarn.list  # printed on one line instead
    (line,) = [line for line in result.err.splitlines() if "trained on other images" in line]
    assert line.startswith(f"condenset: warning: the networks of {Path.cwd() / 'p'} were trained on other images")


def test_mistakes_are_one_line(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    train = ("networks", "train-pool", toy, "--out", "p", *POOL_OPTIONS)
    assert "edges must be increasing accuracies" in condenset(*train, "--edges", "50,20").error_line
    assert "edges must be numbers" in condenset(*train, "--edges", "a").error_line
    assert "network cannot be 'convnett'" in condenset(*train[:5], "--num", 1, "--network", "convnett").error_line
    assert "num must be a whole number, 1 or more" in condenset(*train[:5], "--num", 0).error_line
    assert not (tmp_path / "p" / "pool.json").exists()
    (tmp_path / "p").mkdir(exist_ok=True)
    (tmp_path / "p" / "notes.txt").touch()
    result = condenset(*train)
    assert "not empty and not a pool" in result.error_line
    assert len(result.err.splitlines()) == 1


def test_another_pool_is_rejected_before_training(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("networks", "train-pool", toy, "--out", "p", *POOL_OPTIONS).code == 0
    result = condenset("networks", "train-pool", toy, "--out", "p", *POOL_OPTIONS, "--seed", 1)
    assert "seed" in result.error_line and result.error_line.startswith("p ")
    assert len(result.err.splitlines()) == 1
