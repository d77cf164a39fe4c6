"""condenset: condense a large labelled image set into a tiny synthetic one that trains networks nearly as well."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condenset.continual import Memory as Memory
    from condenset.data import from_arrays as from_arrays
    from condenset.data import from_dataset as from_dataset
    from condenset.data import from_folder as from_folder
    from condenset.data import load as load
    from condenset.data import split_off as split_off
    from condenset.errors import UserError as UserError
    from condenset.evaluation import evaluate as evaluate
    from condenset.methods import METHODS as METHODS
    from condenset.methods import condense as condense
    from condenset.methods.pool_training import train_pool as train_pool
    from condenset.methods.pools import Pool as Pool
    from condenset.networks import NETWORKS as NETWORKS
    from condenset.networks import search_space as search_space
    from condenset.ranking import Ranking as Ranking
    from condenset.ranking import rank as rank
    from condenset.types import CondensedSet as CondensedSet
    from condenset.types import ImageData as ImageData
    from condenset.types import Scores as Scores
    from condenset.types import Splits as Splits

_HOMES = {
    "load": "data",
    "from_arrays": "data",
    "from_folder": "data",
    "from_dataset": "data",
    "split_off": "data",
    "condense": "methods",
    "METHODS": "methods",
    "Pool": "methods.pools",
    "train_pool": "methods.pool_training",
    "NETWORKS": "networks",
    "search_space": "networks",
    "evaluate": "evaluation",
    "Ranking": "ranking",
    "rank": "ranking",
    "Memory": "continual",
    "UserError": "errors",
    "CondensedSet": "types",
    "ImageData": "types",
    "Scores": "types",
    "Splits": "types",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that `condenset --help` does not wait for torch."""
    if name in _HOMES:
        value = getattr(import_module(f"condenset.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name == "__version__":
        return import_module("condenset.version").VERSION
    raise AttributeError(f"module 'condenset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
