"""A benchmark sweep's tables: written into its folder, and shown."""

from pathlib import Path

from runners.harness.report import render
from runners.harness.store.tracking import Store
from runners.harness.tables.bench import bench_tables, fill_hint
from runners.harness.tables.frames import cells
from runners.harness.tables.table import Table


def write_tables(store: Store, folder: Path) -> list[Table]:
    """Write the tables of the sweep in ``folder`` into its tables/."""
    frame = cells(folder.name, store)
    tables = bench_tables(frame)
    render.write(folder / "tables", tables, frame)
    return tables


def show_tables(tables: list[Table], sweep: str, store: Store, where: str = "") -> None:
    """Print the cells and the tables that have rows, and one line about those that have none."""
    cells, *others = tables
    render.show(cells)
    for table in others:
        if not table.frame.empty:
            render.show(table)
    empty = [table for table in others if table.frame.empty]
    if empty and not cells.frame.empty:
        render.say("\n" + fill_hint(empty, sweep, store, where))
