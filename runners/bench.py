"""Measure: one cell, or with -m the product of every list of values.

A cell's way: Hydra composes it, the schema types and checks it, ``run_cell`` measures it, its
folder keeps everything, MLflow gets a copy, the tables read it back from there.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from runners.harness.config.checks import check_bench
from runners.harness.config.conversion import to_config
from runners.harness.config.paths import config_groups, group_options
from runners.harness.config.schema import BenchConfig
from runners.harness.launch import app

if TYPE_CHECKING:
    from runners.harness.launch.run import Kept

USAGE = """\
usage: python -m runners.bench [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.bench                                   one cell
  python -m runners.bench -m device=cpu,cuda batch=1,16     a sweep: the product of all lists
  python -m runners.bench -m experiment=post                the post's two tables
  python -m runners.bench batch.size=12 length.new_tokens=100

groups:
"""


_OTHER_KEYS = (
    "other keys: seed, round, checkpoint, prompt.tokens|text|file, resume=true (goes on with a",
    "sweep that was stopped), plan=true (says what would run), tracking.dir|uri, and every field",
    "of a group by value; `--cfg job` prints the config that a command composes to.",
)


def job(cfg: DictConfig) -> app.Finished:
    """Run one cell and keep its result."""
    from runners.harness.launch.run import keep
    from runners.harness.measure.cell import run_cell
    from runners.harness.sweep import resume

    config = to_config(cfg, BenchConfig)
    done = resume.finished(config) if config.resume else None
    return done or keep("bench", config, run_cell, _show)


def _show(kept: "Kept") -> None:
    """A lone cell's row; those of a sweep are shown together, at its end."""
    from runners.harness.report import render
    from runners.harness.tables.bench import bench_tables
    from runners.harness.tables.frames import cells

    if kept.tracked and kept.place.sweep is None:
        render.show(bench_tables(cells(kept.place.cell, kept.store))[0])


def _prepare(cells: app.Sweep) -> app.Sweep:
    from runners.harness.sweep import around

    return around.prepared(cells)


def _around_sweep(cells: app.Sweep) -> AbstractContextManager[None]:
    from runners.harness.sweep import around

    return around.tracked(cells)


def _usage() -> str:
    groups = [f"  {name:10} {', '.join(group_options(name))}" for name in sorted(config_groups())]
    return "\n".join([USAGE.rstrip(), *groups, "", *_OTHER_KEYS])


BENCH = app.App("bench", job, BenchConfig, check_bench, _around_sweep, _usage, _prepare)


def main() -> NoReturn:
    """Entry point of ``python -m runners.bench`` and ``tinygpt-bench``."""
    app.run_cells(BENCH)


if __name__ == "__main__":
    from runners import bench  # the job has to be importable by name in a launcher's workers

    bench.main()
