"""Run a stored config again and judge it against the old run: does it still hold?"""

from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.schema import RerunConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint, Finished, current

USAGE = """\
usage: python -m runners.rerun run=ID|config=FILE [strict=true] [KEY=VALUE ...]

  python -m runners.rerun run=latest                    the newest sweep or cell, all its cells
  python -m runners.rerun run=838f                      the beginning of an id is enough
  python -m runners.rerun run=838f2b82-3                one cell of a sweep
  python -m runners.rerun run=838f length.new_tokens=32 changed by value or option, and said so
  python -m runners.rerun config=results/cells/ID/config.yaml

keys: run (id of a bench, sample or verify run, or latest), config (a run's config.yaml from
anywhere), strict=true (refuses where anything has changed since), tracking.dir|uri
exit status: 0 it holds or cannot be judged, 1 tokens differ that should not or a cell failed,
2 the command is wrong or strict refused
"""
_OWN = ("run", "config", "strict", "tracking.dir", "tracking.uri")


def job(cfg: DictConfig) -> list[Finished]:
    """Run all cells of what was asked for again."""
    from runners.harness.rerun.run import rerun

    return rerun(to_config(cfg, RerunConfig), current().words)


def _is_for_the_stored_config(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key not in _OWN and not key.startswith(("hydra.", "-"))


RERUN = EntryPoint(
    "rerun",
    job,
    RerunConfig,
    lambda: USAGE.rstrip(),
    alone="one run at a time; the id of a sweep runs all of its cells again",
    leaves=_is_for_the_stored_config,
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.rerun`` and ``tinygpt-rerun``."""
    app.run_cells(RERUN)


if __name__ == "__main__":
    from runners import rerun

    rerun.main()
