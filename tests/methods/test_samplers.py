"""Samplers of trained networks: the state that each kind returns, and the network of the calibration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from condenset import networks
from condenset.methods.samplers import TrainedNetworks

NUM_NETWORKS, NUM_STATES, NUM_STEPS = 3, 5, 80
NETWORK = networks.build("convnet(width=2, depth=1)", channels=1, size=8, num_classes=3)
NUM_PARAMETERS = sum(parameter.numel() for parameter in NETWORK.parameters())
WEIGHTS = torch.randn(NUM_NETWORKS, NUM_STATES, NUM_PARAMETERS, generator=torch.Generator().manual_seed(0))
KINDS = ("final", "checkpoints", "interpolated")


def make_sampler(kind: str, seed: int = 1, lookahead: int | None = None) -> TrainedNetworks:
    return TrainedNetworks(NETWORK, WEIGHTS, seed, kind, lookahead=lookahead)


def sample_all(sampler: TrainedNetworks) -> list[Tensor]:
    return [sampler.sample_weights(torch.tensor(step)) for step in range(NUM_STEPS)]


def sample_classifiers(sampler: TrainedNetworks) -> list[Tensor]:
    """Return the weights of the calibration network of every step."""
    steps = (sampler.sample_classifier(torch.tensor(step), torch.float32) for step in range(NUM_STEPS))
    return [torch.cat([parameters[name].flatten() for name, _ in NETWORK.named_parameters()]) for parameters in steps]


def find_state(weights: Tensor) -> tuple[int, int]:
    """Return the network and the state that have these weights."""
    ((network, state),) = (weights == WEIGHTS).all(2).nonzero().tolist()
    return network, state


def test_final_returns_the_last_state_of_any_network() -> None:
    states = [find_state(weights) for weights in sample_all(make_sampler("final"))]
    assert set(states) == {(network, NUM_STATES - 1) for network in range(NUM_NETWORKS)}


def test_checkpoints_returns_any_state_of_any_network() -> None:
    states = [find_state(weights) for weights in sample_all(make_sampler("checkpoints"))]
    assert set(states) == {(network, state) for network in range(NUM_NETWORKS) for state in range(NUM_STATES)}


def interpolation(weights: Tensor) -> tuple[int, float]:
    """Return the network whose initial and last state the weights are between, and the share of the initial one."""
    for network, states in enumerate(WEIGHTS):
        direction = states[0] - states[-1]
        share = float((weights - states[-1]) @ direction / direction.square().sum())
        if torch.allclose(weights, states[-1] + share * direction, atol=1e-5):
            return network, share
    raise AssertionError("the weights are not between two states")


def test_interpolated_returns_weights_between_the_first_and_the_last_state() -> None:
    pairs = [interpolation(weights) for weights in sample_all(make_sampler("interpolated"))]
    assert {network for network, _ in pairs} == set(range(NUM_NETWORKS))
    shares = sorted(share for _, share in pairs)
    assert 0 <= shares[0] < 0.1 and 0.9 < shares[-1] <= 1
    assert sum(shares) / NUM_STEPS == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_network_is_a_function_of_seed_and_step(kind: str) -> None:
    samplers = [make_sampler(kind, seed) for seed in (1, 1, 2)]
    first, again, other = (
        torch.stack([sampler.sample_weights(torch.tensor(step)) for step in range(10)]) for sampler in samplers
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["final", "interpolated"])
def test_calibration_uses_the_last_state_of_the_same_network(kind: str) -> None:
    sampler = make_sampler(kind)
    pairs = [
        (interpolation(weights)[0], find_state(classifier))
        for weights, classifier in zip(sample_all(sampler), sample_classifiers(sampler), strict=True)
    ]
    assert all(state == (network, NUM_STATES - 1) for network, state in pairs)


def test_calibration_is_up_to_lookahead_states_ahead() -> None:
    sampler = make_sampler("checkpoints", lookahead=2)
    ahead = set()
    for weights, classifier in zip(sample_all(sampler), sample_classifiers(sampler), strict=True):
        (network, state), (later_network, later) = find_state(weights), find_state(classifier)
        assert later_network == network
        assert later <= NUM_STATES - 1
        if state + 2 < NUM_STATES:
            ahead.add(later - state)
        else:
            assert state <= later
    assert ahead == {0, 1, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_lacks_the_classifier(kind: str) -> None:
    sampler, clock = make_sampler(kind), torch.tensor(7)
    names = {name for name, _ in NETWORK.named_parameters()}
    assert set(sampler.sample_classifier(clock, torch.float32)) == names
    parameters = sampler.sample(clock, torch.bfloat16)
    assert set(parameters) == names - {"classifier.weight", "classifier.bias"}
    assert {value.dtype for value in parameters.values()} == {torch.bfloat16}
    expected = sampler.parameters.unflatten(sampler.sample_weights(clock), torch.bfloat16)
    assert all(torch.equal(value, expected[name]) for name, value in parameters.items())
    assert not sampler.state
