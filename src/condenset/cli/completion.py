"""Values that the shell completes. The names are repeated here, because importing the registries takes seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from condenset.errors import UserError
from condenset.io.user_directories import data_directory

Completer = Callable[[str], list[str]]

METHODS = (
    *("random", "herding", "kcenter", "forgetting", "mmd", "dd", "ld", "dc", "dsa", "dm"),
    *("idm", "datadam", "m3d", "dsdm", "dance", "tgdd", "ncfm", "dmplus"),
    *("dcc", "idc", "cafe", "mtt", "gmmn", "vae", "gan", "kip", "gtn"),
)
NETWORKS = ("convnet", "alexnet", "alexnet_small", "vgg11", "resnet18", "resnet18_ap", "lenet", "mlp")
DATASETS = ("digits", "mnist", "fashionmnist", "cifar10", "cifar100", "tinyimagenet", "imagenet")
EXPERIMENTS = (
    *("sota", "batchnorm", "architectures", "networks", "sizes"),
    *("cost", "continual", "nas", "distribution", "generative", "family"),
)
PROTOCOLS = ("paper", "modern")
SCHEDULES = ("fast", "paper")
SCALES = ("tiny", "small", "paper")
DEVICES = ("cpu", "cuda", "mps")
PRECISIONS = ("float32", "bfloat16")
ENGINES = ("local", "ray")
FITS = ("crop", "pad")
INITS = ("real", "noise")
FORMATS = ("folder", "npz", "hf", "webdataset", "pt")


def complete_from(names: Iterable[str]) -> Completer:
    """Return a function that completes one of these names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """Complete a dataset: a registered or an imported one. If there is none, the shell completes paths."""
    return [name for name in (*DATASETS, *list_plugins("datasets"), *list_imported()) if name.startswith(incomplete)]


def complete_set(incomplete: str) -> list[str]:
    """Complete the name of a finished set. If there is none, the shell completes paths."""
    from condenset.io.finished_set_files import find_set_files  # slow to import

    return [name for name in sorted(find_set_files()) if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of several methods that are separated by commas."""
    return _complete_last(incomplete, (*METHODS, *list_plugins("methods"), "all"))


def complete_networks(incomplete: str) -> list[str]:
    """Complete the last of several networks that are separated by commas."""
    return _complete_last(incomplete, (*NETWORKS, *list_plugins("networks")))


def _complete_last(incomplete: str, names: Iterable[str]) -> list[str]:
    *others, last = incomplete.split(",")
    return [",".join((*others, name)) for name in names if name.startswith(last) and name not in others]


def list_plugins(kind: str) -> list[str]:
    """Return the names that other packages add to a registry."""
    from importlib.metadata import entry_points  # slow to import

    return [entry_point.name for entry_point in entry_points(group=f"condenset.{kind}")]


def list_imported(data_dir: Path | None = None) -> list[str]:
    """Return the names of the imported datasets."""
    with contextlib.suppress(OSError, UserError):
        paths = (data_directory(data_dir) / "imported").iterdir()
        return sorted(path.name for path in paths if not path.name.startswith("."))
    return []
