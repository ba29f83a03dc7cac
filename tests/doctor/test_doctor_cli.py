"""``python -m runners.doctor``, on what kill -9 leaves of a real sweep, and its command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import doctor as doctor_module
from runners.harness.store import tracking
from runners.harness.store.tracking import Store
from runners.harness.tables.frames import cache_speedup, cells
from tests.doctor.test_doctor import state

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ["-m", "cache=none,rolling", "round=1,2", "model=nano", "timing=quick"]
SWEEP += ["length.new_tokens=16", "device.threads=1"]
Doctor = Callable[..., tuple[int, str, str]]
Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Doctor:
    """Call ``python -m runners.doctor`` in this process: (status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        tracking._open.cache_clear()
        monkeypatch.setattr("sys.argv", ["doctor", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            doctor_module.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def killed_at(results: Path, number: int) -> Path:
    """The folder of a sweep that was killed while it measured its cell ``number``."""
    command = [sys.executable, "-m", "runners.bench", *SWEEP, f"tracking.dir={results}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    sweep = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 120.0
        while not list(results.glob(f"sweeps/*/{number}/environment.json")):
            assert sweep.poll() is None, sweep.stderr.read() if sweep.stderr else ""
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        sweep.send_signal(signal.SIGKILL)
        sweep.communicate()
    (folder,) = (results / "sweeps").iterdir()
    return folder


def runs_of(store: Store, sweep: str) -> dict[str, list[str]]:
    """The outcomes by cell of all runs of a sweep, the oldest first."""
    found: dict[str, list[str]] = {}
    for run in reversed(store.search("bench", f"tags.`tinygpt.sweep` = '{sweep}'")):
        tags = run.data.tags
        found.setdefault(tags.get("tinygpt.cell", "sweep"), []).append(tags["tinygpt.outcome"])
    return found


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_m3_a_sweep_killed_in_the_middle_is_mended_and_goes_on(
    results: Path, doctor: Doctor, bench: Bench
) -> None:
    folder = killed_at(results, 1)
    name, where = folder.name, f"tracking.dir={results}"
    store = Store(results)
    facts = json.loads((folder / "sweep.json").read_text())
    assert store.client.get_run(facts["run_id"]).info.status == "RUNNING"
    before = state(results)
    status, out, err = doctor(where)
    assert (status, err) == (1, "")
    who = f"{facts['pid']} on {facts['host']}"
    lines = [
        f"cell {name}-1: the process that ran it ({who}) is gone; ",
        f"sweep {name}: left open in MLflow, the process that ran it ({who}) is gone; ",
    ]
    cures = ["makes it an interrupted row", "ends it as interrupted"]
    told = [f"{line}fix=true {cure}" for line, cure in zip(lines, cures, strict=True)]
    assert out.splitlines() == [*told, "2 findings; fix=true mends them"]
    assert state(results) == before

    status, out, err = doctor("fix=true", where)
    assert (status, err) == (0, "")  # and none of the tables is printed
    did = ["an interrupted row now", "ended as interrupted"]
    assert out.splitlines() == [*(a + b for a, b in zip(lines, did, strict=True)), "2 mended"]
    after = state(results)
    assert doctor("fix=true", where) == (0, f"nothing to mend in {results}\n", "")
    assert doctor(where) == (0, f"nothing to mend in {results}\n", "")
    assert state(results) == after

    assert store.client.get_run(facts["run_id"]).info.status == "KILLED"
    frame = cells(name, store)
    assert sorted(frame["outcome"]) == ["interrupted", "ok"]
    assert cache_speedup(frame).empty
    assert f"its process ({who}) was gone" in (folder / "tables" / "cells.csv").read_text()

    status, _, err = bench(*SWEEP, "resume=true")
    assert status == 0, err
    assert all(of_cell[-1] == "ok" for of_cell in runs_of(store, name).values())
    told = [json.loads(path.read_text()) for path in folder.glob("*/environment.json")]
    if len({each["code"]["sha256"] for each in told}) > 1:
        pytest.skip("the code was edited meanwhile: what was measured counts no more")
    assert runs_of(store, name) == {
        "sweep": ["ok"],
        f"{name}-0": ["ok"],
        f"{name}-1": ["interrupted", "ok"],
        f"{name}-2": ["ok"],
        f"{name}-3": ["ok"],
    }
    assert len(cache_speedup(cells(name, store))) == 1
    assert doctor("fix=true", where)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prune=30"], "prune=30: must be an age in days or hours, such as 30d or 12h"),
        (["prune=0d"], "prune=0d: must be an age"),
        (["fix=perhaps"], "fix: Value 'perhaps'"),
        (["fiks=true"], "fiks"),
        (["-m", "fix=true,false"], "-m: the doctor looks at one results folder at a time"),
        (["prune=30d", "tracking.uri=http://127.0.0.1:9"], "prune=30d: is for the store in"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str], words: str, results: Path, doctor: Doctor
) -> None:
    before = state(results)
    status, out, err = doctor(*arguments, f"tracking.dir={results}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert words in line
    assert state(results) == before


def test_a_server_out_of_reach_is_one_finding(
    results: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    arguments = ["fix=true", "tracking.uri=http://127.0.0.1:9", f"tracking.dir={results}"]
    status, out, err = doctor(*arguments)
    assert (status, err) == (1, "")
    line, summary = out.splitlines()
    assert line.startswith("http://127.0.0.1:9: MlflowException: API request")
    assert summary == "0 mended, 1 left"


def test_help_tells_what_it_does(doctor: Doctor) -> None:
    status, out, _ = doctor("--help")
    assert status == 0
    assert out.startswith("usage: python -m runners.doctor [fix=true] [prune=30d] [gone=HOST]")
