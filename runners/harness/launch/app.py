"""Runs an entry point under Hydra: checks first, one line for what is wrong, an exit status.

0: every cell is ok or skipped. 1: one failed, ran out of memory or mismatched. 2: the command or
config is wrong, and nothing was run. 3: a comparison cannot be judged. 130: Ctrl-C. 143: SIGTERM.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from omegaconf import DictConfig

from runners.harness.config import conversion, presets
from runners.harness.config.paths import conf_dir
from runners.harness.errors import UsageError, require_utf8


def _no_check(config: Any) -> None:
    pass


class Finished(NamedTuple):
    """What a cell's job tells the process that started it."""

    cell: str
    outcome: str
    reason: str
    tracked: bool


class Terminated(KeyboardInterrupt):
    """SIGTERM, ending what runs as Ctrl-C does."""


@dataclass
class Sweep:
    """The jobs of one command, composed and checked, before the first runs."""

    folder: Path
    """Where they go; its name is the sweep's id."""
    overrides: list[str]
    """As typed."""
    jobs: list[list[str]]
    """Each job's own overrides."""
    configs: list[Any]
    """Each job's typed config."""
    lone: bool = False
    """Whether it is no sweep: one job, asked for without -m."""
    done: set[int] = field(default_factory=set)
    """Numbers of the jobs that need not run, since it is an old sweep that goes on."""
    resumed: bool = False
    """Whether it is an old sweep, whose folder is there."""
    rerun_of: str | None = None
    """The id of the sweep that this one runs again."""

    @property
    def axes(self) -> dict[str, list[str]]:
        """The keys whose value is not the same in all jobs, with their values."""
        every = [dict(word.split("=", 1) for word in job) for job in self.jobs]
        values = {key: list(dict.fromkeys(job[key] for job in every)) for key in every[0]}
        return {key: found for key, found in values.items() if len(found) > 1}


def _nothing_around(sweep: Sweep) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass
class App:
    """An entry point."""

    name: str
    """Its primary config, conf/NAME.yaml, and the kind of its runs."""
    job: Callable[[DictConfig], Any]
    """Runs one job; importable by name, so that a launcher's workers find it."""
    schema: type
    """What the composed config is checked against."""
    check: Callable[[Any], None] = _no_check
    """Further checks of one job's config; raises UsageError."""
    around_sweep: Callable[[Sweep], AbstractContextManager[None]] = _nothing_around
    """Entered with a sweep before its first job."""
    usage: Callable[[], str] = str
    """What --help prints."""
    prepare: Callable[[Sweep], Sweep] = lambda sweep: sweep
    """What is to run, before anything is made: may go on with an old sweep, or refuse, or tell its
    plan and leave (SystemExit)."""
    keeps: bool = False
    """Whether each job has a folder of its own, in which its result is kept."""
    leaves: Callable[[str], bool] = lambda word: False
    """Whether a KEY=VALUE word of the command is not for its own config."""
    words: list[str] = field(default_factory=list)
    """The words it left, for the job to apply."""
    returned: list[Any] = field(default_factory=list)
    """What the jobs returned, in order."""

    def checked(self, cfg: DictConfig) -> Any:
        """The typed config of one job, or UsageError."""
        config: Any = conversion.to_config(cfg, self.schema)
        self.check(config)
        return config


_current: App | None = None


def current() -> App:
    """The entry point that runs in this process."""
    assert _current is not None, "run() sets it"
    return _current


def run(app: App) -> int:
    """Run ``app`` on sys.argv; returns the exit status of what is not about its results."""
    global _current
    _current = app
    app.returned.clear()
    try:
        for word in sys.argv[1:]:
            require_utf8(word)
    except ValueError as error:
        print(f"{app.name}: {error}", file=sys.stderr)
        return 2
    app.words = [word for word in sys.argv[1:] if app.leaves(word)]
    if "--version" in sys.argv[1:]:
        from tinygpt import __version__

        print(f"tinygpt {__version__}")
        return 0
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(app.usage())
        return 0

    import hydra

    from runners.harness.launch import sweeper

    misplaced = presets.misplaced(app.name, app.schema, sys.argv[1:])
    if misplaced:
        print(f"{app.name}: {misplaced}", file=sys.stderr)
        return 2
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hands us the exception in place of a printed one
    conversion.register()
    sweeper.register()
    typed = sys.argv
    ours = [word for word in typed[1:] if word not in app.words]
    ours.sort(key=lambda word: word not in ("-m", "--multirun"))  # argparse wants it in front
    sys.argv = [typed[0], *ours]
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=app.name)(app.job)()
    except UsageError as error:
        if os.environ.get("TINYGPT_DEBUG"):
            traceback.print_exception(error)
        print(f"{app.name}: {error}", file=sys.stderr)
        return 2
    except conversion.CONFIG_ERRORS as error:
        print(f"{app.name}: {conversion.one_line(error)}", file=sys.stderr)
        return 2
    except Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    finally:
        sys.argv = typed
    return 0


def run_cells(app: App) -> NoReturn:
    """Run ``app``, whose jobs return ``Finished``; say which went wrong, and exit."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        status = run(app)
    finally:
        signal.signal(signal.SIGTERM, before)
    wrong = [cell for cell in app.returned if cell.outcome not in ("ok", "skipped")]
    for cell in wrong:
        print(f"{cell.cell} {cell.outcome}: {cell.reason}", file=sys.stderr)
    lost = not all(cell.tracked for cell in app.returned)
    gc.freeze()  # collecting all of torch and MLflow once more at exit would take two seconds
    sys.exit(status or int(bool(wrong) or lost))


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated
