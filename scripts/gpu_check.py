"""Check on a machine with a GPU what only a GPU can show; prints one line a check, exit 1 if any
fails.

    python scripts/gpu_check.py

1. The main job on CPU and GPU with every cache: the gate passes on the GPU, greedy and sampled
   tokens of row 0 agree across batches, the cache holds what the formula says, the device table has
   its pairs.
2. The engines at every precision: their gates pass, a replayed graph is at least five times as fast
   as eager at batch 1, and all write the text of eager (in fp32, where nothing is rounded apart).
3. While a graph is replayed the GPU is idle for less than a fifth of the time, by its own record.
4. A cell too large for the GPU is a row and no crash.

``--device cpu`` tries the script itself where there is no GPU: it runs to its end, and fails.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

Check = tuple[str, bool]

FASTER = 5.0
"""Times eager that a replayed graph has to reach at batch 1."""
IDLE = 0.20
"""Share of a text's time in which the GPU may have nothing to do."""
TRACED = 100
"""New tokens of the text whose kernels are recorded."""


def bench(folder: str, *arguments: str) -> int:
    """Run ``runners.bench`` with its results in ``folder``; returns its exit status."""
    command = [sys.executable, "-m", "runners.bench", *arguments, f"tracking.dir={folder}"]
    return subprocess.run(command, check=False).returncode


def cells(folder: str) -> list[dict[str, Any]]:
    """Every cell that was measured into ``folder``, with its generations."""
    found = []
    for path in sorted(Path(folder).rglob("cell.json")):
        if "artifacts" in path.parts:
            continue
        cell = json.loads(path.read_text(encoding="utf-8"))
        written = path.parent / "generations.jsonl"
        lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
        cell["rows"] = [json.loads(line)["new_ids"] for line in lines]
        found.append(cell)
    return found


def table(folder: str, kind: str) -> list[dict[str, Any]]:
    """The rows of a table of the newest sweep in ``folder``; printed, too."""
    command = [sys.executable, "-m", "runners.tables", f"table={kind}", f"tracking.dir={folder}"]
    subprocess.run(command, check=False)
    told = subprocess.run([*command, "format=json"], check=False, capture_output=True, text=True)
    rows: list[dict[str, Any]] = json.loads(told.stdout) if told.returncode == 0 else []
    return rows


def main_job(device: str) -> Iterator[Check]:
    """CPU and GPU, every cache, two samplers."""
    with tempfile.TemporaryDirectory() as folder:
        status = bench(
            folder,
            "-m",
            f"device={','.join(dict.fromkeys(('cpu', device)))}",
            "batch=1,16",
            "cache=none,rolling,static",
            "sampler=greedy,t1.0",
            "length=64",
            "timing=quick",
            "device.on_missing=fail",
        )
        measured = cells(folder)
        yield "every cell is ok, its gate passed on the GPU", status == 0
        for sampler in ("greedy", "t1.0"):
            for kind in ("cpu", device):
                wanted = {"sampler": sampler, "device": kind}
                openings = {tuple(c["rows"][0][:16]) for c in measured if chosen(c, wanted)}
                same = len(openings) == 1
                yield f"row 0 opens alike in all {sampler} cells on {kind}", same
        held = [c["metrics"] for c in measured if chosen(c, {"cache": "rolling"})]
        exact = all(m["kv_cache_bytes"] == m["kv_cache_bytes_formula"] for m in held)
        yield "the rolling cache holds what the formula says", bool(held) and exact
        yield "the device table has a row for every pair", len(table(folder, "device")) == 12


def engines(device: str) -> Iterator[Check]:
    """Every engine at every precision, beside eager."""
    fixed = ("-m", f"device={device}", "cache=static", "length.new_tokens=240", "timing=quick")
    with tempfile.TemporaryDirectory() as folder:
        status = bench(
            folder, *fixed, "round=1,2", "engine=eager,cudagraph", "precision=fp32,bf16,int8",
            "batch=1,16",
        )  # fmt: skip
        yield "eager and cudagraph are ok at every precision", status == 0
        graphs = [c for c in cells(folder) if chosen(c, {"engine": "cudagraph"})]
        yield "the graphs were recorded, none skipped", len(graphs) == 12
        for kind in ("fp32", "int8"):
            wanted = {"precision": kind, "batch": "1"}
            texts = {tuple(c["rows"][0]) for c in cells(folder) if chosen(c, wanted)}
            yield f"eager and cudagraph write one text in {kind}", len(texts) == 1
        rates: dict[str, float] = {}
        for row in table(folder, "engine"):
            if row["precision"] == "fp32" and row["batch"] == 1:
                rates[row["engine"]] = row["tok_per_s"]
        times = rates.get("cudagraph", 0.0) / rates.get("eager", 1.0)
        yield f"cudagraph is {times:.1f} times eager at batch 1, {FASTER:g} wanted", times >= FASTER
    with tempfile.TemporaryDirectory() as folder:
        status = bench(folder, *fixed, "engine=compiled", "precision=fp32,bf16", "batch=1")
        made = [c for c in cells(folder) if chosen(c, {})]
        yield "compiled makes code for the GPU", status == 0 and len(made) == 2


def chosen(cell: dict[str, Any], wanted: dict[str, str]) -> bool:
    """Whether a cell was measured, and with those options."""
    return bool(cell["outcome"] == "ok" and wanted.items() <= cell["choices"].items())


def idle(device: str) -> Iterator[Check]:
    """How long the GPU waits while a graph is replayed; ``tiny`` at batch 1, greedy."""
    import torch

    from tinygpt.checkpoint import random_model
    from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, PrecisionConfig
    from tinygpt.engines import make_engine
    from tinygpt.generation import never_stop

    prompt = torch.zeros(1, 8, dtype=torch.long, device=device)
    engine = make_engine(
        EngineConfig(kind="cudagraph" if device == "cuda" else "eager"),
        random_model(ModelConfig(), seed=1).to(device),
        CacheConfig(kind="static"),
        batch=1,
        max_positions=8 + TRACED,
        precision=PrecisionConfig(),
    )

    def text() -> float:
        start = perf_counter()
        engine.generate(prompt, TRACED, lambda logits: logits.argmax(-1), never_stop)
        if device == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - start

    seconds = min(text() for _ in range(6))
    with torch.profiler.profile() as profiler:  # it slows the host: only kernel times are taken
        text()
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    busy = covered((e.time_range.start, e.time_range.end) for e in events) / 1e6
    share = 1 - busy / seconds
    yield f"the GPU is idle for {share:.0%} of a text, {IDLE:.0%} allowed", share <= IDLE


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans, which may overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def too_large(device: str) -> Iterator[Check]:
    """A cell that no GPU holds."""
    with tempfile.TemporaryDirectory() as folder:
        bench(folder, f"device={device}", "batch.size=1000000", "length=1024", "timing=quick")
        outcomes = [cell["outcome"] for cell in cells(folder)]
        yield "a cell too large for the GPU is oom", outcomes == ["oom"]


def main() -> int:
    """Run and judge."""
    import torch

    parser = argparse.ArgumentParser(description="Check what only a GPU can show.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    if device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to check here", file=sys.stderr)
        return 2
    start, results = perf_counter(), []
    for part in (main_job, engines, idle, too_large):
        for check in part(device):
            results.append(check)
            print(f"{'ok  ' if check[1] else 'FAIL'} {check[0]}", flush=True)
    for what, ok in results:
        if not ok:
            print(f"failed: {what}")
    print(f"{len(results)} checks in {perf_counter() - start:.0f} s")
    return 0 if all(ok for _, ok in results) else 1


if __name__ == "__main__":
    sys.exit(main())
