"""Measure: one cell, or with -m the product of every list of values.

A cell's way: Hydra composes it, the schema types and checks it, ``run_cell`` measures it, its
folder keeps everything, MLflow gets a copy, the tables read it back from there.
"""

from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.presets import with_groups
from runners.harness.config.schema import BenchConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint, Finished
from runners.harness.launch.kinds import KINDS
from runners.harness.launch.run import run_job

USAGE = """\
usage: python -m runners.bench [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.bench                                   one cell
  python -m runners.bench -m device=cpu,cuda batch=1,16     a sweep: the product of all lists
  python -m runners.bench -m experiment=post                the post's two tables
  python -m runners.bench batch.size=12 length.new_tokens=100

groups:
other keys: seed, round, checkpoint (a name, a training run's id, a folder, a .gguf file, a Hugging
Face id), prompt.tokens|text|file|chat|special, resume=true (goes on with a sweep that was stopped),
plan=true (says what would run and how long it would take), tracking.dir|uri, and every field of a
group by value; `--cfg job` prints the config that a command composes to.
exit status: 0 every cell is ok or skipped; 1 one failed, ran out of memory or mismatched, or did
not reach MLflow; 2 the command is wrong, and nothing was run; 130 Ctrl-C; 143 SIGTERM
"""


def job(cfg: DictConfig) -> Finished:
    """Run one cell and keep its result."""
    return run_job(KINDS["bench"], to_config(cfg, BenchConfig))


BENCH = EntryPoint(
    "bench",
    job,
    BenchConfig,
    lambda: with_groups(USAGE.rstrip(), "bench", BenchConfig),
    check=KINDS["bench"].check,
    prepare="runners.harness.sweep.around:prepared",
    around="runners.harness.sweep.around:tracked",
    keeps=True,
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.bench`` and ``tinygpt-bench``."""
    app.run_cells(BENCH)


if __name__ == "__main__":
    from runners import bench  # the job has to be importable by name in a launcher's workers

    bench.main()
