from __future__ import annotations

from pathlib import Path

from condenset.data import DATASETS, import_dataset, list_datasets
from helpers.data_files import make_classes, write_mnist


def test_list_datasets_has_registered_and_imported_ones(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST")
    make_classes(tmp_path / "own")
    import_dataset(tmp_path / "own", "mine", data_dir=tmp_path)
    broken = import_dataset(tmp_path / "own", "torn", data_dir=tmp_path)
    (broken / "meta.json").write_text("{")
    entries = {entry.name: entry for entry in list_datasets(tmp_path)}
    assert list(entries)[: len(DATASETS)] == list(DATASETS)
    states = {name: entries[name].state for name in ("digits", "mnist", "cifar10", "mine", "torn")}
    assert list(states.values()) == ["bundled", "ready", "missing", "imported", "broken"]
    assert entries["mine"].num_train == 10 and entries["mine"].shape == (3, 8, 8)
    assert entries["cifar10"].download_bytes == 170_498_071 and entries["mnist"].path == tmp_path / "MNIST"
