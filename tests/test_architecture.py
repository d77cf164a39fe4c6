"""The structure of the package: imports point in one direction, and there are no cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import condenset

ROOT = Path(condenset.__file__).parent
# A package imports from those before it.
ORDER = (
    "errors",
    "registry",
    "config",
    "io",
    "kernels",
    "augment",
    "networks",
    "engine",
    "data",
    "runs",
    "training",
    "methods",
    "report",
    "continual",
    "search",
    "pipeline",
    "experiments",
    "cli",
    "sklearn",
)


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = ("condenset", *path.relative_to(ROOT).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(path: Path, names: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, inside functions and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in names else node.module


def dependencies() -> dict[str, set[str]]:
    """Return what each module imports; importing the version from the top package does not count."""
    paths = modules()
    return {
        name: set(imports(path, set(paths))) - {"condenset", name}
        for name, path in paths.items()
        if name not in ("condenset", "condenset.__main__")
    }


def test_every_top_level_module_has_a_place_in_the_order() -> None:
    top = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert top - {"__init__", "__main__"} == set(ORDER)


def test_imports_point_upwards() -> None:
    position = {name: index for index, name in enumerate(ORDER)}
    wrong = [
        f"{importer} imports {imported}"
        for importer, targets in dependencies().items()
        for imported in targets
        if position[imported.split(".")[1]] > position[importer.split(".")[1]]
    ]
    assert not wrong


def test_modules_have_no_cycles() -> None:
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    # A module may import its siblings through the package, whose __init__ collects them: only plain modules count.
    graph = {
        name: {target for target in targets if target not in packages}
        for name, targets in dependencies().items()
        if name not in packages
    }
    list(TopologicalSorter(graph).static_order())
