"""The evaluation protocol and its presets."""

from __future__ import annotations

import pytest

import condenset as cs
from condenset.training.protocol import Protocol, make_protocol, training_protocol


def test_defaults_are_those_of_the_paper() -> None:
    protocol = Protocol()
    assert (protocol.num_networks, protocol.lr, protocol.momentum) == (20, 0.01, 0.9)
    assert (protocol.weight_decay, protocol.batch_size) == (5e-4, 256)
    assert (protocol.epochs, protocol.total_epochs, protocol.lr_drop_epoch) == (1000, 1001, 501)


def test_steps_of_a_training() -> None:
    protocol = Protocol(epochs=3, batch_size=8)
    assert protocol.training_steps(21) == (12, 6)
    assert Protocol(steps=7, batch_size=8).training_steps(21) == (7, 4)


def test_presets() -> None:
    assert make_protocol(name="cifar10", size=32) == Protocol()
    assert make_protocol(name="cifar10", size=32, whole=True).epochs == 200
    assert make_protocol(name="digits", size=8, lr=0.5).lr == 0.5
    assert make_protocol(name="digits", size=8).num_networks == 3
    assert make_protocol(name="digits", size=16).num_networks == 20


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
