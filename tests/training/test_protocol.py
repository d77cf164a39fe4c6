"""The evaluation protocol and its presets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

import condenset as cs
from condenset.training.protocol import Protocol, make_protocol, training_protocol, without_overridden


def test_defaults_are_those_of_the_paper() -> None:
    protocol = Protocol()
    assert (protocol.num_networks, protocol.lr, protocol.momentum) == (20, 0.01, 0.9)
    assert (protocol.weight_decay, protocol.batch_size) == (5e-4, 256)
    assert (protocol.epochs, protocol.total_epochs, protocol.lr_factors(256)) == (1000, 1001, {501: 0.1})


def test_steps_of_a_training() -> None:
    protocol = Protocol(epochs=3, batch_size=8)
    assert (protocol.training_steps(21), protocol.lr_factors(21)) == (12, {6: 0.1})
    by_steps = Protocol(steps=7, batch_size=8)
    assert (by_steps.training_steps(21), by_steps.lr_factors(21)) == (7, {4: 0.1})


def test_modern_protocol() -> None:
    protocol = Protocol.modern()
    assert (protocol.schedule, protocol.epochs, protocol.batch_size, protocol.cutmix) == ("modern", 1500, 64, 0.5)
    assert protocol.augment == "flip+color+crop_scale_rotate"
    assert (protocol.lr, protocol.momentum, protocol.weight_decay) == (0.01, 0.9, 5e-4)  # as in the paper
    assert (protocol.network, protocol.num_networks, protocol.learned_steps) == ("convnet", 20, False)
    assert Protocol.modern(epochs=3, cutmix=0.1) == dataclasses.replace(protocol, epochs=3, cutmix=0.1)
    assert Protocol().resets_momentum and not protocol.resets_momentum


def test_steps_and_rates_of_the_modern_protocol() -> None:
    protocol = Protocol.modern()
    assert protocol.total_epochs == 1500  # no further epoch
    assert protocol.training_steps(100) == 3000
    assert protocol.lr_factors(100) == {2000: 0.2, 2500: 0.2}
    by_steps = Protocol.modern(steps=7)
    assert (by_steps.training_steps(100), by_steps.lr_factors(100)) == (7, {4: 0.2, 5: 0.2})


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 6, 100])
def test_modern_protocol_lowers_the_rate_twice_for_any_number_of_steps(num_steps: int) -> None:
    factors = Protocol.modern(steps=num_steps).lr_factors(100)
    assert math.prod(factors.values()) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": "cosine"}, "schedule must be one of paper, modern, constant, but got 'cosine'"),
        ({"cutmix": 1.5}, "cutmix must be a probability, from 0 to 1, but got 1.5"),
        ({"cutmix": -0.1}, "cutmix must be .*, but got -0.1"),
        ({"cutmix": "0.5"}, "cutmix must be .*, but got '0.5'"),
    ],
)
def test_invalid_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=rf"\A{message}\Z"):
        Protocol(**fields)


def test_presets() -> None:
    assert make_protocol(name="cifar10", size=32) == Protocol()
    assert make_protocol(name="cifar10", size=32, whole=True).epochs == 200
    assert make_protocol(name="digits", size=8, lr=0.5).lr == 0.5
    assert make_protocol(name="digits", size=8).num_networks == 3
    assert make_protocol(name="digits", size=16).num_networks == 20


def test_presets_of_the_modern_protocol() -> None:
    modern = Protocol.modern()
    assert make_protocol(name="cifar10", size=32, protocol="modern") == modern
    whole = make_protocol(name="cifar10", size=32, whole=True, protocol="modern")
    assert whole == dataclasses.replace(modern, epochs=200, batch_size=256)
    digits, paper_digits = (make_protocol(name="digits", size=8, protocol=name) for name in ("modern", "paper"))
    quick = {name: getattr(paper_digits, name) for name in ("network", "num_networks", "epochs")}
    assert digits == dataclasses.replace(modern, **quick)


def test_the_name_of_a_protocol_overrides_recorded_fields() -> None:
    recorded = {"network": "mlp", "num_networks": 3, "epochs": 7, "lr": 0.5, "steps": 9}
    assert without_overridden(recorded, {"protocol": "modern"}) == {"network": "mlp", "num_networks": 3}
    assert without_overridden(recorded, {"epochs": 8}).keys() == {"network", "num_networks", "epochs", "lr"}


def test_overridden_options_are_refused() -> None:
    with pytest.raises(cs.UserError, match="steps= replaces epochs=: give only one of them"):
        training_protocol(name="", size=8, steps=3, epochs=3)
    with pytest.raises(cs.UserError, match="learned_steps must be false unless a set is evaluated, but got True"):
        training_protocol(name="", size=8, learned_steps=True)
    assert training_protocol(name="", size=8, defaults={"epochs": 3, "lr": 1.0}, epochs=4).epochs == 4


def test_network_may_be_a_builder() -> None:
    def my_network(channels: int, size: int, num_classes: int) -> object: ...

    assert Protocol(network=my_network).network == "my_network"  # type: ignore[arg-type]
    assert make_protocol(name="", size=8, network=my_network).network == "my_network"
    with pytest.raises(cs.UserError, match="a network must be a spec or a builder"):
        make_protocol(name="", size=8, network=3)
