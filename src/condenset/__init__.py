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
    from condenset.data.image_data import ImageData as ImageData
    from condenset.data.image_data import Splits as Splits
    from condenset.data.packaged_sets import list_condensed as list_condensed
    from condenset.data.packaged_sets import load_condensed as load_condensed
    from condenset.data.set_import import import_set as import_set
    from condenset.errors import UserError as UserError
    from condenset.methods import METHODS as METHODS
    from condenset.methods import CAFERecipe as CAFERecipe
    from condenset.methods import DANCERecipe as DANCERecipe
    from condenset.methods import DataDAMRecipe as DataDAMRecipe
    from condenset.methods import DCCRecipe as DCCRecipe
    from condenset.methods import DCRecipe as DCRecipe
    from condenset.methods import DDRecipe as DDRecipe
    from condenset.methods import DMPlusRecipe as DMPlusRecipe
    from condenset.methods import DMRecipe as DMRecipe
    from condenset.methods import DSARecipe as DSARecipe
    from condenset.methods import DSDMRecipe as DSDMRecipe
    from condenset.methods import ForgettingRecipe as ForgettingRecipe
    from condenset.methods import GANRecipe as GANRecipe
    from condenset.methods import GMMNRecipe as GMMNRecipe
    from condenset.methods import GTNRecipe as GTNRecipe
    from condenset.methods import HerdingRecipe as HerdingRecipe
    from condenset.methods import IDCRecipe as IDCRecipe
    from condenset.methods import IDMRecipe as IDMRecipe
    from condenset.methods import KCenterRecipe as KCenterRecipe
    from condenset.methods import KIPRecipe as KIPRecipe
    from condenset.methods import LDRecipe as LDRecipe
    from condenset.methods import M3DRecipe as M3DRecipe
    from condenset.methods import Method as Method
    from condenset.methods import MMDRecipe as MMDRecipe
    from condenset.methods import MTTRecipe as MTTRecipe
    from condenset.methods import NCFMRecipe as NCFMRecipe
    from condenset.methods import RandomRecipe as RandomRecipe
    from condenset.methods import Recipe as Recipe
    from condenset.methods import TGDDRecipe as TGDDRecipe
    from condenset.methods import VAERecipe as VAERecipe
    from condenset.methods import register_method as register_method
    from condenset.methods.matching.pools.pool import NetworkPool as NetworkPool
    from condenset.methods.matching.pools.training import train_pool as train_pool
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
    "data.packaged_sets": ("list_condensed", "load_condensed"),
    "data.set_import": ("import_set",),
    "errors": ("UserError",),
    "methods": (
        "METHODS",
        "CAFERecipe",
        "DANCERecipe",
        "DCCRecipe",
        "DCRecipe",
        "DDRecipe",
        "DMPlusRecipe",
        "DMRecipe",
        "DSARecipe",
        "DSDMRecipe",
        "DataDAMRecipe",
        "ForgettingRecipe",
        "GANRecipe",
        "GMMNRecipe",
        "GTNRecipe",
        "HerdingRecipe",
        "IDCRecipe",
        "IDMRecipe",
        "KCenterRecipe",
        "KIPRecipe",
        "LDRecipe",
        "M3DRecipe",
        "MMDRecipe",
        "MTTRecipe",
        "Method",
        "NCFMRecipe",
        "RandomRecipe",
        "Recipe",
        "TGDDRecipe",
        "VAERecipe",
        "register_method",
    ),
    "methods.matching.pools.pool": ("NetworkPool",),
    "methods.matching.pools.training": ("train_pool",),
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
