"""Measure: one cell, or with -m the product of every list of values.

A cell's way: Hydra composes it, the schema types and checks it, ``run_cell`` measures it, its
folder keeps everything, MLflow gets a copy, the tables read it back from there.
"""

import sys

from omegaconf import DictConfig

from runners.harness import app, result
from runners.harness.config import check_bench, to_config, to_dict
from runners.harness.schema import BenchConfig

USAGE = """\
usage: python -m runners.bench [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.bench                                   one cell
  python -m runners.bench -m device=cpu,cuda batch=1,16     a sweep: the product of all lists
  python -m runners.bench -m experiment=post                the post's two tables
  python -m runners.bench batch.size=12 length.new_tokens=100

groups (the files of conf/):
"""


def job(cfg: DictConfig) -> str:
    """Run one cell and keep its result; returns its outcome."""
    from runners.harness import progress
    from runners.harness.cell import run_cell
    from runners.harness.tracking import Store

    config = to_config(cfg, BenchConfig)
    place = result.Place.of_job()
    result.begin(place, "bench", to_dict(config))
    with progress.cell(place, config) as report:
        measured = run_cell(config, report)
    result.finish(place, measured)
    Store(config.tracking).log_cell(place.folder)
    return measured.outcome


BENCH = app.App("bench", job, BenchConfig, check_bench, usage=USAGE)


def main() -> None:
    """Entry point of ``python -m runners.bench`` and ``tinygpt-bench``."""
    sys.exit(app.run(BENCH))


if __name__ == "__main__":
    from runners import bench  # the job has to be importable by name in a launcher's workers

    bench.main()
