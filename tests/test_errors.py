"""Argument checks: the values they accept and the messages they raise."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest
import torch

import condenset as cs
from condenset.errors import (
    UserError,
    check,
    check_choice,
    check_int,
    check_path_encoding,
    check_type,
    describe_value,
    format_error,
    format_names,
    is_int,
    is_number,
    safe_repr,
)

HUGE = 10**5000  # Python refuses to print it


@pytest.mark.parametrize("value", [1, -1.5, np.float32(1), np.float64(0.5), np.float16(2), np.int64(3), Fraction(1, 2)])
def test_numbers(value: object) -> None:
    assert is_number(value)


@pytest.mark.parametrize(
    "value", [True, np.True_, "1", None, float("nan"), np.float32("inf"), 1j, np.zeros(1), torch.tensor(1.0)]
)
def test_other_values_are_not_numbers(value: object) -> None:
    assert not is_number(value) and not is_number(HUGE)


def test_integers() -> None:
    assert is_int(3) and is_int(np.int64(3)) and is_int(np.uint8(3))
    assert not any(map(is_int, (True, np.True_, 3.0, np.float32(3), "3", None)))


def test_check_int_returns_a_python_int() -> None:
    assert type(check_int("ipc", np.int32(3), 1)) is int
    with pytest.raises(UserError, match=r"^ipc must be a whole number, 1 or more, but got 0$"):
        check_int("ipc", 0, 1)
    with pytest.raises(UserError, match=r"^seed must be a whole number, but got 1\.5$"):
        check_int("seed", 1.5)
    with pytest.raises(UserError, match=r"^seed must be a whole number of at most 64 bits, but got a number of"):
        check_int("seed", HUGE)


@pytest.mark.parametrize("lr", [np.float32(1), np.float64(1), np.int64(1), 1])
def test_recipes_and_protocols_accept_numpy_numbers(lr: float) -> None:
    assert type(cs.DMRecipe(ipc=1, lr=lr).lr) is float
    assert type(cs.Protocol(lr=lr).lr) is float
    assert cs.Protocol(momentum=np.float32(0.5)).momentum == 0.5
    assert cs.Protocol(num_networks=np.int64(3)).num_networks == 3


def test_messages_print_numpy_numbers_plainly() -> None:
    with pytest.raises(UserError, match=r"^lr must be a number above 0, but got -1\.0$"):
        cs.Protocol(lr=np.float32(-1))


def test_check_names_the_rule_and_the_value() -> None:
    check(True, "x must be 1", 1)
    with pytest.raises(UserError, match=r"^x must be 1, but got 'two'$"):
        check(False, "x must be 1", "two")
    with pytest.raises(UserError, match=r"^x must be text, but got list$"):
        check_type([1], str, "x must be text")


def test_check_choice_suggests_the_nearest_choice() -> None:
    check_choice("method", "dm", ["dm", "dc"])
    with pytest.raises(UserError, match=r"^method cannot be 'hearding'; did"):
        check_choice("method", "hearding", ["herding", "random"])
    with pytest.raises(UserError, match=r"^method must be one of dm, but got 7$"):
        check_choice("method", 7, ["dm"])


def test_message_is_one_printable_line() -> None:
    assert str(UserError("red\x1b[31m\nßx")) == "red\\x1b[31m ßx"


def test_values_in_messages_are_short() -> None:
    assert safe_repr(HUGE) == "a number of thousands of digits"
    descriptions = [describe_value(value) for value in (None, "a", 1, int, [1])]
    assert descriptions == ["None", "'a'", "1", "the class int", "list"]
    assert format_names(["a", "b", "c"], 2) == "'a', 'b', …"
    assert format_error(OSError(28, "No space left on device")) == "No space left on device"
    assert format_error(ValueError("a\nb")) == "a b" and format_error(KeyError()) == "KeyError"


def test_path_must_be_utf8() -> None:
    check_path_encoding("ä")
    with pytest.raises(UserError, match="a path must be text in UTF-8"):
        check_path_encoding(os.fsdecode(b"\xff"))


def test_warnings_point_at_the_call_of_the_user() -> None:
    images, labels = np.ones((4, 8, 8), np.uint8), [0, 0, 1, 1]
    with pytest.warns(UserWarning, match="255 is white") as shallow:
        data = cs.from_arrays(images, labels)
    condensed = cs.condense(data, method="random", ipc=1, device="cpu", verbose=False)
    with pytest.warns(UserWarning, match="its accuracy is too high") as deep:  # through the decorator `torch_defaults`
        cs.evaluate(condensed, data, network="mlp(width=4)", num_networks=1, epochs=0, device="cpu", verbose=False)
    assert {item.filename for item in (*shallow, *deep)} == {__file__}
