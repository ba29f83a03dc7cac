"""Write text: one setting of the sampler, streamed as it comes, or with -m several side by side.

A cell's way: the prompt's ids go through the engine, the sampler picks, the text comes out while it
is made; what came of it is kept as any other cell is.
"""

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from runners.harness.config.checks import check_text
from runners.harness.config.conversion import to_config
from runners.harness.config.schema import SampleConfig
from runners.harness.launch import app

if TYPE_CHECKING:
    from runners.harness.launch.progress import CellProgress
    from runners.harness.measure.result import CellResult

USAGE = """\
usage: python -m runners.sample [-m] [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.sample                                        60 tokens after "Holmes"
  python -m runners.sample prompt.text='It was a' seed=2 length.new_tokens=200
  python -m runners.sample prompt.file=opening.txt                a text exact to the byte
  python -m runners.sample prompt.jsonl=prompts.jsonl             several; a line is {"prompt": "…"}
  python -m runners.sample -m experiment=sampling                 six settings side by side
  python -m runners.sample -m sampler=greedy,t0.7 seed=1,2,3

groups: model, device, length, cache, sampler, engine, precision
keys: checkpoint (holmes; a name, a training run's id, a folder), prompt.text|file|jsonl, stop (a
string that ends the text; $'\\n' is a line feed in bash and zsh, null is none), seed,
tracking.dir|uri, and every field of a group by value; `--cfg job` prints the config that a command
composes to.
"""


def job(cfg: DictConfig) -> app.Finished:
    """Write the texts of one setting and keep them."""
    from runners.harness.launch.run import keep
    from runners.harness.text.sample import sample
    from runners.harness.text.screen import Screen

    def on_screen(config: SampleConfig, report: "CellProgress") -> "CellResult":
        with Screen(report.title if report.swept else "") as screen:
            return sample(config, screen)

    return keep("sample", to_config(cfg, SampleConfig), on_screen)


def _around_sweep(sweep: app.Sweep) -> AbstractContextManager[None]:
    from runners.harness.text import grid as sample_grid

    return sample_grid.tracked(sweep)


SAMPLE = app.App("sample", job, SampleConfig, check_text, _around_sweep, lambda: USAGE.rstrip())


def main() -> NoReturn:
    """Entry point of ``python -m runners.sample`` and ``tinygpt-sample``."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a console without the text's characters
    app.run_cells(SAMPLE)


if __name__ == "__main__":
    from runners import sample  # the job has to be importable by name in a launcher's workers

    sample.main()
