"""Counter-based random numbers: known answers, and independence of what else is drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from condenset.engine import rng

KEY = rng.make_key(7, "test")


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # published test vectors of Philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tuple(map(int, rng.philox(words(*counter), words(*key)))) == expected  # type: ignore[arg-type]


@given(
    rows=st.lists(st.integers(0, 1000), min_size=1, max_size=6, unique=True),
    num=st.integers(1, 13),
    step=st.integers(0, 2**40),
)
def test_a_row_does_not_depend_on_the_other_rows(rows: list[int], num: int, step: int) -> None:
    together = rng.uniform(KEY, step, torch.tensor(rows), num)
    for position, row in enumerate(rows):
        assert torch.equal(together[position], rng.uniform(KEY, step, torch.tensor([row]), num)[0])
        assert torch.equal(together[position, :1], rng.uniform(KEY, torch.tensor(step), torch.tensor([row]), 1)[0])


@pytest.mark.parametrize(("step", "num"), [(0, 0), (5, 1), (2**33 + 5, 14)])
def test_numpy_and_pytorch_compute_the_same_words(step: int, num: int) -> None:
    rows = torch.tensor([0, 3, 2**31 - 1])
    expected = rng._random_bits_in_pytorch(KEY, step, rows, num)
    assert expected.shape == (3, num)
    assert torch.equal(rng.random_bits(KEY, step, rows, num), expected)
    assert rng.uniform(KEY, step, rows[:0], num).shape == (0, num)


def test_keys_steps_rows_and_indices_give_different_numbers() -> None:
    rows = torch.arange(4)
    base = rng.random_bits(KEY, 5, rows, 8)
    assert len(base.unique()) == base.numel()
    for other in (
        rng.random_bits(rng.make_key(8, "test"), 5, rows, 8),
        rng.random_bits(rng.make_key(7, "other"), 5, rows, 8),
        rng.random_bits(KEY, 6, rows, 8),
        rng.random_bits(KEY, 5 + 2**32, rows, 8),
    ):
        assert not (other == base).any()


def test_moments_of_uniform_and_normal_numbers() -> None:
    uniform = rng.uniform(KEY, 0, torch.arange(50), 2001)
    assert 0 <= uniform.min() < 1e-3
    assert 0.999 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5e-3
    assert abs(uniform.var() - 1 / 12) < 2e-3
    normal = rng.normal(KEY, 0, torch.arange(50), 2001)
    assert normal.shape == (50, 2001)
    assert abs(normal.mean()) < 2e-2
    assert abs(normal.var() - 1) < 2e-2


@given(st.data())
def test_samples_have_no_repetition_and_stay_inside_their_class(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    num = data.draw(st.integers(1, max(counts)))
    rows = torch.arange(len(counts))
    samples = rng.sample_without_replacement(KEY, 3, rows, torch.tensor(counts), max(counts), num)
    for row, count in enumerate(counts):
        indices = samples[row, : min(num, count)].tolist()
        assert len(set(indices)) == len(indices)
        assert all(0 <= index < count for index in indices)
        assert samples[row, count:].eq(0).all()
        alone = rng.sample_without_replacement(KEY, 3, rows[row : row + 1], torch.tensor([count]), max(counts), num)
        assert torch.equal(alone[0], samples[row])


def test_every_index_is_sampled_equally_often() -> None:
    rows, counts = torch.arange(1), torch.tensor([6])
    hits = torch.zeros(6)
    for step in range(600):
        hits[rng.sample_without_replacement(KEY, step, rows, counts, 6, 2)[0]] += 1
    assert hits.sum() == 1200
    assert (hits - 200).abs().max() < 60


@given(num=st.integers(1, 50), step=st.integers(0, 100))
def test_permutation_has_every_index_once(num: int, step: int) -> None:
    assert sorted(rng.permutation(KEY, step, num).tolist()) == list(range(num))


def test_the_stream_of_a_class_depends_on_its_name_and_tags() -> None:
    rows = [rng.class_stream_id(*arguments) for arguments in (("a",), ("b",), ("a", 1), ("a", 2))]  # type: ignore[arg-type]
    assert len(set(rows)) == 4
    assert all(0 <= row < 2**31 for row in rows)


def test_the_global_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    rng.normal(KEY, 0, torch.arange(3), 5)
    rng.permutation(KEY, 0, 9)
    assert torch.equal(before, torch.get_rng_state())
