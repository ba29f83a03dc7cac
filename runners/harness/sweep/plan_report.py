"""What a command would run, without running it: each cell, what it takes, what is in its way."""

from pathlib import Path

import pandas as pd
import torch

from runners.harness.config.schema import BenchConfig
from runners.harness.launch.app import Sweep
from runners.harness.measure import subject
from runners.harness.report import render
from runners.harness.sweep.plan import calibrate, estimate_s
from runners.harness.tables.table import Table
from runners.harness.terminal import duration


def show(sweep: Sweep, old: Path | None) -> None:
    """Print the cells of ``sweep``; those done in the sweep ``old`` need not run again."""
    table = plan(sweep, old)
    render.show(table)


def plan(sweep: Sweep, old: Path | None) -> Table:
    """One row a cell: its place on the axes, its state, bytes and seconds expected."""
    machine, rows = calibrate(), []
    for n, (job, config) in enumerate(zip(sweep.jobs, sweep.configs, strict=True)):
        done = old is not None and n in sweep.done
        reason = "" if done else obstacle(config)
        runs = not done and not reason
        rows.append(
            {
                "cell": str(n),
                **_place(sweep, job),
                "state": "done" if done else "impossible" if reason else "to run",
                "needed_bytes": subject.needed_bytes(config).total,
                "seconds": estimate_s(config, machine) if runs else 0.0,
                "reason": f"done in {old.name}-{n}" if done and old else reason,
            }
        )
    frame = pd.DataFrame(rows)
    left = frame["state"].eq("to run")
    footer = [
        f"{left.sum()} of {len(frame)} cells to run, about {duration(frame['seconds'].sum())}"
    ]
    if sweep.done and old:
        footer.append(f"resume=true goes on with sweep {old.name}; without it all are run anew")
    frame["seconds"] = frame["seconds"].where(left)
    return Table("plan", frame, "plan (nothing is run)", "there are no cells", footer)


def obstacle(config: BenchConfig) -> str:
    """Why a cell cannot run here; empty where it can."""
    missing = subject.missing_device(config.device.kind)
    return missing or subject.obstacle(config, torch.device(config.device.kind))[1]


def _place(sweep: Sweep, job: list[str]) -> dict[str, str]:
    values = dict(word.split("=", 1) for word in job if "=" in word)
    return {key: values[key] for key in sweep.axes}
