"""Figures that show whether a text repeats itself, computed from its ids, not its words."""

from collections.abc import Sequence
from itertools import pairwise


def distinct_2(ids: Sequence[int]) -> float | None:
    """Distinct pairs of neighbouring ids over all such pairs (Li et al., 2016). It is 1.0 if no
    pair recurs, and None for fewer than two ids.
    """
    pairs = list(pairwise(ids))
    return len(set(pairs)) / len(pairs) if pairs else None


def longest_repeat(ids: Sequence[int]) -> list[int]:
    """The longest sequence of ids that recurs later without overlap; the first of several."""
    shortest, longest = 0, len(ids) // 2
    found: list[int] = []
    while shortest < longest:  # a text that repeats a sequence also repeats shorter ones
        length = (shortest + longest + 1) // 2
        run = _repeat(ids, length)
        if run:
            shortest, found = length, run
        else:
            longest = length - 1
    return found


def _repeat(ids: Sequence[int], length: int) -> list[int]:
    first: dict[tuple[int, ...], int] = {}
    starts = []
    for at in range(len(ids) - length + 1):
        begun = first.setdefault(tuple(ids[at : at + length]), at)
        if at - begun >= length:
            starts.append(begun)
    return list(ids[min(starts) : min(starts) + length]) if starts else []


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two texts share before they differ."""
    differ = (n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other)
    return next(differ, min(len(a), len(b)))
