"""Records state the augmentation that is applied: without flip for data that do not allow it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import torch

import condenset as cs
from condenset import augment
from condenset.methods import DMRecipe
from condenset.methods.coresets.random import RandomRecipe
from condenset.methods.pools.pool_training import pool_protocol
from condenset.training.protocol import Protocol
from helpers.command_line import TINY, CommandRunner, read_records, sets_equal
from helpers.reference_dm import tiny_data

APPLIED = "color_crop_cutout_scale_rotate"
RECIPE = DMRecipe(ipc=1, network="convnet(width=8, depth=1)", iterations=2)


def test_flip_is_removed_only_if_it_is_not_allowed() -> None:
    assert augment.remove_unused_flip(RECIPE, allow_hflip=False).augment == APPLIED
    assert augment.remove_unused_flip(RECIPE, allow_hflip=True) is RECIPE
    assert augment.remove_unused_flip(Protocol(augment="flip"), allow_hflip=False).augment == "none"
    assert augment.remove_unused_flip(RandomRecipe(), allow_hflip=False) == RandomRecipe()


def test_run_records_what_is_applied_and_repeats(condenset: CommandRunner) -> None:
    options = ("--method", "dm", "--ipc", 1, *TINY)
    assert condenset("run", "digits", *options, "--out", "a").code == 0
    recipe = tomllib.loads(Path("a/recipe.toml").read_text())
    assert (recipe["jobs"][0]["augment"], recipe["protocol"]["augment"]) == (APPLIED, APPLIED)
    assert read_records(Path("a"))[0]["augment"] == APPLIED
    assert condenset("resume", "a").code == 0
    assert condenset("run", "--config", "a/recipe.toml", "--out", "b").code == 0
    first, second = Path("a/sets/dm-1.safetensors"), Path("b/sets/dm-1.safetensors")
    assert sets_equal(first, second)
    assert cs.CondensedSet.load(first).provenance["recipe"]["augment"] == APPLIED


def test_python_records_what_is_applied() -> None:
    data = tiny_data([4, 4], allow_hflip=False)
    given, applied = (
        cs.condense(data, DMRecipe(ipc=1, network=RECIPE.network, iterations=2, augment=strategy), verbose=False)
        for strategy in (augment.DEFAULT_STRATEGY, APPLIED)
    )
    assert given.provenance["recipe"]["augment"] == APPLIED
    assert torch.equal(given.images, applied.images)
    options = {"network": "mlp(width=4)", "num_networks": 1, "epochs": 0, "verbose": False}
    test_set = tiny_data([4, 4], seed=1, allow_hflip=False)
    assert cs.evaluate(given, test_set, **options).protocol["augment"] == APPLIED  # type: ignore[arg-type]
    ranking = cs.rank([RECIPE.network], given, test_set, epochs=0, device="cpu", verbose=False)
    assert ranking.protocol["augment"] == APPLIED
    assert pool_protocol(data).augment == APPLIED


def test_replay_memory_records_what_is_applied() -> None:
    memory = cs.Memory(ipc=1, allow_hflip=False, network=RECIPE.network, iterations=1, device="cpu", verbose=False)
    step = memory.prepare_step(tiny_data([4, 4]))
    assert memory.recipe(step).augment == APPLIED  # type: ignore[attr-defined]
    memory.store(cs.condense(step, memory.recipe(step), device="cpu", verbose=False), step)
    assert memory.set.provenance["recipe"]["augment"] == APPLIED
