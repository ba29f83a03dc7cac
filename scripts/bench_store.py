"""How fast questions are answered out of a store of ten thousand runs.

Delivers one sweep of made-up cells the way the harness does, copies its rows inside the database
under new ids and times, and asks each question in fresh processes. Imports are apart, since they
cost the same whatever the store holds. Prints medians in seconds.

    python scripts/bench_store.py [--sweeps 500] [--times 5] [--keep FOLDER]

    10,500 runs, 207 MiB; medians of 5 fresh processes, in seconds
                              imports     open   answer  of CPU, open + answer
    find by prefix               3.46     0.07     0.22                   0.28
    cells(prefix)                3.30     0.06     0.28                   0.33
    cells(prefix) + tables       4.03     0.09     0.57                   0.55
    the same with where=         4.29     0.07     0.44                   0.51
    cells(latest) + tables       3.83     0.06     0.46                   0.51
    table=runs                   1.46     0.00     0.12                   0.12

(two cores of an Intel Xeon, with three other jobs on them)
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

AXES = list(itertools.product((1, 2, 4, 8, 16), (64, 256), ("none", "rolling")))
"""Batch, new tokens and cache of every cell of a sweep."""
SWEEP = "0" * 8
"""The id of the sweep that is copied."""
HOUR_MS = 3_600_000
TABLES = ("runs", "tags", "params", "metrics", "latest_metrics")


def main() -> int:
    """Fill a store, then ask it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=500, help=f"of {len(AXES)} cells each")
    parser.add_argument("--times", type=int, default=5, help="fresh processes a question")
    parser.add_argument("--keep", type=Path, help="folder of the store: made, or used again")
    parser.add_argument("--ask", choices=QUESTIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if arguments.ask:
        print(json.dumps(ask(arguments.keep.absolute(), arguments.ask)))
        return 0
    with contextlib.ExitStack() as stack:
        keep = arguments.keep or stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(keep).absolute()
        if not (folder / "mlflow.db").is_file():
            start = time.perf_counter()
            deliver(folder)
            multiply(folder / "mlflow.db", arguments.sweeps)
            print(f"filled in {time.perf_counter() - start:.1f} s")
        report(folder, arguments.times)
    return 0


def deliver(folder: Path) -> None:
    """Put one sweep into a new store."""
    from runners.harness.store.records import SweepRecord
    from runners.harness.store.tracking import Store

    store, home = Store(folder), folder / "sweeps" / SWEEP
    home.mkdir(parents=True)
    sweep = store.begin_sweep(
        SweepRecord(
            host="a-machine",
            pid=1,
            process_started=0.0,
            kind="bench",
            started=time.time(),
            sweep=SWEEP,
            overrides=["cache=none,rolling", "batch=1,2,4,8,16", "length=64,256"],
            cells=len(AXES),
            digests=[],
            run_id="",
        )
    )
    sweep.save(home)
    for number, (batch, new_tokens, cache) in enumerate(AXES):
        store.log_cell(make_cell(home, number, batch, new_tokens, cache))
    store.end_sweep(sweep.run_id, "ok", home / "tables")


def make_cell(home: Path, number: int, batch: int, new_tokens: int, cache: str) -> Path:
    """The folder of a finished cell, with as many params, tags and figures as a real one."""
    from runners.harness.config.conversion import from_dict, to_dict
    from runners.harness.config.schema import BenchConfig
    from runners.harness.measure.result import CellResult
    from runners.harness.store import disk

    values: dict[str, Any] = {"batch": {"size": batch}, "length": {"new_tokens": new_tokens}}
    values |= {"cache": {"kind": cache}, "tracking": {"dir": str(home.parents[1])}}
    choices = {"model": "tiny", "device": "cpu", "batch": str(batch), "length": str(new_tokens)}
    choices |= {"cache": cache, "sampler": "greedy", "engine": "eager", "precision": "fp32"}
    overrides = [f"cache={cache}", f"batch={batch}", f"length={new_tokens}"]
    place = disk.Place(home / str(number), f"{SWEEP}-{number}", SWEEP, number, choices, overrides)
    disk.begin(place, "bench", to_dict(from_dict(values, BenchConfig)))
    dice = random.Random(number)
    rates = [dice.uniform(95, 105) * (batch if cache == "rolling" else 1) for _ in range(10)]
    figures = (
        "output_tok_per_s output_tok_per_s_low output_tok_per_s_high ttft_ms tpot_ms e2e_ms "
        "itl_ms_p50 itl_ms_p90 prefill_tok_per_s decode_tok_per_s reference_ms load_s warmup_s "
        "gate_max_difference gate_ties weights_bytes kv_cache_bytes kv_cache_bytes_formula "
        "peak_memory_bytes repeats"
    ).split()
    metrics = {name: float(n + 1) for n, name in enumerate(figures)}
    tags = {f"tinygpt.{name}": f"{number:064x}" for name in ("cell_hash", "tokens_sha256")}
    tags |= {f"tinygpt.{name}_sha256": "0" * 64 for name in ("weights", "prompt")}
    tags |= {"tinygpt.prompt_tokens": "8", "tinygpt.threads": "2", "tinygpt.machine": "a CPU x2"}
    tags |= {"tinygpt.torch": "2.13.0+cpu", "tinygpt.stable": "true"}
    tags["tinygpt.rates"] = json.dumps([round(rate, 2) for rate in rates])
    disk.finish(place, CellResult("ok", metrics=metrics, tags=tags))
    return place.folder


def multiply(database: Path, sweeps: int) -> None:
    """Copy the rows of the one sweep until there are so many, an hour apart."""
    numbers = random.Random(1).sample(range(16**7, 16**8), sweeps - 1)
    with contextlib.closing(sqlite3.connect(database)) as store:
        store.execute("PRAGMA synchronous=OFF")
        for table in TABLES:
            found = store.execute(f"SELECT * FROM {table}")
            columns = [column[0] for column in found.description]
            rows = found.fetchall()
            copies = (
                row for n, x in enumerate(numbers, 1) for row in copied(rows, columns, n, f"{x:x}")
            )
            marks = ", ".join("?" * len(columns))
            store.executemany(f"INSERT INTO {table} VALUES ({marks})", copies)
        store.commit()
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copied(rows: list[Any], columns: list[str], n: int, sweep: str) -> Iterator[list[Any]]:
    """The rows as those of sweep ``sweep``, the ``n``-th to be made: other ids, later times."""
    for row in rows:
        values = dict(zip(columns, row, strict=True))
        is_parent = values.get("key") == "mlflow.parentRunId"
        for name, value in values.items():
            if name in ("start_time", "end_time", "timestamp"):
                values[name] = value + n * HOUR_MS
            elif name == "run_uuid" or (is_parent and name == "value"):
                values[name] = sweep + value[8:]
            elif isinstance(value, str) and len(value) != 64:  # a digest is no id
                values[name] = value.replace(SWEEP, sweep)
        yield list(values.values())


def _tables(store: Any, sweep: str, where: str = "") -> None:
    from runners.harness.report import render
    from runners.harness.tables.bench import bench_tables
    from runners.harness.tables.frames import selected

    for table in bench_tables(*selected(sweep, store, where), where):
        render.show(table, stream=io.StringIO())


def _cells(store: Any, sweep: str) -> None:
    from runners.harness.tables.frames import cells

    assert len(cells(sweep, store)) == len(AXES)


def _find(store: Any, sweep: str) -> None:
    from runners.harness.store.find import find_sweep

    find_sweep(store, sweep)


def _runs(store: Any, sweep: str) -> None:
    from runners.harness.report import render
    from runners.harness.tables import runs as runs_table

    render.show(runs_table.runs(store), stream=io.StringIO())


QUESTIONS: dict[str, Callable[[Any, str], None]] = {
    "find by prefix": _find,
    "cells(prefix)": _cells,
    "cells(prefix) + tables": _tables,
    "the same with where=": lambda store, sweep: _tables(store, sweep, "batch.size>=4"),
    "cells(latest) + tables": lambda store, sweep: _tables(store, "latest"),
    "table=runs": _runs,
}


def ask(folder: Path, question: str) -> dict[str, float]:
    """Seconds of one question in this process: its imports, opening the store, the answer."""
    clock = [time.perf_counter()]
    from runners.harness.config import schema
    from runners.harness.store import tracking

    if question != "table=runs":  # which reads the database itself
        import mlflow.store.tracking.sqlalchemy_store
        import mlflow.tracking  # noqa: F401

    store = tracking.open_store(schema.TrackingConfig(dir=str(folder)))
    prefix = a_prefix(folder / "mlflow.db")
    clock.append(time.perf_counter())
    busy = time.process_time()
    if question != "table=runs":
        _ = store.client
    clock.append(time.perf_counter())
    QUESTIONS[question](store, prefix)
    clock.append(time.perf_counter())
    spans = [after - before for before, after in itertools.pairwise(clock)]
    names = ("imports", "open", "answer")
    return dict(zip(names, spans, strict=True)) | {"cpu": time.process_time() - busy}


def a_prefix(database: Path) -> str:
    """The beginning of the id of a sweep in the middle of all."""
    with contextlib.closing(sqlite3.connect(database)) as store:
        names = store.execute("SELECT name FROM runs WHERE name LIKE 'sweep %' ORDER BY start_time")
        ids = [name.removeprefix("sweep ") for (name,) in names]
    return str(ids[len(ids) // 2])[:6]


def report(folder: Path, times: int) -> None:
    """Ask every question in so many processes, in turn, and print the medians."""
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        (runs,) = store.execute("SELECT count(*) FROM runs").fetchone()
    size = (folder / "mlflow.db").stat().st_size / 2**20
    print(f"{runs:,} runs, {size:,.0f} MiB; medians of {times} fresh processes, in seconds")
    print(f"{'':24}{'imports':>9}{'open':>9}{'answer':>9}{'of CPU, open + answer':>23}")
    told: dict[str, list[dict[str, float]]] = {question: [] for question in QUESTIONS}
    for _ in range(times):
        for question, found in told.items():
            command = [sys.executable, __file__, "--keep", str(folder), "--ask", question]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
    for question, found in told.items():
        middle = {name: median(one[name] for one in found) for name in found[0]}
        print(
            f"{question:24}{middle['imports']:9.2f}{middle['open']:9.2f}{middle['answer']:9.2f}"
            f"{middle['cpu']:23.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
