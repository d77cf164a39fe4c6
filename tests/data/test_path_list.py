"""Compact lists of paths equal lists of text."""

from __future__ import annotations

import sys

import pytest

from condenset.data.path_list import PathList

PATHS = ["/a/b/1.png", "/a/b/c/ß.png", "/a/b/\udcff.png", "/x/2.png", "/x/a much longer name.png"]


def test_paths_are_unchanged() -> None:
    paths = PathList.join([PathList.from_paths(PATHS[:3], "/a/b"), PathList(), PathList.from_paths(PATHS[3:])])
    assert list(paths) == PATHS and len(paths) == 5
    assert [paths[row] for row in range(-5, 5)] == PATHS + PATHS
    assert paths[1:4] == PATHS[1:4] and paths[:] == PATHS
    with pytest.raises(IndexError):
        paths[5]
    assert list(paths.without({PATHS[1], PATHS[3], PATHS[4]})) == [PATHS[0], PATHS[2]]
    assert list(PathList.from_paths(["/a.png"], "/")) == ["/a.png"]
    assert len(PathList()) == 0 and list(PathList().without(())) == []


def test_paths_need_little_memory() -> None:
    folder = "/data/imagenet/ILSVRC/Data/CLS-LOC/train/n01440764"
    names = [f"{folder}/n01440764_{number:05}.JPEG" for number in range(1300)]
    paths = PathList.from_paths(names, folder)
    assert sum(names_.nbytes for _, names_ in paths._parts) < sum(map(sys.getsizeof, names)) / 5
