"""Kinds of runs that can be run again: how each is checked and run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runners.harness.cell import run_cell
from runners.harness.checks import check_bench, check_text
from runners.harness.progress import CellProgress
from runners.harness.result import CellResult
from runners.harness.sample_run import sample
from runners.harness.schema import BenchConfig
from runners.harness.text_schema import SampleConfig, VerifyConfig
from runners.harness.verify_run import verify


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
