"""Where Hydra hands over to us: before a lone job, and around the jobs of a sweep.

Hydra's basic sweeper runs the first jobs of a sweep before it looks at the last one. Ours composes
and checks all of them first. ``round`` is the slowest axis wherever it stands, so that cells are
interleaved and the machine's drift hits all of them alike.
"""

from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from runners.harness import app
from runners.harness.config import UsageError

_TARGET = "hydra_plugins.tinygpt.CheckedSweeper"


class CheckBeforeRun(Callback):
    """Checks a lone job before Hydra makes its folder."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        axes = config.hydra.sweeper.params
        if axes:
            raise UsageError(f"the preset is a sweep over {', '.join(axes)}; add -m")
        app.current().checked(config)


class CheckedSweeper(BasicSweeper):
    """The product of the axes, every job checked before the first runs."""

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        entry, loader = app.current(), self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides(self._parse_config() + list(arguments))
        overrides.sort(key=lambda override: override.key_or_group != "round")
        jobs = self.split_arguments(overrides, None)[0]
        configs = [entry.checked(loader.load_sweep_config(self.config, job)) for job in jobs]
        folder = Path(self.config.hydra.sweep.dir).absolute()
        with entry.around_sweep(folder, list(arguments), configs):
            for result in self.launcher.launch(jobs, initial_job_idx=0):
                entry.returned.append(result.return_value)
        return entry.returned


def register() -> None:
    """Make both known to Hydra; safe to repeat."""
    # Hydra takes plugins only from a package named hydra_plugins, which we have no use for.
    CheckedSweeper.__module__ = _TARGET.rpartition(".")[0]
    Plugins.instance().register(CheckedSweeper)
    node = OmegaConf.create({"_target_": _TARGET, "max_batch_size": None, "params": {}})
    ConfigStore.instance().store(group="hydra/sweeper", name="checked", node=node)
