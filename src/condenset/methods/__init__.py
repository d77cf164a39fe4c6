"""Methods that condense a dataset; one module per method."""

import importlib

from condenset.methods.cafe import CAFERecipe
from condenset.methods.dc import DCRecipe
from condenset.methods.dcc import DCCRecipe
from condenset.methods.dd import DDRecipe
from condenset.methods.dsa import DSARecipe
from condenset.methods.forgetting import ForgettingRecipe
from condenset.methods.generative.gan import GANRecipe
from condenset.methods.generative.gmmn import GMMNRecipe
from condenset.methods.generative.vae import VAERecipe
from condenset.methods.gtn import GTNRecipe
from condenset.methods.herding import HerdingRecipe
from condenset.methods.idc import IDCRecipe
from condenset.methods.kcenter import KCenterRecipe
from condenset.methods.kip import KIPRecipe
from condenset.methods.ld import LDRecipe
from condenset.methods.matching.dance import DANCERecipe
from condenset.methods.matching.datadam import DataDAMRecipe
from condenset.methods.matching.dmplus import DMPlusRecipe
from condenset.methods.matching.dsdm import DSDMRecipe
from condenset.methods.matching.idm import IDMRecipe
from condenset.methods.matching.m3d import M3DRecipe
from condenset.methods.matching.mmd import MMDRecipe
from condenset.methods.matching.ncfm import NCFMRecipe
from condenset.methods.matching.recipe import DMRecipe
from condenset.methods.matching.tgdd import TGDDRecipe
from condenset.methods.mtt_recipe import MTTRecipe
from condenset.methods.random import RandomRecipe
from condenset.methods.recipe import Recipe
from condenset.methods.registry import METHODS, Method, make_recipe, method_of, register_method

__all__ = [
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
    "matching.idm",
    "matching.datadam",
    "matching.m3d",
    "matching.dsdm",
    "matching.dance",
    "matching.tgdd",
    "matching.ncfm",
    "matching.dmplus",
    "dcc",
    "idc",
    "cafe",
    "mtt",
    "generative.gmmn",
    "generative.vae",
    "generative.gan",
    "kip",
    "gtn",
)
for _module in _MODULES:
    register_method(importlib.import_module(f"condenset.methods.{_module}").METHOD)
