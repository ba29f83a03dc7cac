"""Can a verdict be trusted? One cell measured twenty times in interleaved pairs, and slowed down.

    python scripts/bench_trust.py [--pairs 20] [--slowdown 0.15] [--turns 48] [KEY=VALUE ...]

A pair is one and the same cell with ten values a side, judged as a table judges ten rounds of one
sweep: any verdict of faster or slower is wrong. A third side takes part whose generations are
slowed down by a wait after each: a verdict other than slower has missed it. A value is the rate of
so many generations, and the sides take turns after every one of them, so that a burst of the
machine's other work hits all of them alike. KEY=VALUE words set the cell as for runners.bench; the
default is model=nano length.new_tokens=16 device.threads=1. Exit 1 if more than one pair in twenty
is called different, or fewer than 18 in 20 slowed ones are called slower.
"""

import argparse
import sys
from time import perf_counter

import torch
from hydra import compose, initialize_config_dir

from runners.harness.config import conversion
from runners.harness.config.paths import conf_dir
from runners.harness.config.schema import BenchConfig
from runners.harness.measure import timing
from runners.harness.measure.subject import Generation, Subject, threads
from runners.harness.measure.timing import Generate
from runners.harness.stats import Pair, Ratio, compare
from tinygpt.generation import OnToken, never_stop

VALUES = 10
SIDES = ("first", "second", "slowed")
CELL = ["model=nano", "length.new_tokens=16", "device.threads=1"]


def generation(config: BenchConfig) -> Generate:
    """The cell's own generation, warmed up."""
    subject = Subject(config, [])
    engine, sampler = subject.engine(config.engine, config.cache), subject.sampler(config.sampler)
    generate = Generation(subject, engine, sampler)
    generate(never_stop)
    return generate


def slowed(generate: Generate, share: float) -> Generate:
    """The same, with a wait that makes it take ``share`` longer."""

    def wait(on_token: OnToken) -> None:
        start = perf_counter()
        generate(on_token)
        until = start + (perf_counter() - start) * (1 + share)
        while perf_counter() < until:
            pass

    return wait


def measure(config: BenchConfig, share: float, turns: int) -> dict[str, Ratio]:
    """One pair and its slowed third, as a table would judge them."""
    synchronize = timing.synchronizer(torch.device(config.device.kind))
    plain = generation(config)
    ways = dict(zip(SIDES, (plain, plain, slowed(plain, share)), strict=True))
    rates: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for _ in range(VALUES):
        seconds = dict.fromkeys(SIDES, 0.0)
        for n in range(turns):
            for side in SIDES[n % 3 :] + SIDES[: n % 3]:  # none has always the same one before it
                seconds[side] += timing.timed_repeat(ways[side], synchronize)[1]
        tokens = turns * config.batch.size * config.length.new_tokens
        for side in SIDES:
            rates[side].append([tokens / seconds[side]])
    return {side: compare(Pair(rates[side], rates["first"], shared=True)) for side in SIDES[1:]}


def main() -> int:
    """Measure, count, judge."""
    parser = argparse.ArgumentParser(description="Verdicts on cells that do not differ, and do.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=0.15)
    parser.add_argument("--turns", type=int, default=48)
    parser.add_argument("words", nargs="*", default=CELL)
    asked = parser.parse_args()
    conversion.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = conversion.to_config(compose("bench", asked.words), BenchConfig)
    found: dict[str, list[str]] = {side: [] for side in SIDES[1:]}
    with threads(config.device, []):
        for pair in range(1, asked.pairs + 1):
            for side, ratio in measure(config, asked.slowdown, asked.turns).items():
                found[side].append(ratio.verdict)
                span = "" if ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
                print(
                    f"pair {pair:2} {side:6}: {ratio.verdict:7} {ratio.ratio:.3f}{span}", flush=True
                )
    wrong = sum(verdict in ("faster", "slower") for verdict in found["second"])
    seen = found["slowed"].count("slower")
    print(f"unchanged: {wrong} of {asked.pairs} called different, 1 in 20 is allowed")
    print(f"{asked.slowdown:.0%} slower: {seen} of {asked.pairs} found, 18 in 20 are wanted")
    return int(wrong > asked.pairs / 20 or seen < 0.9 * asked.pairs)


if __name__ == "__main__":
    sys.exit(main())
