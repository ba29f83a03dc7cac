"""Figures about a text: against answers known by hand, and against all there is to try."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.harness.text.figures import common_prefix, distinct_2, longest_repeat

FEW = st.lists(st.integers(0, 2), max_size=14)
"""Ids that repeat themselves often."""


@pytest.mark.parametrize(
    ("ids", "share"),
    [
        ([], None),
        ([5], None),
        ([5, 5], 1.0),
        ([5, 5, 5], 0.5),
        ([1, 2, 1], 1.0),  # (1, 2) and (2, 1) are two
        ([1, 2, 1, 2, 1], 0.5),
        ([7] * 101, 0.01),
        (list(range(60)), 1.0),
    ],
)
def test_distinct_2_of_a_few(ids: list[int], share: float | None) -> None:
    assert distinct_2(ids) == share


@given(FEW.filter(lambda ids: len(ids) > 1))
def test_distinct_2_is_the_share_of_pairs_that_are_new(ids: list[int]) -> None:
    new = sum((ids[n], ids[n + 1]) not in _pairs(ids[: n + 1]) for n in range(len(ids) - 1))
    assert distinct_2(ids) == new / (len(ids) - 1)


def _pairs(ids: list[int]) -> list[tuple[int, int]]:
    return [(ids[n], ids[n + 1]) for n in range(len(ids) - 1)]


@pytest.mark.parametrize(
    ("ids", "run"),
    [
        ([], []),
        ([1], []),
        ([1, 2], []),
        ([1, 1], [1]),
        ([1, 1, 1], [1]),  # twice two would overlap
        ([1, 1, 1, 1], [1, 1]),
        ([1, 2, 1, 2, 1], [1, 2]),
        ([1, 2, 3, 9, 1, 2, 3], [1, 2, 3]),
        ([1, 2, 8, 3, 4, 9, 3, 4, 7, 1, 2], [1, 2]),  # the first of two
        ([3, 4, 9, 1, 2, 8, 1, 2, 7, 3, 4], [3, 4]),
        ([0, 1, 2, 3, 1, 2, 3, 4], [1, 2, 3]),
        ([5, 6] * 30, [5, 6] * 15),
    ],
)
def test_longest_repeat_of_a_few(ids: list[int], run: list[int]) -> None:
    assert longest_repeat(ids) == run


def _brute(ids: Sequence[int]) -> list[int]:
    for length in range(len(ids), 0, -1):
        for first in range(len(ids) - length + 1):
            for again in range(first + length, len(ids) - length + 1):
                if ids[first : first + length] == ids[again : again + length]:
                    return list(ids[first : first + length])
    return []


@given(FEW)
def test_longest_repeat_is_the_longest_and_the_first(ids: list[int]) -> None:
    assert longest_repeat(ids) == _brute(ids)


@given(st.lists(st.integers(), max_size=8), st.lists(st.integers(), max_size=8), FEW, FEW)
def test_a_run_that_comes_twice_is_found(
    before: list[int], between: list[int], run: list[int], after: list[int]
) -> None:
    assert len(longest_repeat([*before, *run, *between, *run, *after])) >= len(run)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ([], [], 0),
        ([], [1], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [1, 9, 3], 1),  # what agrees after they parted counts no more
        ([9, 2], [1, 2], 0),
    ],
)
def test_common_prefix_of_a_few(one: list[int], other: list[int], shared: int) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == shared


@given(FEW, FEW, FEW)
def test_common_prefix_is_the_longest(start: list[int], one: list[int], other: list[int]) -> None:
    one, other = start + one, start + other
    shared = common_prefix(one, other)
    assert shared >= len(start)
    assert one[:shared] == other[:shared]
    assert shared == min(len(one), len(other)) or one[shared] != other[shared]


def test_tuples_do_as_well_as_lists() -> None:
    assert longest_repeat((1, 2, 1, 2)) == [1, 2]
    assert common_prefix((1, 2), [1, 2]) == 2
