"""Steps that are captured as graphs need nothing from the host: they run on meta tensors, which have no values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from condenset.engine import ComputeDevice
from condenset.methods.common import images_per_class
from condenset.methods.generative.adversarial import AdversarialTraining
from condenset.methods.generative.gmmn import GMMNTraining
from condenset.methods.generative.vae import VAETraining
from condenset.methods.gradient.cafe import FeatureAlignment
from condenset.methods.gradient.dcc import JointGradientMatching
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.gradient.idc import EfficientMatching
from condenset.methods.matching import dm, mmd
from condenset.methods.matching.objectives import make_objective
from condenset.methods.regression.kip import KernelInducingPoints
from condenset.methods.regression.ld import LabelDistillation
from condenset.methods.unrolled.dd import DatasetDistillation
from condenset.methods.unrolled.gtn import GenerativeTeaching
from condenset.methods.unrolled.mtt import TrajectoryMatching, load_or_train_experts
from condenset.runs.context import RunContext
from condenset.training.dataset import DeviceDataset
from condenset.training.forgetting import ForgettingCounter
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import tiny_recipe

CPU = ComputeDevice.select("cpu")
META = torch.device("meta")
EQUAL, UNEQUAL = [6, 6, 6], [6, 2, 5]


class NoHostTensors(TorchDispatchMode):
    """Refuse operations on tensors of the host, except scalars, which are part of a launch unless they are copied."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, output)):
            if isinstance(leaf, Tensor) and leaf.device != META:
                assert leaf.dim() == 0 and "copy" not in func.name(), f"{func.name()} uses a tensor of the host"
        return output


class NoHostNumbers(TorchFunctionMode):
    """Refuse tensors made from numbers of the host, which would have to be copied to the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        creates = func in (torch.tensor, torch.as_tensor, torch.from_numpy) and not isinstance(args[0], Tensor)
        assert not creates, f"{func.__name__} uses numbers of the host"
        return func(*args, **(kwargs or {}))


def to_meta(value: Any, visited: dict[int, Any]) -> Any:
    """Move all tensors of an object, at any depth, to the meta device."""
    if isinstance(value, torch.device):
        return META
    if isinstance(value, ComputeDevice):
        return ComputeDevice(META, value.dtype)
    if isinstance(value, Tensor):
        if id(value) not in visited:
            visited[id(value)] = (value.to(META), value)
        return visited[id(value)][0]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_meta(item, visited) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_meta(item, visited) for item in value)
    if isinstance(value, dict):
        return {key: to_meta(item, visited) for key, item in value.items()}
    if isinstance(value, nn.Module):
        return value.to(META)
    if type(value).__module__.startswith("condenset.") and hasattr(value, "__dict__") and id(value) not in visited:
        visited[id(value)] = value
        for name, item in vars(value).items():
            object.__setattr__(value, name, to_meta(item, visited))
    return value


def take_step(trainer: Trainer) -> None:
    """Take a training step on four images."""
    offsets = torch.arange(4, device=META)
    trainer._step(offsets, trainer._random_streams(offsets))


def run_on_meta(owner: Any, *steps: Callable[[], None]) -> None:
    """Run steps of an object without values; reading a value, or a shape that depends on one, fails by itself."""
    to_meta(owner, {})
    assert owner is None or owner.clock.device == META
    for step in steps:
        with NoHostNumbers(), NoHostTensors():
            step()


def make_problem(owner: Any, method: str, counts: list[int], **fields: Any) -> Any:
    data = tiny_data(counts)
    recipe = tiny_recipe(method, ipc=3, batch_size=5, **fields)
    return owner(data, recipe, RunContext(compute=CPU), images_per_class(data, recipe))


@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_methods_with_a_network(counts: list[int], norm: str) -> None:
    network = f"convnet(width=8, depth=2, norm={norm!r})"
    recipe: Any = tiny_recipe("dm", ipc=3, batch_size=5, network=network)
    matching = dm.make_problem(tiny_data(counts), [recipe], RunContext(compute=CPU))
    run_on_meta(matching, matching.step)
    dd = make_problem(DatasetDistillation, "dd", counts, network=network, steps=2, epochs=2)
    run_on_meta(dd, dd.step)
    ld = make_problem(LabelDistillation, "ld", counts, network=network)
    run_on_meta(ld, ld.step)
    for method in ("dc", "dsa"):
        gradient_matching = make_problem(GradientMatching, method, counts, network=network)
        trainer = gradient_matching.trainer
        step = functools.partial(take_step, trainer)
        run_on_meta(
            gradient_matching, gradient_matching.sample_network, gradient_matching.match, trainer._shuffle, step
        )


@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("method", "owner"), [("dcc", JointGradientMatching), ("idc", EfficientMatching), ("cafe", FeatureAlignment)]
)
def test_variants_of_gradient_matching(method: str, owner: Any, counts: list[int]) -> None:
    problem = make_problem(owner, method, counts)
    run_on_meta(problem, problem.sample_network, problem.match)


def test_trajectory_matching() -> None:
    data, run = tiny_data(UNEQUAL), RunContext(compute=CPU)
    recipe: Any = tiny_recipe("mtt", ipc=3, student_batch=4, augment="color+crop")
    weights_ESP, _ = load_or_train_experts(data, recipe, run)
    problem = TrajectoryMatching(data, recipe, run, images_per_class(data, recipe), weights_ESP)
    run_on_meta(problem, problem.step)


@pytest.mark.parametrize(
    ("objective", "sampler", "counts"),
    [
        ("mean", "queue", UNEQUAL),
        ("covariance", "checkpoints", EQUAL),
        ("kernel", "interpolated", UNEQUAL),
        ("characteristic(frequencies=8)", "final", UNEQUAL),
    ],
)
def test_parts_of_distribution_matching(objective: str, sampler: str, counts: list[int]) -> None:
    parts: dict[str, Any] = {"partition": 2, "clamp": True, "average": 0.5, "lr_decay": True, "features": "attention"}
    recipe: Any = tiny_recipe(
        "dm", ipc=3, batch_size=5, objective=objective, sampler=sampler, calibration=1.0, augment="color+crop", **parts
    )
    matching = dm.make_problem(tiny_data(counts), [recipe], RunContext(compute=CPU))
    to_meta(matching, {})
    matching.objective = make_objective(objective, 0, matching.clock)  # it holds tensors that `to_meta` cannot reach
    matching.sets.decode(matching.sets.images_KICHW)  # stores the matrix that upsamples, as a warm-up step does
    run_on_meta(matching, matching.step)


@pytest.mark.parametrize("objective", ["mean", "kernel"])
def test_objectives_on_pixels(objective: str) -> None:
    for counts in (EQUAL, UNEQUAL):
        recipe: Any = tiny_recipe("mmd", ipc=3, batch_size=5, objective=objective)
        matching = mmd.make_problem(tiny_data(counts), recipe, RunContext(compute=CPU))
        run_on_meta(matching, matching.step)


@pytest.mark.parametrize(
    ("method", "owner"), [("gmmn", GMMNTraining), ("vae", VAETraining), ("gan", AdversarialTraining)]
)
def test_generators(method: str, owner: Any) -> None:
    training = owner(tiny_data(UNEQUAL), tiny_recipe(method), RunContext(compute=CPU))
    run_on_meta(training, training.step)


def test_kernel_regression_and_teaching() -> None:
    for fields in ({"layers": "fc"}, {"layers": "conv", "learn_labels": True}, {"kernel": "features"}):
        kip = make_problem(KernelInducingPoints, "kip", UNEQUAL, **fields)
        run_on_meta(kip, kip.step)
    gtn = make_problem(GenerativeTeaching, "gtn", UNEQUAL)
    run_on_meta(gtn, gtn.step)


def test_training_with_a_forgetting_counter() -> None:
    data = DeviceDataset.from_data(tiny_data(EQUAL), CPU.device)
    counter = ForgettingCounter(len(data), CPU.device)
    trainer = Trainer("convnet(width=8, depth=2)", data, Protocol(), CPU, forgetting=counter)
    run_on_meta(trainer, trainer._shuffle, lambda: take_step(trainer))


def test_training_by_the_modern_protocol() -> None:
    data = DeviceDataset.from_data(tiny_data(EQUAL), CPU.device)
    trainer = Trainer("convnet(width=8, depth=2)", data, Protocol.modern(), CPU)
    run_on_meta(trainer, trainer._shuffle, lambda: take_step(trainer))


@pytest.mark.parametrize(
    "step",
    [
        lambda tensor: tensor.sum().item(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor + torch.tensor([1.0, 2.0, 3.0], device=META),
        lambda tensor: tensor * torch.as_tensor(2.0, device=META),
        lambda tensor: torch.repeat_interleave(tensor, torch.zeros(3, dtype=torch.int64, device=META)),
        lambda tensor: tensor.copy_(torch.ones(3)),
        lambda tensor: tensor[0].copy_(torch.ones(())),
    ],
)
def test_steps_that_need_the_host_are_detected(step: Callable[[Tensor], Any]) -> None:
    tensor = torch.zeros(3, device=META)
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        run_on_meta(None, lambda: step(tensor))
