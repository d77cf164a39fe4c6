"""The Python API to condense and evaluate: `condenset.condense` and `condenset.evaluate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Unpack

import torch

from condenset import networks
from condenset.data.condensed_set import CondensedSet, check_train_set
from condenset.data.image_data import ImageData, check_image_data
from condenset.engine.device import ComputeDevice
from condenset.errors import check
from condenset.io.bytesize import parse_bytes
from condenset.io.progress import make_progress
from condenset.methods import Recipe, make_recipe, method_of
from condenset.methods.options import RecipeOptions
from condenset.pipeline.execute import load_or_condense
from condenset.runs.context import RunContext
from condenset.runs.directory import open_work_directory
from condenset.training.evaluation import protocol_for, score_set
from condenset.training.options import ProtocolOptions
from condenset.training.protocol import Protocol
from condenset.training.scores import Scores


def condense(
    data: ImageData,
    method: str | Recipe = "dm",
    *,
    ipc: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    memory_limit: int | str | None = None,
    directory: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Unpack[RecipeOptions],
) -> CondensedSet:
    """Condense a dataset into a small synthetic one.

    Args:
        data: The training images, such as `load("digits").train`.
        method: Name of a method (see `METHODS`), or a recipe with all its settings.
        ipc: Images per class of the condensed set. Default: 10.
        seed: The same seed gives the same set.
        device: "cpu", "cuda" or "mps". Default: the fastest one available.
        precision: "float32" or "bfloat16". Default: bfloat16 on GPUs that support it.
        memory_limit: Bytes, or text such as "4GiB". With a lower limit, fewer classes are processed at once. The
            result stays the same.
        directory: Store checkpoints and the set here. Called again with the same arguments, `condense` continues.
        verbose: Show progress.
        **options: Fields of the method's recipe, such as `iterations` and `lr` (`help(cs.DMRecipe)` for those of
            dm; `condenset methods` lists all). They replace the paper's settings for the dataset. `network` is a
            spec such as "convnet(width=64)", or a builder `(channels, size, num_classes) -> torch.nn.Module`. The
            embedding of your own module is what its `embed` method returns or, without one, the input of its last
            `nn.Linear`.

    Returns:
        The condensed set.

    Raises:
        UserError: If an argument is invalid, a class has fewer than `ipc` images, or training diverges.

    Example:
        >>> import condenset as cs
        >>> digits = cs.load("digits", verbose=False)
        >>> cs.condense(digits.train, "dm", ipc=1, iterations=5, device="cpu", verbose=False)
        CondensedSet(digits: 10 images of 1x8x8, 10 classes; dm, 1 per class)
    """
    check_image_data("data", data)
    if isinstance(method, Recipe):
        check(ipc is None and not options, "a recipe must come without other settings", sorted(options) or "ipc")
        recipe = method
    else:
        recipe = make_recipe(
            method, ipc=10 if ipc is None else ipc, name=data.name, size=data.size, **_with_network_spec(options)
        )
    run = RunContext(
        seed=seed,
        compute=ComputeDevice.select(device, precision),
        memory_limit=None if memory_limit is None else parse_bytes(memory_limit),
        progress=make_progress(verbose),
    )
    entry = method_of(recipe)
    if directory is None:
        return entry.condense(data, recipe, run)
    with open_work_directory(Path(directory)) as run.directory:
        return load_or_condense(run.directory / "condensed.safetensors", entry.name, recipe, data, run)


def evaluate(
    train_set: CondensedSet | ImageData,
    test_set: ImageData,
    protocol: Protocol | None = None,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Unpack[ProtocolOptions],
) -> Scores:
    """Train networks on a set and test them on real images.

    Args:
        train_set: A condensed set, or a whole dataset for comparison.
        test_set: The test images, such as `load("digits").test`.
        protocol: How many networks are trained, and how. None: built from the keywords.
        seed: The same seed gives the same scores.
        device: "cpu", "cuda" or "mps". Default: the fastest one available.
        precision: "float32" or "bfloat16". Default: bfloat16 on GPUs that support it.
        directory: Store finished networks here. Called again with the same arguments, `evaluate` continues.
        verbose: Show progress.
        **options: Fields of the protocol (see `help(cs.Protocol)`). `network` is a spec, or a builder
            `(channels, size, num_classes) -> torch.nn.Module`. Default: the network that the set was condensed with.

    Returns:
        The test accuracy of each network, with mean and standard deviation.

    Raises:
        UserError: If an argument is invalid or the sets do not have the same image shape and classes.

    Example:
        >>> import condenset as cs
        >>> digits = cs.load("digits", verbose=False)
        >>> random_images = cs.condense(digits.train, "random", ipc=1, verbose=False)
        >>> scores = cs.evaluate(random_images, digits.test, num_networks=2, epochs=5, device="cpu", verbose=False)
        >>> len(scores.accuracies)
        2
    """
    check_train_set(train_set)
    check_image_data("test_set", test_set, "test")
    if protocol is None:
        protocol = protocol_for(train_set, test_set, **_with_network_spec(options))
    else:
        check(isinstance(protocol, Protocol), "protocol must be a Protocol", type(protocol).__name__)
        check(not options, "a protocol must come without other settings", sorted(options))
    run = RunContext(
        seed=seed,
        compute=ComputeDevice.select(device, precision),
        progress=make_progress(verbose),
    )
    if directory is None:
        return score_set(train_set, test_set, protocol, run)
    with open_work_directory(Path(directory)) as run.directory:
        return score_set(train_set, test_set, protocol, run)


def _with_network_spec(options: Any) -> dict[str, Any]:
    """Return the options with a network builder replaced by a spec that names it."""
    if "network" not in options:
        return dict(options)
    return {**options, "network": networks.as_spec(options["network"])}
