"""Helpers that several methods use: initial images, the Adam step, and the finished set."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from condenset import __version__, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import MAX_NAMES, expand_ipc, format_ipc
from condenset.data.partition import UNPARTITIONED, NormalizedParts, PartLayout
from condenset.data.set_checks import is_finite
from condenset.data.stores.class_store import ClassStore
from condenset.data.transform import denormalize
from condenset.engine import rng
from condenset.errors import UserError, check, has_option, option
from condenset.methods.recipe import Recipe
from condenset.methods.registry import method_of
from condenset.runs.context import RunContext

ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8
REPEAT_NOISE = 0.1  # standard deviation, of normalised images
MIN_PARTITION_SIZE = 16  # pixels; the parts of smaller images show too little


def images_per_class(data: ImageData, recipe: Recipe) -> list[int]:
    """Return the number of images of each class in the set; raise if a class is too small and `allow_fewer` is off."""
    first = data.first_class
    ipcs = expand_ipc(recipe.ipc, len(data.all_class_names))[first : first + data.num_classes]
    classes = list(zip(data.class_counts, ipcs, data.class_names, strict=True))
    for count, _, name in classes:
        if count == 0:
            raise UserError(f"class {name!r} has no images")
    small = [(count, ipc, name) for count, ipc, name in classes if count < ipc]
    if small and not recipe.allow_fewer:
        has_share = has_option("ipc_share") and not data.class_stream_ids  # a step of a replay memory has the ids
        share = f", or {option('ipc_share', 0.1)} for a share of each class" if has_share else ""
        raise UserError(
            f"ipc must be at most the size of every class, but got {_describe_small_classes(small)}: "
            f"give a smaller ipc, or {option('allow_fewer', True)} to use all{share}"
        )
    return [min(count, ipc) for count, ipc, _ in classes]


def max_images_per_class(data: ImageData, recipe: Recipe) -> int:
    """Return the largest number of images of a class in the set of the whole dataset."""
    if data.whole is None:
        return max(images_per_class(data, recipe))
    counts = data.whole.class_counts
    return max(min(count, ipc) for count, ipc in zip(counts, expand_ipc(recipe.ipc, len(counts)), strict=True))


def _describe_small_classes(small: list[tuple[int, int, str]]) -> str:
    """Describe the classes with too few images, given as (number of images, ipc, name); the smallest come first."""
    ordered = sorted(small, key=lambda item: item[0])
    ipcs = format_ipc([ipc for _, ipc, _ in small])
    if len(ordered) == 1:
        count, _, name = ordered[0]
        return f"{ipcs} and class {name!r} has only {count} training {'image' if count == 1 else 'images'}"
    names = ", ".join(f"{name!r} ({count})" for count, _, name in ordered[:MAX_NAMES])
    more = ", …" if len(ordered) > MAX_NAMES else ""
    return f"{ipcs} and {len(ordered)} classes have fewer training images, {names}{more}"


def describe_job(*recipes: Recipe) -> str:
    """Return the label of the progress bar, such as "dm, 1, 10 per class" for two sets that are learned at once."""
    ipcs = ", ".join(format_ipc(recipe.ipc) for recipe in recipes)
    return f"{method_of(recipes[0]).name}, {ipcs} per class"


def class_labels(counts: list[int]) -> Tensor:
    """Return (N,) labels of images in class order, `counts` per class."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def remove_padding(images_KICHW: Tensor, counts: list[int]) -> Tensor:
    """Return (N, C, H, W): the first `count` images of every class, in class order."""
    return torch.cat([images[:count] for images, count in zip(images_KICHW, counts, strict=True)])


def mean_weights(counts: list[int], width: int) -> Tensor:
    """Return (K, width) weights of a mean over each row: 1/count for the first `count` images, 0 for padding."""
    count_K1 = torch.tensor(counts, dtype=torch.float32)[:, None]
    return (torch.arange(width) < count_K1).float() / count_K1


def initial_images(store: ClassStore, init: str, seed: int, num: int, classes_K: Tensor | None = None) -> Tensor:
    """Return (K, num, C, H, W) normalised images to start from: random real images of the class, or noise.

    A class with fewer than `num` images repeats them with noise, because equal images would stay equal.
    """
    device = store.counts.device
    key = rng.make_key(seed, "init", device=device)
    if classes_K is None:
        classes_K = torch.arange(len(store.counts), device=device)
    if init == "real":
        num_sampled = min(num, store.max_count)
        indices_KN = store.sample_class_indices(key, 0, classes_K, num_sampled)
        counts_K1, numbers_N = store.counts[classes_K].clamp(max=num_sampled)[:, None], torch.arange(num, device=device)
        images_KNCHW = store.take_normalized(indices_KN.gather(1, numbers_N % counts_K1))
        is_repeated_KN = numbers_N >= counts_K1
        if not bool(is_repeated_KN.any()):
            return images_KNCHW
        noise_key, streams_K = rng.make_key(seed, "init noise", device=device), store.stream_ids(classes_K)
        noise_KNCHW = rng.normal(noise_key, 0, streams_K, images_KNCHW[0].numel()).view_as(images_KNCHW)
        return images_KNCHW + REPEAT_NOISE * noise_KNCHW * is_repeated_KN[:, :, None, None, None]
    shape = (num, *store.image_shape)
    return rng.normal(key, 0, store.stream_ids(classes_K), math.prod(shape)).view(-1, *shape)


def initial_stored_images(store: ClassStore, init: str, seed: int, num: int, parts: NormalizedParts) -> Tensor:
    """Return (K, num, C, H, W) stored images to start from, which hold real images.

    The images are encoded class by class, because they need more memory than the stored ones.
    """
    num_parts = parts.layout.num_parts
    if init == "noise":
        mean_images = torch.zeros(num_parts, *store.image_shape, device=store.counts.device)
        return initial_images(store, init, seed, num) + parts.encode(mean_images)
    classes = torch.arange(len(store.counts), device=store.counts.device).split(1)
    return torch.cat([parts.encode(initial_images(store, init, seed, num * num_parts, row)) for row in classes])


def default_partition(size: int) -> int:
    """Return the published partition into 2 x 2 parts, or 1 for small images and for those that it does not divide."""
    return 2 if size >= MIN_PARTITION_SIZE and size % 2 == 0 else 1


def adam_step(
    values: Tensor,
    gradient: Tensor,
    moments: Tensor,
    clock: Tensor,
    lr: float | Tensor,
    betas: tuple[float, float] = ADAM_BETAS,
) -> None:
    """Update `values` in place by one step of Adam.

    Args:
        values: What is learned.
        gradient: Its gradient.
        moments: (2, ...) running means of the gradient and of its square.
        clock: Number of earlier steps.
        lr: Learning rate.
        betas: Decay rates of the two running means.
    """
    mean, square = moments
    mean.lerp_(gradient, 1 - betas[0])
    square.lerp_(gradient.square(), 1 - betas[1])
    unbiased_mean, unbiased_square = (
        moment / (1 - beta ** (clock + 1)) for moment, beta in zip((mean, square), betas, strict=True)
    )
    values.sub_(lr * unbiased_mean / (unbiased_square.sqrt() + ADAM_EPSILON))


def build_condensed_set(
    images_NCHW: Tensor,
    labels: Tensor,
    data: ImageData,
    recipe: Recipe,
    run: RunContext,
    seconds: float,
    step_sizes: Tensor | None = None,
    layout: PartLayout = UNPARTITIONED,
    **provenance: Any,
) -> CondensedSet:
    """Build the set of normalised images, in pixel space on the host, with its provenance.

    Args:
        images_NCHW: Normalised images, as the set stores them.
        labels: Hard labels (N,) or soft labels (N, K).
        data: The source dataset.
        recipe: The settings it was made by.
        run: The run that made it.
        seconds: Time of condensing.
        step_sizes: Learned step sizes of gradient descent, if the method learns them.
        layout: How a stored image holds several images.
        provenance: Further entries of the provenance.
    """
    rule = f"the images of the method {method_of(recipe).name} must be finite"
    check(not images_NCHW.numel() or is_finite(images_NCHW), rule, "NaN or infinity")
    mean, std = layout.stored_stats(data.mean, data.std)
    return CondensedSet.decode(
        denormalize(images_NCHW.detach().float().cpu(), mean, std, data.whitening),
        partition=layout.partition,
        decoder=layout.decoder,
        labels=labels.cpu(),
        class_names=data.class_names,
        mean=data.mean,
        std=data.std,
        step_sizes=None if step_sizes is None else step_sizes.detach().float().cpu(),
        whitening=data.whitening,
        provenance=_make_provenance(data, recipe, run, seconds) | provenance,
    )


def _make_provenance(data: ImageData, recipe: Recipe, run: RunContext, seconds: float) -> dict[str, Any]:
    """Return how a set was made: method, settings, data, software and hardware."""
    compute = run.compute
    return {
        "method": method_of(recipe).name,
        **recipe_provenance(recipe),
        **describe_user_network(recipe, data),
        "seed": run.seed,
        "dataset": data.name,
        "source": data.source,
        **({"origin": dict(data.origin)} if data.origin else {}),
        "fingerprint": data.fingerprint,
        **({"parent_fingerprint": data.parent_fingerprint} if data.parent_fingerprint else {}),
        **({"split_fingerprint": data.split_fingerprint} if data.split_fingerprint else {}),
        "allow_hflip": data.allow_hflip,
        "version": __version__,
        "seconds": round(seconds, 3),
        "device": compute.device.type,
        "precision": compute.precision,
        "hardware": compute.hardware,
        **({"threads": compute.threads} if compute.threads else {}),
        "torch": str(torch.__version__),
        "peak_memory_bytes": compute.peak_memory(),
    }


def describe_user_network(recipe: Recipe, data: ImageData) -> dict[str, str]:
    """Return `network_digest` if a recipe has a network of the user, whose code can change; else {}."""
    if (spec := getattr(recipe, "network", None)) is None:
        return {}
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    return networks.describe_user_network(spec, **shape)


def recipe_provenance(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a set, and those that decide the result if they have other values, such as a hash."""
    fields, identity = recipe.to_dict(), recipe.identity()
    return {"recipe": fields, **({"recipe_identity": identity} if fields != {**fields, **identity} else {})}
