"""Make the sets of a method, and check what it returns: the method may be one of another package."""

from __future__ import annotations

from collections.abc import Sequence

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import UserError, check, check_type
from condenset.methods.common import images_per_class
from condenset.methods.recipe import Recipe
from condenset.methods.registry import Method
from condenset.runs.context import RunContext


def make_sets(method: Method, data: ImageData, recipes: Sequence[Recipe], run: RunContext) -> list[CondensedSet]:
    """Return the sets of recipes of a method, which are learned at once if there are several.

    Raises:
        UserError: The method cannot make a set, or returns something else.
    """
    if len(recipes) > 1:
        assert method.condense_sizes is not None
        sets = method.condense_sizes(data, recipes, run)
    else:
        sets = [method.condense(data, recipes[0], run)]
    for recipe, condensed in zip(recipes, sets, strict=True):
        check_type(condensed, CondensedSet, f"the method {method.name} must return a CondensedSet")
        _check_counts(method.name, condensed, data, recipe)
    return sets


def _check_counts(name: str, condensed: CondensedSet, data: ImageData, recipe: Recipe) -> None:
    """Raise a UserError unless the set stores the images of the recipe. Those with soft labels have no class."""
    counts, labels = images_per_class(data, recipe), condensed.stored_labels
    rule = f"the method {name} must return a set with the {data.num_classes} classes of the dataset"
    check(condensed.class_names == data.class_names, rule, len(condensed.class_names))
    if labels.ndim == 1:
        stored, classes = labels.bincount(minlength=data.num_classes).tolist(), data.class_names
    else:
        counts, stored, classes = [sum(counts)], [len(labels)], ("",)
    for class_name, count, num in zip(classes, counts, stored, strict=True):
        if num > count or (num < count and not recipe.allow_fewer):
            of_class = f" of class {class_name!r}" if class_name else ""
            images = "image" if count == 1 else "images"
            raise UserError(f"the method {name} must return {count:,} {images}{of_class}, but got {num:,}")
