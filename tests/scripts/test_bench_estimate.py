"""What bench_estimate reads from a sweep's first line, and what it calls good."""

import pytest

from scripts.bench_estimate import COMPILING, SWEEPS, Told, estimate_of


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("sweep 1a2b3c4d: 4 cells (batch 1, 16), about 11 s\n", 11.0),
        (
            "sweep 1a2b3c4d: 4 cells (round 1), about 4 min, of which 3 min compiling 1 shape",
            240,
        ),
        ("sweep 1a2b3c4d: 4 cells (no axis), about 1.5 h", 5400.0),
        ("2 of them on cuda cannot run: about 4 s", None),
        ("starting: loading torch and MLflow", None),
    ],
)
def test_the_estimate_is_read_in_seconds(line: str, seconds: float | None) -> None:
    assert estimate_of(line) == seconds


@pytest.mark.parametrize(
    ("taken", "good"), [(6.7, True), (15.0, True), (6.6, False), (15.1, False)]
)
def test_good_is_within_one_and_a_half_either_way(taken: float, good: bool) -> None:
    assert Told("batch=1", 10.0, taken, 20.0).good is good


def test_there_are_ten_sweeps_of_which_none_compiles() -> None:
    assert len(set(SWEEPS)) == 10
    assert not [sweep for sweep in SWEEPS if "compiled" in sweep]
    assert "compiled" in COMPILING
