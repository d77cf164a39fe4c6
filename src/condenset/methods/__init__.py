"""Methods that condense a dataset; one module per method."""

import importlib

from condenset.methods.matching.recipe import DMRecipe
from condenset.methods.recipe import Recipe
from condenset.methods.registry import METHODS, Method, make_recipe, make_recipe_for, method_of, register_method

__all__ = [
    "METHODS",
    "DMRecipe",
    "Method",
    "Recipe",
    "make_recipe",
    "make_recipe_for",
    "method_of",
    "register_method",
]

# To add a method, add its module here. The order is that of tables and charts: coresets, then learned sets.
_MODULES = (
    "coresets.random",
    "coresets.herding",
    "coresets.kcenter",
    "coresets.forgetting",
    "matching.mmd",
    "unrolled.dd",
    "regression.ld",
    "gradient.dc",
    "gradient.dsa",
    "matching.dm",
    "matching.idm",
    "matching.datadam",
    "matching.m3d",
    "matching.dsdm",
    "matching.dance",
    "matching.tgdd",
    "matching.ncfm",
    "matching.dmplus",
    "gradient.dcc",
    "gradient.idc",
    "gradient.cafe",
    "unrolled.mtt",
    "generative.gmmn",
    "generative.vae",
    "generative.gan",
    "regression.kip",
    "unrolled.gtn",
)
for _module in _MODULES:
    register_method(importlib.import_module(f"condenset.methods.{_module}").METHOD)
