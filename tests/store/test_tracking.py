"""The store: one wherever a command is typed, made once, and whole runs in it."""

import json
import math
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from runners import bench as bench_module
from runners import tables as tables_module
from runners.harness.config import conversion, paths
from runners.harness.config.conversion import from_dict, to_dict
from runners.harness.config.nested import flatten
from runners.harness.config.schema import BenchConfig, TrackingConfig
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.disk import Place
from runners.harness.store.find import find_sweep
from runners.harness.store.tracking import Store, TrackingError, open_store

Bench = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[2]
OK = CellResult("ok", metrics={"output_tok_per_s": 100.0}, tags={"tinygpt.rates": "[100.0]"})
UNREACHABLE = "http://127.0.0.1:9"


def finished_cell(folder: Path, measured: CellResult = OK, **config: Any) -> Path:
    """The folder of a lone cell that is done."""
    place = Place(folder, folder.name, None, 0, {"model": "tiny", "device": "cpu"}, ["batch=4"])
    config = {"tracking": {"dir": "results"}} | config
    disk.begin(place, "bench", to_dict(from_dict(config, BenchConfig)))
    disk.finish(place, measured)
    return folder


@pytest.fixture
def store(results: Path) -> Store:
    return Store(results)


def databases(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.db"))


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of ``python -m runners.bench`` with exactly these arguments."""
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench_module.main()
    return int(ended.value.code or 0)


def test_m1_from_two_directories_one_database(
    results: Path,
    instant: list[BenchConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(conversion, "results_dir", lambda: results)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert typed(monkeypatch) == 0
        assert list((tmp_path / name).iterdir()) == []
    assert databases(tmp_path) == [results / "mlflow.db"]
    assert len(Store(results).search("bench", "")) == 2


@pytest.mark.parametrize("where", ["results", "given"])
@pytest.mark.parametrize("mode", [[], ["-m"]], ids=["lone", "sweep"])
def test_m1_jobs_that_change_directory_use_the_same_database(
    where: str,
    mode: list[str],
    results: Path,
    instant: list[BenchConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = results if where == "results" else shutil.copytree(results, tmp_path / "given")
    monkeypatch.setattr(paths, "in_checkout", lambda: False)  # as installed: ./results
    monkeypatch.setattr(paths, "conf_dir", lambda: ROOT / "conf")
    monkeypatch.setattr("runners.harness.launch.app.conf_dir", lambda: ROOT / "conf")
    monkeypatch.chdir(tmp_path)
    extra = [] if where == "results" else ["tracking.dir=given"]
    assert typed(monkeypatch, *mode, "hydra.job.chdir=true", *extra) == 0
    assert [path for path in databases(tmp_path) if "given" in path.parts] == (
        [folder / "mlflow.db"] if where == "given" else []
    )
    assert len(databases(tmp_path)) == (1 if where == "results" else 2)
    assert len(Store(folder).search("bench", "tags.`tinygpt.kind` = 'bench'")) == 1
    assert instant[0].tracking.dir  # the job ran where it should, and knew where to write
    assert Path.cwd() == tmp_path


def test_the_default_is_absolute_wherever_one_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = paths.results_dir()
    monkeypatch.chdir(tmp_path)
    assert paths.results_dir() == before == ROOT / "results"
    monkeypatch.setattr(paths, "in_checkout", lambda: False)
    assert paths.results_dir() == tmp_path / "results"
    assert open_store(TrackingConfig(dir="mine")).uri == f"sqlite:///{tmp_path}/mine/mlflow.db"


def test_a_server_is_used_when_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = TrackingConfig(dir=str(tmp_path), uri="http://127.0.0.1:5000")
    unnamed = TrackingConfig(dir=str(tmp_path))
    assert open_store(given).uri == "http://127.0.0.1:5000"
    assert open_store(unnamed).uri.startswith("sqlite:///")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:6000")
    assert open_store(unnamed).uri == "http://127.0.0.1:6000"
    assert open_store(given).uri == "http://127.0.0.1:5000"


DELIVER = """
import os, sys
from pathlib import Path
from mlflow.tracking import MlflowClient  # once, before the fork: it takes seconds
from runners.harness.store.tracking import Store

children = []
for name in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        Store(Path(name).parents[1]).log_cell(Path(name))
        os._exit(0)
    children.append(pid)
sys.exit(sum(os.waitpid(pid, 0)[1] for pid in children) != 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_m2_four_processes_on_a_store_that_does_not_exist_yet(tmp_path: Path) -> None:
    folders = [finished_cell(tmp_path / "cells" / f"c{n}") for n in range(4)]
    done = subprocess.run(
        [sys.executable, "-c", DELIVER, *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    store = Store(tmp_path)
    runs = store.search("bench", "")
    assert [run.info.status for run in runs] == ["FINISHED"] * 4
    assert {run.data.tags["tinygpt.cell"] for run in runs} == {"c0", "c1", "c2", "c3"}
    names = [experiment.name for experiment in store.client.search_experiments()]
    assert names.count("tinygpt/bench") == 1
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ("ok", "FINISHED"),
        ("skipped", "FINISHED"),
        ("failed", "FAILED"),
        ("oom", "FAILED"),
        ("mismatch", "FAILED"),
        ("interrupted", "KILLED"),
    ],
)
def test_a_run_is_created_whole_and_ended(
    outcome: str, status: str, store: Store, tmp_path: Path
) -> None:
    measured = CellResult(outcome, reason="because", notes=["one", "two"])
    folder = finished_cell(tmp_path / "cells" / "abcd1234", measured)
    run = store.client.get_run(store.log_cell(folder))
    assert run.info.status == status
    written = json.loads((folder / "cell.json").read_text())
    assert run.info.start_time == int(written["started"] * 1000)
    assert run.info.end_time == int(written["ended"] * 1000)
    tags = run.data.tags
    assert tags["tinygpt.kind"] == "bench"
    assert tags["tinygpt.outcome"] == outcome
    assert tags["tinygpt.reason"] == "because"
    assert tags["tinygpt.notes"] == "one; two"
    assert tags["tinygpt.cell"] == tags["tinygpt.sweep"] == "abcd1234"
    assert "mlflow.parentRunId" not in tags


def test_params_are_the_flattened_config_and_the_choices(store: Store, tmp_path: Path) -> None:
    folder = finished_cell(tmp_path / "cells" / "a1", batch={"size": 4}, prompt={"text": "a,b"})
    run = store.client.get_run(store.log_cell(folder))
    config = from_dict(
        {"tracking": {"dir": "results"}, "batch": {"size": 4}, "prompt": {"text": "a,b"}},
        BenchConfig,
    )
    wanted = {key: str(value) for key, value in flatten(to_dict(config)).items()}
    choices = {"choice.model": "tiny", "choice.device": "cpu"}
    assert run.data.params == wanted | choices
    assert run.data.tags["tinygpt.overrides"] == "batch=4"
    assert run.data.params["batch.size"] == "4"
    assert run.data.params["prompt.text"] == "a,b"


def test_what_is_no_number_is_left_out_and_named(store: Store, tmp_path: Path) -> None:
    metrics = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.0, "e": 1.5}
    folder = finished_cell(tmp_path / "cells" / "a1", CellResult("ok", metrics=metrics))
    run = store.client.get_run(store.log_cell(folder))
    assert run.data.metrics == {"d": 0.0, "e": 1.5}
    assert run.data.tags["tinygpt.nonfinite"] == "a, b, c"


def test_without_odd_figures_no_tag_says_so(store: Store, tmp_path: Path) -> None:
    run = store.client.get_run(store.log_cell(finished_cell(tmp_path / "cells" / "a1")))
    assert "tinygpt.nonfinite" not in run.data.tags


def test_a_long_prompt_is_whole_in_the_artifact(store: Store, tmp_path: Path) -> None:
    text = "".join(chr(97 + n % 26) for n in range(7000))
    folder = finished_cell(tmp_path / "cells" / "a1", prompt={"text": text})
    run_id = store.log_cell(folder)
    assert text.startswith(store.client.get_run(run_id).data.params["prompt.text"])
    fetched = store.client.download_artifacts(run_id, "config.yaml", str(tmp_path))
    assert OmegaConf.load(fetched).prompt.text == text


@pytest.mark.parametrize(
    "text", ["cost ${x} and $5", "${", "a: b # c", "null", "1984", "83e5", "yes"]
)
def test_the_stored_config_holds_the_text_as_it_was(
    text: str, store: Store, tmp_path: Path
) -> None:
    config = to_dict(from_dict({"tracking": {"dir": "results"}}, BenchConfig))
    config["prompt"]["text"] = text
    place = Place(tmp_path / "cells" / "a1", "a1", None, 0, {}, [f"prompt.text={text}"])
    disk.begin(place, "bench", config)
    disk.finish(place, OK)
    stored = yaml.safe_load((place.folder / "config.yaml").read_text(encoding="utf-8"))
    assert stored["prompt"]["text"] == text
    overrides = yaml.safe_load((place.folder / "overrides.yaml").read_text(encoding="utf-8"))
    assert overrides == [f"prompt.text={text}"]
    run = store.client.get_run(store.log_cell(place.folder))
    assert run.data.params["prompt.text"] == text


@pytest.mark.parametrize("served", [False, True])
def test_a_deleted_experiment_is_named_and_not_restored(
    served: bool, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Store(results)
    first = one.log_cell(finished_cell(tmp_path / "cells" / "a1"))
    identity = one.experiment_id("bench")
    one.client.delete_experiment(identity)
    if served:  # a store that only MLflow knows
        monkeypatch.setattr(Store, "database", None)
    other = Store(results, one.uri if served else "")
    command = f"MLFLOW_TRACKING_URI={one.uri} mlflow experiments restore --experiment-id {identity}"
    told = "the experiment tinygpt/bench was deleted, and its runs with it; this restores them: "
    told += command
    with pytest.raises(TrackingError) as ended:
        other.log_cell(finished_cell(tmp_path / "cells" / "a2"))
    assert str(ended.value) == f"{one.uri}: {told}"
    assert other.deleted("bench") == told
    assert other.deleted("sample") == ""
    with pytest.raises(ValueError, match="no such sweep or cell") as missing:
        find_sweep(other, "a1")
    assert str(missing.value).endswith(told)
    assert other.client.get_experiment(identity).lifecycle_stage == "deleted"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=True)
    assert [run.info.run_id for run in Store(results).search("bench", "")] == [first]


def test_the_experiment_opens_the_view_for_models(store: Store) -> None:
    experiment = store.client.get_experiment(store.experiment_id("bench"))
    assert experiment.name == "tinygpt/bench"
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_search_follows_the_pages(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        store.log_cell(finished_cell(tmp_path / "cells" / f"a{n}"))
    real = type(store.client).search_runs
    monkeypatch.setattr(
        type(store.client),
        "search_runs",
        lambda *args, **kwargs: real(*args, **kwargs | {"max_results": 2}),
    )
    assert len(store.search("bench", "")) == 3


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with closing(socket.socket()) as probe:
        assert probe.connect_ex(("127.0.0.1", 9)) != 0, "something listens on the discard port"
    return UNREACHABLE


def test_a_store_out_of_reach_refuses_the_sweep(
    unreachable: str, bench: Bench, instant: list[BenchConfig], results: Path
) -> None:
    status, out, err = bench("-m", "batch=1,4", f"tracking.uri={unreachable}")
    assert status == 2
    assert out == ""
    line = err.splitlines()[-1]
    assert unreachable in line
    assert "nothing was run" in line
    assert instant == []
    assert not (results / "sweeps").exists()


@pytest.mark.parametrize("arguments", [["table=cells", "format=csv"], ["sweep=abc"]])
def test_tables_of_a_store_out_of_reach_are_one_line(
    arguments: list[str],
    unreachable: str,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    own = [f"tracking.uri={unreachable}", f"tracking.dir={results}"]
    monkeypatch.setattr("sys.argv", ["tables", *arguments, *own])
    with pytest.raises(SystemExit) as ended:
        tables_module.main()
    assert ended.value.code == 2
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert unreachable in err


def test_a_cell_is_complete_on_disk_before_mlflow_hears_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    seen: list[set[str]] = []

    def refuse(self: Store, folder: Path) -> str:
        assert json.loads((folder / "cell.json").read_text())["outcome"] == "ok"
        assert len(json.loads((folder / "timings.json").read_text())["e2e_s"]) == 3
        seen.append({path.name for path in folder.iterdir()})
        raise TrackingError("planted: the disk of the server is full")

    monkeypatch.setattr(Store, "log_cell", refuse)
    status, _, err = bench("model=nano", "length.new_tokens=8", "timing=quick")
    assert status == 1
    (names,) = seen
    wanted = "cell.json config.yaml overrides.yaml environment.json timings.json generations.jsonl"
    assert set(wanted.split()) <= names
    (folder,) = (results / "cells").iterdir()
    complaint = next(line for line in err.splitlines() if "planted" in line)
    assert str(folder) in complaint
    assert {path.name for path in folder.iterdir()} == names


def test_one_cell_that_is_not_tracked_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, instant: list[BenchConfig], results: Path
) -> None:
    real = Store.log_cell

    def refuse_the_first(self: Store, folder: Path) -> str:
        if folder.name == "0":
            raise TrackingError("planted")
        return real(self, folder)

    monkeypatch.setattr(Store, "log_cell", refuse_the_first)
    status, _, err = bench("-m", "batch=1,4")
    assert status == 1
    assert [config.batch.size for config in instant] == [1, 4]
    (folder,) = (results / "sweeps").iterdir()
    assert str(folder / "0") in err
    runs = Store(results).search("bench", "tags.`tinygpt.kind` = 'bench'")
    assert [run.data.tags["tinygpt.cell"] for run in runs] == [f"{folder.name}-1"]
