"""Two runs or sweeps, cell by cell: did the rates change, and by how much for sure?

What differs in machine, threads, torch and code is told first: it may be the reason.
"""

import json
import sys
from dataclasses import asdict
from typing import NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.schema import CompareConfig
from runners.harness.errors import UsageError
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint

USAGE = """\
usage: python -m runners.compare a=ID b=ID [fail_if_slower=5%] [format=rich]

  python -m runners.compare a=838f b=latest             the newest sweep or cell against an old one
  python -m runners.compare a=838f b=91c0 fail_if_slower=5%
  python -m runners.compare a=838f2b82-3 b=91c0aa17-3   one cell of each sweep
  python -m runners.compare a=838f b=91c0 format=json > compared.json

  a, b     ids of sweeps or lone cells of bench, or a cell of a sweep, ID-NUMBER; the beginning of
           an id is enough; latest
  fail_if_slower    a share such as 5% or 0.05: exit status 1 where a cell of b, or the mean of
           all, is slower than a's by more than that and the whole interval says so; 3 where a
           cell cannot be judged, with the command that would make it so
  format   rich (terminal), md, csv (the cells; all else on stderr), json (one object)
  tracking.dir, tracking.uri    where to look

Cells are matched by model, weights, prompt, lengths, batch, sampling, seed, engine, precision,
cache and device, and rounds are pooled; machine, threads, torch and code may differ and are told
first. Intervals are at 99 %, and b is faster or slower only where all of it is, by 5 %. With 3 or
4 values a side there is no interval, and b is faster or slower only where the ratio is beyond 2,
the ranges do not meet and the machine was quiet.
exit status: 0 compared, and none slower by more than fail_if_slower; 1 one is; 2 the command is
wrong or nothing matches; 3 none is for sure, and not all could be judged
"""


def job(cfg: DictConfig) -> int:
    """Print the comparison; returns the exit status that ``fail_if_slower`` makes of it."""
    from runners.harness.report import comparison as comparison_screen
    from runners.harness.store.tracking import TrackingError, open_store
    from runners.harness.tables import comparison

    config = to_config(cfg, CompareConfig)
    store = open_store(config.tracking)
    try:
        a, b = comparison.load(store, config.a, "a"), comparison.load(store, config.b, "b")
        found = comparison.compare(a, b)
    except (ValueError, TrackingError) as error:
        raise UsageError(str(error)) from None
    checked = comparison_screen.check_speed(found, config) if config.fail_if_slower else None
    if config.format == "json":
        whole = comparison_screen.to_object(found)
        whole["fail_if_slower"] = asdict(checked) if checked else None
        print(json.dumps(whole, indent=1, ensure_ascii=False))
    else:
        comparison_screen.show(found, config.format)
    if checked is None:
        return 0
    print(checked.line, file=sys.stdout if config.format in ("rich", "md") else sys.stderr)
    return checked.status


COMPARE = EntryPoint(
    "compare",
    job,
    CompareConfig,
    lambda: USAGE.rstrip(),
    alone="a comparison is of two runs, a=ID b=ID; leave -m out",
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.compare`` and ``tinygpt-compare``."""
    sys.exit(app.run(COMPARE) or max(COMPARE.returned, default=0))


if __name__ == "__main__":
    from runners import compare

    compare.main()
