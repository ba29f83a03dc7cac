"""Whether a machine was quiet: what is known of each cell, and how it is said."""

import io
from typing import Any

import pandas as pd
import pytest

from runners.harness.machine import system
from runners.harness.machine.system import CpuTime, others_share
from runners.harness.report import render
from runners.harness.tables import noise
from runners.harness.tables.bench import bench_tables
from runners.harness.tables.noise import QUIET, together
from tests.tables.rows import ok_row as cells_row
from tests.tables.test_frames import frame, none


def cell(
    others: float | None = 0.02, reference_ms: float | None = 50.0, **more: Any
) -> dict[str, Any]:
    place = {"cell": "c", "device": "cpu", "machine": "m", "threads": 2}
    return place | {"others_cpu_share": others, "reference_ms": reference_ms} | more


def marks(*rows: dict[str, Any]) -> list[str]:
    noise.mark(rows)
    return [row["noise"] for row in rows]


@pytest.mark.parametrize(
    ("others", "said"), [(0.0, QUIET), (0.10, QUIET), (0.11, "load"), (1.0, "load"), (None, "")]
)
def test_other_processes_are_load(others: float | None, said: str) -> None:
    assert marks(cell(others)) == [said]


def test_a_yardstick_that_takes_longer_than_beside_another_cell_is_noise() -> None:
    rows = [cell(reference_ms=ms) for ms in (55.0, 50.0, 56.0, None)]
    assert marks(*rows) == [QUIET, QUIET, "reference", ""]
    assert [row["reference_drift"] for row in rows] == [pytest.approx(1.1), 1.0, 1.12, None]


@pytest.mark.parametrize("key", ["device", "machine", "threads"])
def test_a_yardstick_is_one_of_its_place(key: str) -> None:
    assert marks(cell(reference_ms=50.0), cell(reference_ms=90.0, **{key: "other"})) == [QUIET] * 2


def test_steps_faster_than_their_limit_are_noise() -> None:
    assert marks(cell(limit_share=0.99), cell(limit_share=1.5)) == [QUIET, "limit"]
    assert marks(cell(0.5, limit_share=2.3), cell(reference_ms=10.0)) == [
        "load, reference, limit",
        QUIET,
    ]


def test_what_a_table_does_not_know_is_neither() -> None:
    assert marks(cell(pd.NA, pd.NA, limit_share=pd.NA), {}) == ["", ""]


def test_cells_that_are_compared_share_their_noise() -> None:
    assert together([cell(noise=QUIET), cell(noise=QUIET)]) == QUIET
    assert together([cell(noise=QUIET), cell(reference_ms=60.0, noise=QUIET)]) == "reference"
    assert together([cell(noise="limit"), cell(0.3, noise="load")]) == "load, limit"
    assert together([cell(noise=QUIET), cell(None, noise="")]) == ""
    assert together([cell(), cell()]) == QUIET  # of rows that have no mark of their own


NOISY = (
    none(cell="a-0", others_cpu_share=0.45, reference_drift=1.9, noise="load, reference"),
    cells_row(cell="a-1", others_cpu_share=0.02, reference_drift=1.0, noise="quiet"),
    none(cell="a-2", batch=4, limit_share=2.3, noise="limit"),
    cells_row(cell="a-3", batch=4, others_cpu_share=0.02, noise="quiet"),
    none(cell="a-4", batch=16, others_cpu_share=0.02, noise="quiet"),
    cells_row(cell="a-5", batch=16, others_cpu_share=0.02, noise="quiet"),
)
SAID = (
    "noisy: 2 of 6 cells (a-0, a-2): load (other processes took up to 45% of the cores; 10% is "
    "quiet), reference (reference_ms up to 1.90 times the least; 1.1 is quiet), limit (up to 2.30 "
    "times as fast as the limit, which was measured in another minute); measure again on a quiet "
    "machine, or with round=1,2,3"
)


@pytest.mark.parametrize("form", ["rich", "md"])
def test_it_is_said_under_the_tables_and_in_their_rows(form: str) -> None:
    cells, cache, *_ = bench_tables(frame(*NOISY))
    shown = [io.StringIO(), io.StringIO()]
    for table, stream in zip((cells, cache), shown, strict=True):
        render.show(table, form, stream)
    assert SAID in shown[0].getvalue().splitlines()
    assert "noisy: 2 of 3 rows rest on cells" in shown[1].getvalue()
    for stream in shown:
        assert "load, reference" in stream.getvalue()
    assert "noise" in render.to_csv(cache.frame).splitlines()[0]


def test_a_quiet_sweep_has_no_word_of_it() -> None:
    for table in bench_tables(frame(*NOISY[-2:])):
        assert "nois" not in render.to_markdown(table)


def test_a_share_above_the_limit_has_its_reason() -> None:
    fast = {"engine": "compiled", "cache": "static", "limit_share": 1.5, "noise": "limit"}
    table = bench_tables(frame(cells_row(), cells_row(200.0, **fast)))[3]
    assert "of limit above 1: the limit was measured in another, slower minute" in table.footer[0]
    assert "1.50" in render.to_markdown(table)


# What it is measured by.


def test_the_share_of_others_is_what_is_busy_and_not_ours() -> None:
    start = CpuTime(at=10.0, cores=2, busy=100.0, own=3.0)
    end = CpuTime(at=12.0, cores=2, busy=103.0, own=5.0)
    assert others_share(start, end) == pytest.approx(0.25)  # 3 s busy, 2 ours, of 4
    assert others_share(start, end._replace(busy=101.0)) == 0.0  # counted to a hundredth only
    assert others_share(start, end._replace(at=10.2)) is None
    assert others_share(None, end) is others_share(start, None) is None


def test_the_cores_that_count_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Core:
        def __init__(self, user: float, steal: float = 0.0) -> None:
            self.user, self.steal, self.idle = user, steal, 1e9

    every = [Core(1.0), Core(20.0, 5.0), Core(300.0)]
    monkeypatch.setattr(system.psutil, "cpu_times", lambda percpu: every)
    for bound, cores, busy in (([0, 1], 2, 26.0), (None, 3, 326.0), ([7], 3, 326.0)):
        monkeypatch.setattr(system, "affinity", lambda bound=bound: bound)
        found = system.cpu_time()
        assert found is not None
        assert (found.cores, found.busy) == (cores, busy)
    monkeypatch.setattr(system.psutil, "cpu_times", lambda percpu: 1 / 0)
    assert system.cpu_time() is None
