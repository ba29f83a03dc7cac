"""Prove that a cache changes nothing: greedy text with and without, and the sampler's properties.

What must match is checked and an exit status of 1 says that it does not; where the texts part past
the window is told. With a fault the cache is broken on purpose, to see what finds it and how soon.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from runners.harness.config.checks import check_text
from runners.harness.config.conversion import to_config
from runners.harness.config.schema import VerifyConfig
from runners.harness.launch import app

if TYPE_CHECKING:
    from runners.harness.launch.run import Kept

USAGE = """\
usage: python -m runners.verify [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.verify                            600 tokens with each cache, and the sampler
  python -m runners.verify check=sampler              the sampler's properties alone, no model
  python -m runners.verify fault=rope                 a broken cache: found how soon, and by what
  python -m runners.verify -m fault=rope,mask,window
  python -m runners.verify prompt.file=opening.txt length.new_tokens=300

groups: model, device, length, precision
keys: check (all, cache, sampler), fault (none, rope, mask, window), checkpoint (holmes; a name, a
training run's id, a folder), prompt.text|file, seed, tracking.dir|uri, and every field of a group
by value; `--cfg job` prints the config that a command composes to.
exit status: 0 everything holds, 1 something that must match does not, 2 the command is wrong
"""


def job(cfg: DictConfig) -> app.Finished:
    """Verify once and keep what came of it."""
    from runners.harness.launch.run import keep
    from runners.harness.verify.run import verify

    return keep("verify", to_config(cfg, VerifyConfig), verify, _show)


def _show(kept: "Kept") -> None:
    from runners.harness.verify.screen import show

    title = " ".join(kept.place.overrides) if kept.place.sweep else ""
    show(kept.result, title)


@contextmanager
def _around_sweep(sweep: app.Sweep) -> Iterator[None]:
    from runners.harness.launch import progress
    from runners.harness.launch.tracked import tracked_sweep

    with tracked_sweep("verify", sweep), progress.named_by(set(sweep.axes)):
        yield


VERIFY = app.App("verify", job, VerifyConfig, check_text, _around_sweep, lambda: USAGE.rstrip())


def main() -> NoReturn:
    """Entry point of ``python -m runners.verify`` and ``tinygpt-verify``."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a console without the text's characters
    app.run_cells(VERIFY)


if __name__ == "__main__":
    from runners import verify  # the job has to be importable by name in a launcher's workers

    verify.main()
