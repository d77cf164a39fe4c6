"""Every example runs on digits; those that train have the accuracy of `cs.evaluate`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import condenset as cs

EXAMPLES = Path(__file__).parents[1] / "examples"
NETWORK, EPOCHS, IPC = "convnet(width=8, depth=1)", 60, 10
TOLERANCE = 0.08  # three standard deviations of the difference


def load_example(name: str, **constants: Any) -> Callable[..., Any]:
    """Return the main function of an example, with other constants."""
    variables = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    main = variables["main"]
    main.__globals__.update(constants)
    assert set(constants) <= set(variables)
    return main  # type: ignore[no-any-return]


def evaluate_random(**options: Any) -> float:
    """Return the accuracy of random images by `cs.evaluate`."""
    data = cs.load("digits", verbose=False)
    condensed = cs.condense(data.train, "random", ipc=IPC, verbose=False)
    return cs.evaluate(condensed, data.test, num_networks=2, device="cpu", verbose=False, **options).mean


def test_the_table_has_every_example() -> None:
    table = (EXAMPLES / "README.md").read_text()
    files = [path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")]
    assert [path.name for path in files if f"[{path.name}]({path.name})" not in table] == []
    assert [path.name for path in files if path.suffix == ".py" and len(path.read_text().splitlines()) >= 60] == []


@pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and deprecated functions
@pytest.mark.parametrize("name", ["train_pytorch", "train_lightning"])
def test_training_has_the_accuracy_of_evaluate(name: str) -> None:
    accuracy = load_example(name, NETWORK=NETWORK)("random", epochs=EPOCHS)
    assert accuracy == pytest.approx(evaluate_random(network=NETWORK, epochs=EPOCHS), abs=TOLERANCE)


def test_training_with_scikit_learn_has_the_accuracy_of_evaluate() -> None:
    accuracies = load_example("train_sklearn")("random", recipe={}, ipc=IPC)
    expected = evaluate_random(network="mlp", epochs=200, augment="none")
    assert accuracies["multilayer perceptron"] == pytest.approx(expected, abs=TOLERANCE)
    assert min(accuracies.values()) > 0.7


def test_own_folder(tmp_path: Path) -> None:
    write_digits = runpy.run_path(str(EXAMPLES / "own_folder.py"))["write_digits"]
    accuracy = load_example("own_folder")(write_digits(tmp_path / "digits"), method="random", epochs=1)
    assert 0 <= accuracy <= 1
    assert len(list((tmp_path / "condensed").rglob("*.png"))) == 100
    assert len(cs.CondensedSet.load("condensed.safetensors")) == 100


def test_continual_learning() -> None:
    accuracies = load_example("continual_learning", NETWORK=NETWORK)("random", recipe={}, epochs=EPOCHS)
    assert len(accuracies) == 5
    assert accuracies[0] > 0.9 and accuracies[-1] > 0.5


def test_architecture_search() -> None:
    ranking, accuracy = load_example("architecture_search")("random", epochs=2, whole_epochs=1)
    assert len(ranking.rows) == 16
    assert all(row.accuracy is not None for row in ranking.rows)
    assert 0 <= accuracy <= 1


def test_federated() -> None:
    evaluation = {"network": NETWORK, "num_networks": 2}
    accuracy = load_example("federated", EVALUATION=evaluation)("random", epochs=EPOCHS)
    assert accuracy == pytest.approx(evaluate_random(network=NETWORK, epochs=EPOCHS), abs=TOLERANCE)
