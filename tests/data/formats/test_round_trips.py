"""A set that is exported in any format and imported again is the same set."""

from __future__ import annotations

import errno
import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

import condenset as cs
from condenset.data.formats import webdataset
from condenset.data.formats.table import FORMATS
from condenset.data.whitening import Whitening
from helpers.condensed_sets import export, make_set
from helpers.data_files import ExpectUserError

NAMES = sorted(FORMATS)
FLOATS = st.floats(-2, 3, width=32)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def assert_same(back: cs.CondensedSet, condensed: cs.CondensedSet, *, is_exact: bool) -> None:
    if is_exact:
        assert torch.equal(back.images, condensed.images)
    else:  # normalising and back rounds
        torch.testing.assert_close(back.images, condensed.images, rtol=0, atol=1e-5)
    assert torch.equal(back.labels, condensed.labels)
    assert (back.class_names, back.mean, back.std) == (condensed.class_names, condensed.mean, condensed.std)
    assert back.provenance == condensed.provenance
    assert (back.step_sizes is None) == (condensed.step_sizes is None)
    if condensed.step_sizes is not None and back.step_sizes is not None:
        assert torch.equal(back.step_sizes, condensed.step_sizes)


def normalize_rows(labels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return soft labels that sum to 1."""
    positive = labels + np.float32(1e-6)
    return positive / positive.sum(1, keepdims=True)


@st.composite
def condensed_sets(draw: st.DrawFn) -> cs.CondensedSet:
    num, channels, size, num_classes = (draw(st.integers(1, high)) for high in (5, 2, 4, 3))
    channels = 2 * channels - 1
    images = draw(arrays.arrays(np.float32, (num, channels, size, size), elements=FLOATS))
    soft = arrays.arrays(np.float32, (num, num_classes), elements=st.floats(0, 1, width=32))
    hard = arrays.arrays(np.int64, num, elements=st.integers(0, num_classes - 1))
    labels = draw(st.one_of(soft.map(normalize_rows), hard))
    steps = draw(st.none() | st.lists(st.floats(0.0009765625, 1, width=32), min_size=1, max_size=3))
    return cs.CondensedSet(
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels),
        class_names=tuple(draw(st.lists(TEXT, min_size=num_classes, max_size=num_classes))),
        mean=(draw(st.floats(0, 1)),) * channels,
        std=(draw(st.floats(0.1, 1)),) * channels,
        step_sizes=None if steps is None else torch.tensor(steps),
        provenance={"method": draw(TEXT), "seed": draw(st.integers(0, 9)), "recipe": {"ipc": 1}},
    )


@pytest.mark.parametrize("name", ["folder", "npz", "webdataset", "pt"])  # hf is slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(condensed=condensed_sets())
def test_any_set_survives(name: str, condensed: cs.CondensedSet) -> None:
    with tempfile.TemporaryDirectory() as directory:
        back = cs.import_set(export(condensed, name, Path(directory)))
    assert_same(back, condensed, is_exact=name != "pt")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "condensed",
    [
        make_set(),
        make_set(labels=torch.rand(4, 2).softmax(1), step_sizes=torch.tensor([0.1, 0.2])),
        make_set(images=torch.rand(4, 1, 8, 8), mean=(0.3,), std=(0.2,), class_names=("../x", "nul")),
    ],
    ids=["hard", "soft", "unsafe names"],
)
def test_all_formats_keep_everything(name: str, condensed: cs.CondensedSet, tmp_path: Path) -> None:
    assert_same(cs.import_set(export(condensed, name, tmp_path)), condensed, is_exact=name != "pt")
    assert [path.name for path in tmp_path.iterdir()] == [export(condensed, name, tmp_path, overwrite=True).name]


@pytest.mark.parametrize("decoder", ["bilinear", "dct"])
@pytest.mark.parametrize("name", NAMES)
def test_partitioned_sets_have_the_same_images(name: str, decoder: str, tmp_path: Path) -> None:
    fields = {"class_names": ("a", "b"), "mean": (0.5,) * 3, "std": (0.5,) * 3, "partition": 2, "decoder": decoder}
    condensed = cs.CondensedSet.decode(torch.rand(2, 3, 8, 8), labels=torch.tensor([0, 1]), **fields)
    back = cs.import_set(export(condensed, name, tmp_path))
    assert len(back) == len(condensed) and back.partition == (1 if FORMATS[name].suffix else 2)
    torch.testing.assert_close(back.images, condensed.images, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_whitening_is_kept_or_refused(name: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    whitening = Whitening(torch.zeros(192), 2 * torch.eye(192))
    condensed = make_set(whitening=whitening)
    if FORMATS[name].suffix:
        with user_error(f"the format {name} cannot store the ZCA whitening of a set: use folder, hf, webdataset"):
            export(condensed, name, tmp_path)
        assert not list(tmp_path.iterdir())
        return
    path = export(condensed, name, tmp_path)
    assert cs.import_set(path).fingerprint == condensed.fingerprint
    if name == "hf":
        assert "Networks train on ZCA-whitened pixels" in (path / "README.md").read_text()


def test_folder_has_pictures_by_class(tmp_path: Path) -> None:
    condensed = make_set()
    path = export(condensed, "folder", tmp_path)
    files = sorted(str(file.relative_to(path)) for file in path.rglob("*.png"))
    assert files == ["cat/00000.png", "cat/00001.png", "dog/00000.png", "dog/00001.png"]
    with Image.open(path / "dog" / "00001.png") as image:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    torch.testing.assert_close(pixels, condensed.images[3].clamp(0, 1), rtol=0, atol=0.6 / 255)
    for data in (cs.from_folder(path), cs.load(str(path)).train):  # a dataset too
        assert (data.class_names, len(data)) == (("cat", "dog"), 4)


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("a/b", "c"), ["0", "c"]),
        (("c", ".."), ["1", "c"]),
        (("A", "a"), ["0", "1"]),
        (("nul", "c"), ["0", "c"]),
        (("a ", "c"), ["0", "c"]),
        (("é" * 60, "c"), ["0", "c"]),
        (("a/b", "0"), ["0", "_0"]),  # the second class is named like the number of the first
    ],
)
def test_class_names_that_are_not_portable_become_numbers(
    names: tuple[str, str], folders: list[str], tmp_path: Path
) -> None:
    condensed = make_set(class_names=names)
    path = export(condensed, "folder", tmp_path)
    assert sorted(item.name for item in path.iterdir() if item.is_dir()) == folders
    assert cs.import_set(path).class_names == names


def test_numpy_reads_the_npz_file(tmp_path: Path) -> None:
    condensed = make_set()
    with np.load(export(condensed, "npz", tmp_path)) as file:
        np.testing.assert_array_equal(file["images"], condensed.images.numpy())
        assert file["class_names"].tolist() == ["cat", "dog"]
        assert file["mean"].tolist() == list(condensed.mean)


def test_pytorch_reads_the_pt_file_as_published_sets(tmp_path: Path) -> None:
    condensed = make_set()
    images, labels = torch.load(export(condensed, "pt", tmp_path), weights_only=True)["data"][0]
    assert torch.equal(images, condensed.normalized())
    assert torch.equal(labels, condensed.labels)


def test_webdataset_shards_are_standard_and_repeat_bit_for_bit(tmp_path: Path) -> None:
    condensed = make_set(labels=torch.rand(4, 2).softmax(1))
    path = export(condensed, "webdataset", tmp_path)
    shard = path / "set-000000.tar"
    first = shard.read_bytes()
    with tarfile.open(shard) as tar:
        members = [member.name for member in tar]
        image = np.load(io.BytesIO(tar.extractfile("00000001.npy").read()))  # type: ignore[union-attr]
    assert members == [f"{row:08}.{kind}" for row in range(4) for kind in ("png", "npy", "cls", "json")]
    np.testing.assert_array_equal(image, condensed.images[1].numpy())
    export(condensed, "webdataset", tmp_path, overwrite=True)
    assert shard.read_bytes() == first


def test_large_sets_have_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "SHARD_IMAGES", 3)
    condensed = make_set()
    path = export(condensed, "webdataset", tmp_path)
    assert [shard.name for shard in sorted(path.glob("*.tar"))] == ["set-000000.tar", "set-000001.tar"]
    assert torch.equal(cs.import_set(path).images, condensed.images)


def test_hugging_face_reads_the_dataset_and_its_card(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    condensed = make_set(class_names=("<b>", "x|y"), provenance={"dataset": "a\n---\n<script>", "recipe": {"ipc": 2}})
    condensed.to_hf(tmp_path / "out", accuracy="63.3 ± 0.5")
    dataset = datasets.load_from_disk(str(tmp_path / "out")).with_format("torch")
    assert torch.equal(dataset["pixels"][:], condensed.images)
    assert torch.equal(dataset["label"][:], condensed.labels)
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith('---\npretty_name: "a --- <script>, condensed to 4 images"\n')
    assert card.split("---\n").index("") == 0 and "| accuracy | 63.3 ± 0.5 |" in card
    assert cs.import_set(tmp_path / "out").provenance["accuracy"] == "63.3 ± 0.5"
    assert "| ipc | 2 |" in card
    assert "<script>" not in card.split("\n---\n", 1)[1]


@pytest.mark.parametrize("name", NAMES)
def test_existing_files_are_not_replaced(name: str, tmp_path: Path) -> None:
    path = export(make_set(), name, tmp_path)
    with pytest.raises(cs.UserError, match="exists already; choose another path or overwrite it with overwrite=True"):
        export(make_set(), name, tmp_path)
    other = make_set(images=torch.zeros(4, 3, 8, 8))
    export(other, name, tmp_path, overwrite=True)
    assert float(cs.import_set(path).images.abs().max()) < 1e-6


def test_a_directory_that_cannot_be_read_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root can read everything
    with pytest.raises(cs.UserError, match=r"cannot read .*: Permission denied"):
        make_set().to_folder(tmp_path, overwrite=True)


def test_a_directory_of_the_user_is_never_replaced(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_text("mine")
    (photos / "metadata.json").write_text("{}")
    make_set().save(photos / "set.safetensors")
    for name in ("folder", "hf", "webdataset"):
        with pytest.raises(cs.UserError, match="is not an exported set, and is not overwritten"):
            getattr(make_set(), f"to_{name}")(photos, overwrite=True)
    exported = tmp_path / "exported"
    (exported / ".git").mkdir(parents=True)  # a new clone, and one with an export
    with pytest.raises(cs.UserError, match="is not an exported set"):
        make_set().to_hf(exported, overwrite=True)
    (exported / ".git").rename(tmp_path / "git")
    make_set().to_hf(exported, overwrite=True)
    (tmp_path / "git").rename(exported / ".git")
    with pytest.raises(cs.UserError, match="is a Git repository"):
        make_set().to_hf(exported, overwrite=True)
    with pytest.raises(cs.UserError, match="must be a file to be overwritten"):
        (tmp_path / "x.npz").mkdir()
        make_set().to_npz(tmp_path / "x.npz", overwrite=True)
    assert (photos / "a.jpg").read_text() == "mine"


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    condensed = make_set(provenance={"x": object()})
    for name in NAMES:
        with pytest.raises(cs.UserError, match="the provenance of a set must be JSON"):
            export(condensed, name, tmp_path)
    with pytest.raises(cs.UserError, match=r"must end in \.npz, but got"):
        make_set().to_npz(tmp_path / "x.np")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["folder", "hf", "webdataset"])
def test_directories_are_synced_before_they_get_their_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def record(directory: Path) -> None:
        assert not (tmp_path / directory.name).exists()
        synced.extend(file.name for file in directory.rglob("*"))

    monkeypatch.setattr("condenset.data.formats.table.sync_contents", record)
    path = export(make_set(), name, tmp_path)
    assert sorted(synced) == sorted(file.name for file in path.rglob("*"))


def test_hugging_face_dataset_has_the_names_of_the_classes(tmp_path: Path) -> None:
    import datasets

    names = ("../x", "nul")
    path = export(make_set(class_names=names), "hf", tmp_path)
    assert datasets.load_from_disk(path).features["label"].names == list(names)
    with pytest.raises(cs.UserError, match="class names of a Hugging Face dataset must differ, but got 'a' twice"):
        export(make_set(class_names=("a", "a")), "hf", tmp_path, overwrite=True)
