"""The list of what is in the store: every sweep and lone cell once, by an id that can be typed."""

import csv
import importlib.util
import io
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.harness.config.conversion import from_dict, to_dict
from runners.harness.config.schema import BenchConfig
from runners.harness.measure.result import CellResult
from runners.harness.report import render
from runners.harness.store import disk, tracking
from runners.harness.store import runs as store_runs
from runners.harness.store.disk import Place
from runners.harness.store.find import find_sweep
from runners.harness.store.records import SweepRecord
from runners.harness.store.runs import EXPERIMENTS
from runners.harness.store.tracking import Store
from runners.harness.tables.frames import cells
from runners.harness.tables.runs import runs, short_ids
from tests.train_command import Ended

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_store.py"
SECOND = 1_700_000_000
"""When the first is made, since 1970; each after it a minute later."""


class Filled:
    """A store, and what to put into it."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.made = 0

    def cell(
        self,
        cell: str,
        kind: str = "bench",
        outcome: str = "ok",
        rerun_of: str | None = None,
        sweep: str | None = None,
    ) -> None:
        """Log a cell; ``sweep`` is one that was begun here."""
        number = int(cell.rpartition("-")[2]) if sweep else 0
        home = self.store.dir / "sweeps" / sweep if sweep else self.store.dir / "cells"
        folder = home / str(number) if sweep else home / cell
        place = Place(folder, cell, sweep, number, {}, ["cache=none"], rerun_of)
        config = from_dict({"tracking": {"dir": str(self.store.dir)}}, BenchConfig)
        disk.begin(place, kind, to_dict(config))
        disk.finish(place, CellResult(outcome))
        self.date(folder / "cell.json")
        self.store.log_cell(folder)

    def sweep(self, sweep: str, outcomes: str, kind: str = "bench", **facts: Any) -> str:
        """Log a sweep with cells of those outcomes and leave it open; MLflow's id of it."""
        folder = self.store.dir / "sweeps" / sweep
        folder.mkdir(parents=True)
        planned = len(outcomes.split())
        facts = {"sweep": sweep, "kind": kind, "cells": planned, "digests": [], **facts}
        facts |= {"overrides": ["cache=none,rolling", "prompt.text=a b"], "started": SECOND}
        facts |= {"host": "h", "pid": 1, "process_started": 0.0}
        facts |= {"run_id": ""}
        path = folder / "sweep.json"
        path.write_text(json.dumps(facts), encoding="utf-8")
        self.date(path)
        record = self.store.begin_sweep(SweepRecord.load(folder))
        record.save(folder)
        for number, outcome in enumerate(outcomes.split()):
            self.cell(f"{sweep}-{number}", kind, outcome, sweep=sweep)
        return record.run_id

    def end(self, run_id: str, outcome: str) -> None:
        self.store.end_sweep(run_id, outcome, Path("nowhere"))

    def date(self, path: Path) -> None:
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts["started"] = SECOND + 60 * self.made
        self.made += 1
        path.write_text(json.dumps(facts), encoding="utf-8")


@pytest.fixture
def filled(results: Path) -> Filled:
    return Filled(results)


@pytest.fixture(scope="module")
def store(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two lone cells, a sweep that failed, one that runs, a rerun, and a run of training; to read
    from only.
    """
    folder = tmp_path_factory.mktemp("runs")
    shutil.copy(empty_store, folder / "mlflow.db")
    filled = Filled(folder)
    filled.cell("aaaa0001")
    filled.cell("aaab0002", "sample", "failed")
    filled.end(filled.sweep("bbbb0003", "ok skipped failed"), "failed")
    filled.cell("cccc0004", rerun_of="bbbb0003-1")
    filled.cell("dddd0005", "train", "interrupted")
    filled.sweep("eeee0006", "ok ok", "verify")
    return filled.store


def rows(store: Store, where: str = "", limit: int = 50) -> list[dict[str, Any]]:
    return json.loads(render.to_json(runs(store, where, limit).frame))  # type: ignore[no-any-return]


def test_everything_is_there_once_newest_first(store: Store) -> None:
    shown = [(r["id"], r["kind"], r["outcome"], r["cells"], r["ok"]) for r in rows(store)]
    assert shown == [
        ("eeee", "verify sweep", "running", 2, 2),
        ("dddd", "train", "interrupted", 1, 0),
        ("cccc", "bench rerun of bbbb-1", "ok", 1, 1),
        ("bbbb", "bench sweep", "failed", 3, 1),
        ("aaab", "sample", "failed", 1, 0),
        ("aaaa", "bench", "ok", 1, 1),
    ]
    assert {r["overrides"] for r in rows(store)} == {
        "cache=none",
        "cache=none,rolling 'prompt.text=a b'",
    }


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the platform has no TZ")
def test_the_time_is_that_of_the_place(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XXX-3")  # three hours ahead of UTC
        time.tzset()
        when = rows(store)[-1]["when"]
    time.tzset()
    assert when == "2023-11-15 01:13"


def test_the_ids_can_be_typed(store: Store) -> None:
    for row in rows(store):
        if not row["kind"].startswith("train"):
            assert find_sweep(store, row["id"]).identity.startswith(row["id"])


@settings(deadline=None)
@given(st.lists(st.text("ab", min_size=8, max_size=8), unique=True))
def test_a_short_id_is_one_id_s_and_no_longer_than_needed(ids: list[str]) -> None:
    short = short_ids(ids)
    assert list(short) == sorted(ids)
    for one, beginning in short.items():
        assert one.startswith(beginning)
        assert [other for other in ids if other.startswith(beginning)] == [one]
        assert len(beginning) >= 4
        if len(beginning) > 4:
            assert sum(other.startswith(beginning[:-1]) for other in ids) > 1


def test_a_cell_measured_again_counts_once(filled: Filled) -> None:
    run_id = filled.sweep("bbbb0003", "ok failed")
    filled.cell("bbbb0003-0", sweep="bbbb0003")
    filled.end(run_id, "failed")
    (row,) = rows(filled.store)
    assert (row["cells"], row["ok"]) == (2, 1)


def test_a_sweep_whose_process_ended_without_a_word(filled: Filled) -> None:
    run_id = filled.sweep("bbbb0003", "ok")
    filled.store.client.set_terminated(run_id, "KILLED")
    assert [r["outcome"] for r in rows(filled.store)] == ["interrupted"]


def test_what_was_deleted_is_gone(filled: Filled) -> None:
    filled.cell("aaaa0001")
    filled.cell("aaaa0002")
    (run,) = filled.store.search("bench", "tags.`tinygpt.sweep` = 'aaaa0001'")
    filled.store.client.delete_run(run.info.run_id)
    assert [r["id"] for r in rows(filled.store)] == ["aaaa"]


def test_the_database_and_mlflow_tell_the_same(store: Store) -> None:
    """When MLflow changes its tables, this fails."""
    path = store.database
    assert path is not None
    found, _ = store_runs._top_runs_from_database(path)
    assert sorted(found, key=str) == sorted(store_runs._top_runs_from_server(store), key=str)
    assert {entry.experiment for entry in found} < set(EXPERIMENTS)


def test_a_server_tells_all_but_how_many_of_a_sweep_are_ok(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = rows(store)
    monkeypatch.setattr(Store, "database", None)
    sweeps = [r["kind"].endswith("sweep") for r in here]
    wanted = [r | {"ok": None} if s else r for r, s in zip(here, sweeps, strict=True)]
    assert rows(store) == wanted


# where, limit, forms


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("kind=bench", ["cccc", "bbbb", "aaaa"]),
        ("kind=sweep", ["eeee", "bbbb"]),
        ("kind='bench sweep'", ["bbbb"]),
        ("kind=rerun", ["cccc"]),
        ("kind!=bench and outcome!=failed", ["eeee", "dddd"]),
        ("outcome=running", ["eeee"]),
        ("id=aaab", ["aaab"]),
        ("id=aaab0002", ["aaab"]),
        ("cells>1 and ok<2", ["bbbb"]),
    ],
)
def test_where(where: str, ids: list[str], store: Store) -> None:
    assert [r["id"] for r in rows(store, where)] == ids


def test_where_nothing_is_left(store: Store) -> None:
    table = runs(store, "kind=sweep and outcome=ok")
    assert table.frame.empty
    assert table.empty.endswith("none of 2 rows has outcome=ok (outcome: failed, running)")


def test_what_the_limit_cuts_is_told(store: Store) -> None:
    table = runs(store, limit=2)
    assert list(table.frame["id"]) == ["eeee", "dddd"]
    assert table.footer == ["and 4 older; limit=6 shows all"]
    assert runs(store, "kind=bench", 2).footer == ["and 1 older; limit=3 shows all"]
    assert runs(store, limit=6).footer == []


@pytest.fixture
def typed(entry: Callable[..., Ended], store: Store) -> Callable[..., Ended]:
    """Call ``python -m runners.tables table=runs`` in this process."""
    return lambda *arguments: entry("tables", store.dir, "table=runs", *arguments)


def test_the_forms(typed: Callable[..., Ended]) -> None:
    found = typed("format=csv", "limit=2")
    assert (found.status, found.line) == (0, "and 4 older; limit=6 shows all")
    assert [row["id"] for row in csv.DictReader(io.StringIO(found.out))] == ["eeee", "dddd"]
    found = typed("format=json", "where=ok=0 and kind=sample")
    assert [row["id"] for row in json.loads(found.out)] == ["aaab"]
    assert found.err == ""
    found = typed("format=md")
    assert "| id | kind | when | outcome | cells | ok | overrides |" in found.out
    found = typed("limit=1")
    assert "eeee  verify sweep" in found.out
    assert "and 5 older" in found.out


def test_overrides_are_cut_to_the_width(filled: Filled) -> None:
    filled.cell("aaaa0001")
    table = runs(filled.store)
    table.frame["overrides"] = "x" * 500
    out = io.StringIO()
    render.show(table, stream=out)
    (line,) = (line for line in out.getvalue().splitlines() if "xxx" in line)
    assert line.startswith("aaaa  bench  2023-11-14")
    assert line.rstrip().endswith("…")
    assert len(line) <= 140


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("sweep=aaaa", "sweep=aaaa: table=runs lists all"),
        ("limit=0", "limit=0: must be at least 1"),
        ("where=batch=4", "batch: no such key; table=runs has id, kind, outcome, cells, ok"),
        ("where=kind<3", "kind is a text"),
        ("where=kind", "an operator is missing"),
    ],
)
def test_a_wrong_question_is_one_line(
    argument: str, said: str, typed: Callable[..., Ended]
) -> None:
    found = typed(argument)
    assert (found.status, found.out) == (2, "")
    assert said in found.line


def test_the_limit_is_for_this_table(entry: Callable[..., Ended], store: Store) -> None:
    found = entry("tables", store.dir, "limit=3")
    assert found.status == 2
    assert found.line.startswith("tables: limit=3: is for table=runs")


def test_an_empty_store_says_what_to_run(
    entry: Callable[..., Ended], results: Path, tmp_path: Path
) -> None:
    for folder in (results, tmp_path / "nowhere"):
        found = entry("tables", folder, "table=runs")
        assert found.status == 0
        assert f"nothing is tracked in {folder} yet" in found.out
        assert "python -m runners.bench -m" in found.out
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_is_no_store_is_one_line(entry: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database, but more than a page's head" * 9)
    found = entry("tables", tmp_path, "table=runs")
    assert found.status == 2
    assert "mlflow.db: file is not a database" in found.line


def test_the_benchmark_s_store_is_one_of_ours(results: Path) -> None:
    spec = importlib.util.spec_from_file_location("bench_store", SCRIPT)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    bench_store = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench_store)
    bench_store.AXES = bench_store.AXES[:8]
    bench_store.deliver(results)
    bench_store.multiply(results / "mlflow.db", 3)
    store = tracking.Store(results)
    found = rows(store)
    assert [(r["cells"], r["ok"], r["outcome"]) for r in found] == [(8, 8, "ok")] * 3
    for row in found:
        frame = cells(row["id"], store)
        assert len(frame) == 8
        assert set(frame["sweep"].str[:4]) == {row["id"]}
        assert len(cells(row["id"], store, where="batch>=2")) == 4
