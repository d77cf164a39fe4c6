"""Finished sets by name, from the checkout and from the wheel condenset-sets."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import condenset as cs
from condenset.io.finished_set_files import CHECKOUT, find_finished_set, find_set_files

SETS = sorted(path.stem for path in (CHECKOUT / "results" / "sets").glob("*.safetensors"))
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('wheels')"


def test_sets_of_the_checkout() -> None:
    assert cs.list_condensed() == SETS
    assert "cifar10-dm-10" in SETS
    assert repr(cs.load_condensed("mnist-dm-1")).startswith("CondensedSet(mnist: 10 images of 1x28x28, 10 classes; dm")


def test_unknown_names() -> None:
    with pytest.raises(cs.UserError, match=r"the name of a finished set cannot be .*did you mean 'mnist-dm-1'\?"):
        cs.load_condensed("mnist-dm-2")
    with pytest.raises(cs.UserError, match="must be text"):
        cs.load_condensed(3)  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match="did you mean the finished set 'mnist-dm-1'"):
        find_finished_set(Path("mnist-dm-2"))
    assert find_finished_set(Path("sets/mnist-dm-1")) is None
    assert find_finished_set(Path("something-else")) is None


@pytest.mark.parametrize("name", ["set.safetensors", "sets/one", Path("one"), "file"])
def test_paths_are_read_by_another_function(name: str | Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(cs.UserError, match=rf"by name: read '{name}' with cs.CondensedSet.load\(path\)"):
        cs.load_condensed(name)  # type: ignore[arg-type]
    (tmp_path / "mnist-dm-1").touch()
    assert len(cs.load_condensed("mnist-dm-1")) == 10


def test_files_take_precedence_over_names(tmp_path: Path) -> None:
    (tmp_path / "mnist-dm-1").touch()
    assert find_finished_set(Path("mnist-dm-1")) is None


def test_without_the_package_the_error_has_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_set_files(tmp_path) == {}
    for module in ("data.finished_sets", "io.finished_set_files"):
        monkeypatch.setattr(f"condenset.{module}.find_set_files", dict)
    with pytest.raises(cs.UserError, match=r"pip install \./packages/condenset-sets"):
        cs.load_condensed("mnist-dm-1")
    assert find_finished_set(Path("mnist-dm-1")) is None


def test_the_wheel_contains_every_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "packages" / "condenset-sets"
    ignored = shutil.ignore_patterns("build", "*.egg-info")
    shutil.copytree(CHECKOUT / "packages" / "condenset-sets", project, ignore=ignored)
    (tmp_path / "results").symlink_to(CHECKOUT / "results")
    (project / "wheels").mkdir()
    subprocess.run([sys.executable, "-W", "ignore", "-c", BUILD], cwd=project, check=True, capture_output=True)
    (wheel,) = (project / "wheels").iterdir()
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(site)
    installed = find_set_files(tmp_path)
    assert sorted(installed) == SETS
    path = installed["mnist-dm-1"]
    assert path.is_relative_to(site)
    assert path.read_bytes() == (CHECKOUT / "results" / "sets" / path.name).read_bytes()
