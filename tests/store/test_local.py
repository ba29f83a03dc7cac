"""The sqlite file of a store: in folders of any name, read-only, of any version of MLflow."""

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runners.harness.store import local as local_store
from runners.harness.store import tracking
from runners.harness.store.tracking import Store, TrackingError
from tests.store.test_tracking import finished_cell
from tests.train_command import Ended

ROOT = Path(__file__).resolve().parents[2]
Entry = Callable[..., Ended]
NAMES = ["what?x=1", "50%20 #1?", "a b'c&d;e@f:g+ü中"]
OLDER = "90e64c465722"


@pytest.mark.parametrize("name", [*NAMES, "plain", "%", "{a}[b]", 'a"b\\c', "a\nb"])
def test_a_uri_is_of_one_path(name: str) -> None:
    from sqlalchemy.engine import make_url

    path = Path("/some where") / name / "mlflow.db"
    uri = local_store.to_uri(path)
    url = make_url(uri)
    assert (url.get_backend_name(), url.database, dict(url.query)) == ("sqlite", str(path), {})
    assert local_store.to_path(uri) == path
    assert uri == f"sqlite:///{path}" or set(name) & set("%?#")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "sqlite://", "postgresql://u@h/sqlite"])
def test_a_server_has_no_path(uri: str) -> None:
    assert local_store.to_path(uri) is None


def quoted(folder: Path) -> str:
    """A path in Hydra's grammar, for one without quotes and backslashes."""
    return f'"{folder}"'


@pytest.mark.parametrize("name", NAMES)
def test_a_results_folder_may_have_any_name(
    name: str, empty_store: Path, tmp_path: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / name
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    store = Store(results)
    run_id = store.log_cell(finished_cell(results / "cells" / "abcd1234"))
    assert store.artifact(run_id, "overrides.yaml").read_text() == "- batch=4\n"
    where = Path(quoted(results))
    for command, words in (("tables", ["table=runs"]), ("tables", ["sweep=abcd"]), ("doctor", [])):
        ended = entry(command, where, *words)
        assert (ended.status, ended.err) == (0, ""), ended
        assert "abcd" in ended.out or ended.out == f"nothing to mend in {results}\n"
    assert entry("bench", where, "-m", "seed=1,2", "plan=true").status == 0
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert {path.name.partition("-")[0] for path in results.iterdir()} == {
        *("artifacts", "cells", "mlflow.db", "mlflow.lock")
    }
    ui = importlib.util.spec_from_file_location("mlflow_ui", ROOT / "scripts" / "mlflow_ui.py")
    assert ui is not None
    assert ui.loader is not None
    script = importlib.util.module_from_spec(ui)
    ui.loader.exec_module(script)
    started: list[list[str]] = []

    class Server:
        def __init__(self, command: list[str], env: object) -> None:
            started.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(script.subprocess, "Popen", Server)
    monkeypatch.setattr(script.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr("sys.argv", ["mlflow_ui", f"--dir={results}"])
    assert script.main() == 0
    assert started[0][-1] == store.uri


def test_a_database_out_of_reach_is_one_line_and_soon_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.store.db import utils
    from sqlalchemy.exc import OperationalError

    def refuse(engine: object) -> object:
        raise OperationalError("SELECT 1", {}, OSError("planted:\nno route to it"))

    waits: list[float] = []
    monkeypatch.setattr(utils, "create_sqlalchemy_engine", lambda uri: object())
    monkeypatch.setattr(utils.sqlalchemy, "inspect", refuse)
    monkeypatch.setattr(utils.time, "sleep", waits.append)
    monkeypatch.setattr(utils, "MAX_RETRY_COUNT", utils.MAX_RETRY_COUNT)  # to be put back
    uri = "postgresql://nobody@127.0.0.1/none"
    with pytest.raises(TrackingError) as ended:
        Store(tmp_path, uri).search("bench", "")
    assert str(ended.value) == f"{uri}: (builtins.OSError) planted:"
    assert waits
    assert sum(waits) < 2.0


def test_a_driver_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"^mysql\+nodriver://h/x: .+"):
        Store(tmp_path, "mysql+nodriver://h/x").search("bench", "")


# where nothing can be written

UNPRIVILEGED = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if hasattr(os, "geteuid") and os.geteuid() == 0
    else []
)
"""Root may write anywhere, unless these capabilities are taken from it."""
COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module

ended = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = words
    with redirect_stdout(out), redirect_stderr(err):
        try:
            import_module(f"runners.{words[0]}").main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
    ended.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(ended))
"""


@pytest.fixture
def ordinary(tmp_path: Path) -> Callable[..., list[list[Any]]]:
    """Call commands as somebody whom permissions bind: (status, stdout, stderr) of each."""
    probe = tmp_path / "probe"
    probe.mkdir(mode=0o555)
    refused = [*UNPRIVILEGED, "touch", str(probe / "file")]
    try:
        if subprocess.run(refused, capture_output=True, check=False).returncode != 1:
            pytest.skip("permissions bind nobody here: no setpriv, or not allowed to use it")
    except FileNotFoundError:
        pytest.skip("needs setpriv and touch")

    def call(*commands: list[str]) -> list[list[Any]]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [*UNPRIVILEGED, sys.executable, "-c", COMMANDS, json.dumps(commands)]
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        found: list[list[Any]] = json.loads(done.stdout)
        return found

    return call


@pytest.mark.parametrize("parts", [("",), ("", "-wal")], ids=["closed", "killed"])
def test_a_store_that_cannot_be_written_is_read(
    parts: tuple[str, ...],
    results: Path,
    tmp_path: Path,
    ordinary: Callable[..., list[list[Any]]],
) -> None:
    """``killed``: what was written last is in the log beside the file, which nobody has open."""
    there = tmp_path / "there"
    store = Store(there.parent / "results")
    folder = finished_cell(results / "cells" / "abcd1234")
    store.log_cell(folder)
    if parts == ("",):
        with closing(sqlite3.connect(results / "mlflow.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(results, there, ignore=shutil.ignore_patterns("mlflow.*"))
    for part in parts:
        shutil.copy(results / f"mlflow.db{part}", there)
    for path in [*there.rglob("*"), there]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    where, cell = f"tracking.dir={there}", "length.new_tokens=2"
    keys = ["model=nano", "timing=quick", "device.threads=1", cell]
    try:
        runs, cells, dry, fix, lone, swept, again, sample = ordinary(
            ["tables", "table=runs", where],
            ["tables", "sweep=abcd", "table=cells", "format=csv", where],
            ["doctor", where],
            ["doctor", "fix=true", where],
            ["bench", *keys, where],
            ["bench", "-m", "seed=1,2", *keys, where],
            ["rerun", "run=abcd", where],
            ["sample", where],
        )
        for status, out, err in (runs, cells):
            assert (status, err) == (0, "")
            assert "abcd" in out
        moved = f"corrects it to {there}/artifacts\n1 finding; fix=true mends it\n"
        assert (dry[0], dry[2]) == (1, "")
        assert dry[1].endswith(moved)  # that it was moved, and nothing else
        assert len(dry[1].splitlines()) == 2
        for name, (status, _, err) in zip(
            ("doctor", "bench", "bench", "rerun", "sample"),
            (fix, lone, swept, again, sample),
            strict=True,
        ):
            assert status == 2, err
            assert err == (
                f"{name}: {where}: {there} cannot be written (Permission denied); nothing was "
                "done; give a folder that can, tracking.dir=PATH, or see to its permissions\n"
            )
        assert sorted(path.name for path in there.iterdir()) == sorted(
            ["artifacts", "cells", *(f"mlflow.db{part}" for part in parts)]
        )
    finally:
        there.chmod(0o755)


def test_what_may_not_be_read_is_not_called_broken(
    results: Path, ordinary: Callable[..., list[list[Any]]]
) -> None:
    (results / "mlflow.db").chmod(0o000)
    found = ordinary(*([name, f"tracking.dir={results}"] for name in ("tables", "doctor")))
    for (status, out, err), wanted in zip(found, (2, 1), strict=True):
        assert status == wanted
        line = (out + err).splitlines()[0]
        assert "mlflow.db: cannot be read (" in line
        assert line.endswith("; see whether you may read it, and whether another process holds it")


def test_a_store_whose_folder_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for uri in ("", local_store.to_uri(tmp_path / "file" / "x" / "mlflow.db")):
        with pytest.raises(TrackingError, match="Not a directory"):
            Store(tmp_path / "file" / "x", uri).search("bench", "")


# stores of other versions


def older_store(folder: Path) -> Path:
    """The store of an older MLflow, with an experiment in it."""
    import sqlalchemy
    from alembic import command
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base

    path = folder / "mlflow.db"
    uri = local_store.to_uri(path)
    engine = sqlalchemy.create_engine(uri)
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, OLDER)
    engine.dispose()
    with closing(sqlite3.connect(path)) as database, database:
        query = (
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage) VALUES (?, ?, ?)"
        )
        place = (folder / "artifacts" / "bench").as_uri()
        database.execute(query, ["tinygpt/bench", place, "active"])
    return path


def line_of(ended: Ended) -> str:
    """What a command says of the store."""
    return ended.out.splitlines()[0] if ended.out else ended.line


@pytest.mark.filterwarnings("ignore")  # of Alembic and SQLAlchemy, about MLflow's migrations
def test_every_command_says_how_an_older_store_is_upgraded(
    tmp_path: Path, entry: Entry, instant: list[object]
) -> None:
    results = tmp_path / "an older #1"
    results.mkdir()
    path = older_store(results)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    where = Path(quoted(results))
    obstacle = local_store.obstacle(path)
    assert obstacle is not None
    told = f"{obstacle.what}; {obstacle.cure}"
    for name, words in (
        ("tables", []),
        ("tables", ["table=runs"]),
        ("compare", ["a=latest", "b=latest"]),
        ("rerun", ["run=latest"]),
        ("bench", []),
        ("bench", ["-m", "seed=1,2"]),
        ("bench", ["-m", "seed=1,2", "resume=true"]),
        ("sample", []),
        ("doctor", []),
        ("doctor", ["fix=true"]),
    ):
        tracking._open.cache_clear()
        ended = entry(name, where, *words)
        assert ended.status == (1 if name == "doctor" else 2)
        assert line_of(ended).endswith(told), (name, words)
    assert instant == []
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert not (results / "cells").exists()
    assert not (results / "sweeps").exists()
    command = obstacle.cure.partition(": ")[2]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=True)
    copied = path.with_name(f"mlflow.db.{OLDER}")
    assert hashlib.sha256(copied.read_bytes()).hexdigest() == before
    assert local_store.obstacle(path) is None
    assert local_store.obstacle(copied) is not None
    tracking._open.cache_clear()
    assert entry("bench", where).status == 0
    assert [p.name for p in tmp_path.iterdir()] == [results.name]


def test_a_store_of_a_newer_mlflow_is_said_to_be_one(results: Path, entry: Entry) -> None:
    with closing(sqlite3.connect(results / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'f00000000000'")
        database.execute("INSERT INTO experiments (name) VALUES ('mine')")
    for name in ("tables", "bench", "doctor"):
        tracking._open.cache_clear()
        line = line_of(entry(name, results))
        assert f"{results}/mlflow.db: its schema (f00000000000) is unknown to mlflow " in line
        assert "it was made by a newer one; pip install --upgrade mlflow" in line


def test_what_mlflow_says_of_a_version_is_told_as_of_any_store() -> None:
    uri = "postgresql://u@h/x"
    found = f"Detected out-of-date database schema (found version {OLDER}, but expected f00)."
    with pytest.raises(TrackingError) as ended, tracking.reaching(uri):
        raise OSError(found)
    line = str(ended.value)
    assert line.startswith(f"{uri}: its schema ({OLDER}) is older than that of mlflow ")
    assert line.endswith("; copy it, then: mlflow db upgrade postgresql://u@h/x")


@pytest.mark.parametrize("mine", ["a run", "a table of another"])
def test_a_store_with_anything_in_it_is_not_taken_for_one_cut_short(
    mine: str, results: Path
) -> None:
    path = results / "mlflow.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE alembic_version SET version_num = '{OLDER}'")
    found = local_store.obstacle(path)
    assert found is not None
    assert found.unfinished
    assert shlex.split(found.cure)[:4] == ["python", "-m", "runners.doctor", "fix=true"]
    with closing(sqlite3.connect(path)) as database, database:
        if mine == "a run":
            database.execute("INSERT INTO runs (run_uuid) VALUES ('a')")
        else:
            database.execute("CREATE TABLE notes (text)")
            database.execute("INSERT INTO notes VALUES ('mine')")
    found = local_store.obstacle(path)
    assert found is not None
    assert not found.unfinished
