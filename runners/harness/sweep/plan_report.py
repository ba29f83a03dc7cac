"""plan=true: a table of the cells that a command would run, with bytes, seconds and obstacles."""

from pathlib import Path

import pandas as pd
import torch

from runners.harness.config.schema import BenchConfig
from runners.harness.launch.entry import Sweep
from runners.harness.measure import memory, subject
from runners.harness.report import render
from runners.harness.sweep.plan import estimate
from runners.harness.tables.table import Table


def show(sweep: Sweep, old: Path | None) -> None:
    """Print the plan of ``sweep``; ``old`` is the folder of the earlier sweep, if any."""
    table = plan(sweep, old)
    render.show(table)


def plan(sweep: Sweep, old: Path | None) -> Table:
    """One row per cell: its values on the axes, its state, the bytes that it needs and the seconds
    that it will take, including compiling.
    """
    done = sweep.done if old is not None else set()
    reasons = ["" if n in done else obstacle(config) for n, config in enumerate(sweep.configs)]
    idle = {n for n, reason in enumerate(reasons) if n in done or reason}
    total = estimate(sweep.configs, idle)
    rows = []
    for n, (job, config) in enumerate(zip(sweep.jobs, sweep.configs, strict=True)):
        rows.append(
            {
                "cell": str(n),
                **_place(sweep, job),
                "state": "done" if n in done else "impossible" if reasons[n] else "to run",
                "needed_bytes": memory.needed_bytes(config).total,
                "seconds": 0.0 if n in idle else total.cells[n].seconds,
                "reason": f"done in {old.name}-{n}" if n in done and old else reasons[n],
            }
        )
    frame = pd.DataFrame(rows)
    left = frame["state"].eq("to run")
    footer = [f"{left.sum()} of {len(frame)} cells to run" + (f", {total}" if left.any() else "")]
    if sweep.done and old:
        footer.append(f"resume=true goes on with sweep {old.name}; without it all are run anew")
    frame["seconds"] = frame["seconds"].where(left)
    return Table("plan", frame, "plan (nothing is run)", "there are no cells", footer)


def obstacle(config: BenchConfig) -> str:
    """Why a cell cannot run here; empty if it can."""
    missing = subject.missing_device(config.device.kind)
    return missing or memory.obstacle(config, torch.device(config.device.kind))[1]


def _place(sweep: Sweep, job: list[str]) -> dict[str, str]:
    values = dict(word.split("=", 1) for word in job if "=" in word)
    return {key: values[key] for key in sweep.axes}
