"""What an entry point is, and what the jobs of one command are."""

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


@dataclass
class EntryPoint:
    """One command. What takes long to import is named, ``module:function``, and imported when it
    is needed, so that ``--help`` and a wrong command are answered at once.
    """

    name: str
    """Its primary config, conf/NAME.yaml, and the kind of its runs."""
    job: Callable[[DictConfig], Any]
    """Runs one job; importable by name, so that a launcher's workers find it."""
    schema: type
    """What the composed config is checked against."""
    usage: Callable[[], str]
    """What --help prints."""
    check: str = ""
    """Looks at one job's config before anything runs; raises UsageError."""
    prepare: str = ""
    """Takes the sweep and returns what is to run, before anything is made: it may go on with an
    old sweep, or refuse, or tell its plan and leave (SystemExit)."""
    around: str = ""
    """A context manager that is entered with a sweep before its first job."""
    keeps: bool = False
    """Whether each job has a folder of its own, in which its result is kept."""
    alone: str = ""
    """Why it takes no -m; empty where it does."""
    leaves: Callable[[str], bool] = lambda word: False
    """Whether a KEY=VALUE word of the command is not for its own config."""
    words: list[str] = field(default_factory=list)
    """The words it left, for the job to apply."""
    returned: list[Any] = field(default_factory=list)
    """What the jobs returned, in order."""

    def checked(self, cfg: DictConfig) -> Any:
        """The typed config of one job, or UsageError."""
        config: Any = conversion.to_config(cfg, self.schema)
        if self.check:
            resolve_name(self.check)(config)
        return config

    def prepared(self, sweep: Sweep) -> Sweep:
        """What is to run."""
        if self.alone and not sweep.lone:
            raise UsageError(f"-m: {self.alone}")
        prepared: Sweep = resolve_name(self.prepare)(sweep) if self.prepare else sweep
        return prepared

    def around_sweep(self, sweep: Sweep) -> AbstractContextManager[None]:
        """Entered before the first job of a sweep."""
        around: AbstractContextManager[None] = (
            resolve_name(self.around)(sweep) if self.around else nullcontext()
        )
        return around


_current: EntryPoint | None = None


def current() -> EntryPoint:
    """The entry point that runs in this process."""
    assert _current is not None, "begin() sets it"
    return _current


def begin(entry: EntryPoint) -> None:
    """Let ``entry`` be the one that runs in this process."""
    global _current
    _current = entry
    entry.returned.clear()
