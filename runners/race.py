"""A lesson in under a minute: one text with and without a cache, at the same time on the screen.

Each is run alone first, every step timed; then both are replayed side by side at true speed, so
that they do not disturb each other. Nothing is written and nothing tracked.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from omegaconf import DictConfig

from runners.harness.config.conversion import to_config
from runners.harness.config.presets import with_groups
from runners.harness.config.schema import RaceConfig
from runners.harness.launch import app
from runners.harness.launch.entry import EntryPoint, Finished

if TYPE_CHECKING:
    from runners.harness.measure.result import CellResult
    from runners.harness.text.race import Race

USAGE = """\
usage: python -m runners.race [GROUP=OPTION ...] [KEY=VALUE ...]

  python -m runners.race                                256 tokens with and without a cache
  python -m runners.race length=64                      a short text
  python -m runners.race device=cuda cache=static       elsewhere, with another cache
  python -m runners.race "prompt.text=My dear Watson"

groups:
cache=none is the other side of every race, and no option here.
keys: prompt.text|file, checkpoint, device.threads, length.new_tokens; `--cfg job` prints them all.
Where the output is no terminal, there is no replay: the summary is all. Nothing is tracked.
exit status: 0 both were shown; 1 it failed; 2 the command is wrong; 130 Ctrl-C; 143 SIGTERM
"""


def job(cfg: DictConfig) -> Finished:
    """Measure both, and show them."""
    from runners.harness.measure.guard import guarded
    from runners.harness.text import race_screen
    from runners.harness.text.race import race

    config = to_config(cfg, RaceConfig)
    found: list[Race] = []

    def run(result: "CellResult") -> None:
        measured = race(config, report)
        found.append(replace(measured, notes=[*result.notes, *measured.notes]))

    with race_screen.phases() as report:
        result = guarded(replace(config.device, on_missing="fail"), run)
    for measured in found:
        race_screen.show(measured)
    return Finished("race", result.outcome, result.reason, tracked=True)


RACE = EntryPoint(
    "race",
    job,
    RaceConfig,
    lambda: with_groups(USAGE.rstrip(), "race", RaceConfig),
    check="runners.harness.config.checks:check_text",
    alone="a race is one run on one screen, and there is no second one to set beside it; leave it "
    "out, or measure many with python -m runners.bench -m",
)


def main() -> NoReturn:
    """Entry point of ``python -m runners.race`` and ``tinygpt-race``."""
    app.run_cells(RACE)


if __name__ == "__main__":
    from runners import race  # the job has to be importable by name in a launcher's workers

    race.main()
