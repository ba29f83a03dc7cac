"""How good the estimates are that a sweep begins with.

Runs small sweeps of different kinds, each in a process of its own as a user types it, and compares
the time that was told with the time that it took, from when it was told until the process ended.

    python scripts/bench_estimate.py [--only N ...] [--threads N] [--compile]

A factor of 1.5 either way is wanted of nine in ten. Other work on the machine changes both times,
so run it on a quiet one. --compile adds a sweep that compiles into an empty folder, for minutes.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
WANTED = 1.5
SWEEPS = (
    "model=nano batch=1,4 timing=quick length=64",
    "model=nano batch=1,16 cache=none,rolling timing=quick length=64",
    "model=nano cache=none,rolling,static length.new_tokens=100",
    "model=nano batch=8,32 cache=static length=256",
    "batch=1,16 timing=quick length=64",
    "batch=1,4,16 cache=static,rolling timing=quick length.new_tokens=32",
    "cache=none,rolling length=64",
    "precision=fp32,bf16,int8 timing=quick length=64 cache=static",
    "device.threads=1,2 batch=1,8 timing=quick length=64",
    "length=64,256 cache=rolling,static timing=quick sampler=greedy,t0.8_topp0.9",
)
COMPILING = "model=nano engine=eager,compiled cache=static batch=1,8 timing=quick length=64"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Told:
    """A sweep's estimate, and what it took."""

    sweep: str
    estimate_s: float
    taken_s: float
    whole_s: float
    """From the start of the process, with all that came before the estimate."""

    @property
    def factor(self) -> float:
        """Taken over told: above 1 where the sweep took longer."""
        return self.taken_s / self.estimate_s

    @property
    def good(self) -> bool:
        """Whether one is within ``WANTED`` of the other."""
        return 1 / WANTED <= self.factor <= WANTED


def estimate_of(line: str) -> float | None:
    """The seconds that a sweep's first line tells; None of any other line."""
    found = re.match(r"sweep \w+: .* about (\d+(?:\.\d+)?) (s|min|h)\b", line)
    return float(found[1]) * _UNITS[found[2]] if found else None


def run(sweep: str, threads: int | None = None) -> Told:
    """Run one sweep in a folder of its own; RuntimeError where it does not end well."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", *shlex.split(sweep), f"tracking.dir={folder}"]
        if threads and "device.threads=" not in sweep:
            words.append(f"device.threads={threads}")
        command = [sys.executable, "-m", "runners.bench", *words]
        environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
        if "engine=" in sweep:
            environment["TINYGPT_CACHE"] = folder
        start = perf_counter()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        estimate_s, at, said = None, start, ""
        for line in process.stderr:
            said += line
            if estimate_s is None:
                estimate_s, at = estimate_of(line), perf_counter()
        status = process.wait()
        end = perf_counter()
    if status or estimate_s is None:
        raise RuntimeError(f"{shlex.join(command)}: exit status {status}\n{said}")
    return Told(sweep, estimate_s, end - at, end - start)


def main() -> int:
    """Run the sweeps and print a line each; 1 where fewer than nine in ten are good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the sweeps to run, from 1")
    parser.add_argument("--compile", action="store_true", help="add a sweep that compiles")
    parser.add_argument("--threads", type=int, help="of the sweeps that do not vary them")
    arguments = parser.parse_args()
    sweeps = [*SWEEPS, *([COMPILING] if arguments.compile else [])]
    chosen = arguments.only or range(1, len(sweeps) + 1)
    print("told s  taken s  factor  whole s  sweep")
    results = []
    for number in chosen:
        told = run(sweeps[number - 1], arguments.threads)
        results.append(told)
        print(
            f"{told.estimate_s:6.0f}  {told.taken_s:7.1f}  {told.factor:6.2f}  "
            f"{told.whole_s:7.1f}  {told.sweep}",
            flush=True,
        )
    good = sum(told.good for told in results)
    print(f"{good} of {len(results)} within a factor of {WANTED}")
    return int(good < 0.9 * len(results))


if __name__ == "__main__":
    sys.exit(main())
