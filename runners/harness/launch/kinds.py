"""The kinds of runs whose results are kept, each declared once: for its entry point and for reruns.

What takes long to import is named, ``module:function``.
"""

from dataclasses import dataclass

from runners.harness.config.schema import BenchConfig, SampleConfig, TrainConfig, VerifyConfig


@dataclass(frozen=True)
class Kind:
    """What makes a result of a config."""

    name: str
    """As in MLflow's experiment ``tinygpt/NAME``."""
    schema: type
    check: str
    """Looks at a config before anything runs; raises UsageError."""
    run: str
    """Makes a CellResult of a config and a ``CellProgress``; of a config and a ``Delivery``, where
    it is ``live``."""
    show: str = ""
    """Shows a ``JobResult`` to the person who typed the command."""
    done: str = ""
    """Gives ``Finished`` for a job that need not run, since a sweep goes on that has its result."""
    live: bool = False
    """Whether its run takes so long that MLflow gets its figures while it goes on."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "bench",
            BenchConfig,
            "runners.harness.config.checks:check_bench",
            "runners.harness.measure.cell:run_cell",
            show="runners.harness.sweep.around:show_lone",
            done="runners.harness.sweep.resume:finished",
        ),
        Kind(
            "sample",
            SampleConfig,
            "runners.harness.config.checks:check_text",
            "runners.harness.text.sample:quietly",
        ),
        Kind(
            "verify",
            VerifyConfig,
            "runners.harness.config.checks:check_text",
            "runners.harness.verify.run:verify",
            show="runners.harness.verify.screen:show_result",
        ),
        Kind(
            "train",
            TrainConfig,
            "runners.harness.train.inputs:check",
            "runners.harness.train.run:train_job",
            show="runners.harness.train.report:tell",
            live=True,
        ),
    )
}
