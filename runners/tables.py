"""Show the tables of what was measured, any time later."""

import sys
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.schema import TablesConfig
from runners.harness.errors import UsageError
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint

if TYPE_CHECKING:
    from runners.harness.store.tracking import Store
    from runners.harness.tables.table import Table

USAGE = """\
usage: python -m runners.tables [sweep=latest] [table=all] [where='...'] [format=rich]

  python -m runners.tables                                  the newest sweep's tables again
  python -m runners.tables table=runs                       what is in the store, with its ids
  python -m runners.tables sweep=3fa9,b01c table=cache format=csv
  python -m runners.tables sweep=3fa9c07d-0,b01c2e11-3    one cell of each sweep
  python -m runners.tables where='batch.size>=4 and device=cpu'

  sweep    id of a sweep or a lone cell, a prefix is enough, or ID-NUMBER, one cell of a sweep;
           several with commas; latest
  table    cells, cache, device, engine, or all; runs
  where    which cells: conditions KEY=VALUE, or == != < <= > >=, joined by and; a value with
           spaces in quotes. KEY: a key of the config (sampler.temperature), a group (device,
           sampler: the option's name, or what it sets), or a column or figure of table=cells
           (outcome, threads, output_tok_per_s). For table=runs: id, kind, outcome, cells, ok
  limit    rows of table=runs, 50
  format   rich (terminal), md, csv, json
  tracking.dir, tracking.uri    where to look
exit status: 0 the tables are shown; 2 the command is wrong, or there is no such run
"""


def job(cfg: DictConfig) -> None:
    """Print what was asked for."""
    from runners.harness.report import render
    from runners.harness.report.bench import show_tables
    from runners.harness.store.tracking import TrackingError, open_store

    config = to_config(cfg, TablesConfig)
    store = open_store(config.tracking)
    try:
        shown = _tables(config, store)
    except (ValueError, TrackingError) as error:
        raise UsageError(str(error)) from None
    if config.table == "all" and config.format == "rich":
        show_tables(shown, config.sweep, store, config.where)
        return
    for table in shown:
        render.show(table, config.format)
        if config.table == "runs" and config.format in ("csv", "json"):
            print(*table.footer, sep="\n", end="\n" * len(table.footer), file=sys.stderr)


def _tables(config: TablesConfig, store: "Store") -> "list[Table]":
    from runners.harness.tables import runs as runs_table
    from runners.harness.tables.bench import bench_tables
    from runners.harness.tables.frames import selected

    if config.table == "runs":
        return [runs_table.runs(store, config.where, config.limit)]
    shown = bench_tables(*selected(config.sweep, store, config.where), config.where)
    return [table for table in shown if config.table in ("all", table.name)]


TABLES = EntryPoint(
    "tables",
    job,
    TablesConfig,
    lambda: USAGE.rstrip(),
    alone="one command shows one choice of tables; leave it out (sweep=A,B pools)",
)


def main() -> None:
    """Entry point of ``python -m runners.tables`` and ``tinygpt-tables``."""
    sys.exit(app.run(TABLES))


if __name__ == "__main__":
    from runners import tables

    tables.main()
