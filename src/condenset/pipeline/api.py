"""The Python API to condense and evaluate: `condenset.condense` and `condenset.evaluate`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Unpack

import torch

from condenset.augment import remove_unused_flip
from condenset.data.condensed_set import CondensedSet, check_train_set
from condenset.data.image_data import ImageData, check_image_data
from condenset.data.ipc import resolve_ipc
from condenset.data.reading.lazy import check_num_classes
from condenset.engine.defaults import torch_defaults
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import check_network_fits
from condenset.engine.options import EngineOptions
from condenset.errors import UserError, check
from condenset.io.bytesize import parse_bytes
from condenset.io.progress import limit_progress, make_progress
from condenset.methods import Recipe, make_recipe_for, method_of
from condenset.methods.matching.user_functions import has_own_sampler
from condenset.methods.options import RecipeOptions, name_functions
from condenset.methods.registry import check_method_memory
from condenset.methods.sharding import check_divisible
from condenset.pipeline.condensing import load_or_condense
from condenset.pipeline.evaluation.overlap import check_overlap_in_memory
from condenset.runs.context import RunContext
from condenset.runs.directory import open_work_directory
from condenset.runs.tasks import open_run_engine
from condenset.training.options import ProtocolOptions
from condenset.training.protocol import Protocol
from condenset.training.scores import Scores
from condenset.training.scoring import protocol_for, score_set


@torch_defaults()
def condense(
    data: ImageData,
    method: str | Recipe = "dm",
    *,
    ipc: int | Sequence[int] | Mapping[str, int] | None = None,
    ipc_share: float | None = None,
    schedule: str | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    memory_limit: int | str | None = None,
    directory: str | os.PathLike[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    gpus_per_worker: float = 1.0,
    verbose: bool = True,
    **options: Unpack[RecipeOptions],
) -> CondensedSet:
    """Condense a dataset into a small synthetic one.

    Args:
        data: The training images, such as `load("digits").train`.
        method: Name of a method (see `METHODS`), or a recipe with all its settings.
        ipc: Images per class of the condensed set: a number, a list with one number per class, or a dict with the
            numbers by class name. Default: 10.
        ipc_share: In place of `ipc`: the share of the images of each class, such as 0.01. A class gets at least one.
        schedule: For dm: "fast", or "paper" for the settings of the paper, which take longer. Default: "fast".
        seed: The same seed gives the same set.
        device: "cpu", "cuda" or "mps". Default: the fastest one available.
        precision: "float32" or "bfloat16". Default: bfloat16 on GPUs that support it.
        memory_limit: Bytes, or text such as "4GiB". With a lower limit, fewer classes are processed at once. The
            result stays the same.
        directory: Store checkpoints and the set here. Called again with the same arguments, `condense` continues. It
            computes with the number of CPU threads of the first call.
        engine: "local", or "ray" to divide the classes among workers.
        address: Address of a Ray cluster, such as "auto" or "ray://HOST:PORT". None: a Ray of this machine.
        gpus_per_worker: GPUs of each Ray worker; 0.5 for two workers per GPU.
        verbose: Show progress.
        **options: Fields of the method's recipe, such as `iterations` and `lr` (`help(cs.DMRecipe)` for those of
            dm; `condenset methods` lists all). They replace the settings for the dataset. `network` is a
            spec such as "convnet(width=64)", or a builder `(channels, size, num_classes) -> torch.nn.Module`. The
            embedding of your own module is what its `embed` method returns or, without one, the input of its last
            `nn.Linear`. For dm and its successors, `objective` may be your own function of features
            `(real, synthetic, real_weights, synthetic_weights) -> distance per class`, and `sampler` a function
            `iteration -> torch.nn.Module`.

    Returns:
        The condensed set.

    Raises:
        UserError: If an argument is invalid, a class has fewer than `ipc` images, or training diverges.

    Example:
        >>> import condenset as cs
        >>> digits = cs.load("digits", verbose=False)
        >>> cs.condense(digits.train, "dm", ipc=1, iterations=5, device="cpu", verbose=False)
        CondensedSet(digits: 10 images of 1x8x8, 10 classes; dm, 1 per class)
        >>> cs.condense(digits.train, "random", ipc_share=0.05, verbose=False)
        CondensedSet(digits: 70 images of 1x8x8, 10 classes; random, 7 per class)
    """
    check_image_data("data", data)
    if not data.class_stream_ids:  # a step of a replay memory may have one class
        check_num_classes(data.class_names, data.name)
    if isinstance(method, Recipe):
        given = {"ipc": ipc, "ipc_share": ipc_share, "schedule": schedule}
        names = [name for name, value in given.items() if value is not None] + sorted(options)
        check(not names, "a recipe must come without other settings", names)
        recipe = dataclasses.replace(method, ipc=resolve_ipc(data, method.ipc, allow_fewer=method.allow_fewer))
        recipe = remove_unused_flip(recipe, allow_hflip=data.allow_hflip)
    else:
        if ipc is not None and ipc_share is not None:
            raise UserError("ipc and ipc_share exclude each other: give one of the two")
        allow_fewer = options.get("allow_fewer") is True
        numbers = resolve_ipc(data, Recipe.ipc if ipc is None else ipc, ipc_share, allow_fewer=allow_fewer)
        fields = name_functions(options)
        recipe = make_recipe_for(method, data, ipc=numbers, schedule=schedule, **fields)
    run = RunContext(
        seed=seed,
        compute=ComputeDevice.select(device, precision),
        memory_limit=None if memory_limit is None else parse_bytes(memory_limit),
        progress=make_progress(verbose),
    )
    if (network := getattr(recipe, "network", None)) and not has_own_sampler(recipe):
        check_network_fits(network, run.compute, channels=data.channels, size=data.size, num_classes=data.num_classes)
    entry = method_of(recipe)
    check_method_memory(entry.name, data, run.compute, run.memory_limit, zca=recipe.zca)
    engine_options = EngineOptions(engine=engine, address=address, gpus_per_worker=gpus_per_worker)
    if engine_options.engine != "local":
        check_divisible(recipe)
    with open_run_engine(engine_options, run.compute, verbose=verbose) as run.engine:
        if directory is None:
            return load_or_condense(None, entry.name, recipe, data, run)
        with open_work_directory(directory, run) as path:
            return load_or_condense(path / "condensed.safetensors", entry.name, recipe, data, run)


@torch_defaults()
def evaluate(
    train_set: CondensedSet | ImageData,
    test_set: ImageData | None,
    protocol: str | Protocol | None = None,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    gpus_per_worker: float = 1.0,
    verbose: bool = True,
    **options: Unpack[ProtocolOptions],
) -> Scores:
    """Train networks on a set and test them on real images.

    Args:
        train_set: A condensed set, or a whole dataset for comparison.
        test_set: The test images, such as `load("digits").test`. None, the test split of a dataset without one, raises
            an error.
        protocol: How many networks are trained, and how: "paper", "modern" or a `Protocol`. None: "paper".
        seed: The same seed gives the same scores.
        device: "cpu", "cuda" or "mps". Default: the fastest one available.
        precision: "float32" or "bfloat16". Default: bfloat16 on GPUs that support it.
        directory: Store finished networks here. Called again with the same arguments, `evaluate` continues. It computes
            with the number of CPU threads of the first call.
        engine: "local", or "ray" to divide the networks among workers.
        address: Address of a Ray cluster, such as "auto" or "ray://HOST:PORT". None: a Ray of this machine.
        gpus_per_worker: GPUs of each Ray worker; 0.5 for two workers per GPU.
        verbose: Show progress.
        **options: Fields that differ from the named protocol (see `help(cs.Protocol)`). `network` is a spec, or a
            builder `(channels, size, num_classes) -> torch.nn.Module`. Default: the network that the set was
            condensed with.

    Returns:
        The test accuracy of each network, with mean and standard deviation.

    Raises:
        UserError: If an argument is invalid, the sets do not have the same image shape and classes, or the test images
            are a hold-out of images that were all used to make the set.

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
    assert test_set is not None
    check_num_classes(test_set.class_names, test_set.name)
    if isinstance(protocol, Protocol):
        check(not options, "a protocol with all its fields must come without other settings", sorted(options))
    else:
        name = {} if protocol is None else {"protocol": protocol}
        protocol = protocol_for(train_set, test_set, **name, **options)
    run = RunContext(
        seed=seed,
        compute=ComputeDevice.select(device, precision),
        progress=make_progress(verbose),
    )
    if isinstance(train_set, CondensedSet):
        with limit_progress(verbose):
            check_overlap_in_memory(train_set, test_set)
    engine_options = EngineOptions(engine=engine, address=address, gpus_per_worker=gpus_per_worker)
    with open_run_engine(engine_options, run.compute, verbose=verbose) as run.engine:
        if directory is None:
            return score_set(train_set, test_set, protocol, run)
        with open_work_directory(directory, run):
            return score_set(train_set, test_set, protocol, run)
