"""What every experiment does: it writes its files, repeats nothing, resumes, and follows the request."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import pstdev

import pytest

from condenset import CondensedSet, UserError
from condenset.data.image_data import Splits
from condenset.engine import ComputeDevice
from condenset.experiments import EXPERIMENTS, ExperimentContext, get_experiment
from condenset.experiments.config import ExperimentConfig, experiment_to_toml, read_experiment
from condenset.experiments.types import Table
from condenset.io.files import read_tensors
from condenset.pipeline.request import RunRequest
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.experiment_runs import PartRecorder, make_run, run_tiny, skip_scoring
from helpers.interruption import StopAtLoop
from helpers.reference_dm import tiny_data

pytestmark = pytest.mark.usefixtures("fast_tiny")


def make_context(splits: Splits, run: RunContext, scale: str = "tiny") -> ExperimentContext:
    assert run.directory
    return ExperimentContext(scale=scale, request=RunRequest(), splits=splits, run=run, directory=run.directory)


def test_interrupted_experiment_resumes_to_the_same_result(splits: Splits, tmp_path: Path) -> None:
    undisturbed = run_tiny("sizes", splits, tmp_path / "undisturbed", methods=("dm",))
    for num_loops in (1, 2, 4):
        directory = tmp_path / str(num_loops)
        run = make_run(directory)
        run.progress = StopAtLoop(run, num_loops)
        with pytest.raises(Interrupted):
            run_tiny("sizes", splits, directory, run, methods=("dm",))
        resumed = run_tiny("sizes", splits, directory, methods=("dm",))
        accuracies = [record["accuracies"] for record in undisturbed.records]
        assert [record["accuracies"] for record in resumed.records] == accuracies


def test_interrupted_part_resumes_its_networks(splits: Splits, tmp_path: Path) -> None:
    """A set and the networks that score it share the directory of the part."""
    undisturbed = make_context(splits, make_run(tmp_path / "undisturbed")).condense_and_score("dm-2", "dm", 2)
    run = make_run(tmp_path / "stopped")
    run.progress = StopAtLoop(run, 2)  # the second loop trains the networks
    with pytest.raises(Interrupted):
        make_context(splits, run).condense_and_score("dm-2", "dm", 2)
    checkpoint = tmp_path / "stopped/parts/dm-2/checkpoint"
    assert json.loads(read_tensors(checkpoint)[1]["checkpoint"])["step"] == 1
    run, updates = make_run(tmp_path / "stopped"), list[float]()
    run.progress.update = lambda done, note="": updates.append(done)  # type: ignore[method-assign]
    record = make_context(splits, run).condense_and_score("dm-2", "dm", 2)
    assert record["accuracies"] == undisturbed["accuracies"]
    assert updates[0] == 2
    assert not checkpoint.exists()


def test_unknown_experiment_suggests_the_nearest(splits: Splits, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'sizes'"):
        get_experiment("size")


def test_damaged_record_is_an_error(splits: Splits, tmp_path: Path) -> None:
    experiment = make_context(splits, make_run(tmp_path))
    assert experiment.cached("a", lambda run: {"x": 1})["x"] == 1
    (tmp_path / "parts/a/record.json").write_text("[")
    with pytest.raises(UserError, match="delete it to run this part again"):
        experiment.cached("a", lambda run: {"x": 2})


@pytest.mark.parametrize(
    ("name", "method", "field"),
    [("batchnorm", "dm", "accuracies"), ("nas", "random", "rows"), ("distribution", "dm", "dm")],
)
def test_record_without_a_required_field_is_an_error(
    name: str, method: str, field: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    run_tiny(name, splits, tmp_path, methods=(method,))
    path = next(path for path in (tmp_path / "parts").glob("*/record.json") if field in json.loads(path.read_text()))
    record = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in record.items() if key != field}))
    with pytest.raises(UserError, match=f"{path} is not a record of condenset; delete it to run this part again"):
        run_tiny(name, splits, tmp_path, methods=(method,))
    path.unlink()
    run_tiny(name, splits, tmp_path, methods=(method,))
    assert json.loads(path.read_text()).keys() == record.keys()


def test_config_is_read_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    config = ExperimentConfig(
        experiment="sizes",
        dataset='a "b" 😀',
        scale="tiny",
        seed=3,
        memory_limit=5,
        data_dir="/x",
        methods=("dm", "random"),
        settings=("dm.iterations=3", "network=convnet(norm='batch')"),
        num_networks=1,
        ipcs=(3, 1),
    )
    path.write_text(experiment_to_toml(config))
    assert read_experiment(path) == config
    for content, message in (
        (experiment_to_toml(config) + "x = 1\n", "a setting of an experiment must be one of .* but got 'x'"),
        ('dataset = "a"\n', "is not an experiment of condenset"),
        ("seed = " + "9" * 5000, "is not TOML: Exceeds the limit"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            read_experiment(path)
    with pytest.raises(UserError, match="scale must be one of tiny, small, paper"):
        ExperimentConfig(experiment="sizes", dataset="a", scale="big")


def test_request_overrides_methods_networks_and_recipes(splits: Splits, tmp_path: Path) -> None:
    result = run_tiny(
        "sizes",
        splits,
        tmp_path,
        methods=("random", "mmd"),
        ipcs=(3, 1, 3),
        settings=("mmd.iterations=1", "momentum=0.1"),
        num_networks=1,
        epochs=0,
        whole_epochs=0,
    )
    pairs = [(record["ipc"], record["method"]) for record in result.records]
    assert pairs == [(1, "random"), (1, "mmd"), (3, "random"), (3, "mmd"), (None, "whole")]
    assert {len(record["accuracies"]) for record in result.records} == {1}
    recipe = CondensedSet.load(tmp_path / "parts" / "mmd-3" / "condensed.safetensors").provenance["recipe"]
    assert (recipe["iterations"], recipe["momentum"], recipe["batch_size"]) == (1, 0.1, 8)


@pytest.mark.parametrize(("pool_seconds", "expected"), [((2.0, 2.0, 2.0), 2.0), ((2.0, 3.0, 4.0), 9.0)])
def test_a_pool_that_sets_share_counts_once(
    pool_seconds: tuple[float, ...], expected: float, splits: Splits, tmp_path: Path
) -> None:
    context, seconds = make_context(splits, make_run(tmp_path)), iter(pool_seconds)
    context.num_sets = 3
    record = context.repeat(lambda _: {"accuracies": [0.5], "condense_seconds": 1.0, "pool_seconds": next(seconds)})
    assert (record["condense_seconds"], record["pool_seconds"], record["sets"]) == (3.0, expected, 3)


@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.repeats_sets])
def test_several_sets_have_different_seeds(
    name: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    run = make_run(tmp_path)
    run.progress = progress = PartRecorder()
    result = run_tiny(name, splits, tmp_path, run, methods=("dm",), num_networks=1, num_sets=2)
    records = [record for record in result.records if record["method"] == "dm" and record.get("states") != 0]
    assert {(record["sets"], len(record["accuracies"])) for record in records} == {(2, 2)}
    assert run.seed == 1
    progress.check_numbers(tmp_path)
    second_paths = list((tmp_path / "parts").glob("*-set2/condensed.safetensors"))
    assert second_paths
    for path in second_paths:
        first_directory = path.parent.with_name(path.parent.name.removesuffix("-set2"))
        first, second = CondensedSet.load(first_directory / path.name), CondensedSet.load(path)
        assert (first.provenance["seed"], second.provenance["seed"]) == (1, 2)
        assert not first.images.equal(second.images)


def test_part_with_another_protocol_is_scored_again(splits: Splits, tmp_path: Path) -> None:
    for num in (1, 2):
        result = run_tiny("sizes", splits, tmp_path, methods=("random",), num_networks=num)
        assert {len(record["accuracies"]) for record in result.records} == {num}
        assert all(record["settings"]["protocol"]["num_networks"] == num for record in result.records)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"experiment": "networks", "methods": ("random",)}, "a method of this experiment must be one of dm, but"),
        ({"experiment": "cost", "methods": ("dm", "random")}, "must be one of mmd, dc, dsa, dm, .*, but got 'random'"),
        ({"methods": ("dsa", "none")}, "a method of this experiment must be one of random"),
        ({"settings": ("dd.steps=3",)}, "the method of a setting must be one of"),
        ({"settings": ("steps=3",)}, "an option of"),
        ({"num_networks": 0}, "num_networks must be a whole number, 1 or more"),
        ({"whole_epochs": -1}, "epochs must be a whole number, 0 or more"),
        ({"num_sets": 0}, "num_sets must be a whole number, 1 or more"),
        ({"experiment": "nas", "num_sets": 2}, "cannot make several sets"),
        ({"experiment": "networks", "settings": ("dm.pool=a", "dm.group=10-20")}, "no use for --set group"),
        ({"experiment": "architectures", "settings": ("network=mlp",)}, "no use for --set network"),
        ({"experiment": "distribution", "num_networks": 3}, "no use for --nets"),
        ({"experiment": "batchnorm", "whole_epochs": 3}, "no use for --whole-epochs"),
        ({"methods": "dm"}, "methods must be a list of names"),
        ({"ipcs": (True,)}, "ipcs must be a list of whole numbers"),
        ({"ipcs": (0,)}, r"ipc .* must be a whole number, 1 or more"),
        ({"experiment": "batchnorm", "ipcs": (1, 10)}, "takes one number of images per class"),
        ({"seed": "1"}, "seed must be a whole number"),
        ({"dataset": 1}, "dataset must be text"),
    ],
)
def test_invalid_request_is_an_error(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _ = ExperimentConfig(**{"experiment": "sizes", "dataset": "a", "scale": "tiny", **fields}).request  # type: ignore[arg-type]


def test_record_of_several_sets_has_all_accuracies(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    first, _, whole = run_tiny("sizes", splits, tmp_path, ipcs=(1,), num_networks=2, num_sets=2).records
    assert first["accuracies"] == [0.01, 0.02, 0.02, 0.03]
    assert first["accuracy_std"] == pytest.approx(pstdev(first["accuracies"]))
    assert first["seconds"] == 2.0
    assert first["relative"] == pytest.approx(first["accuracy_mean"] / whole["accuracy_mean"])


def test_scales_decide_sets_epochs_and_image_steps(splits: Splits, tmp_path: Path) -> None:
    small, paper = (make_context(splits, make_run(tmp_path), scale) for scale in ("small", "paper"))
    assert [len(experiment.for_each_set(lambda suffix: suffix)) for experiment in (small, paper)] == [1, 5]
    assert (small.protocol().epochs, paper.protocol().epochs) == (300, 1000)
    for experiment, image_steps in ((small, (1000, 1000, 2500)), (paper, (1000, 10_000, 50_000))):
        recipes = [experiment.recipe("dc", ipc) for ipc in (1, 10, 50)]
        assert tuple(recipe.image_steps for recipe in recipes) == image_steps  # type: ignore[attr-defined]


def test_a_small_whole_dataset_trains_like_a_set(tmp_path: Path) -> None:
    """As in a run: from 1,280 images on, a whole dataset has fewer epochs."""
    small, large = (Splits(tiny_data([count] * 2), tiny_data([2, 2])) for count in (639, 640))
    for scale, epochs in (("small", (300, 100)), ("paper", (1000, 200))):
        contexts = [make_context(splits, make_run(tmp_path), scale) for splits in (small, large)]
        assert tuple(context.protocol(whole=True).epochs for context in contexts) == epochs
        assert [context.protocol(whole=True, epochs=20).epochs for context in contexts] == [20, 20]
    context = make_context(small, make_run(tmp_path), "small")
    for request, epochs in (({"epochs": 7}, 7), ({"epochs": 7, "whole_epochs": 9}, 9)):
        fields = {"protocol_fields": {"epochs": request["epochs"]}, "whole_epochs": request.get("whole_epochs")}
        requested = dataclasses.replace(context, request=dataclasses.replace(context.request, **fields))
        assert requested.protocol(whole=True).epochs == epochs
        assert requested.protocol(whole=True, epochs=20).epochs == (9 if "whole_epochs" in request else 20)


@pytest.mark.parametrize(("name", "method"), [("batchnorm", "dm"), ("nas", "random")])
def test_records_keep_the_hardware_that_measured_them(
    name: str, method: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    for hardware in ("first machine", "second machine"):
        monkeypatch.setattr(ComputeDevice, "hardware", hardware)
        result = run_tiny(name, splits, tmp_path, methods=(method,))
        assert {record["hardware"] for record in result.records if "hardware" in record} == {"first machine"}
    results = json.loads((tmp_path / "results.json").read_text())
    assert {record["hardware"] for record in results} == {"first machine"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_too_few_images_are_an_error_before_the_first_part(name: str, splits: Splits, tmp_path: Path) -> None:
    """Classes have 24 images. The search trains on 22 or fewer of them."""
    with pytest.raises(UserError, match="ipc must be at most the size of every class"):
        run_tiny(name, splits, tmp_path, ipcs=(24,) if name == "nas" else (25,))
    if EXPERIMENTS[name].several_ipcs:
        with pytest.raises(UserError, match="99"):
            run_tiny(name, splits, tmp_path, ipcs=(1, 99))
    assert not (tmp_path / "parts").exists()


def test_request_decides_the_protocol(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = skip_scoring(monkeypatch)
    run_tiny("sizes", splits, tmp_path, ipcs=(1,), num_networks=4, epochs=7, whole_epochs=9)
    settings = {part: (protocol.num_networks, protocol.epochs) for part, protocol in protocols.items()}
    assert settings == {"random-1": (4, 7), "dm-1": (4, 7), "whole": (4, 9)}


def test_table_as_markdown() -> None:
    assert Table(("a", "b"), [("1", "x|y")]).markdown() == "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n"
