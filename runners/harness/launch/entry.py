"""The classes for an entry point, for the jobs of one command, and for their outcome."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from omegaconf import DictConfig

from runners.harness.config import conversion
from runners.harness.errors import UsageError


class Finished(NamedTuple):
    """What the job of a cell reports to the process that started it."""

    cell: str
    outcome: str
    reason: str
    tracked: bool


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; it ends a run in the same way as Ctrl-C."""


@dataclass
class Sweep:
    """The jobs of one command, composed and checked, before the first one runs."""

    folder: Path
    """The folder of the results; its name is the sweep's id."""
    overrides: list[str]
    """The words of the command, as typed."""
    jobs: list[list[str]]
    """The overrides of each job."""
    configs: list[Any]
    """The typed config of each job."""
    lone: bool = False
    """Whether this is a single job that was started without -m."""
    done: set[int] = field(default_factory=set)
    """Numbers of the jobs that were done before this sweep was resumed, and do not run again."""
    resumed: bool = False
    """Whether this sweep goes on with an older one, whose folder exists."""
    rerun_of: str | None = None
    """The id of the sweep that this one runs again."""

    @property
    def axes(self) -> dict[str, list[str]]:
        """The keys whose values differ between the jobs, each with its values."""
        every = [dict(word.split("=", 1) for word in job) for job in self.jobs]
        values = {key: list(dict.fromkeys(job[key] for job in every)) for key in every[0]}
        return {key: found for key, found in values.items() if len(found) > 1}


@dataclass
class EntryPoint:
    """One command.

    Whatever takes long to import is given as ``module:function`` and imported when it is needed, so
    that ``--help`` and a wrong command are answered at once.
    """

    name: str
    """The name of its primary config, conf/NAME.yaml, and the kind of its runs."""
    job: Callable[[DictConfig], Any]
    """Runs one job. It is importable by name, since a launcher's workers import it that way."""
    schema: type
    """The dataclass that the composed config is checked against."""
    usage: Callable[[], str]
    """Returns the text that --help prints."""
    check: str = ""
    """Checks one job's config before anything runs; raises UsageError."""
    prepare: str = ""
    """Takes the sweep before anything is made, and returns the sweep to run. It may go on with an
    older sweep, refuse, or print a plan and exit (SystemExit).
    """
    around: str = ""
    """A context manager that is entered with the sweep before its first job."""
    keeps: bool = False
    """Whether the result of each job is kept, in a folder of its own."""
    alone: str = ""
    """Why the command takes no -m; empty if it takes -m."""
    leaves: Callable[[str], bool] = lambda word: False
    """Whether a KEY=VALUE word of the command is not for the command's own config."""
    words: list[str] = field(default_factory=list)
    """The words that are not for the command's own config, to be applied by the job."""
    returned: list[Any] = field(default_factory=list)
    """What the jobs returned, in order."""

    def checked(self, cfg: DictConfig) -> Any:
        """The typed config of one job. Raises UsageError if it is wrong."""
        config: Any = conversion.to_config(cfg, self.schema)
        if self.check:
            resolve_name(self.check)(config)
        return config

    def prepared(self, sweep: Sweep) -> Sweep:
        """The sweep to run; see ``prepare``."""
        if self.alone and not sweep.lone:
            raise UsageError(f"-m: {self.alone}")
        prepared: Sweep = resolve_name(self.prepare)(sweep) if self.prepare else sweep
        return prepared

    def around_sweep(self, sweep: Sweep) -> AbstractContextManager[None]:
        """The context in which the jobs of a sweep run; see ``around``."""
        around: AbstractContextManager[None] = (
            resolve_name(self.around)(sweep) if self.around else nullcontext()
        )
        return around


_current: EntryPoint | None = None


def current() -> EntryPoint:
    """The entry point that is running in this process."""
    assert _current is not None, "begin() sets it"
    return _current


def begin(entry: EntryPoint) -> None:
    """Make ``entry`` the entry point that is running in this process."""
    global _current
    _current = entry
    entry.returned.clear()
