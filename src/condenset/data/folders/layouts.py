"""Folders of image files: find the splits and the classes, and refuse what can be read in two ways."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from condenset.data.reading.class_names import sort_names
from condenset.data.reading.file_scan import DatasetWarning
from condenset.errors import UserError, by_interface, format_names, has_option, option, warn_user
from condenset.io.directories import wrap_os_errors
from condenset.io.progress import show_progress

JPEG_EXTENSIONS = (".jpg", ".jpeg", ".jfif")
EXTENSIONS = (*JPEG_EXTENSIONS, ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm")
OTHER_EXTENSIONS = (".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw", ".dcm")
IGNORED_FOLDERS = ("__MACOSX", "__pycache__")  # besides hidden ones
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")  # the first that exists is used
SPLIT_NAMES = {"eval", *TRAIN_FOLDERS, *TEST_FOLDERS}
TEST_PARTS = ("test", "val", "dev", "eval")  # of the names of folders that are probably test images
MAX_TREE_LINES = 12
MAX_SUBFOLDERS = 3  # of one folder in a tree


def find_split_folders(root: Path, *, nested: bool = False) -> tuple[Path, Path | None]:
    """Return the folder of the training classes, and that of the test classes or None.

    A split is a folder with one of the names of `TRAIN_FOLDERS` and `TEST_FOLDERS`, in any case, that contains folders:
    a test folder without labels is not used, with a warning. Without a training split, ROOT itself contains the
    classes.

    Raises:
        UserError: There are several training folders, or folders that are neither splits nor classes.
    """
    names = list_subfolders(root)
    trains, tests = (_split_folders(root, names, splits) for splits in (TRAIN_FOLDERS, TEST_FOLDERS))
    if not trains:
        return root, None
    if len(trains) > 1:
        raise layout_error(root, f"has several training splits, {' and '.join(trains)}: rename or remove one")
    for name in names:
        if name.lower() in TEST_FOLDERS and not list_subfolders(root / name):
            warn_user(f"{root}: {name!r} has no class folders and is not used", DatasetWarning)
    if tests:
        same_name = [name for name in tests if name.lower() == tests[0].lower()]
        if len(same_name) > 1:
            raise layout_error(root, f"has several test splits, {' and '.join(same_name)}: rename or remove one")
        return root / trains[0], root / tests[0]
    others = [name for name in names if name.lower() not in SPLIT_NAMES]
    if not others:
        return root / trains[0], None
    if not nested:
        problem = f"has a training split, {trains[0]}, and other folders, but no test split"
        hint = _splits_hint(root, [trains[0], *others]) or f"rename {others[0]} to test, or {_nested_hint()}"
        raise layout_error(root, f"{problem}: load {root / trains[0]}, or {hint}")
    return root, None


def _split_folders(root: Path, names: Sequence[str], splits: Sequence[str]) -> list[str]:
    """Return the folders that are one of the splits, in the order of `splits`."""
    candidates = [name for split in splits for name in names if name.lower() == split]
    return [name for name in candidates if list_subfolders(root / name)]


def list_classes(folder: Path, *, nested: bool = False) -> dict[str, list[str]]:
    """Return the image files of each class, by its folder relative to `folder`, in sorted order.

    Args:
        folder: A folder with one folder per class.
        nested: Every folder that directly contains images is a class.
    """
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    names = list_subfolders(folder)
    if not names:
        raise UserError(f"{folder} must contain one folder per class, but has no folders")
    if nested:
        return _list_nested_classes(folder)
    _check_level(folder, names)
    for name in names:
        if name.lower() in SPLIT_NAMES - {*TRAIN_FOLDERS}:  # trains are a common class
            message = f"the folder {name!r} is read as a class: move it elsewhere if it is not one"
            warn_user(f"{folder}: {message}", DatasetWarning)
    classes, others = dict[str, list[str]](), list[str]()
    with show_progress(f"listing the files of {folder.name}", len(names)) as advance:
        for name in sort_names(names):
            classes[name], other_images = find_images(str(folder / name))
            others += other_images
            advance(1)
    _warn_about_other_formats(folder, others)
    if empty := [name for name, paths in classes.items() if not paths]:
        rule = f"{folder} must have images in every class folder"
        raise UserError(f"{rule}, but not in {format_names(empty, 5)}: remove such folders, or add images")
    for name, paths in classes.items():
        inner = sorted({os.path.dirname(path) for path in paths} - {str(folder / name)})
        if len(inner) > 1:
            examples = " and ".join(os.path.relpath(path, folder) for path in inner[:2])
            if hint := _splits_hint(folder, names):
                raise layout_error(folder, f"has folders with the same classes inside: if they are splits, {hint}")
            problem = f"has several folders of images in the class {name!r}, {examples}"
            raise layout_error(folder, f"{problem}: move the images of a class into one folder, or {_nested_hint()}")
    return classes


def _splits_hint(root: Path, names: Sequence[str]) -> str | None:
    """Return how to load two folders that have the same class folders as splits, or None if there are no such two."""
    classes = {name: tuple(map(str.casefold, list_subfolders(root / name))) for name in names}
    for inner in classes.values():
        splits = [name for name in names if classes[name] == inner]
        if len(inner) > 1 and len(splits) > 1:
            break
    else:
        return None
    tests = [name for part in TEST_PARTS for name in splits if part in name.lower()]
    trains = [name for name in splits if "train" in name.lower()]
    train = next(iter([*trains, *(name for name in splits if name not in tests), *splits]))
    test = next(name for name in [*tests, *splits] if name != train)
    dataset = f"{root / train} as the dataset and"
    if has_option("train"):
        dataset = by_interface(command_line=option("train", root / train), python=dataset)
    return f"give {dataset} {option('test', str(root / test))}"


def _nested_hint() -> str:
    return f"make every folder a class with {option('nested', True)}"


def _list_nested_classes(folder: Path) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = {}
    images, others = find_images(str(folder))
    _warn_about_other_formats(folder, others)
    for path in images:
        if (parent := os.path.dirname(path)) != str(folder):
            classes.setdefault(os.path.relpath(parent, folder).replace(os.sep, "/"), []).append(path)
    if not classes:
        raise UserError(f"{folder} must contain folders of images, but has no image in any folder")
    _warn_about_repeated_names(folder, classes)
    return {name: classes[name] for name in sort_names(classes)}


def _warn_about_repeated_names(folder: Path, names: Iterable[str]) -> None:
    """Warn if nested classes look like those of two splits: several names occur in different folders."""
    paths: dict[str, list[str]] = {}
    for name in names:
        paths.setdefault(name.rpartition("/")[2], []).append(name)
    repeated = [same for same in paths.values() if len(same) > 1]
    if len(repeated) > 1:  # one name alone, such as a/images and b/images, is common
        rule = "folders of the same name in different folders are different classes"
        warn_user(f"{folder}: {rule}: {format_names(repeated[0], 3)}", DatasetWarning)


def _warn_about_other_formats(folder: Path, paths: Sequence[str]) -> None:
    if paths:
        suffixes = ", ".join(sorted({os.path.splitext(path)[1].lower() for path in paths}))
        count = f"{len(paths):,} image file{'s' * (len(paths) != 1)} left out"
        message = f"{folder}: {count}, because {suffixes} cannot be read: convert to JPEG or PNG"
        warn_user(message, DatasetWarning)


def list_subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones and `IGNORED_FOLDERS`."""
    with wrap_os_errors(folder, "read"), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not _is_ignored(entry.name) and entry.is_dir())


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name in IGNORED_FOLDERS


def find_images(folder: str) -> tuple[list[str], list[str]]:
    """Return the image files in a folder and its subfolders, and those of formats that cannot be read, both sorted.

    Hidden files and other types are ignored. Links to folders are not followed, because they can form a loop. A warning
    names the first.
    """
    paths, others, folders, links = list[str](), list[str](), [folder], list[str]()
    while folders:
        current = folders.pop()
        with wrap_os_errors(current, "read"), os.scandir(current) as scanned:
            entries = [entry for entry in scanned if not _is_ignored(entry.name)]
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            if entry.name.lower().endswith(EXTENSIONS) and not entry.is_dir(follow_symlinks=False):
                paths.append(entry.path)
            elif entry.name.lower().endswith(OTHER_EXTENSIONS) and not entry.is_dir(follow_symlinks=False):
                others.append(entry.path)
            elif entry.is_symlink() and entry.is_dir():
                links.append(entry.path)
    if links:
        names = format_names(sorted(links), 3)
        warn_user(f"links to folders are not followed: {names}", DatasetWarning)
    return sorted(paths), sorted(others)


def _check_level(folder: Path, names: Sequence[str]) -> None:
    """Check that the folders are classes, not splits and not one folder around all classes."""
    if len(names) > 1 and {name.lower() for name in names} <= SPLIT_NAMES:
        hint = "name them train and test (or val) and load the parent folder, or load one of them as one split"
        raise UserError(f"{folder} contains splits, {', '.join(names)}, instead of classes: {hint}")
    if len(names) == 1 and len(list_subfolders(folder / names[0])) > 1:
        with wrap_os_errors(folder / names[0], "read"), os.scandir(folder / names[0]) as entries:
            has_images = any(entry.name.lower().endswith(EXTENSIONS) for entry in entries)
        if not has_images:
            raise UserError(f"{folder} contains one folder of folders, {names[0]!r}: use {folder / names[0]} instead")


def layout_error(root: Path, problem: str) -> UserError:
    """Return the error for a folder that can be read in two ways, with a tree of what it contains."""
    return UserError(f"{root} {problem}", details=format_tree(root))


def format_tree(root: Path) -> str:
    """Return the folders in a folder, two levels deep, with the number of images in each."""
    lines = [f"{root.resolve().name}/"]
    for name in list_subfolders(root):
        inner = list_subfolders(root / name)
        lines.append(_tree_line(root / name, 1))
        lines += [_tree_line(root / name / inner_name, 2) for inner_name in inner[:MAX_SUBFOLDERS]]
        if len(inner) > MAX_SUBFOLDERS:
            lines.append(f"    … and {len(inner) - MAX_SUBFOLDERS} more folders")
        if len(lines) > MAX_TREE_LINES:
            break
    return "\n".join([*lines[: MAX_TREE_LINES - 1], "  …"] if len(lines) > MAX_TREE_LINES else lines)


def _tree_line(folder: Path, level: int) -> str:
    count = sum(name.lower().endswith(EXTENSIONS) for _, _, names in os.walk(folder) for name in names)
    return f"{'  ' * level}{folder.name}/  {count:,} image{'s' * (count != 1)}"
