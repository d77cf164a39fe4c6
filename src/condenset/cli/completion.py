"""Values that the shell completes. The names are repeated here, because importing the registries takes seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

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
    return [name for name in (*DATASETS, *_plugins("datasets"), *_imported()) if name.startswith(incomplete)]


def complete_set(incomplete: str) -> list[str]:
    """Complete the name of a finished set. If there is none, the shell completes paths."""
    from condenset.io.finished_sets import find_set_files  # slow to import

    return [name for name in sorted(find_set_files()) if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of several methods that are separated by commas."""
    return _complete_last(incomplete, (*METHODS, *_plugins("methods"), "all"))


def complete_networks(incomplete: str) -> list[str]:
    """Complete the last of several networks that are separated by commas."""
    return _complete_last(incomplete, (*NETWORKS, *_plugins("networks")))


def _complete_last(incomplete: str, names: Iterable[str]) -> list[str]:
    *others, last = incomplete.split(",")
    return [",".join((*others, name)) for name in names if name.startswith(last) and name not in others]


def _plugins(kind: str) -> Iterator[str]:
    """Yield the names that other packages add to a registry."""
    from importlib.metadata import entry_points  # slow to import

    for entry_point in entry_points(group=f"condenset.{kind}"):
        yield entry_point.name


def _imported() -> list[str]:
    """Return the names of the imported datasets."""
    with contextlib.suppress(OSError, UserError):
        paths = (data_directory() / "imported").iterdir()
        return sorted(path.name for path in paths if not path.name.startswith("."))
    return []
