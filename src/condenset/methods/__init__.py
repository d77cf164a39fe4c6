"""Methods that condense a dataset; one module per method."""

import importlib

from condenset.methods.dc import DCRecipe
from condenset.methods.dd import DDRecipe
from condenset.methods.dsa import DSARecipe
from condenset.methods.forgetting import ForgettingRecipe
from condenset.methods.herding import HerdingRecipe
from condenset.methods.kcenter import KCenterRecipe
from condenset.methods.ld import LDRecipe
from condenset.methods.matching.dm import DMRecipe
from condenset.methods.matching.mmd import MMDRecipe
from condenset.methods.random import RandomRecipe
from condenset.methods.recipe import Recipe
from condenset.methods.registry import METHODS, Method, make_recipe, method_of, register_method

__all__ = [
    "METHODS",
    "DCRecipe",
    "DDRecipe",
    "DMRecipe",
    "DSARecipe",
    "ForgettingRecipe",
    "HerdingRecipe",
    "KCenterRecipe",
    "LDRecipe",
    "MMDRecipe",
    "Method",
    "RandomRecipe",
    "Recipe",
    "make_recipe",
    "method_of",
    "register_method",
]

# To add a method, add its module here. The order is that of tables and charts: coresets, then learned sets.
_MODULES = (
    "random",
    "herding",
    "kcenter",
    "forgetting",
    "matching.mmd",
    "dd",
    "ld",
    "dc",
    "dsa",
    "matching.dm",
)
for _module in _MODULES:
    register_method(importlib.import_module(f"condenset.methods.{_module}").METHOD)
