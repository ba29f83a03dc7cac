"""The tables of a benchmark: the cells, then tables of pairs of cells, one per question."""

import shlex

import pandas as pd

from runners.harness.config.commands import command, word
from runners.harness.store.tracking import Store
from runners.harness.tables import engines as engine_table
from runners.harness.tables import frames, noise
from runners.harness.tables.columns import SHOWN
from runners.harness.tables.table import Table


def bench_tables(cells: pd.DataFrame, note: str = "", where: str = "") -> list[Table]:
    """The tables of a benchmark sweep, in the order of reading. ``cells`` are those that fit the
    condition ``where``; if there are none, ``note`` says why.
    """
    overrides = str(cells["overrides"].iloc[0]) if len(cells) else ""
    caches, devices = frames.cache_speedup(cells), frames.device_comparison(cells)
    yardstick = engine_table.find_yardstick(cells)
    engines = engine_table.engines(cells, yardstick)
    missed = cells["outcome"].ne("ok") & cells["device"].ne("cpu")
    other = str(cells["device"][missed].iloc[0]) if missed.any() else "cuda"
    elsewhere = f" on a machine with {other}" if missed.any() else ""
    only = f" where {where}" if where else ""

    def filled_by(what: str, place: str, **axes: str) -> str:
        if where:
            return note or f"{what} where {where}"
        if overrides.startswith(("run=", "config=")):  # a rerun, of one cell as it was
            return what
        return f"{what}; this fills it{place}: {sweep_command(overrides, **axes)}"

    return [
        Table(
            "cells",
            cells[list(SHOWN)],
            f"cells{only} (interval: of the median, 95 %)",
            note or "there are none",
            _lines(noise.of_cells(cells.to_dict("records"))),
        ),
        Table(
            "cache",
            caches,
            f"cache against none{only} (interval: of the speed-up, 99 %)",
            filled_by("no two cells differ in the cache alone", "", cache="none,rolling"),
            _lines(noise.of_pairs(caches["noise"])),
        ),
        Table(
            "device",
            devices,
            f"device against cpu{only} (interval: of the speed-up, 99 %)",
            filled_by("no cell was measured on two devices", elsewhere, device=f"cpu,{other}"),
            frames.crossovers(devices) + _lines(noise.of_pairs(devices["noise"])),
        ),
        Table(
            "engine",
            engines,
            f"engines as multiples of {yardstick}{only} (interval: 99 %)",
            filled_by(
                "no two engines were measured", "", engine="eager,compiled", cache="rolling,static"
            ),
            engine_table.beyond_limit(engines) + _lines(noise.of_pairs(engines["noise"])),
        ),
    ]


def fill_hint(empty: list[Table], sweep: str, store: Store, where: str = "") -> str:
    """One line about all tables without rows, with a command that says how to fill the first."""
    names = [table.name for table in empty]
    words = [word("sweep", sweep), f"table={names[0]}"]
    words += [word("where", where)] if where else []
    shown = command("tables", *words, folder=store.dir, uri=store.server)
    others = f" (or {' or '.join(f'table={name}' for name in names[1:])})" if names[1:] else ""
    return f"empty: {', '.join(names)}; to see what fills one: `{shown}`{others}"


def sweep_command(overrides: str, **axes: str) -> str:
    """The command of the sweep ``overrides`` with each group of ``axes`` swept over its options."""
    try:
        words = [w for w in shlex.split(overrides) if not w.startswith(("resume=", "plan="))]
    except ValueError:  # cut inside a quote, since MLflow limits the length
        words = []
    for group, options in axes.items():
        axis = f"{group}={options}"
        at = [n for n, word in enumerate(words) if word.partition("=")[0] == group]
        for n in at:
            words[n] = axis
        words += [] if at else [axis]
    return command("bench", "-m", *words)


def _lines(line: str) -> list[str]:
    return [line] if line else []
