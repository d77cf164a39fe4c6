"""Test the execution of a plan: what is done once, learned at once, and continued after a stop."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from condenset import CondensedSet, UserError
from condenset.engine.tasks import Engine
from condenset.io.progress import NullProgress
from condenset.methods import METHODS
from condenset.pipeline import condensing, execute
from condenset.pipeline.plan import Job
from condenset.pipeline.results import write_results
from condenset.runs import checkpoint
from condenset.runs.context import RunContext
from condenset.runs.identity import IDENTITY, open_directory
from helpers.command_line import list_files, read_files, read_records
from helpers.plans import NETWORK, execute_in, make_tiny_plan, replace_dm
from helpers.recording_engine import RecordingEngine


def fail(*arguments: object, **keywords: object) -> NoReturn:
    raise AssertionError("must not be called")


def interrupt(*arguments: object, **keywords: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_set_is_not_saved_in_the_directory_of_another_run(tmp_path: Path) -> None:
    class ReplaceIdentity(NullProgress):
        """Replace the identity of the directory when the first loop has ended."""

        def stop(self) -> None:
            (tmp_path / IDENTITY).write_text("{}")

    plan = make_tiny_plan(methods=("dm",))
    with pytest.raises(UserError, match="belongs to another run now"):
        execute_in(tmp_path, plan, identity=open_directory(tmp_path, {}), progress=ReplaceIdentity())
    assert not (tmp_path / "sets").exists()


def test_finished_jobs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = execute_in(tmp_path, make_tiny_plan())
    files = read_files(tmp_path)
    monkeypatch.setattr(condensing, "METHODS", {})
    monkeypatch.setattr(execute, "score_set", fail)
    assert execute_in(tmp_path, make_tiny_plan()) == records
    assert read_files(tmp_path) == files


def test_sizes_are_learned_at_once_and_a_stop_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_tiny_plan(methods=("dm",), ipcs=(1, 2))
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    records = execute_in(undisturbed, plan)
    assert [record["together"] for record in records] == [[1, 2], [1, 2]]
    single_plans = {ipc: make_tiny_plan(methods=("dm",), ipcs=(ipc,)) for ipc in (1, 2)}
    single_records = [execute_in(tmp_path / str(ipc), single_plan)[0] for ipc, single_plan in single_plans.items()]
    assert [record["accuracies"] for record in records] == [record["accuracies"] for record in single_records]
    assert all("together" not in record for record in single_records)

    save = CondensedSet.save

    def save_first(self: CondensedSet, path: Path, **keywords: Any) -> None:
        if any(stopped.rglob("*.safetensors")):
            raise KeyboardInterrupt
        save(self, path, **keywords)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # a kill after the first of the two files
        patch.setattr(RunContext, "delete_checkpoint", lambda self: None)
        patch.setattr(CondensedSet, "save", save_first)
        execute_in(stopped, plan)
    assert not (stopped / "sets/dm-1.safetensors").exists()
    execute_in(stopped, plan)
    for name in ("sets/dm-1.safetensors", "sets/dm-2.safetensors"):
        first, second = (CondensedSet.load(directory / name) for directory in (undisturbed, stopped))
        assert torch.equal(first.images, second.images)


def test_sizes_learned_at_once_can_differ_by_class(tmp_path: Path) -> None:
    plan = make_tiny_plan(methods=("dm",), ipcs=(1, 2))
    recipes = [job.recipe for job in plan.jobs if job.recipe]
    recipes[1] = dataclasses.replace(recipes[1], ipc=(2, 3))
    plan = dataclasses.replace(plan, jobs=tuple(Job(method="dm", recipe=recipe) for recipe in recipes))
    records = execute_in(tmp_path / "together", plan)
    assert [record["ipc"] for record in records] == [1, [2, 3]]
    assert [record["together"] for record in records] == [[1, [2, 3]]] * 2
    single_records = [execute_in(tmp_path / job.name, dataclasses.replace(plan, jobs=(job,)))[0] for job in plan.jobs]
    assert [record["accuracies"] for record in records] == [record["accuracies"] for record in single_records]


def test_a_set_of_another_seed_is_refused(tmp_path: Path) -> None:
    plan = make_tiny_plan(methods=("random",), recipe_fields={})
    execute_in(tmp_path, plan)
    (tmp_path / "results.json").unlink()
    with pytest.raises(UserError, match="belongs to another recipe"):
        execute_in(tmp_path, plan, seed=1)


def test_a_set_of_another_decoder_is_refused(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"iterations": 1, "network": NETWORK, "partition": 2, "decoder": "bicubic"}
    execute_in(tmp_path, make_tiny_plan(methods=("dm",), ipcs=(1,), recipe_fields=fields))
    (tmp_path / "results.json").unlink()
    bilinear = make_tiny_plan(methods=("dm",), ipcs=(1,), recipe_fields={**fields, "decoder": "bilinear"})
    with pytest.raises(UserError, match=r"belongs to another recipe \(it differs in decoder\)"):
        execute_in(tmp_path, bilinear)


def test_a_set_of_an_older_version_is_finished_with_its_decoder(tmp_path: Path) -> None:
    tiny = {**METHODS["dmplus"].tiny, "iterations": 1, "network": NETWORK, "partition": 2, "decoder": "bilinear"}
    plan = make_tiny_plan(methods=("dmplus",), ipcs=(1,), recipe_fields=tiny)
    execute_in(tmp_path, plan)
    (path,) = (tmp_path / "sets").glob("*.safetensors")
    condensed = CondensedSet.load(path)
    recipe = dict(condensed.provenance["recipe"])
    assert recipe.pop("decoder") == "bilinear"  # which older versions do not state
    dataclasses.replace(condensed, provenance={**condensed.provenance, "recipe": recipe}).save(path, overwrite=True)
    changed, _ = path.stat().st_mtime_ns, (tmp_path / "results.json").unlink()
    execute_in(tmp_path, plan)
    assert path.stat().st_mtime_ns == changed


def test_a_set_of_another_recipe_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute_in(
        tmp_path, make_tiny_plan(methods=("dm",), ipcs=(2,), recipe_fields={"iterations": 1, "network": NETWORK})
    )
    (tmp_path / "results.json").unlink()
    replace_dm(monkeypatch, condense_sizes=fail, condense=fail)
    with pytest.raises(UserError, match=r"dm-2\.safetensors belongs to another recipe"):
        execute_in(tmp_path, make_tiny_plan(methods=("dm",), ipcs=(1, 2)))


def test_a_new_size_leaves_existing_sets_unchanged(tmp_path: Path) -> None:
    first_records = execute_in(tmp_path, make_tiny_plan(methods=("dm",), ipcs=(1, 3)))
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    records = execute_in(tmp_path, make_tiny_plan(methods=("dm",), ipcs=(1, 2, 3)))
    assert {path: path.read_bytes() for path in contents} == contents
    assert [records[0], records[2]] == first_records
    assert (records[1]["ipc"], records[1]["together"]) == (2, [2, 3])


@pytest.mark.parametrize("name", ["results.json", "sets/dm-1.safetensors"])
def test_a_directory_in_place_of_a_file_is_a_one_line_error(tmp_path: Path, name: str) -> None:
    plan = make_tiny_plan(methods=("dm",), ipcs=(1,))
    execute_in(tmp_path, plan)
    for file in {"results.json", name}:
        (tmp_path / file).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name}: Is a directory; delete it") as caught:
        execute_in(tmp_path, plan)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(CondensedSet, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        execute_in(tmp_path, make_tiny_plan(methods=("dm",), ipcs=(1, 2)))
    with pytest.raises(UserError, match=r"another recipe \(it differs in other sizes\)"):
        execute_in(tmp_path, make_tiny_plan(methods=("dm",), ipcs=(1, 3)))


@pytest.mark.parametrize(("num_before", "num_after"), [(3, 1), (1, 3)])
def test_a_resumed_job_learns_the_same_sizes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_before: int, num_after: int
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    plan = make_tiny_plan(methods=("dm",), ipcs=(1, 2, 3))
    replace_dm(monkeypatch, num_that_fit=lambda *arguments: num_before)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CondensedSet, "save", interrupt)
        execute_in(tmp_path, plan)
    replace_dm(monkeypatch, num_that_fit=lambda *arguments: num_after)
    together = [record.get("together") for record in execute_in(tmp_path, plan)]
    assert together == ([[1, 2, 3]] * 3 if num_before == 3 else [None, [2, 3], [2, 3]])


def test_finished_records_stay_while_another_job_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_tiny_plan(ipcs=(1, 2))
    records = execute_in(tmp_path, plan)
    finished = [records[0], records[3]]
    write_results(tmp_path / "results.json", finished)
    score_set = execute.score_set

    def check_and_score(*arguments: Any) -> object:
        stored = read_records(tmp_path)
        assert all(record in stored for record in finished)
        return score_set(*arguments)

    monkeypatch.setattr(execute, "score_set", check_and_score)
    repeated = execute_in(tmp_path, plan)
    assert [record["accuracies"] for record in repeated] == [record["accuracies"] for record in records]


def test_a_checkpoint_is_deleted_when_its_set_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    has_checkpoint: dict[str, bool] = {}
    save, score_set = CondensedSet.save, execute.score_set

    def record_and_save(self: CondensedSet, path: Path, **keywords: Any) -> None:
        has_checkpoint["at save"] = "checkpoint" in list_files(tmp_path)
        save(self, path, **keywords)

    def record_and_score(*arguments: Any) -> object:
        has_checkpoint["at scoring"] = "checkpoint" in list_files(tmp_path)
        return score_set(*arguments)

    monkeypatch.setattr(CondensedSet, "save", record_and_save)
    monkeypatch.setattr(execute, "score_set", record_and_score)
    execute_in(tmp_path, make_tiny_plan(methods=("dm",)))
    assert has_checkpoint == {"at save": True, "at scoring": False}


def test_a_finished_run_has_no_checkpoint(tmp_path: Path) -> None:
    execute_in(tmp_path, make_tiny_plan())
    (tmp_path / "checkpoint").write_text("left by a kill after the last set was saved")
    execute_in(tmp_path, make_tiny_plan())
    assert "checkpoint" not in list_files(tmp_path)


@pytest.mark.parametrize("engine", [None, RecordingEngine()], ids=["local", "engine"])
def test_random_images_can_have_fewer_networks(tmp_path: Path, engine: Engine | None) -> None:
    plan = dataclasses.replace(make_tiny_plan(), num_networks_on_random=1)
    records = execute_in(tmp_path, plan, engine=engine)
    assert {record["method"]: len(record["accuracies"]) for record in records} == {"random": 1, "dm": 2}


def test_the_grid_shows_learned_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[str]] = []

    def save_grid(sets: list[CondensedSet], path: Path) -> None:
        drawn.append([condensed.provenance["method"] for condensed in sets])

    monkeypatch.setattr(execute, "save_grid", save_grid)
    plans = {
        "two-sizes": make_tiny_plan(ipcs=(1, 2)),
        "coreset-only": make_tiny_plan(methods=("random",), recipe_fields={}),
        "mixed": make_tiny_plan(methods=("random", "dm", "forgetting")),
    }
    for name, plan in plans.items():
        execute.save_figures(plan, execute_in(tmp_path / name, plan), "tiny", tmp_path / name)
    assert drawn == [["dm", "dm"], ["random"], ["dm"]]


def test_coreset_methods_share_a_reference_network_over_a_resume(tmp_path: Path) -> None:
    methods = ("herding", "kcenter", "forgetting")
    plan = make_tiny_plan(methods=methods, ipcs=(1, 2), recipe_fields={"network": NETWORK})
    records = execute_in(tmp_path, plan)
    assert [record["method"] for record in records] == [*methods, *methods]
    (file,) = (tmp_path / "networks").iterdir()
    (tmp_path / "sets" / "forgetting-2.safetensors").unlink()  # as if the run had stopped before the last set
    (tmp_path / "results.json").unlink()
    modified = file.stat().st_mtime_ns
    resumed = execute_in(tmp_path, plan)
    assert [record["accuracies"] for record in resumed] == [record["accuracies"] for record in records]
    assert file.stat().st_mtime_ns == modified
    assert (tmp_path / "events.jsonl").read_text().count('"event": "trained"') == 1


def test_a_job_does_not_count_the_seconds_of_the_previous_job(tmp_path: Path) -> None:
    plan = make_tiny_plan(methods=("mmd", "dm"))
    records = execute_in(tmp_path, plan, previous_seconds=1000.0)  # as after a resumed job
    assert all(record["condense_seconds"] < 1000 for record in records)
