"""What the harness costs a cell beside Hydra's composing and the measuring itself.

Runs a sweep of quick cells in this process, with a clock around every part of a cell's way, and
prints the parts in milliseconds per cell (medians). The first cell is left out: it pays for first
use.

    python scripts/bench_overhead.py [--cells 12] [--model tiny]
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl

from runners import bench
from runners.harness.config import conversion
from runners.harness.launch import progress
from runners.harness.measure import cell, fingerprint
from runners.harness.store import disk, tracking


class Clock:
    """Seconds by part and call."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def around(self, part: str, owner: Any, name: str) -> None:
        """Put a clock around a function of a module or class."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[part].append(perf_counter() - start)

        setattr(owner, name, timed)

    def ms(self, part: str) -> float:
        """Median milliseconds of a part, the first call left out."""
        return median(self.seconds[part][1:]) * 1e3


def main() -> int:
    """Run the sweep and print the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--model", default="tiny")
    arguments = parser.parse_args()
    clock = Clock()
    clock.around("composed by Hydra", ConfigLoaderImpl, "load_sweep_config")
    clock.around("measured", cell, "run_cell")
    clock.around("identified", fingerprint, "tags")
    clock.around("typed", conversion, "from_dict")
    clock.around("begun on disk", disk, "begin")
    clock.around("finished on disk", disk, "finish")
    clock.around("tracked", tracking.Store, "log_cell")
    clock.around("shown", progress.CellProgress, "finished")
    clock.around("job", bench, "job")
    bench.BENCH.job = bench.job

    rounds = ",".join(str(n) for n in range(1, arguments.cells + 1))
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["bench", "-m", f"round={rounds}", f"model={arguments.model}"]
        sys.argv += ["length.new_tokens=8", "timing=quick", f"tracking.dir={folder}"]
        try:
            bench.main()
        except SystemExit as ended:
            if ended.code:
                return int(ended.code)

    harness = clock.ms("job") - clock.ms("measured") + clock.ms("identified")
    print(f"\nmilliseconds a cell, medians of {arguments.cells - 1}")
    print(f"{2 * clock.ms('composed by Hydra'):8.1f}  composed by Hydra, twice")
    print(f"{clock.ms('measured') - clock.ms('identified'):8.1f}  measured")
    print(f"{harness:8.1f}  harness, of which")
    inner = ("identified", "typed", "begun on disk", "finished on disk", "tracked", "shown")
    for part in inner:
        print(f"{clock.ms(part):8.1f}    {part}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
