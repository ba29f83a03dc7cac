"""The kinds of runs whose results are kept.

Each kind is declared once, for its entry point and for reruns. Whatever takes long to import is
given as ``module:function``.
"""

from dataclasses import dataclass

from runners.harness.config.schema import BenchConfig, SampleConfig, TrainConfig, VerifyConfig


@dataclass(frozen=True)
class Kind:
    """A kind of run: how a result is made from a config."""

    name: str
    """Its name, as in MLflow's experiment ``tinygpt/NAME``."""
    schema: type
    check: str
    """Checks a config before anything runs; raises UsageError."""
    run: str
    """Makes a CellResult from a config and a ``CellProgress`` or, if the kind is ``live``, from a
    config and a ``Delivery``.
    """
    show: str = ""
    """Shows a ``JobResult`` to the user."""
    done: str = ""
    """Returns ``Finished`` for a job that was done before its sweep was resumed, otherwise None."""
    live: bool = False
    """Whether a run takes so long that its figures are delivered to MLflow while it goes on."""


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
