"""Can a verdict be trusted? One cell measured in pairs, and once slowed down on purpose.

    python scripts/bench_trust.py [--pairs 20] [--slowdown 0.15] [KEY=VALUE ...]

Each pair is two measurements of one cell, one after the other, ten repeats a side: a verdict of
faster or slower is wrong. A third measurement of each pair is slowed down by a wait after every
generation: a verdict other than slower has missed it. KEY=VALUE words set the cell as for
runners.bench; the default is device.threads=1 length=64. Exit 1 if more than one pair in twenty is
called different, or fewer than 18 in 20 slowed ones are called slower.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from hydra import compose, initialize_config_dir
from torch import Tensor

from runners.harness import config as configs
from runners.harness.cell import run_cell
from runners.harness.paths import conf_dir
from runners.harness.result import CellResult
from runners.harness.schema import BenchConfig
from runners.harness.stats import Ratio, compare
from tinygpt.engines.eager import EagerEngine

REPEATS = ["timing.min_repeats=10", "timing.max_repeats=10", "timing.budget_s=600"]


@contextmanager
def slowed(share: float) -> Iterator[None]:
    """Every generation takes ``share`` longer inside."""
    original = EagerEngine.generate

    def generate(self: EagerEngine, *arguments: Any) -> Tensor:
        start = perf_counter()
        ids = original(self, *arguments)
        until = start + (perf_counter() - start) * (1 + share)
        while perf_counter() < until:
            pass
        return ids

    EagerEngine.generate = generate  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        EagerEngine.generate = original  # type: ignore[method-assign]


def judged(new: CellResult, old: CellResult) -> Ratio:
    """What a table says of two cells of one round each."""
    sides = [[json.loads(cell.tags["tinygpt.rates"])] for cell in (new, old)]
    drift = new.metrics["reference_ms"] / old.metrics["reference_ms"]
    return compare(*sides, drift=drift)


def main() -> int:
    """Measure, count, judge."""
    parser = argparse.ArgumentParser(description="Verdicts on cells that do not differ, and do.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=0.15)
    parser.add_argument("words", nargs="*", default=["device.threads=1", "length=64"])
    asked = parser.parse_args()
    configs.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = configs.to_config(compose("bench", [*asked.words, *REPEATS]), BenchConfig)
    found: dict[str, list[Ratio]] = {"unchanged": [], "slowed": []}
    for pair in range(1, asked.pairs + 1):
        first, second = run_cell(config), run_cell(config)
        with slowed(asked.slowdown):
            third = run_cell(config)
        for name, new in (("unchanged", second), ("slowed", third)):
            ratio = judged(new, first)
            found[name].append(ratio)
            span = "" if ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
            print(f"pair {pair:2} {name:9}: {ratio.verdict:7} {ratio.ratio:.3f}{span}", flush=True)
    wrong = sum(ratio.verdict in ("faster", "slower") for ratio in found["unchanged"])
    seen = sum(ratio.verdict == "slower" for ratio in found["slowed"])
    print(f"unchanged: {wrong} of {asked.pairs} called different, 1 in 20 is allowed")
    print(f"{asked.slowdown:.0%} slower: {seen} of {asked.pairs} found, 18 in 20 are wanted")
    return int(wrong > asked.pairs / 20 or seen < 0.9 * asked.pairs)


if __name__ == "__main__":
    sys.exit(main())
