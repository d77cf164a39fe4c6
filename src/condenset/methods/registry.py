"""Register methods: the only place that the rest of the package looks them up in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from condenset.config import make_config
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import UserError
from condenset.methods.recipe import Recipe
from condenset.registry import Registry

if TYPE_CHECKING:
    from condenset.engine.device import ComputeDevice
    from condenset.runs.context import RunContext

SMALL_ITERATIONS = 2_000  # of methods that do not say otherwise, at the experiment scale `small`


def _no_presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    return {}


def _no_ipc_defaults(ipc: int) -> dict[str, Any]:
    return {}


def _no_check(data: ImageData, recipe: Any, compute: ComputeDevice, memory_limit: int | None) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to condense a dataset. Registering one makes it available everywhere: API, command line, charts, tests.

    Attributes:
        name: The name that users give, a Python identifier.
        recipe: The class of its settings. No other method may have the same class.
        condense: Make the set: `(data, recipe, run) -> CondensedSet`.
        summary: One line for lists and docs.
        presets: Fields for a dataset: `(ipc, dataset name, image size) -> fields`. They replace the recipe's defaults.
        ipc_defaults: Fields whose default depends on the number of images per class: `ipc -> fields`.
        tiny: Fields for a run of seconds, used by tests and by experiments at the scale `tiny`.
        small_iterations: Iterations at the experiment scale `small`: `recipe -> int`.
        check: Raise a `UserError` before the run if it cannot succeed: `(data, recipe, compute, memory_limit)`.
        condense_sizes: Make sets of several sizes at once: `(data, recipes, run) -> sets`.
        can_share: Tell whether two recipes can be condensed at once by `condense_sizes`.
        num_that_fit: Return how many of the recipes fit the memory at once: `(data, recipes, run) -> int`.
        is_coreset: The method selects real images instead of learning synthetic ones.
        has_soft_labels: The set has a distribution over classes as the label of each image.
        supports_snapshots: The run can store the set as it is after given iterations.
        network_fits_evaluation: The recipe's network is suitable for scoring sets of other methods too.
    """

    name: str
    recipe: type[Recipe]
    condense: Callable[[ImageData, Any, RunContext], CondensedSet]
    summary: str
    presets: Callable[[int, str, int], Mapping[str, Any]] = _no_presets
    ipc_defaults: Callable[[int], Mapping[str, Any]] = _no_ipc_defaults
    tiny: Mapping[str, Any] = field(default_factory=dict)
    small_iterations: Callable[[Any], int] = lambda recipe: SMALL_ITERATIONS
    check: Callable[[ImageData, Any, ComputeDevice, int | None], None] = _no_check
    condense_sizes: Callable[[ImageData, Sequence[Any], RunContext], list[CondensedSet]] | None = None
    can_share: Callable[[Any, Any], bool] = lambda recipe, other: False
    num_that_fit: Callable[[ImageData, Sequence[Any], RunContext], int] = lambda data, recipes, run: 1
    is_coreset: bool = False
    has_soft_labels: bool = False
    supports_snapshots: bool = False
    network_fits_evaluation: bool = True


METHODS: Registry[Method] = Registry("method", Method, "condenset.methods")


def register_method(method: Method) -> Method:
    """Add a method to the registry and return it."""
    return METHODS.register(method)


def method_of(recipe: Recipe) -> Method:
    """Return the method that a recipe belongs to."""
    for method in METHODS.values():
        if type(recipe) is method.recipe:
            return method
    raise UserError(f"no registered method has recipes of the class {type(recipe).__name__}")


def make_recipe(method: str, *, ipc: int, name: str, size: int, **fields: Any) -> Recipe:
    """Build a recipe: the defaults of the method, its presets for the dataset, then the given fields.

    Args:
        method: Name of the method.
        ipc: Images per class.
        name: Name of the dataset, which presets depend on.
        size: Image size in pixels.
        fields: Fields of the recipe.
    """
    entry = METHODS.lookup(method)
    checked = Recipe(ipc=ipc).ipc  # presets depend on it
    presets = {**entry.ipc_defaults(checked), **entry.presets(checked, name, size)}
    return make_config(entry.recipe, f"an option of {method}", {"ipc": ipc, **presets, **fields})


def describe_methods() -> list[tuple[str, str, str]]:
    """Return name, summary and options with defaults of every method."""
    rows = []
    for name, method in METHODS.items():
        options = [item for item in dataclasses.fields(method.recipe) if item.name not in ("ipc", "allow_fewer")]
        rows.append((name, method.summary, ", ".join(f"{item.name}={item.default!r}" for item in options)))
    return rows
