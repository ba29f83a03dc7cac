"""Show the tables of what was measured, any time later."""

import sys

from omegaconf import DictConfig

from runners.harness import app
from runners.harness.config import to_config
from runners.harness.errors import UsageError
from runners.harness.tools_schema import TablesConfig

USAGE = """\
usage: python -m runners.tables [sweep=latest] [table=all] [format=rich]

  sweep    id of a sweep or a lone cell, a prefix is enough; several with commas; latest
  table    cells, cache, device, or all
  format   rich (terminal), md, csv, json
  tracking.dir, tracking.uri    where to look
"""


def job(cfg: DictConfig) -> None:
    """Print what was asked for."""
    from runners.harness import render
    from runners.harness.tables import cells
    from runners.harness.tracking import TrackingError, open_store

    config = to_config(cfg, TablesConfig)
    try:
        frame = cells(config.sweep, open_store(config.tracking))
    except (ValueError, TrackingError) as error:
        raise UsageError(str(error)) from None
    for table in render.bench_tables(frame):
        if config.table in ("all", table.name):
            render.show(table, config.format)


TABLES = app.App("tables", job, TablesConfig, usage=lambda: USAGE.rstrip())


def main() -> None:
    """Entry point of ``python -m runners.tables`` and ``tinygpt-tables``."""
    sys.exit(app.run(TABLES))


if __name__ == "__main__":
    from runners import tables

    tables.main()
