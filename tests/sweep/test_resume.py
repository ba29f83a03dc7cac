"""``resume=true``: a sweep that was stopped goes on, and nothing is measured twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from runners.harness.config.schema import BenchConfig, DeviceConfig, PromptConfig
from runners.harness.machine import environment
from runners.harness.measure import cell, fingerprint, subject
from runners.harness.measure.result import CellResult
from runners.harness.store.disk import TRACKED
from runners.harness.store.tracking import Store
from runners.harness.sweep import plan, resume
from runners.harness.tables.frames import cells
from tests import small_text
from tests.train_command import Ended
from tinygpt.checkpoint import random_model, save_model

Entry = Callable[..., Ended]
ROOT = Path(__file__).resolve().parents[2]
NANO = ("model=nano", "length.new_tokens=2", "device.threads=1")


class Planted:
    """Cells that are identified as real ones are, and measured at once."""

    def __init__(self) -> None:
        self.ran: list[BenchConfig] = []
        self.before: Callable[[BenchConfig], None] = lambda config: None
        """Called with every cell first."""

    def __call__(self, config: BenchConfig, report: object = None) -> CellResult:
        self.ran.append(config)
        self.before(config)
        missing = subject.missing_device(config.device.kind)
        if missing:
            return CellResult("skipped", missing)
        notes: list[str] = []
        [prompt] = subject.make_prompts(config, None, notes)
        with subject.threads(config.device, notes):
            tags = fingerprint.tags(
                config, subject.make_model(config, prompt.device), prompt.tolist()
            )
        tags["tinygpt.rates"] = "[100.0, 101.0]"
        return CellResult("ok", metrics={"output_tok_per_s": 100.5}, tags=tags)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    found = Planted()
    monkeypatch.setattr(cell, "run_cell", found)
    monkeypatch.setattr(plan, "calibrate", lambda *_: plan.Machine(1e-4, 1e9))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return found


@dataclass
class Desk:
    """Types bench commands on one results folder."""

    results: Path
    entry: Entry
    planted: Planted

    def __call__(self, *words: str) -> Ended:
        self.planted.ran.clear()
        nano = NANO if "checkpoint=mine" not in words else NANO[1:]
        return self.entry("bench", self.results, *words, *nano)

    @property
    def ran(self) -> list[BenchConfig]:
        return self.planted.ran

    @property
    def sweep(self) -> Path:
        """The folder of the only sweep."""
        (folder,) = (self.results / "sweeps").iterdir()
        return folder

    def parents(self) -> list[Any]:
        return Store(self.results).search("bench", "tags.`tinygpt.kind` = 'sweep'")

    def runs(self, name: str) -> list[Any]:
        """MLflow's runs of a cell, newest first."""
        return Store(self.results).search("bench", f"tags.`tinygpt.cell` = '{name}'")

    def snapshot(self) -> tuple[Any, int]:
        """All files, and how many runs there are."""
        found = [p for p in self.results.rglob("*") if p.is_file() and "mlflow" not in p.name]
        n_runs = len(Store(self.results).search("bench", ""))
        return {path: path.stat().st_mtime_ns for path in found}, n_runs


@pytest.fixture
def desk(results: Path, entry: Entry, planted: Planted) -> Desk:
    return Desk(results, entry, planted)


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a cell, with its bytes and when it was changed."""
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


def outcomes(folder: Path) -> dict[str, list[int]]:
    """Numbers of a sweep's cells by what they came to."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*/cell.json")):
        outcome = json.loads(path.read_text())["outcome"]
        found.setdefault(outcome, []).append(int(path.parent.name))
    return found


def edit(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_a_sweep_stopped_in_the_middle_goes_on_and_measures_only_what_is_left(desk: Desk) -> None:
    def stop(config: BenchConfig) -> None:
        if len(desk.ran) == 5:
            raise KeyboardInterrupt

    desk.planted.before = stop
    assert desk("-m", "batch=1,2,4", "round=1,2").status == 130
    desk.planted.before = lambda config: None
    folder, store = desk.sweep, Store(desk.results)
    assert outcomes(folder) == {"ok": [0, 1, 2, 3], "interrupted": [4]}
    shutil.rmtree(folder / "1")
    (folder / "2" / "cell.json").write_text("{")
    shutil.copytree(folder / "4", folder / "5")
    edit(folder / "5" / "cell.json", cell=f"{folder.name}-5", outcome="running", pid=2**22 + 1)
    done = {n: files(folder / n) for n in ("0", "3")}

    ended = desk("-m", "resume=true", "round=2,1", "batch=4,1,2")
    assert ended.status == 0, ended.err
    assert ended.err.startswith(f"resuming sweep {folder.name}: 2 of its 6 cells are done\n")
    assert [(c.round, c.batch.size) for c in desk.ran] == [(1, 2), (1, 4), (2, 2), (2, 4)]
    assert ended.err.count("done before") == 2
    assert {n: files(folder / n) for n in done} == done
    assert desk.sweep == folder
    assert outcomes(folder) == {"ok": [0, 1, 2, 3, 4, 5]}

    frame = cells(folder.name, store)
    assert sorted(frame["cell"]) == [f"{folder.name}-{n}" for n in range(6)]
    assert set(frame["outcome"]) == {"ok"}
    assert (frame.groupby("batch")["round"].nunique() == 2).all()
    (parent,) = desk.parents()
    assert (parent.info.status, parent.data.tags["tinygpt.outcome"]) == ("FINISHED", "ok")
    assert [run.info.status for run in desk.runs(f"{folder.name}-4")] == ["FINISHED", "KILLED"]
    for n in range(6):
        newest, *_ = desk.runs(f"{folder.name}-{n}")
        assert newest.data.tags["mlflow.parentRunId"] == parent.info.run_id
    written = (folder / "tables" / "cells.csv").read_text()
    assert len(written.splitlines()) == 7


def test_of_several_sweeps_of_the_same_cells_the_newest_goes_on(desk: Desk) -> None:
    """And one that has the same cells and one more is another sweep."""
    assert desk("-m", "batch=1").status == 0
    first = desk.sweep.name
    assert desk("-m", "batch=1").status == 0
    assert desk("-m", "batch=1,2").status == 0
    names = [run.data.tags["tinygpt.sweep"] for run in desk.parents()]
    assert names[2] == first
    ended = desk("-m", "batch.size=1", "resume=true")  # by value, the same cell
    assert ended.status == 0, ended.err
    assert f"resuming sweep {names[1]}: 1 of its 1 cells" in ended.err
    assert desk.ran == []
    assert [run.info.status for run in desk.parents()] == ["FINISHED"] * 3
    assert names[1] in ended.out  # its tables


def test_with_nothing_to_go_on_with_a_new_sweep_begins_and_says_so(desk: Desk) -> None:
    ended = desk("-m", "resume=true")
    assert ended.status == 0, ended.err
    assert ended.err.startswith("nothing to resume: no sweep of these cells is here; ")
    assert len(desk.ran) == 1
    first = desk.sweep
    ended = desk("-m", "seed=2", "resume=true")
    assert ended.err.startswith("nothing to resume: ")
    assert [config.seed for config in desk.ran] == [2]
    ended = desk("-m", "resume=true")
    assert f"resuming sweep {first.name}: 1 of its 1" in ended.err


@pytest.mark.parametrize("store", ["empty", "none"])
def test_without_m_one_line_says_that_it_is_for_sweeps(store: str, desk: Desk) -> None:
    if store == "none":
        (desk.results / "mlflow.db").unlink()
    before = set(desk.results.iterdir())
    ended = desk("resume=true")
    assert (ended.status, ended.out) == (2, "")
    assert ended.line == (
        "bench: resume=true: is for sweeps, and this is one cell; add -m, or leave it out"
    )
    assert set(desk.results.iterdir()) == before
    assert desk.ran == []


def test_cells_that_failed_or_were_skipped_are_looked_at_anew(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: BenchConfig) -> None:
        if config.device.kind == "cpu":
            raise OSError("planted")

    desk.planted.before = fail
    words = ("-m", "device=cpu,cuda")
    assert desk(*words).status == 1
    desk.planted.before = lambda config: None
    ended = desk(*words, "resume=true")
    assert ended.status == 0, ended.err
    assert "1 of its 2 cells are done" in ended.err
    assert [config.device.kind for config in desk.ran] == ["cpu"]
    frame = cells(desk.sweep.name, Store(desk.results))
    assert list(frame["outcome"]) == ["ok", "skipped"]
    skipped = replace(desk.ran[0], device=DeviceConfig(kind="cuda"))
    assert resume.is_done(desk.sweep / "1", skipped)
    monkeypatch.setattr(subject, "missing_device", lambda kind: "")
    monkeypatch.setattr(resume, "_cell_hash", lambda config: "")
    assert not resume.is_done(desk.sweep / "1", skipped)  # a GPU has come


def test_of_several_sweeps_the_newest_whose_folder_is_here_goes_on(desk: Desk) -> None:
    words = ("-m", "batch=1,2")
    assert desk(*words).status == 0
    first = desk.sweep
    assert desk(*words).status == 0
    (second,) = set((desk.results / "sweeps").iterdir()) - {first}
    assert f"resuming sweep {second.name}" in desk(*words, "resume=true").err
    shutil.rmtree(second)
    assert f"resuming sweep {first.name}" in desk(*words, "resume=true").err


def test_what_would_be_measured_otherwise_now_is_not_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Holmes")
    assert desk("-m", "batch=1,2", f"prompt.file={prompt}").status == 0
    configs = dict(enumerate(desk.ran))
    assert resume.done_cells(desk.sweep, configs) == {0, 1}
    assert resume.done_cells(desk.sweep, {0: configs[1], 1: configs[0]}) == set()
    assert resume.done_cells(desk.sweep, {7: configs[0]}) == set()
    text = {0: replace(configs[0], prompt=PromptConfig(text="Holmes"))}
    assert resume.done_cells(desk.sweep, text) == {0}  # the same prompt
    other = {0: replace(configs[0], device=DeviceConfig(threads=2))}
    assert resume.done_cells(desk.sweep, other) == set()
    prompt.write_text("Watson")
    later = {n: replace(cell, prompt=replace(cell.prompt)) for n, cell in configs.items()}
    assert resume.done_cells(desk.sweep, later) == set()


def test_a_checkpoint_that_is_broken_now_is_left_to_the_cell_that_needs_it(desk: Desk) -> None:
    mine = desk.results / "checkpoints" / "mine"
    save_model(random_model(small_text.MODEL, 1), mine)
    assert desk("-m", "batch=1", "checkpoint=mine", *small_text.KEYS).status == 0
    (config,) = desk.ran
    assert resume.done_cells(desk.sweep, {0: config}) == {0}
    weights = mine / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert resume.done_cells(desk.sweep, {0: config}) == set()


def test_changed_code_is_measured_anew_in_the_same_sweep(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk("-m", "batch=1").status == 0
    changed = environment.code() | {"sha256": "0" * 64}
    monkeypatch.setattr(environment, "code", lambda: changed)
    ended = desk("-m", "batch=1", "resume=true")
    assert ended.status == 0, ended.err
    assert f"resuming sweep {desk.sweep.name}: 0 of its 1 cells are done" in ended.err
    assert len(desk.ran) == 1
    frame = cells(desk.sweep.name, Store(desk.results))
    assert sorted(frame["cell"]) == [f"{desk.sweep.name}-{n}" for n in range(1)]
    assert [run.info.status for run in desk.runs(f"{desk.sweep.name}-0")] == ["FINISHED"] * 2


def test_a_result_that_did_not_reach_mlflow_is_delivered_once(desk: Desk) -> None:
    assert desk("-m", "batch=1,2").status == 0
    folder, store = desk.sweep, Store(desk.results)
    for n in "01":
        (run,) = desk.runs(f"{folder.name}-{n}")
        store.client.delete_run(run.info.run_id)
        (folder / n / TRACKED).unlink()
    store.open_cell(folder / "1")  # half of the way
    before = {n: files(folder / n) for n in "01"}
    for _ in range(2):
        ended = desk("-m", "batch=1,2", "resume=true")
        assert ended.status == 0, ended.err
        assert desk.ran == []
    for n in "01":
        (run,) = desk.runs(f"{folder.name}-{n}")
        assert (run.info.status, run.data.tags["tinygpt.outcome"]) == ("FINISHED", "ok")
        assert run.data.metrics["output_tok_per_s"] == 100.5
        after = files(folder / n)
        assert set(after) - set(before[n]) == {TRACKED}
        assert {name: after[name] for name in before[n]} == before[n]


def test_a_sweep_that_runs_now_is_left_alone_and_one_whose_process_is_gone_is_not(
    desk: Desk,
) -> None:
    assert desk("-m", "batch=1,2").status == 0
    (parent,) = desk.parents()
    store = Store(desk.results)
    store.client.update_run(parent.info.run_id, "RUNNING")
    other = psutil.Process(os.getppid())
    facts = {"pid": other.pid, "process_started": other.create_time()}
    edit(desk.sweep / "sweep.json", **facts)
    (desk.sweep / "1" / "cell.json").unlink()
    before = desk.snapshot()
    ended = desk("-m", "batch=1,2", "resume=true")
    assert (ended.status, ended.out) == (2, "")
    assert ended.line.startswith(f"bench: resume=true: sweep {desk.sweep.name} is running now, in")
    assert str(other.pid) in ended.line
    assert (desk.ran, desk.snapshot()) == ([], before)
    assert desk("-m", "batch=1,2", "resume=true", "plan=true").status == 0
    assert (desk.ran, desk.snapshot()) == ([], before)
    edit(desk.sweep / "sweep.json", process_started=other.create_time() - 100)
    ended = desk("-m", "batch=1,2", "resume=true")
    assert ended.status == 0, ended.err
    assert [config.batch.size for config in desk.ran] == [2]
    (parent,) = desk.parents()
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["tinygpt.pid"] == str(os.getpid())
    assert json.loads((desk.sweep / "sweep.json").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [None, "{"], ids=["none", "half"])
def test_a_sweep_without_a_whole_sweep_json_is_not_gone_on_with(
    content: str | None, desk: Desk
) -> None:
    assert desk("-m", "batch=1").status == 0
    old = desk.sweep / "sweep.json"
    old.unlink() if content is None else old.write_text(content)
    ended = desk("-m", "batch=1", "resume=true")
    assert ended.status == 0, ended.err
    assert "nothing to resume" in ended.err
    assert len(list((desk.results / "sweeps").iterdir())) == 2


def test_looking_at_what_is_done_leaves_the_threads_as_they_are(desk: Desk) -> None:
    assert desk("batch=1").status == 0
    threads = torch.get_num_threads()
    other = replace(desk.ran[0], device=DeviceConfig(threads=threads + 1))
    (folder,) = (desk.results / "cells").iterdir()
    assert not resume.is_done(folder, other)
    assert torch.get_num_threads() == threads


# signals, to a process of its own


def start(results: Path) -> "subprocess.Popen[str]":
    """A sweep whose first cell is done at once, and whose second takes minutes."""
    words = ["-m", "length.new_tokens=2,60000", "model=nano", "cache=static", "timing=quick"]
    own = ["device.threads=1", f"tracking.dir={results}"]
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    return subprocess.Popen(
        [sys.executable, "-m", "runners.bench", *words, *own],
        env=environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop(process: "subprocess.Popen[str]", results: Path, number: signal.Signals) -> str:
    """Send a signal in the second cell, and return what is said on standard error until the end,
    which takes 2 seconds at most, of the processor's if the machine is busy.
    """
    import resource

    assert process.stderr is not None
    said = ""
    while "1/2 " not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    while not list(results.glob("sweeps/*/1/environment.json")):
        time.sleep(0.01)
    time.sleep(0.2)  # it has begun
    used = psutil.Process(process.pid).cpu_times()
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    waited = time.perf_counter() - began
    total = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = total.ru_utime + total.ru_stime - others.ru_utime - others.ru_stime
    assert min(waited, worked - used.user - used.system) < 2.0
    return said + rest


@pytest.mark.skipif(os.name != "posix", reason="Windows has no signals")
def test_ctrl_c_and_sigterm_end_a_sweep_within_two_seconds_with_all_that_was_done(
    empty_store: Path, tmp_path: Path
) -> None:
    told = {signal.SIGINT: ("Ctrl-C", 130), signal.SIGTERM: ("SIGTERM", 143)}
    running = {}
    for number in told:
        results = tmp_path / number.name
        results.mkdir()
        shutil.copy(empty_store, results / "mlflow.db")
        running[number] = start(results)
    try:
        for number, (reason, status) in told.items():
            results, process = tmp_path / number.name, running[number]
            said = stop(process, results, number)
            assert process.returncode == status, said
            assert "Traceback" not in said
            assert_all_is_told(results, reason)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def assert_all_is_told(results: Path, reason: str) -> None:
    """Of the cell that was done, of the one that ran, and that nothing is left open."""
    (folder,) = (results / "sweeps").iterdir()
    store = Store(results)
    frame = cells(folder.name, store).sort_values("cell")
    assert list(frame["outcome"]) == ["ok", "interrupted"]
    assert frame["reason"].iloc[1] == reason
    assert frame["output_tok_per_s"].iloc[0] > 0
    (parent,) = store.search("bench", "tags.`tinygpt.kind` = 'sweep'")
    assert parent.info.status == "KILLED"
    assert {run.info.status for run in store.search("bench", "")} == {"FINISHED", "KILLED"}
