from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from condenset.errors import UserError
from condenset.io.user_directories import absolute_path, expand_user, user_cache_directory
from helpers.command_line import CommandRunner


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remove the home directory, as in a container with an unknown user; return the directory to use instead."""

    def raise_unknown_user(user: int) -> None:
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME", "CONDENSET_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", raise_unknown_user)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"condenset-{os.getuid()}"


def test_cache_without_a_home_directory_is_temporary(temporary: Path) -> None:
    with pytest.warns(UserWarning, match=f"there is no home directory, so datasets are stored in {temporary}"):
        assert user_cache_directory() == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_absolute_paths_have_no_parent_parts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    assert absolute_path("a/../c") == str(tmp_path / "c")
    assert absolute_path("link/../c") == str(tmp_path / "a" / "c")  # the parent of the folder that the link names
    assert absolute_path("link") == str(tmp_path / "link")


def test_temporary_cache_must_be_private(temporary: Path) -> None:
    temporary.symlink_to("/")
    with pytest.raises(UserError, match="others can write to"):
        user_cache_directory()
    temporary.unlink()
    temporary.mkdir()
    temporary.chmod(0o777)
    with pytest.raises(UserError, match="choose a directory for datasets with --data-dir or CONDENSET_DATA"):
        user_cache_directory()


def test_home_directory_without_access_is_not_used(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert user_cache_directory() == tmp_path / "home" / ".cache"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root has access everywhere
    with pytest.warns(UserWarning, match="there is no home directory"):
        assert user_cache_directory() == temporary
    (tmp_path / "home" / ".cache").mkdir()
    assert user_cache_directory() == tmp_path / "home" / ".cache"


@pytest.mark.filterwarnings("default:there is no home directory")
def test_commands_work_without_a_home_directory(condenset: CommandRunner, temporary: Path) -> None:
    result = condenset("data", "list")
    assert result.code == 0 and "digits" in result.out
    assert result.err.count(f"datasets are stored in {temporary}") == 1


def test_unknown_user_is_an_error(condenset: CommandRunner, tmp_path: Path) -> None:
    message = "must be in a home directory that exists, but got '~nosuchuser/x': give the full path"
    for arguments in (("run", "~nosuchuser/x"), ("data", "list", "--data-dir", "~nosuchuser/x")):
        assert condenset(*arguments).error_line.endswith(message)
    (tmp_path / "~nosuchuser").mkdir()
    assert expand_user("~nosuchuser/x") == Path("~nosuchuser/x")
    assert expand_user("~/x") == Path.home() / "x" and expand_user("") == Path()
