"""Check on a machine with a GPU what only a GPU can show; prints one line a check, exit 1 if any
fails.

    python scripts/gpu_check.py

Runs the main job on CPU and GPU with every cache, then looks at the results: the gate passed on
the GPU, greedy and sampled tokens of row 0 agree across batches, the cache holds what the formula
says, the device table has its pairs, and a cell too large for the GPU is a row and no crash.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


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
        lines = (path.parent / "generations.jsonl").read_text(encoding="utf-8").splitlines()
        cell["rows"] = [json.loads(line)["new_ids"] for line in lines]
        found.append(cell)
    return found


def main() -> int:
    """Run and judge."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing to check here", file=sys.stderr)
        return 2
    results: list[tuple[str, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        status = bench(
            folder,
            "-m",
            "device=cpu,cuda",
            "batch=1,16",
            "cache=none,rolling,static",
            "sampler=greedy,t1.0",
            "length=64",
            "timing=quick",
            "device.on_missing=fail",
        )
        measured = cells(folder)
        results.append(("every cell is ok, its gate passed on the GPU", status == 0))
        for sampler in ("greedy", "t1.0"):
            for device in ("cpu", "cuda"):
                openings = {
                    tuple(cell["rows"][0][:16])
                    for cell in measured
                    if cell["choices"]["sampler"] == sampler and cell["choices"]["device"] == device
                }
                same = len(openings) == 1
                results.append((f"row 0 opens alike in all {sampler} cells on {device}", same))
        held = [c for c in measured if c["choices"]["cache"] == "rolling" and c["outcome"] == "ok"]
        exact = all(
            c["metrics"]["kv_cache_bytes"] == c["metrics"]["kv_cache_bytes_formula"] for c in held
        )
        results.append(("the rolling cache holds what the formula says", bool(held) and exact))
        command = [sys.executable, "-m", "runners.tables", "table=device", "format=json"]
        table = subprocess.run(
            [*command, f"tracking.dir={folder}"], check=False, capture_output=True, text=True
        )
        rows = json.loads(table.stdout) if table.returncode == 0 else []
        results.append(("the device table has a row for every pair", len(rows) == 12))
        print(table.stdout)
    with tempfile.TemporaryDirectory() as folder:
        bench(folder, "device=cuda", "batch.size=1000000", "length=1024", "timing=quick")
        outcomes = [cell["outcome"] for cell in cells(folder)]
        results.append(("a cell too large for the GPU is oom", outcomes == ["oom"]))
    for what, ok in results:
        print(f"{'ok  ' if ok else 'FAIL'} {what}")
    return 0 if all(ok for _, ok in results) else 1


if __name__ == "__main__":
    sys.exit(main())
