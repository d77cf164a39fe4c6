"""`--pool`: networks that a run trains, and that other runs use."""

from __future__ import annotations

from pathlib import Path

from helpers.command_line import TINY_NETWORK, CommandRunner, list_files, read_files, read_records, sets_equal

TINY_POOL = ("--set", "pool_size=1", "--set", "pool_epochs=1", "--iterations", 2, *TINY_NETWORK)


def test_a_pool_is_trained_once_and_used_by_other_runs(condenset: CommandRunner, toy: Path) -> None:
    condense = ("condense", toy, "--ipc", 1, *TINY_POOL)
    assert condenset(*condense, "--method", "dmplus", "--out", "a").code == 0
    assert condenset(*condense, "--method", "random,dm,dmplus", "--pool", "nets", "--out", "b").code == 0
    assert sets_equal(Path("a/sets/dmplus-1.safetensors"), Path("b/sets/dmplus-1.safetensors"))
    assert not Path("b/networks").exists()
    random, dm, dmplus = read_records(Path("b"))
    assert dmplus["pool_seconds"] > 0 and "pool_seconds" not in {**random, **dm}
    (network,) = [name for name in list_files(Path("nets")) if name.endswith(".safetensors")]
    before = read_files(Path("nets"))[network]
    assert condenset(*condense, "--method", "tgdd", "--pool", "nets", "--out", "c").code == 0
    assert read_files(Path("nets"))[network] == before
    assert condenset("resume", "b").code == 0  # the identity of the recipes is that of before the training


def test_a_pool_that_cannot_be_used_is_refused(condenset: CommandRunner, toy: Path) -> None:
    condense = ("condense", toy, "--ipc", 1, *TINY_POOL, "--out", "a")
    assert "for dm, use --set dm.pool=nets" in condenset(*condense, "--pool", "nets").error_line
    Path("nets").mkdir()
    Path("nets/note.txt").touch()
    error_line = condenset(*condense, "--method", "dmplus", "--pool", "nets").error_line
    assert "nets is not empty and not a pool of networks" in error_line
    for path in (toy, toy / "nets"):
        error_line = condenset(*condense, "--method", "dmplus", "--pool", path).error_line
        assert "pool must be a directory that can be written to" in error_line and "toy.npz" in error_line
    error_line = condenset(*condense, "--method", "dmplus", "--pool", "/proc/pool").error_line  # also for root
    assert "pool must be a directory that can be written to" in error_line
    assert condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "b").code == 0
    error_line = condenset("condense", "--config", "b/recipe.toml", "--pool", "other", "--dry-run").error_line
    assert (
        "--pool must come with a method that matches with trained networks, such as dmplus, but got random"
        in error_line
    )
    group = ("--set", "dsdm.group=60-70")
    error_line = condenset(*condense, "--method", "dsdm", "--pool", "other", *group).error_line
    assert "group must come with a pool that is trained already" in error_line
    assert not Path("a").exists()
