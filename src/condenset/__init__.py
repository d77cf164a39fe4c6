"""condenset: condense a large labelled image dataset into a small synthetic one that trains networks nearly as well."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from condenset.continual import Memory as Memory
    from condenset.data import DATASETS as DATASETS
    from condenset.data import from_arrays as from_arrays
    from condenset.data import from_dataset as from_dataset
    from condenset.data import from_folder as from_folder
    from condenset.data import load as load
    from condenset.data import register_dataset as register_dataset
    from condenset.data import train_val_split as train_val_split
    from condenset.data.condensed_set import CondensedSet as CondensedSet
    from condenset.data.finished_sets import list_condensed as list_condensed
    from condenset.data.finished_sets import load_condensed as load_condensed
    from condenset.data.image_data import ImageData as ImageData
    from condenset.data.image_data import Splits as Splits
    from condenset.data.set_import import import_set as import_set
    from condenset.errors import UserError as UserError
    from condenset.methods import METHODS as METHODS
    from condenset.methods import DMRecipe as DMRecipe
    from condenset.methods import Method as Method
    from condenset.methods import Recipe as Recipe
    from condenset.methods import register_method as register_method
    from condenset.methods.pools.pool import NetworkPool as NetworkPool
    from condenset.methods.pools.pool_training import train_pool as train_pool
    from condenset.networks import NETWORKS as NETWORKS
    from condenset.networks import register_network as register_network
    from condenset.networks import search_space as search_space
    from condenset.pipeline.api import condense as condense
    from condenset.pipeline.api import evaluate as evaluate
    from condenset.pipeline.report.run import write_report as write_report
    from condenset.search import Ranking as Ranking
    from condenset.search import rank as rank
    from condenset.training.protocol import Protocol as Protocol
    from condenset.training.scores import Scores as Scores

_PUBLIC = {
    "continual": ("Memory",),
    "data": (
        "DATASETS",
        "from_arrays",
        "from_dataset",
        "from_folder",
        "load",
        "register_dataset",
        "train_val_split",
    ),
    "data.condensed_set": ("CondensedSet",),
    "data.image_data": ("ImageData", "Splits"),
    "data.finished_sets": ("list_condensed", "load_condensed"),
    "data.set_import": ("import_set",),
    "errors": ("UserError",),
    "methods": ("METHODS", "DMRecipe", "Method", "Recipe", "register_method"),
    "methods.pools.pool": ("NetworkPool",),
    "methods.pools.pool_training": ("train_pool",),
    "networks": ("NETWORKS", "register_network", "search_space"),
    "pipeline.api": ("condense", "evaluate"),
    "pipeline.report.run": ("write_report",),
    "search": ("Ranking", "rank"),
    "training.protocol": ("Protocol",),
    "training.scores": ("Scores",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `condenset --help` does not wait for torch."""
    if name in _MODULE_OF:
        value = getattr(import_module(f"condenset.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'condenset' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, which editors and shells offer for completion."""
    return [*__all__, "__version__"]
