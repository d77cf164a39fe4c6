"""`condenset networks`: the list, and a pool that a run then draws from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import TINY_NETWORK, Condenset, names, tree, write_npz

from condenset import CondensedSet, Pool

POOL = ("--num", 2, *TINY_NETWORK, "--epochs", 2)


def test_without_a_command_it_lists_the_networks(condenset: Condenset) -> None:
    assert condenset("networks").out.splitlines()[0].split() == ["network", "what", "it", "is", "options"]
    rows = json.loads(condenset("networks", "--json").out)
    assert {"convnet", "mlp"} <= {row["name"] for row in rows}
    assert "train-pool" in condenset("networks", "--help").out
    assert "train-pools" in condenset("networks", "train-pools").complaint


def test_a_pool_is_trained_once_and_matching_draws_from_it(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    made = condenset("networks", "train-pool", toy, "--out", "p", *POOL)
    assert made.code == 0
    assert made.out.splitlines()[-1].split() == ["all", str(len(Pool.load("p").states))]
    assert names(tmp_path / "p") == ["0000.safetensors", "0001.safetensors", "pool.json"]
    before = tree(tmp_path / "p")
    again = json.loads(condenset("networks", "train-pool", toy, "--out", "p", *POOL, "--json").out)
    assert tree(tmp_path / "p") == before
    assert again["networks"] == 2
    fewer = condenset("networks", "train-pool", toy, "--out", "p", *POOL, "--num", 1)
    assert "the pool has 2 networks already, --num asks for 1" in fewer.err and fewer.out == made.out
    assert "already" not in made.err and tree(tmp_path / "p") == before
    job = f'method = "dm"\nipc = 1\nnetwork = "{TINY_NETWORK[1]}"\niterations = 2\npool = "p"\n'
    Path("recipe.toml").write_text(f'dataset = "{toy}"\ndevice = "cpu"\n[[jobs]]\n{job}')
    assert condenset("condense", "--config", "recipe.toml", "--out", "c").code == 0
    small = CondensedSet.load("c/condensed.safetensors")
    assert small.provenance["pool"]["fingerprint"] == Pool.load("p").fingerprint
    assert small.provenance["recipe"]["pool"] == str(tmp_path / "p")
    assert "group=all" in condenset("show", "c").out


@pytest.mark.filterwarnings("always:the networks of")
def test_a_pool_of_other_images_is_warned_of_once(
    condenset: Condenset, toy: Path, recwarn: pytest.WarningsRecorder
) -> None:
    assert condenset("networks", "train-pool", toy, "--out", "p", *POOL).code == 0
    write_npz(Path("other.npz"), seed=1)
    made = condenset(
        "condense", "other.npz", "--ipc", 1, "--iterations", 2, "--set", "pool=p", *TINY_NETWORK, "--out", "c"
    )
    assert made.code == 0 and not recwarn.list  # which would be shown with the place in the code
    assert [line for line in made.err.splitlines() if "trained on other images" in line] == [
        f"condenset: warning: the networks of {Path.cwd() / 'p'} were trained on other images than these"
    ]


def test_mistakes_are_one_line(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    train = ("networks", "train-pool", toy, "--out", "p", *POOL)
    assert "edges must be accuracies" in condenset(*train, "--edges", "50,20").complaint
    assert "edges must be numbers" in condenset(*train, "--edges", "a").complaint
    assert "network must be one of" in condenset(*train, "--network", "convnett").complaint
    assert "num must be a whole number, 1 or more" in condenset(*train, "--num", 0).complaint
    assert not (tmp_path / "p" / "pool.json").exists()
    (tmp_path / "p").mkdir(exist_ok=True)
    (tmp_path / "p" / "mine.txt").touch()
    refused = condenset(*train)
    assert "not empty and not a pool" in refused.complaint
    assert len(refused.err.splitlines()) == 1  # and nothing was promised before


def test_another_pool_is_refused_before_anything_is_promised(condenset: Condenset, toy: Path) -> None:
    assert condenset("networks", "train-pool", toy, "--out", "p", *POOL).code == 0
    refused = condenset("networks", "train-pool", toy, "--out", "p", *POOL, "--seed", 1)
    assert "p holds another pool (it differs in seed)" in refused.complaint
    assert len(refused.err.splitlines()) == 1
