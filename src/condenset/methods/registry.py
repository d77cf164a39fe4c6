"""Register methods: the only place that the rest of the package looks them up in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from condenset.augment import remove_unused_flip
from condenset.config import describe_fields, field_names, make_config
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import Ipc, check_ipc, mean_ipc
from condenset.data.stores.streamed_store import check_images_fit
from condenset.errors import UserError, check_choice, option
from condenset.methods.recipe import ZCA_FIELDS, Recipe
from condenset.registry import Registry

if TYPE_CHECKING:
    from condenset.engine.device import ComputeDevice
    from condenset.runs.context import RunContext

Key = TypeVar("Key")

RESERVED_FIELDS = frozenset(  # arguments of `condense`, `make_recipe` and `make_recipe_for`; a test compares them
    {
        *("address", "data", "device", "directory", "engine", "gpus_per_worker", "ipc_share", "memory_limit", "method"),
        *("name", "precision", "schedule", "seed", "size", "verbose"),
        "fingerprint",  # of the dataset, which checkpoints have next to the fields of the recipe
    }
)
SMALL_ITERATIONS = 2_000  # default number of iterations at the experiment scale `small`

Presets = Callable[[int, str, int], Mapping[str, Any]]  # (ipc, dataset name, image size) -> fields of the recipe


def no_presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    return {}


def _no_check(data: ImageData, recipe: Any, compute: ComputeDevice, memory_limit: int | None) -> None:
    pass


def _depends_on_all_classes(recipe: Any) -> str:
    return "its images of a class depend on the other classes"


def _prepare_nothing(data: ImageData, recipe: Any, run: RunContext) -> None:
    pass


class SharedNetworks(Protocol):
    """Networks that a method trains before the classes are divided among workers."""

    def install(self, recipe: Any, directory: Path) -> Any:
        """Return the recipe with the place of the networks on a worker, which may write to `directory`."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to condense a dataset. Registering one makes it available everywhere: API, command line, charts, tests.

    Only the first four fields are required.

    Attributes:
        name: The name that users give, a Python identifier.
        recipe: The class of its settings. No other method may have the same class.
        condense: Make the set: `(data, recipe, run) -> CondensedSet`.
        summary: One line for lists and docs.
        source: The publication that introduced it, such as "Zhao and Bilen, WACV 2023". Empty: none.
        presets: Fields for a dataset: `(ipc, dataset name, image size) -> fields`. They replace the recipe's defaults.
            If the classes differ in their number of images, `ipc` is the mean, rounded.
        schedules: Functions like `presets` by name, such as `fast` and `paper`. The fields of the one that the user
            names, else of the first one, replace presets. Empty: there is nothing to choose from.
        tiny: Fields for a run of seconds, used by tests and by experiments at the scale `tiny`.
        small_iterations: Iterations at the experiment scale `small`: `recipe -> int`.
        check: Raise a `UserError` before the run if it cannot succeed: `(data, recipe, compute, memory_limit)`.
        condense_sizes: Make sets of several sizes at once: `(data, recipes, run) -> sets`.
        can_share: Return whether `condense_sizes` can make the sets of two recipes at once: `(recipe, other) -> bool`.
        estimate_memory: Return the bytes that condensing needs: `(data, recipe, compute, memory_limit) -> int`. None:
            unknown.
        classes_per_chunk: Return how many classes are computed at once: `(data, recipe, compute, memory_limit) -> int`.
            None: all classes.
        num_that_fit: Return how many of the recipes, counted from the first, fit the memory at once:
            `(data, recipes, run) -> int`.
        class_dependence: Return why the classes cannot be condensed separately: `recipe -> text`. Empty: they can, and
            `condense` gives classes that `take_classes` took the images that they have in the whole dataset.
        prepare: Train the networks that all classes share, before these are divided among workers:
            `(data, recipe, run) -> SharedNetworks | None`.
        streams_images: Whether the method reads images from disk if they do not fit the memory of the device.
        is_coreset: Whether the method selects real images instead of learning synthetic ones.
        supports_snapshots: Whether a run can save the set as it is after certain iterations.
        variant_of: The method that it is a variant of, with other settings. `compare` leaves variants out unless they
            are named.
        network_fits_evaluation: Whether the recipe's network can score the sets of other methods too.
    """

    name: str
    recipe: type[Recipe]
    condense: Callable[[ImageData, Any, RunContext], CondensedSet]
    summary: str
    source: str = ""
    presets: Presets = no_presets
    schedules: Mapping[str, Presets] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=dict)
    small_iterations: Callable[[Any], int] = lambda recipe: SMALL_ITERATIONS
    check: Callable[[ImageData, Any, ComputeDevice, int | None], None] = _no_check
    condense_sizes: Callable[[ImageData, Sequence[Any], RunContext], list[CondensedSet]] | None = None
    can_share: Callable[[Any, Any], bool] = lambda recipe, other: False
    num_that_fit: Callable[[ImageData, Sequence[Any], RunContext], int] = lambda data, recipes, run: 1
    estimate_memory: Callable[[ImageData, Any, ComputeDevice, int | None], int] | None = None
    classes_per_chunk: Callable[[ImageData, Any, ComputeDevice, int | None], int] | None = None
    class_dependence: Callable[[Any], str] = _depends_on_all_classes
    prepare: Callable[[ImageData, Any, RunContext], SharedNetworks | None] = _prepare_nothing
    streams_images: bool = False
    is_coreset: bool = False
    supports_snapshots: bool = False
    variant_of: str = ""
    network_fits_evaluation: bool = True


class MethodRegistry(Registry[Method]):
    """Methods by name. A recipe identifies its method, so every method has its own recipe class."""

    def register(self, item: Method) -> Method:
        """Add a method and return it; see `register_method`."""
        if isinstance(item, Method) and (names := sorted(field_names(item.recipe) & RESERVED_FIELDS)):
            rule = f"the recipe of the method {item.name!r} must have no fields with the names of arguments of condense"
            raise UserError(f"{rule}, but got {', '.join(names)}: rename them")
        for other in self._items.values():
            if isinstance(item, Method) and item.recipe is other.recipe and item.name != other.name:
                rule = f"the method {item.name!r} must have its own recipe class"
                raise UserError(f"{rule}, but got {item.recipe.__name__} of {other.name!r}: define a subclass")
        return super().register(item)


METHODS = MethodRegistry("method", Method, "condenset.methods")


def register_method(method: Method) -> Method:
    """Register a method, so that its name is valid everywhere, and return it.

    Args:
        method: The method. Its name and its recipe class must not belong to another method.

    Raises:
        UserError: If the name is not a Python identifier, name or recipe class belong to another method, or a field of
            the recipe has the name of an argument of `condense`.

    Example:
        >>> from dataclasses import dataclass
        >>> import condenset as cs
        >>> from condenset.methods import Method
        >>> from condenset.methods.coresets import random
        >>> @dataclass(frozen=True, kw_only=True)
        ... class CopyRecipe(cs.Recipe):
        ...     "Settings of the method."
        >>> def condense(data, recipe, run):
        ...     return random.condense(data, recipe, run)
        >>> method = Method(name="copy", recipe=CopyRecipe, condense=condense, summary="Copy the method random.")
        >>> cs.register_method(method).name
        'copy'
        >>> digits = cs.load("digits", verbose=False)
        >>> len(cs.condense(digits.train, "copy", ipc=2, verbose=False))
        20
        >>> cs.METHODS.unregister("copy")
    """
    return METHODS.register(method)


def check_method_memory(
    method: str, data: ImageData, compute: ComputeDevice, memory_limit: int | None, *, zca: bool = False
) -> None:
    """Raise a UserError if a method needs all images on the device and they do not fit."""
    if not METHODS.lookup(method).streams_images:
        way_out = "choose dm, which streams images from disk"
        check_images_fit(data, compute, memory_limit, method, way_out, zca=zca)


def method_of(recipe: Recipe) -> Method:
    """Return the method that a recipe belongs to.

    Raises:
        UserError: If no registered method has this class of recipes.
    """
    for method in METHODS.values():
        if type(recipe) is method.recipe:
            return method
    raise UserError(f"no registered method has recipes of the class {type(recipe).__name__}")


def find_shared(recipes: Mapping[Key, Recipe]) -> dict[Key, dict[Key, Recipe]]:
    """Return for each recipe the later ones whose sets can be learned at once with its set, all by key."""
    keys = list(recipes)
    shared: dict[Key, dict[Key, Recipe]] = {}
    for index, (key, recipe) in enumerate(recipes.items()):
        later = {other: recipes[other] for other in keys[index + 1 :] if type(recipes[other]) is type(recipe)}
        can_share = method_of(recipe).can_share
        shared[key] = {other: item for other, item in later.items() if can_share(recipe, item)}
    return shared


def make_recipe(method: str, *, ipc: Ipc, name: str, size: int, schedule: str | None = None, **fields: Any) -> Recipe:
    """Build a recipe: the defaults of the method, its presets for the dataset, its schedule, then these fields.

    Args:
        method: Name of the method.
        ipc: Images per class: one number, or one per class. Presets depend on the mean.
        name: Name of the dataset, which presets depend on.
        size: Image size in pixels.
        schedule: Name of one of the method's schedules. None: the first one, if there are any.
        fields: Fields of the recipe. They override presets and schedule.
    """
    entry = METHODS.lookup(method)
    mean = mean_ipc(check_ipc(ipc))
    presets = dict(entry.presets(mean, name, size))
    if schedule is not None:
        check_schedule(schedule, [method])
    schedule = schedule or next(iter(entry.schedules), None)
    if schedule is not None:
        presets |= entry.schedules[schedule](mean, name, size)
    if (presets | fields).get("zca"):
        presets |= {key: value for key, value in ZCA_FIELDS.items() if key in field_names(entry.recipe)}
    return make_config(entry.recipe, f"an option of {method}", {"ipc": ipc, **presets, **fields})


def make_recipe_for(method: str, data: ImageData, *, schedule: str | None = None, **fields: Any) -> Recipe:
    """Build the recipe of a method for a dataset, see `make_recipe`. It states what is applied: no flip if not allowed.

    Args:
        method: Name of the method.
        data: The training images.
        schedule: As in `make_recipe`.
        fields: Fields of the recipe.
    """
    recipe = make_recipe(method, name=data.name, size=data.size, schedule=schedule, **fields)
    return remove_unused_flip(recipe, allow_hflip=data.allow_hflip)


def check_schedule(schedule: str, methods: Collection[str]) -> None:
    """Check that at least one of the methods has a schedule."""
    names = dict.fromkeys(name for method in methods for name in METHODS.lookup(method).schedules)
    if not names:
        rule = "a schedule must come with a method that has schedules, such as dm"
        raise UserError(f"{rule}, but got {schedule!r} with {', '.join(methods)}: leave out {option('schedule')}")
    check_choice("schedule", schedule, names)


def describe_methods() -> list[dict[str, Any]]:
    """Return name, description, source, schedules and fields of every method.

    Each field has name, type, default and description. A schedule may replace the default.
    """
    return [
        {
            "name": name,
            "description": method.summary,
            "source": method.source,
            "schedules": list(method.schedules),
            "fields": describe_fields(method.recipe, method.recipe.choices),
        }
        for name, method in METHODS.items()
    ]
