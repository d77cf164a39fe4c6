"""Methods that condense a dataset; one module per method."""

import importlib

from condenset.methods.coresets.forgetting import ForgettingRecipe
from condenset.methods.coresets.herding import HerdingRecipe
from condenset.methods.coresets.kcenter import KCenterRecipe
from condenset.methods.coresets.random import RandomRecipe
from condenset.methods.generative.gan import GANRecipe
from condenset.methods.generative.gmmn import GMMNRecipe
from condenset.methods.generative.vae import VAERecipe
from condenset.methods.gradient.cafe import CAFERecipe
from condenset.methods.gradient.dc import DCRecipe
from condenset.methods.gradient.dcc import DCCRecipe
from condenset.methods.gradient.dsa import DSARecipe
from condenset.methods.gradient.idc import IDCRecipe
from condenset.methods.kernel.kip import KIPRecipe
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
from condenset.methods.recipe import Recipe
from condenset.methods.registry import METHODS, Method, make_recipe, method_of, register_method
from condenset.methods.unrolled.dd import DDRecipe
from condenset.methods.unrolled.gtn import GTNRecipe
from condenset.methods.unrolled.ld import LDRecipe
from condenset.methods.unrolled.mtt_recipe import MTTRecipe

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
    "coresets.random",
    "coresets.herding",
    "coresets.kcenter",
    "coresets.forgetting",
    "matching.mmd",
    "unrolled.dd",
    "unrolled.ld",
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
    "kernel.kip",
    "unrolled.gtn",
)
for _module in _MODULES:
    register_method(importlib.import_module(f"condenset.methods.{_module}").METHOD)
