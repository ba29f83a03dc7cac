"""The doctor: what a crash, a move or a deletion left is found, told, mended, and then gone."""

import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from runners.harness.config.conversion import digest, from_dict, to_dict
from runners.harness.config.schema import BenchConfig, DoctorConfig, TrackingConfig
from runners.harness.doctor import run as doctor
from runners.harness.errors import UsageError
from runners.harness.machine.processes import Owner, Processes
from runners.harness.measure.result import CellResult
from runners.harness.store import disk, tracking
from runners.harness.store import runs as store_runs
from runners.harness.store.disk import Place
from runners.harness.store.records import SweepRecord, write_json
from runners.harness.store.run_data import RunData
from runners.harness.store.tracking import Store
from runners.harness.tables.frames import cells

Doctor = Callable[..., tuple[int, list[str]]]
GONE = {"pid": 2**22 + 7, "process_started": 1.0}  # above any pid there can be
OTHER = GONE | {"host": "another-machine"}
LONG_AGO = 1_600_000_000.0
OK = CellResult("ok", metrics={"output_tok_per_s": 100.0, "reference_ms": 1.0})


def begun(folder: Path, sweep: str | None = None, n: int = 0, **owner: Any) -> Path:
    """The folder of a cell that runs, or seems to."""
    name = f"{sweep}-{n}" if sweep else folder.name
    place = Place(folder, name, sweep, n, {"device": "cpu"}, [f"seed={n}"])
    values = {"tracking": {"dir": "results"}, "seed": n}
    disk.begin(place, "bench", to_dict(from_dict(values, BenchConfig)))
    change(folder / "cell.json", GONE | owner)
    return folder


def done(
    folder: Path, measured: CellResult = OK, sweep: str | None = None, n: int = 0, **owner: Any
) -> Path:
    """The folder of a cell that has its result."""
    begun(folder, sweep, n, **owner)
    name = f"{sweep}-{n}" if sweep else folder.name
    disk.finish(Place(folder, name, sweep, n, {}, []), measured)
    return folder


def change(path: Path, facts: Mapping[str, Any]) -> None:
    write_json(path, json.loads(path.read_text()) | dict(facts))


def swept(store: Store, name: str, count: int, planned: int = 0, **owner: Any) -> Path:
    """A sweep of ``count`` finished and delivered cells, whose run is open."""
    folder = store.dir / "sweeps" / name
    config = from_dict({"tracking": {"dir": "results"}}, BenchConfig)
    planned = planned or count
    facts = {**asdict(Owner.here()), **GONE, **owner}
    facts |= {"sweep": name, "kind": "bench", "started": facts.pop("started", time.time())}
    facts |= {"cells": planned, "digests": [digest(config)] * planned, "run_id": ""}
    folder.mkdir(parents=True)
    store.begin_sweep(SweepRecord(overrides=["seed=0,1"], **facts)).save(folder)
    for n in range(count):
        store.log_cell(done(folder / str(n), OK, name, n, **owner))
    return folder


@pytest.fixture
def store(results: Path) -> Store:
    return Store(results)


@pytest.fixture
def treat(capfd: pytest.CaptureFixture[str]) -> Doctor:
    """Let the doctor look at a folder: (how much is left, its lines)."""

    def call(folder: Path, fix: bool = False, **config: Any) -> tuple[int, list[str]]:
        tracking._open.cache_clear()  # every command is a process of its own
        uri = config.pop("uri", None)
        capfd.readouterr()
        place = TrackingConfig(dir=str(folder), uri=uri)
        left = doctor.run(DoctorConfig(fix=fix, tracking=place, **config))
        return left, capfd.readouterr().out.splitlines()

    return call


def on_disk(folder: Path) -> dict[str, bytes]:
    """Every file but the database, which is compared by its rows, and locks."""
    files = (path for path in folder.rglob("*") if path.is_file())
    names = ("mlflow.db", "mlflow.db-wal", "mlflow.db-shm", "mlflow.lock", "doctor.lock")
    return {str(path): path.read_bytes() for path in files if path.name not in names}


def state(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        return on_disk(folder), list(database.iterdump())


def rows(store: Store) -> dict[str, Any]:
    """What MLflow has of every sweep and cell, by its name, without ids of MLflow's own."""
    found = {}
    for run in store.search("bench", ""):
        info, data = run.info, run.data
        tags = {k: v for k, v in data.tags.items() if k != "mlflow.parentRunId"}
        files = sorted(file.path for file in store.client.list_artifacts(info.run_id))
        facts = (info.status, info.start_time, info.end_time, tags, data.params, data.metrics)
        found[str(info.run_name)] = (*facts, files)
    return found


def mended(treat: Doctor, folder: Path, findings: int, **config: Any) -> list[str]:
    """Told and untouched, mended, and then neither told nor touched: the lines of the dry look."""
    before = state(folder)
    left, told = treat(folder, **config)
    assert left == findings
    assert state(folder) == before
    assert told[-1] == (
        "1 finding; fix=true mends it"
        if findings == 1
        else f"{findings} findings; fix=true mends them"
    )
    left, did = treat(folder, fix=True, **config)
    assert (left, did[-1]) == (0, f"{findings} mended"), did
    after = state(folder)
    for fix in (True, False):
        left, told_again = treat(folder, fix, **config)
        assert (left, told_again[-1]) == (0, f"nothing to mend in {folder}"), told_again
    assert state(folder) == after
    return told[:-1]


def test_a_folder_without_results_is_well(tmp_path: Path, treat: Doctor) -> None:
    (tmp_path / "tables").mkdir()
    assert treat(tmp_path, fix=True) == (0, [f"nothing to mend in {tmp_path}"])
    assert treat(tmp_path / "no") == (0, [f"nothing to mend in {tmp_path}/no: no such folder"])
    assert not (tmp_path / "mlflow.db").exists()


def test_a_cell_whose_process_is_gone_becomes_a_row(store: Store, treat: Doctor) -> None:
    folder = begun(store.dir / "cells" / "abcd1234")
    (folder / "timings.tmp").write_text('{"half": [')
    (folder / "mine.tmp").write_text("a stranger's")
    os.utime(folder / "mine.tmp", (1.0, 1.0))
    (folder / "environment.json").unlink()
    os.utime(folder / "timings.tmp", (time.time() + 50, time.time() + 50))
    ended = (folder / "timings.tmp").stat().st_mtime
    (line,) = mended(treat, store.dir, 1)
    who = f"{GONE['pid']} on {platform.node()}"
    assert line == (
        f"cell abcd1234: the process that ran it ({who}) is gone; "
        "fix=true makes it an interrupted row"
    )
    cell = json.loads((folder / "cell.json").read_text())
    assert cell["outcome"] == "interrupted"
    assert cell["reason"] == f"its process ({who}) was gone; the doctor ended it"
    assert cell["ended"] == ended
    assert [path.name for path in folder.glob("*.tmp")] == ["mine.tmp"]
    (run,) = store.search("bench", "")
    assert run.info.status == "KILLED"
    assert run.info.end_time == int(ended * 1000)
    assert "tinygpt.code_sha256" not in run.data.tags  # which code it was is not known
    frame = cells("abcd1234", store)
    assert list(frame["outcome"]) == ["interrupted"]


def test_a_folder_that_cannot_become_a_row_is_named(results: Path, treat: Doctor) -> None:
    for name in ("cells/empty", "cells/half", "cells/begun", "cells/odd", "sweeps/s1/0"):
        (results / name).mkdir(parents=True)
    (results / "cells/half/cell.json").write_text('{"kind": "ben')
    (results / "cells/begun/config.yaml").write_text("a: 1\n")
    (results / "cells/odd/cell.json").write_text("[]")
    (begun(results / "cells/no_config") / "config.yaml").unlink()
    (begun(results / "cells/cut") / "overrides.yaml").write_text("")
    left, told = treat(results)
    assert left == 8
    assert told[-1] == "8 findings; fix=true mends 2"
    by_name = {Path(line.split(":")[0]).name: line for line in told[:-1]}
    assert by_name["empty"] == f"{results}/cells/empty: an empty folder; fix=true removes it"
    assert "its cell.json cannot be read" in by_name["half"]
    assert "it has no cell.json, it cannot become a row; remove it yourself" in by_name["begun"]
    assert "its cell.json is not complete" in by_name["odd"]
    assert "it has no config.yaml" in by_name["no_config"]
    assert "its overrides.yaml is empty" in by_name["cut"]
    assert "it has no sweep.json" in by_name["s1"]
    left, did = treat(results, fix=True)
    assert left == 5
    assert did[-1] == "3 mended, 5 left"  # a sweep's folder is empty without its cell's
    assert not (results / "cells/empty").exists()
    assert not (results / "sweeps/s1").exists()
    after = state(results)
    assert treat(results, fix=True)[0] == 5
    assert state(results) == after


def test_of_another_host_nothing_can_be_told(store: Store, treat: Doctor) -> None:
    begun(store.dir / "cells" / "abcd1234", **OTHER)
    swept(store, "feed0000", 1, **OTHER)
    done(store.dir / "cells" / "fresh000", **OTHER)  # it may be on its way to MLflow
    before = state(store.dir)
    left, told = treat(store.dir, fix=True)
    assert left == 0
    assert [line.split(":")[1] for line in told[:-1]] == [" sweep feed0000", " cell abcd1234"]
    assert all(line.startswith("note: ") and "another-machine" in line for line in told[:-1])
    assert state(store.dir) == before
    late = {"ended": time.time() - 3600.0}
    change(store.dir / "cells" / "fresh000" / "cell.json", late)
    assert "cell fresh000: its result is not in MLflow; delivered" in treat(store.dir, fix=True)[1]


def test_a_host_that_is_gone_for_good_is_told_to_the_doctor(store: Store, treat: Doctor) -> None:
    begun(store.dir / "cells" / "abcd1234", **OTHER)
    begun(store.dir / "cells" / "abcd5678", **OTHER | {"host": "a-third"})
    swept(store, "feed0000", 1, **OTHER)
    done(store.dir / "cells" / "fresh000", **OTHER)
    stray = swept(store, "feed1111", 0, **OTHER)
    shutil.rmtree(stray)
    notes = [line for line in treat(store.dir)[1] if line.startswith("note: ")]
    assert [line for line in notes if "another-machine" in line] == [
        line
        for line in notes
        if line.endswith("left alone (gone=another-machine says it does not)")
    ]
    assert len(notes) == 4
    told = mended(treat, store.dir, 4, gone="another-machine")
    assert [line.rpartition("fix=true ")[2] for line in told if "note: " not in line] == [
        "ends it as ok",
        "makes it an interrupted row",
        "delivers it",
        "ends it as interrupted",
    ]
    by_cell = {run.data.tags.get("tinygpt.cell"): run for run in store.search("bench", "")}
    assert by_cell["abcd1234"].info.status == "KILLED"
    assert "abcd5678" not in by_cell  # of a host of which nobody said so
    with pytest.raises(ValueError, match="is this machine, which tells itself what still runs"):
        DoctorConfig(gone=platform.node())


def test_what_runs_is_left_alone(store: Store, treat: Doctor) -> None:
    alive = asdict(Owner.here())
    folder = swept(store, "feed0000", 1, planned=3, **alive)
    done(folder / "1", OK, "feed0000", 1, **alive)
    begun(folder / "2", "feed0000", 2, **alive)
    begun(store.dir / "cells" / "abcd1234", **alive)
    (folder / "3").mkdir()
    before = state(store.dir)
    assert treat(store.dir, fix=True) == (0, [f"nothing to mend in {store.dir}"])
    assert state(store.dir) == before


def test_who_is_alive() -> None:
    mine = Owner.here()
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(child.pid).create_time()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    processes = Processes()
    assert processes.state(mine) == "alive"
    assert processes.state(replace(mine, process_started=mine.process_started - 5)) == "gone"
    assert processes.state(replace(mine, **OTHER)) == "elsewhere"
    assert processes.state(replace(mine, pid=child.pid, process_started=started)) == "gone"
    child.wait()
    processes._pids.clear()  # as where /proc hides other users' processes
    assert processes.state(mine) == "alive"


def test_a_result_that_never_reached_mlflow_is_delivered(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "abcd1234")
    code = {"version": "0.0.7", "sha256": "f00", "commit": "c0ffee", "dirty": False}
    change(folder / "environment.json", {"code": code})
    sweep = swept(store, "feed0000", 2, planned=4)
    for n in (2, 3):
        done(sweep / str(n), OK, "feed0000", n)
    store.end_sweep(json.loads((sweep / "sweep.json").read_text())["run_id"], "failed", sweep)
    told = mended(treat, store.dir, 2)
    assert told == [
        "sweep feed0000: 2 results (2, 3) are not in MLflow; fix=true delivers them",
        "cell abcd1234: its result is not in MLflow; fix=true delivers it",
    ]
    assert len(cells("feed0000", store)) == 4
    (run,) = store.search("bench", "tags.`tinygpt.cell` = 'abcd1234'")
    written = json.loads((folder / "cell.json").read_text())
    assert run.info.start_time == int(written["started"] * 1000)
    assert run.info.end_time == int(written["ended"] * 1000)
    tags = run.data.tags  # the code that was measured, not the doctor's own
    assert (tags["tinygpt.version"], tags["tinygpt.code_sha256"]) == ("0.0.7", "f00")
    assert (tags["tinygpt.git_sha"], tags["tinygpt.git_dirty"]) == ("c0ffee", "false")


def test_one_that_cannot_be_delivered_does_not_keep_the_others(
    results: Path, treat: Doctor
) -> None:
    (done(results / "cells" / "a1") / "config.yaml").write_text("a: [")
    done(results / "cells" / "a2")
    left, did = treat(results, fix=True)
    assert left == 1
    assert "cell a1: its result is not in MLflow; not mended: " in did[0]
    assert did[1:] == ["cell a2: its result is not in MLflow; delivered", "1 mended, 1 left"]


def test_a_delivery_that_was_cut_short_is_completed(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "abcd1234")
    run_id = store._create(RunData.of_cell(folder))
    assert mended(treat, store.dir, 1) == [
        "cell abcd1234: its result is only half in MLflow; fix=true delivers it"
    ]
    (run,) = store.search("bench", "")
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert len(store.client.get_metric_history(run_id, "output_tok_per_s")) == 1
    assert "timings.json" in [file.path for file in store.client.list_artifacts(run_id)]


def test_a_run_that_its_folder_does_not_know_is_not_made_again(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "abcd1234")
    run_id = store.log_cell(folder)
    (folder / "tracked.json").unlink()
    mended(treat, store.dir, 1)
    assert json.loads((folder / "tracked.json").read_text()) == {
        "uri": store.uri,
        "run_id": run_id,
    }
    assert len(store.search("bench", "")) == 1


def test_a_run_that_its_user_deleted_stays_deleted(store: Store, treat: Doctor) -> None:
    store.client.delete_run(store.log_cell(done(store.dir / "cells" / "a1")))
    (store.dir / "cells" / "a1" / "tracked.json").unlink()
    assert treat(store.dir, fix=True) == (0, [f"nothing to mend in {store.dir}"])
    assert store.search("bench", "") == []


def test_a_cell_that_was_measured_again_is_delivered_again(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "a1", CellResult("interrupted", "Ctrl-C"))
    store.log_cell(folder)
    done(folder)
    mended(treat, store.dir, 1)
    outcomes = [run.data.tags["tinygpt.outcome"] for run in store.search("bench", "")]
    assert outcomes == ["ok", "interrupted"]


def test_what_another_store_has_is_left_to_it(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "a1")
    age(folder)
    write_json(folder / "tracked.json", {"uri": "http://10.0.0.1:5000", "run_id": "f00"})
    left, told = treat(store.dir, fix=True, prune="1h")
    assert (left, len(told)) == (0, 2)
    assert told[0].startswith("note: 1 of what is here was tracked at http://10.0.0.1:5000, not at")
    assert folder.is_dir()
    assert store.search("bench", "") == []


def test_a_store_that_was_deleted_is_made_anew(store: Store, tmp_path: Path, treat: Doctor) -> None:
    sweep = swept(store, "feed0000", 3)
    lone = done(store.dir / "cells" / "abcd1234", CellResult("oom", "no room", metrics={"a": 1.0}))
    store.log_cell(lone)
    (sweep / "tables").mkdir()
    (sweep / "tables" / "cells.csv").write_text("as it was\n")
    facts = json.loads((sweep / "sweep.json").read_text())
    ended = max(json.loads(p.read_text())["ended"] for p in sweep.glob("*/cell.json"))
    store.end_sweep(facts["run_id"], "ok", sweep / "tables", ended)
    before = rows(store)
    moved = store.dir.rename(tmp_path / "moved")  # MLflow would keep the deleted file open
    for path in [*moved.glob("mlflow.*"), moved / "artifacts"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    left, told = treat(moved)
    assert left == 2
    assert told[0].startswith("sweep feed0000: its run and 3 results are not in MLflow; fix=true")
    assert not (moved / "mlflow.db").exists()
    assert treat(moved, fix=True)[0] == 0
    again = Store(moved)
    assert rows(again) == before
    parent = json.loads((moved / "sweeps/feed0000/sweep.json").read_text())["run_id"]
    assert parent != facts["run_id"]
    children = again.search("bench", f"tags.`mlflow.parentRunId` = '{parent}'")
    assert len(children) == 3
    after = state(moved)
    assert treat(moved, fix=True) == (0, [f"nothing to mend in {moved}"])
    assert state(moved) == after
    # A parent that was made, and the doctor killed before sweep.json named it.
    change(moved / "sweeps/feed0000/sweep.json", {"run_id": "0" * 32})
    assert mended(treat, moved, 1)[0].endswith(f"fix=true names {parent} in its place")


def test_a_parent_that_is_gone_is_made_and_gets_its_children(store: Store, treat: Doctor) -> None:
    sweep = swept(store, "feed0000", 2)
    change(sweep / "sweep.json", {"run_id": "0" * 32})
    with closing(sqlite3.connect(store.dir / "mlflow.db")) as database, database:
        query = "DELETE FROM tags WHERE run_uuid NOT IN (SELECT run_uuid FROM tags WHERE key = ?)"
        database.execute(query, ["tinygpt.cell"])
    mended(treat, store.dir, 1)
    parent = json.loads((sweep / "sweep.json").read_text())["run_id"]
    assert store.client.get_run(parent).info.status == "FINISHED"
    assert len(store.search("bench", f"tags.`mlflow.parentRunId` = '{parent}'")) == 2


def test_every_step_of_a_training_run_gets_there(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "a1")
    told = [{"step": n, "loss_nats": 5.0 - n} for n in range(1, 5)]
    lines = "".join(json.dumps(row) + "\n" for row in told)
    (folder / "steps.jsonl").write_text(lines + '{"step": 5, "lo')
    opened = store.open_cell(folder)
    store.log_steps(opened, told[:2])
    other = done(store.dir / "cells" / "a2")
    (other / "steps.jsonl").write_text(lines)
    mended(treat, store.dir, 2)
    runs = store.search("bench", "")
    assert len(runs) == 2
    for run in runs:
        history = store.client.get_metric_history(run.info.run_id, "loss_nats")
        assert [(m.step, m.value) for m in history] == [(n, 5.0 - n) for n in range(1, 5)]
        assert run.info.status == "FINISHED"


def test_a_parent_left_open_is_ended_with_its_tables(store: Store, treat: Doctor) -> None:
    whole = swept(store, "feed0000", 2)
    cut = swept(store, "feed1111", 2, planned=3)
    told = mended(treat, store.dir, 2)
    assert [line.rpartition("fix=true ")[2] for line in told] == [
        "ends it as ok",
        "ends it as interrupted",
    ]
    for folder, status in ((whole, "FINISHED"), (cut, "KILLED")):
        run = store.client.get_run(json.loads((folder / "sweep.json").read_text())["run_id"])
        assert run.info.status == status
        ended = json.loads((folder / "1" / "cell.json").read_text())["ended"]
        assert run.info.end_time == int(ended * 1000)
        names = [f.path for f in store.client.list_artifacts(run.info.run_id, "tables")]
        assert "tables/cells.csv" in names
        assert (folder / "tables" / "cells.csv").is_file()


def test_runs_that_belong_to_nothing_are_ended(store: Store, treat: Doctor) -> None:
    shutil.rmtree(swept(store, "feed0000", 0))  # killed before its folder was made
    folder = done(store.dir / "cells" / "a1")
    store.open_cell(folder)
    shutil.rmtree(folder)
    shutil.rmtree(swept(store, "feed1111", 0, **asdict(Owner.here())))  # just beginning
    shutil.rmtree(swept(store, "feed2222", 0, started=time.time() + 600.0))  # after the look
    time.sleep(0.002)
    told = mended(treat, store.dir, 2)
    assert all("and no folder is of it; fix=true ends it as interrupted" in line for line in told)
    runs = store.search("bench", "")
    assert sorted(run.info.status for run in runs) == ["KILLED"] * 2 + ["RUNNING"] * 2


def test_m7_the_folder_was_moved(store: Store, tmp_path: Path, treat: Doctor) -> None:
    run_id = store.log_cell(done(store.dir / "cells" / "a1"))
    swept(store, "feed0000", 1)  # its run has no artifacts yet
    copied = Path(shutil.copytree(store.dir, tmp_path / "a copy"))
    assert f"corrects it to {copied}/artifacts" in "".join(treat(copied)[1])
    moved = store.dir.rename(tmp_path / "moved #1")
    again = Store(moved)
    assert again.client.list_artifacts(run_id) == []
    told = mended(treat, moved, 2)
    assert told[0] == (
        f"{moved}/mlflow.db: the artifacts of 3 runs and 1 experiments are said to be in "
        f"{store.dir}/artifacts; fix=true corrects it to {moved}/artifacts"
    )
    assert "cell.json" in [file.path for file in again.client.list_artifacts(run_id)]
    assert again.artifact(run_id, "overrides.yaml").read_text() == "- seed=0\n"
    assert not store.dir.exists()  # nothing was written to where it was


def with_revision(folder: Path, revision: str) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", [revision])


def test_a_schema_that_mlflow_cannot_open_is_told_with_the_cure(
    store: Store, treat: Doctor
) -> None:
    done(store.dir / "cells" / "a1")
    begun(store.dir / "cells" / "b1")
    _ = store.experiment_id("bench")
    path = store.dir / "mlflow.db"
    with_revision(store.dir, "90e64c465722")
    before = state(store.dir)
    left, (older, dead, summary) = treat(store.dir)
    assert older.startswith(f"{path}: its schema (90e64c465722) is older than that of mlflow ")
    copied = f"cp {path} {path}.90e64c465722"
    assert f"this copies and upgrades it: {copied} && " in older
    assert older.endswith(f" && mlflow db upgrade sqlite:///{path}")
    assert "cell b1" in dead
    assert (left, summary) == (2, "2 findings; fix=true mends 1")
    with_revision(store.dir, "f00000000000")
    (newer, _, _) = treat(store.dir)[1]
    assert "(f00000000000) is unknown to mlflow" in newer
    assert newer.endswith("; pip install --upgrade mlflow")
    with_revision(store.dir, "90e64c465722")
    assert state(store.dir) == before
    left, did = treat(store.dir, fix=True)  # what lies on disk is mended all the same
    assert (left, did[-1]) == (1, "1 mended, 1 left")
    assert json.loads((store.dir / "cells/b1/cell.json").read_text())["outcome"] == "interrupted"
    assert state(store.dir)[1] == before[1]


def test_what_is_no_store_is_told(tmp_path: Path, treat: Doctor) -> None:
    path = tmp_path / "mlflow.db"
    path.write_text("no database, whatever its name says" * 99)
    left, (line, _) = treat(tmp_path, fix=True)
    assert left == 1
    assert line.startswith(f"{path}: file is not a database; move it away")
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE mine (a)")
    assert treat(tmp_path, fix=True)[1][0].startswith(f"{path}: a database, but none of MLflow's")
    assert path.exists()


def test_a_store_whose_making_was_cut_short_is_made_anew(tmp_path: Path, treat: Doctor) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE experiments (name TEXT, artifact_location TEXT)")
        database.execute("INSERT INTO experiments VALUES ('Default', '')")
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('90e64c465722')")
    left, told = treat(tmp_path)
    assert left == 1
    assert "making it was cut short" in told[0]
    assert treat(tmp_path, fix=True)[0] == 0
    assert not (tmp_path / "mlflow.db").exists()
    assert treat(tmp_path, fix=True) == (0, [f"nothing to mend in {tmp_path}"])


def age(folder: Path, name: str = "cell.json") -> None:
    """Let a cell have ended long ago."""
    change(folder / name, {"started": LONG_AGO, "ended": LONG_AGO + 5.0})


def test_old_results_are_removed_and_what_runs_is_not(store: Store, treat: Doctor) -> None:
    names = ["old00000", "new00000", "runs0000", "away0000", "dead0000"]
    old, new, runs, away, dead = (store.dir / "cells" / name for name in names)
    store.log_cell(done(new))
    for folder in (runs, away, dead):
        begun(folder, **{"runs0000": asdict(Owner.here()), "away0000": OTHER}.get(folder.name, {}))
        change(folder / "cell.json", {"started": LONG_AGO})
        for path in folder.iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))
    age(done(old))
    sweep = swept(store, "feed0000", 2, started=LONG_AGO)
    run_id = json.loads((sweep / "sweep.json").read_text())["run_id"]
    store.end_sweep(run_id, "ok", sweep / "tables")
    for n in range(2):
        age(sweep / str(n))
    old_run = store.log_cell(old)
    weights = store.dir / "checkpoints" / "old00000" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("weights")
    kept_rows = rows(store)["new00000 cpu"]
    told = mended(treat, store.dir, 3, prune="30d")
    assert told[0] == "sweep feed0000: ended 2020-09-13, longer ago than 30d; " + (
        "fix=true removes its folder and 3 runs"
    )
    assert {line.split(":")[0] for line in told} >= {"cell old00000", "cell dead0000"}
    left = sorted(path.name for path in (store.dir / "cells").iterdir())
    assert left == ["away0000", "new00000", "runs0000"]
    assert not sweep.exists()
    assert weights.read_text() == "weights"
    assert rows(store) == {"new00000 cpu": kept_rows}
    assert not (store.dir / "artifacts" / "bench" / old_run).exists()
    with closing(sqlite3.connect(store.dir / "mlflow.db")) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_pruning_touches_nothing_outside(store: Store, tmp_path: Path, treat: Doctor) -> None:
    age(done(tmp_path / "outside" / "link0000"))
    (store.dir / "cells").mkdir()
    (store.dir / "cells" / "link0000").symlink_to(tmp_path / "outside" / "link0000")
    age(done(store.dir / "cells" / "a1"))
    store.log_cell(store.dir / "cells" / "a1")
    copied = Path(shutil.copytree(store.dir, tmp_path / "copy", symlinks=True))
    shutil.rmtree(copied / "artifacts")
    before = on_disk(tmp_path)
    _, told = treat(copied, fix=True, prune="30d")  # whose runs name the original's artifacts
    assert [line.partition("; ")[2] for line in told[:2]] == [
        f"left alone, since {store.dir}/artifacts/bench/"
        f"{json.loads((copied / 'cells/a1/tracked.json').read_text())['run_id']}/artifacts "
        f"is not in {copied}",
        f"left alone, since {copied}/cells/link0000 is not in {copied}",
    ]
    changed = {k for k, v in on_disk(tmp_path).items() if before.get(k) != v}
    assert all("link0000" in name or "artifacts" in name for name in changed)  # it is delivered
    assert (tmp_path / "outside" / "link0000" / "cell.json").exists()


STRANGERS = ("sweeps/feed0000/notes.md", "sweeps/feed0000/tables/mine.csv")
STRANGERS += ("sweeps/feed0000/1/mine.txt", "cells/a1/plots/a.png")


@pytest.mark.parametrize("where", [*STRANGERS, "artifacts/bench/{run}/artifacts/mine.txt"])
def test_what_somebody_put_into_a_folder_is_not_pruned(
    where: str, store: Store, treat: Doctor
) -> None:
    folder = done(store.dir / "cells" / "a1")
    age(folder)
    run_id = store.log_cell(folder)
    sweep = swept(store, "feed0000", 2, started=LONG_AGO)
    store.end_sweep(json.loads((sweep / "sweep.json").read_text())["run_id"], "ok", sweep / "no")
    for n in range(2):
        age(sweep / str(n))
    theirs = store.dir / where.format(run=run_id)
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("mine")
    left, did = treat(store.dir, fix=True, prune="30d")
    assert left == 0
    kept = "sweep feed0000" if "sweeps" in where else "cell a1"
    assert (
        f"note: {kept}: ended 2020-09-13, longer ago than 30d; left alone, since {theirs} is "
        in ("\n".join(did))
    )
    assert theirs.read_text() == "mine"
    assert folder.exists() == (kept == "cell a1")
    assert sweep.exists() == (kept == "sweep feed0000")


def test_pruning_removes_nothing_beside_what_it_moved(store: Store, treat: Doctor) -> None:
    folder = done(store.dir / "cells" / "a1")
    age(folder)
    run_id = store.log_cell(folder)
    theirs = [store.dir / ".pruned" / "mine.txt", store.dir / "artifacts/bench" / run_id / "b.txt"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    left, did = treat(store.dir, fix=True, prune="30d")
    assert left == 0
    assert did[0] == f"note: {theirs[0]}: it was not removed to its end; remove it yourself"
    assert did[-1] == "1 mended"
    assert not folder.exists()
    assert [path.read_text() for path in theirs] == ["mine", "mine"]
    assert [p.name for p in theirs[1].parent.iterdir()] == ["b.txt"]


def test_a_run_that_names_another_place_for_its_artifacts_is_not_pruned(
    store: Store, treat: Doctor
) -> None:
    folder = done(store.dir / "cells" / "a1")
    age(folder)
    run_id = store.log_cell(folder)
    weights = store.dir / "checkpoints" / "mine" / "config.json"
    (weights.parent / "artifacts").mkdir(parents=True)
    weights.write_text("mine")
    with closing(sqlite3.connect(store.dir / "mlflow.db")) as database, database:
        values = ((weights.parent / "artifacts").as_uri(), run_id)
        database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", values)
    _, did = treat(store.dir, fix=True, prune="30d")
    assert "left alone, since " in did[0]
    assert did[0].endswith("checkpoints/mine/artifacts is not where a run has its artifacts")
    assert weights.read_text() == "mine"
    assert folder.exists()


def test_what_belongs_to_a_deleted_experiment_waits_for_its_user(
    store: Store, treat: Doctor
) -> None:
    store.log_cell(done(store.dir / "cells" / "a1"))
    identity = store.experiment_id("bench")
    store.client.delete_experiment(identity)
    done(store.dir / "cells" / "b1")
    begun(store.dir / "cells" / "c1")
    restore = f"mlflow experiments restore --experiment-id {identity}"
    left, told = treat(store.dir)
    assert (left, told[-1]) == (2, "2 findings; fix=true mends 1")
    assert told[0].startswith("cell b1: its result is not in MLflow; the experiment tinygpt/bench")
    assert told[0].endswith(restore)
    left, did = treat(store.dir, fix=True)
    assert (left, did[-1]) == (2, "1 mended, 2 left")
    assert json.loads((store.dir / "cells/c1/cell.json").read_text())["outcome"] == "interrupted"
    after = state(store.dir)
    left, did = treat(store.dir, fix=True)
    assert (left, did[-1]) == (2, "0 mended, 2 left")
    assert state(store.dir) == after
    assert store.client.get_experiment(identity).lifecycle_stage == "deleted"
    store.client.restore_experiment(identity)
    assert len(mended(treat, store.dir, 2)) == 2


def test_a_deleted_experiment_outlives_the_pruning(store: Store, treat: Doctor) -> None:
    binned = store.client.create_experiment("mine")
    store.client.create_run(binned)
    store.client.delete_experiment(binned)
    age(done(store.dir / "cells" / "a1"))
    store.log_cell(store.dir / "cells" / "a1")
    shutil.rmtree(store.dir / "cells" / "a1")
    left, did = treat(store.dir, fix=True, prune="12h")
    assert left == 0
    assert did[0].startswith("a1 (no folder): ended 2020-09-13, longer ago than 12h; removed; in")
    assert store.client.get_experiment(binned).lifecycle_stage == "deleted"
    assert store.search("bench", "") == []
    assert treat(store.dir, prune="12h") == (0, [f"nothing to mend in {store.dir}"])


def test_a_server_is_asked_in_pages_and_not_pruned(
    store: Store, tmp_path: Path, treat: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = swept(store, "feed0000", 2)
    store.client.delete_run(store.log_cell(done(store.dir / "cells" / "a1")))
    local = store_runs.read_runs(store).by_id
    real = type(store.client).search_runs

    def one_a_page(client: Any, ids: Any, where: str, view: int, count: int, **more: Any) -> Any:
        return real(client, ids, where, view, 1, **more)

    served = Store(tmp_path / "elsewhere", store.uri)
    assert served.own_database is None
    with monkeypatch.context() as patch:
        patch.setattr(type(store.client), "search_runs", one_a_page)
        assert store_runs.read_runs(served).by_id == local
    assert len(local) == 4
    other = tmp_path / "elsewhere"
    shutil.copytree(sweep.parent, other / "sweeps")
    done(other / "sweeps" / "feed0000" / "2", OK, "feed0000", 2)
    assert treat(other, fix=True, uri=store.uri)[0] == 0
    assert len(cells("feed0000", store)) == 3
    with pytest.raises(
        UsageError, match=r"prune=30d: is for the store in tracking\.dir, and sqlite"
    ):
        treat(other, uri=store.uri, prune="30d")


def test_two_doctors_take_turns(
    results: Path, treat: Doctor, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = FileLock(results / "doctor.lock")
    begun(results / "cells" / "a1")
    with lock:
        assert treat(results)[0] == 1  # one that only looks waits for nobody
        lines: list[Any] = []
        waiting = threading.Thread(target=lambda: lines.append(treat(results, fix=True)))
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive()
        shutil.rmtree(results / "cells" / "a1")
    waiting.join(60.0)
    assert lines == [(0, [f"nothing to mend in {results}"])]
