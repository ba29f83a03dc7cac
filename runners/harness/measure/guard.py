"""Turns the errors of a run into its outcome, so that the other runs go on."""

import traceback
from collections.abc import Callable

import torch

from runners.harness.config.schema import DeviceConfig
from runners.harness.errors import first_line
from runners.harness.measure import subject
from runners.harness.measure.result import CellResult


def guarded(device: DeviceConfig, run: Callable[[CellResult], None]) -> CellResult:
    """Let ``run`` fill a result with the device's threads. Only Ctrl-C and SIGTERM are raised."""
    missing = subject.missing_device(device.kind)
    if missing:
        return CellResult("skipped" if device.on_missing == "skip" else "failed", missing)
    result = CellResult("ok")
    try:
        with subject.threads(device, result.notes):
            run(result)
    except (torch.OutOfMemoryError, MemoryError) as error:
        result.outcome, result.reason = "oom", first_line(error)
    except (Exception, SystemExit) as error:  # SystemExit would end the sweep
        out_of_memory = "can't allocate memory" in str(error)  # how torch says it on a CPU
        result.outcome = "oom" if out_of_memory else "failed"
        result.reason, result.error = first_line(error), traceback.format_exc()
    return result
