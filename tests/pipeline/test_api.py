"""`condense` and `evaluate`: recipes and protocols as objects or keywords, own networks, directories."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset.methods.coresets.random import RandomRecipe
from condenset.methods.options import RecipeOptions
from condenset.runs.context import RunContext
from condenset.training.options import ProtocolOptions
from helpers.architectures import record_trainings
from helpers.data_files import make_classes
from helpers.reference_dm import tiny_data
from helpers.registries import replaced_item

NETWORK = "convnet(width=8, depth=2)"
FAST = {"device": "cpu", "verbose": False}


@pytest.fixture(scope="module")
def data() -> cs.ImageData:
    return tiny_data([12, 12, 12])


def small_cnn(channels: int, size: int, num_classes: int) -> nn.Module:
    """Return a user's own network, with layers whose initialisation is its own."""
    network = nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.PReLU(), nn.Flatten(), nn.Linear(4 * size**2, num_classes)
    )
    nn.init.normal_(network[0].weight, std=0.1)
    return network


class EmbeddingNet(nn.Module):
    """A user's own network whose embedding is not the input of its last linear layer."""

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(2 * size**2, 4), nn.ReLU(), nn.Linear(4, num_classes))

    def embed(self, images: Tensor) -> Tensor:
        return self.conv(images).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.embed(images))


def test_a_recipe_gives_the_set_of_its_keywords(data: cs.ImageData) -> None:
    recipe = cs.DMRecipe(ipc=2, network=NETWORK, iterations=3, batch_size=4)
    by_recipe = cs.condense(data, recipe, seed=1, **FAST)
    fields = {"network": NETWORK, "iterations": 3, "batch_size": 4}
    by_keywords = cs.condense(data, "dm", ipc=2, schedule="paper", seed=1, **fields, **FAST)
    assert torch.equal(by_recipe.images, by_keywords.images)
    assert by_recipe.provenance["method"] == "dm"


def test_a_protocol_gives_the_scores_of_its_keywords(data: cs.ImageData) -> None:
    fields = {"network": NETWORK, "num_networks": 2, "epochs": 3}
    by_protocol = cs.evaluate(data, data, cs.Protocol(**fields), **FAST)
    assert by_protocol.accuracies == cs.evaluate(data, data, **fields, **FAST).accuracies


def test_a_protocol_can_be_named(data: cs.ImageData) -> None:
    condensed, test = cs.condense(data, "random", ipc=1, **FAST), tiny_data([4, 4, 4], seed=1)
    fields = {"network": NETWORK, "num_networks": 1, "epochs": 2}
    scores = cs.evaluate(condensed, test, "modern", **fields, **FAST)
    assert scores.protocol["schedule"] == "modern" and scores.protocol["cutmix"] == 0.5
    assert scores.accuracies == cs.evaluate(condensed, test, cs.Protocol.modern(**fields), **FAST).accuracies
    assert str(scores).endswith("(1 × ConvNet, modern)")
    assert cs.evaluate(condensed, test, "paper", **fields, **FAST).protocol["schedule"] == "paper"
    for name in ("new", 3):
        with pytest.raises(cs.UserError, match="protocol must be one of paper, modern, but got"):
            cs.evaluate(condensed, test, name, **FAST)  # type: ignore[arg-type]


def test_a_recipe_or_protocol_accepts_no_other_settings(data: cs.ImageData) -> None:
    with pytest.raises(cs.UserError, match="recipe"):
        cs.condense(data, RandomRecipe(ipc=1), ipc=2)
    with pytest.raises(cs.UserError, match="recipe"):
        cs.condense(data, cs.DMRecipe(ipc=1), iterations=2)
    with pytest.raises(cs.UserError, match="protocol"):
        cs.evaluate(data, data, cs.Protocol(), epochs=2)


def test_keywords_cover_every_field_with_its_type() -> None:
    recipe_hints, protocol_hints = get_type_hints(RecipeOptions), get_type_hints(ProtocolOptions)
    for method in cs.METHODS.values():
        hints = get_type_hints(method.recipe)
        for field in dataclasses.fields(method.recipe):
            if field.name != "ipc":
                assert field.name in recipe_hints
                others = ("network", "objective", "pool", "sampler")  # they may also be functions or paths
                assert hints[field.name] == recipe_hints[field.name] or field.name in others
    assert protocol_hints.keys() == {field.name for field in dataclasses.fields(cs.Protocol)}


def test_ipc_defaults_to_ten(data: cs.ImageData) -> None:
    assert len(cs.condense(data, "random", **FAST)) == 30


@pytest.mark.parametrize(
    "numbers", [{"ipc": [1, 2, 3]}, {"ipc": {"class 2": 3, "class 1": 2, "class 0": 1}}, {"ipc_share": 0.1}]
)
def test_ipc_can_differ_by_class(numbers: dict[str, Any], tmp_path: Path) -> None:
    data = tiny_data([9, 20, 30])
    condensed = cs.condense(data, "random", directory=tmp_path / "a", **numbers, **FAST)
    assert condensed.labels.bincount().tolist() == [1, 2, 3]
    assert condensed.provenance["recipe"]["ipc"] == [1, 2, 3]
    again = cs.condense(data, RandomRecipe(ipc=(1, 2, 3)), directory=tmp_path / "a", **FAST)
    assert again.provenance == condensed.provenance  # read, not made again


def test_evaluate_warns_about_images_of_the_same_dataset(tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=10)
    make_classes(tmp_path / "zoo", count=4)
    data = cs.load("pets", test_share=0.2, verbose=False)
    condensed = cs.condense(data.train, "random", ipc=1, verbose=False)
    options: dict[str, Any] = {"num_networks": 1, "epochs": 1, "network": "mlp", "device": "cpu", "verbose": False}
    overlapping = [
        data.train,
        cs.load("pets", verbose=False).train,
        cs.load("pets", test_share=0.4, verbose=False).test,
        cs.load("zoo", test="pets", verbose=False).test,
        cs.from_folder("pets", verbose=False),
    ]
    for images in overlapping:
        with pytest.warns(UserWarning, match="the test images contain images that the set was made from"):
            cs.evaluate(condensed, images, **options)
    train, val = cs.train_val_split(data.train, 0.5)
    cs.evaluate(condensed, data.test, **options)
    cs.evaluate(condensed, cs.load("pets", test="zoo", verbose=False).test, **options)
    cs.evaluate(cs.condense(train, "random", ipc=1, verbose=False), val, **options)


def test_evaluate_notices_copies_and_parts_of_the_training_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_classes(tmp_path / "pets", count=10)
    shutil.copytree("pets", "copy")
    held_out, copy = cs.load("pets", test_share=0.2, verbose=False), cs.load("copy", verbose=False).train
    from_part, from_all = (
        cs.condense(train, "random", ipc=1, verbose=False)
        for train in (held_out.train, cs.load("pets", verbose=False).train)
    )
    options: dict[str, Any] = {"num_networks": 1, "epochs": 0, "network": "mlp", "device": "cpu", "verbose": False}
    for images in (copy, cs.load("copy", test_share=0.3, verbose=False).test):
        with pytest.warns(UserWarning, match="the test images contain images that the set was made from"):
            cs.evaluate(from_part, images, **options)
    for name in ("pets", "copy"):
        with pytest.raises(cs.UserError, match=rf"made from all images of .*{name}, .* held out: give other images$"):
            cs.evaluate(from_all, cs.load(name, test_share=0.2, verbose=False).test, **options)
    cs.evaluate(from_part, cs.load("copy", test_share=0.2, verbose=False).test, **options)
    train, val = cs.train_val_split(held_out.train, 0.5)
    from_train = cs.condense(train, "random", ipc=1, verbose=False)
    for condensed, images in ((from_part, val), (from_train, train), (from_train, held_out.train)):
        with pytest.warns(UserWarning, match="the test images contain images that the set was made from"):
            cs.evaluate(condensed, images, **options)
    cs.evaluate(from_train, val, **options)
    with pytest.warns(UserWarning, match=r"may contain images that the set was made from: its accuracy may be"):
        cs.evaluate(from_train, cs.train_val_split(held_out.train, 0.5, seed=1)[1], **options)
    from_split = cs.condense(cs.train_val_split(copy)[0], "random", ipc=1, verbose=False)
    with pytest.warns(UserWarning, match="the test images contain images that the set was made from"):
        cs.evaluate(from_split, cs.load("copy", test_share=0.2, verbose=False).test, **options)  # not of all images
    assert capsys.readouterr().err == ""


def test_evaluate_states_that_an_origin_is_damaged(data: cs.ImageData) -> None:
    condensed = cs.condense(dataclasses.replace(data, origin={"dataset": 3}), "random", ipc=1, verbose=False)
    with pytest.raises(cs.UserError, match="the origin in the provenance of the set is damaged: dataset must be text"):
        cs.evaluate(condensed, data, device="cpu")


def test_ipc_and_ipc_share_exclude_each_other(data: cs.ImageData) -> None:
    with pytest.raises(cs.UserError, match="ipc and ipc_share exclude each other: give one of the two"):
        cs.condense(data, "random", ipc=1, ipc_share=0.1)
    with pytest.raises(cs.UserError, match="a recipe must come without other settings"):
        cs.condense(data, RandomRecipe(ipc=1), ipc_share=0.1)


def accepts_user_networks(method: cs.Method) -> bool:
    """Return whether a method learns with networks that users build: not if it trains them or needs their blocks."""
    defaults = {field.name: field.default for field in dataclasses.fields(method.recipe)}
    is_plain = (defaults.get("sampler", "random"), defaults.get("features", "last")) == ("random", "last")
    return "network" in defaults and "expert_epochs" not in defaults and is_plain


@pytest.mark.parametrize("method", [name for name, method in cs.METHODS.items() if accepts_user_networks(method)])
@pytest.mark.parametrize("builder", [small_cnn, EmbeddingNet])
def test_every_method_condenses_with_a_user_network(method: str, builder: object, data: cs.ImageData) -> None:
    fields = {**cs.METHODS[method].tiny, "network": builder}
    first, second = (cs.condense(data, method, ipc=1, seed=1, **fields, **FAST) for _ in range(2))
    assert torch.equal(first.images, second.images) and torch.equal(first.labels, second.labels)
    assert first.provenance["recipe"]["network"] == builder.__name__


def test_user_networks_are_evaluated(data: cs.ImageData) -> None:
    fields = {"num_networks": 2, "epochs": 20, **FAST}
    scores = cs.evaluate(data, data, network=small_cnn, **fields)
    assert scores.accuracies == cs.evaluate(data, data, network=small_cnn, **fields).accuracies
    assert scores.network == "small_cnn" and scores.mean > 0.5


def test_dm_matches_the_embedding_that_a_network_declares(data: cs.ImageData) -> None:
    from condenset import networks

    spec = networks.as_spec(EmbeddingNet)
    network = networks.build(spec, channels=3, size=8, num_classes=3)
    images = torch.rand(2, 3, 8, 8)
    expected = network.embed(images)
    assert torch.equal(networks.to_embedding(network)(images), expected)


def test_condense_continues_in_its_directory(data: cs.ImageData, tmp_path: Path) -> None:
    fields = {"ipc": 1, "network": NETWORK, "iterations": 3, "batch_size": 4, **FAST}
    first = cs.condense(data, "dm", directory=tmp_path / "a", **fields)
    again = cs.condense(data, "dm", directory=tmp_path / "a", **fields)
    assert torch.equal(first.images, again.images)
    assert first.provenance["seconds"] == again.provenance["seconds"]  # read, not made again
    assert torch.equal(cs.CondensedSet.load(tmp_path / "a" / "condensed.safetensors").images, first.images)
    with pytest.raises(cs.UserError, match="another recipe"):
        cs.condense(data, "dm", directory=tmp_path / "a", **{**fields, "iterations": 4})


def test_evaluate_continues_in_its_directory(data: cs.ImageData, tmp_path: Path) -> None:
    fields = {"network": NETWORK, "epochs": 3, **FAST}
    one = cs.evaluate(data, data, num_networks=1, directory=tmp_path / "a", **fields)
    two = cs.evaluate(data, data, num_networks=2, directory=tmp_path / "a", **fields)
    assert two.accuracies[:1] == one.accuracies
    assert two.accuracies == cs.evaluate(data, data, num_networks=2, **fields).accuracies


def test_a_changed_network_of_the_same_name_is_another_one(
    data: cs.ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_builder(activation: nn.Module, width: int = 4) -> Callable[[int, int, int], nn.Module]:
        def build(channels: int, size: int, num_classes: int) -> nn.Module:
            first = nn.Linear(channels * size**2, width)
            return nn.Sequential(nn.Flatten(), first, activation, nn.Linear(width, num_classes))

        return build

    relu = make_builder(nn.ReLU())
    others = [make_builder(nn.Tanh()), make_builder(nn.ReLU(), width=5)]
    numbers = record_trainings(monkeypatch)
    for network, num_trainings in ((relu, 1), (make_builder(nn.ReLU()), 1), (others[0], 2), (others[1], 3)):
        cs.evaluate(data, data, network=network, num_networks=1, epochs=1, directory=tmp_path / "a", **FAST)
        assert len(numbers) == num_trainings
    fields = {"ipc": 1, "iterations": 1, "batch_size": 4, "directory": tmp_path / "b", **FAST}
    first = cs.condense(data, "dm", network=relu, **fields)
    assert cs.condense(data, "dm", network=make_builder(nn.ReLU()), **fields).fingerprint == first.fingerprint
    for other in others:
        with pytest.raises(cs.UserError, match="it differs in network_digest"):
            cs.condense(data, "dm", network=other, **fields)


def test_directories_may_begin_with_the_home_directory(
    data: cs.ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second call reads the set
        cs.condense(data, "random", ipc=1, directory="~/a", **FAST)
        cs.evaluate(data, data, network=NETWORK, epochs=1, num_networks=1, directory="~/b", **FAST)
    cs.train_pool(data, "~/pool", network=NETWORK, num_networks=1, epochs=1, **FAST)
    assert len(cs.NetworkPool.load("~/pool").states) > 0
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["a", "b", "pool"]
    assert not (tmp_path / "~").exists()


def test_a_directory_with_other_files_is_refused(data: cs.ImageData, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(cs.UserError, match="must be empty"):
        cs.condense(data, "random", ipc=1, directory=tmp_path, **FAST)
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["notes.txt"]


def test_memory_limit_is_bytes_or_text(data: cs.ImageData) -> None:
    limits: list[int | None] = []
    random = cs.METHODS["random"]

    def condense(data: cs.ImageData, recipe: cs.Recipe, run: RunContext) -> cs.CondensedSet:
        limits.append(run.memory_limit)
        return random.condense(data, recipe, run)

    with replaced_item(cs.METHODS, dataclasses.replace(random, condense=condense)):
        for memory_limit in (None, 2**30, "1GiB"):
            cs.condense(data, "random", ipc=1, memory_limit=memory_limit, **FAST)
    assert limits == [None, 2**30, 2**30]
    with pytest.raises(cs.UserError, match=r"must be .* but got 'lots'"):
        cs.condense(data, "random", ipc=1, memory_limit="lots", **FAST)


def test_numpy_numbers_are_accepted(data: cs.ImageData) -> None:
    condensed = cs.condense(
        data, "dm", ipc=np.int64(1), lr=np.float32(1), iterations=np.int32(2), network=NETWORK, batch_size=4, **FAST
    )
    assert condensed.provenance["recipe"]["lr"] == 1.0


def test_progress_is_shown_unless_verbose_is_off(data: cs.ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    from condenset.io.progress import ProgressBar

    started: list[str] = []
    monkeypatch.setattr(ProgressBar, "start", lambda self, description, total, done=0: started.append(description))
    fields = {"ipc": 1, "network": NETWORK, "iterations": 2, "batch_size": 4, "device": "cpu"}
    cs.condense(data, "dm", verbose=False, **fields)
    assert not started
    cs.condense(data, "dm", **fields)
    assert started == ["dm, 1 per class"]


def test_completion_offers_the_public_names_only() -> None:
    assert dir(cs) == sorted([*cs.__all__, "__version__"])


def test_one_class_is_rejected() -> None:
    data = tiny_data([4])
    for call in (lambda: cs.condense(data, "random", ipc=1), lambda: cs.evaluate(data, data)):
        with pytest.raises(cs.UserError, match="nothing to classify"):
            call()


def test_a_set_records_the_images_per_class_that_it_has() -> None:
    data = tiny_data([6, 2, 1])
    by_name = cs.condense(data, "random", ipc=4, allow_fewer=True, verbose=False)
    by_recipe = cs.condense(data, RandomRecipe(ipc=4, allow_fewer=True), verbose=False)
    for condensed in (by_name, by_recipe):
        assert condensed.provenance["recipe"]["ipc"] == [4, 2, 1]
        assert repr(condensed).endswith("random, 1–4 per class)")
    enough = cs.condense(data, "random", ipc=1, allow_fewer=True, verbose=False)
    assert enough.provenance["recipe"]["ipc"] == 1
