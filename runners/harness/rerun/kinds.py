"""Kinds of runs that can be run again: how each is checked and run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runners.harness.config.checks import check_bench, check_text
from runners.harness.config.schema import BenchConfig, SampleConfig, VerifyConfig
from runners.harness.launch.progress import CellProgress
from runners.harness.measure.cell import run_cell
from runners.harness.measure.result import CellResult
from runners.harness.text.sample import sample
from runners.harness.verify.run import verify


@dataclass(frozen=True)
class Kind:
    """What makes a run of a kind from its config."""

    schema: type
    check: Callable[[Any], None]
    run: Callable[[Any, CellProgress], CellResult]


def _sample(config: SampleConfig, report: CellProgress) -> CellResult:
    return sample(config, lambda prompt, piece: None)


KINDS = {
    "bench": Kind(BenchConfig, check_bench, run_cell),
    "sample": Kind(SampleConfig, check_text, _sample),
    "verify": Kind(VerifyConfig, check_text, verify),
}
