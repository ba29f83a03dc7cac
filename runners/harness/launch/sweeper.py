"""Replaces a part of Hydra's sweeper, so that all jobs are checked before the first one runs.

Hydra's basic sweeper runs the first jobs of a sweep before it composes the last one. ``round`` is
always the slowest axis, wherever it is typed, so that rounds are interleaved and the machine's
drift affects all cells alike.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from runners.harness import terminal
from runners.harness.config import filters
from runners.harness.config.conversion import before_anything_runs
from runners.harness.errors import UsageError
from runners.harness.launch import folders
from runners.harness.launch.entry import Sweep, current

if TYPE_CHECKING:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class CheckBeforeRun(Callback):
    """Checks a lone job before Hydra makes its folder.

    It also carries a preset's own key ``leave_out`` (conf/harness.yaml) from the composed config to
    the sweeper, since Hydra's own sweeper takes no further keys.
    """

    def __init__(self, leave_out: Sequence[str] = ()) -> None:
        pass

    @before_anything_runs()
    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        axes = config.hydra.sweeper.params
        if axes:
            raise UsageError(f"the preset is a sweep over {', '.join(axes)}; add -m")
        entry = current()
        checked = entry.checked(config)
        words = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        assert isinstance(words, list)
        folder = Path(config.hydra.run.dir).absolute()
        folders.check_job(entry, config.hydra)
        _starting(checked)
        sweep = entry.prepared(Sweep(folder, words, [words], [checked], lone=True))
        folders.check_sweep(entry, sweep)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        if kwargs["job_return"].status is JobStatus.COMPLETED:
            returned = kwargs["job_return"].return_value
            current().returned += returned if isinstance(returned, list) else [returned]


def checked_sweep(self: "BasicSweeper", arguments: list[str]) -> Any:
    """Check every job of a sweep, then run them all; returns what the jobs returned."""
    assert self.launcher is not None
    entry, sweep = current(), _prepared(self, arguments)
    with entry.around_sweep(sweep):
        for result in self.launcher.launch(sweep.jobs, initial_job_idx=0):
            entry.returned.append(result.return_value)
    return entry.returned


@before_anything_runs()
def _prepared(self: "BasicSweeper", arguments: list[str]) -> Sweep:
    assert self.config is not None
    assert self.hydra_context is not None
    entry, loader = current(), self.hydra_context.config_loader
    parser = OverridesParser.create(config_loader=loader)
    overrides = parser.parse_overrides(self._parse_config() + list(arguments))
    overrides.sort(key=lambda override: override.key_or_group != "round")
    jobs = self.split_arguments(overrides, None)[0]
    typed = {override.key_or_group for override in parser.parse_overrides(list(arguments))}
    jobs = meant(jobs, self.config.hydra.callbacks.check.leave_out, typed)
    folder = Path(self.config.hydra.sweep.dir).absolute()
    configs = []
    for job in jobs:
        composed = loader.load_sweep_config(self.config, job)
        configs.append(entry.checked(composed))
        folders.check_job(entry, composed.hydra, folder)
    _starting(configs[0])
    sweep = entry.prepared(Sweep(folder, list(arguments), jobs, configs))
    folders.check_sweep(entry, sweep)
    if sweep.folder != folder:
        _use_id(self.config, sweep.folder.name)
    return sweep


def _starting(config: Any) -> None:
    if hasattr(config, "device"):  # a model will run
        terminal.starting("torch and MLflow")


def meant(jobs: list[list[str]], leave_out: Sequence[str], typed: set[str]) -> list[list[str]]:
    """The jobs of a sweep without the combinations that its preset leaves out.

    Each text of ``leave_out`` has conditions on the axes, such as ``engine=compiled and
    cache=rolling``. A job that fits all conditions of a text is left out, unless the user typed
    every key in the text and so asked for it.
    """
    kept = jobs
    for text in leave_out:
        conditions = filters.parse(text)
        if {condition.key for condition in conditions} <= typed:
            continue
        kept = [job for job in kept if not _fits(job, conditions)]
    if not kept:
        raise UsageError(
            f"the preset leaves out every cell of this command ({'; '.join(leave_out)}); type the "
            "options of all groups named there to run them all the same"
        )
    return kept


def _fits(job: list[str], conditions: list[filters.Condition]) -> bool:
    facts = {key: filters.values(value) for key, _, value in (word.partition("=") for word in job)}
    return all(condition.key in facts and condition.fits(facts) for condition in conditions)


def _use_id(config: DictConfig, identity: str) -> None:
    """Put all jobs into the sweep ``identity``, by changing the id that ``config`` resolves to."""
    OmegaConf.register_new_resolver("new_id", lambda: identity, use_cache=True, replace=True)
    OmegaConf.clear_cache(config)
    assert Path(config.hydra.sweep.dir).name == identity


def register() -> None:
    """Replace the method ``sweep`` of Hydra's basic sweeper by ``checked_sweep``; safe to repeat.

    A subclass does not work: Hydra imports a sweeper by its name, from a top-level package named
    ``hydra_plugins`` or from its own package, and loads everything in ``hydra_plugins`` for every
    program that uses Hydra.
    """
    Plugins.instance()  # first, since its scan reloads the modules of plugins
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    BasicSweeper.sweep = checked_sweep  # type: ignore[method-assign]
