"""What the tests share: a place for results that is not the user's, and one CPU thread count."""

import gc
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracking server that the developer uses is none of a test's business."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(autouse=True)
def _small_heap() -> None:
    """A timed repeat collects garbage first, which takes the longer the more has been imported:
    what was there before the test is none of its garbage."""
    gc.freeze()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite store with no runs, made once: making one takes seconds."""
    from runners.harness.tracking import Store

    folder = tmp_path_factory.mktemp("store")
    _ = Store(folder).client
    # The store's newest pages are in the log beside it: put them into one file, to copy.
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        with closing(sqlite3.connect(folder / "whole.db")) as whole:
            store.backup(whole)
            whole.execute("PRAGMA journal_mode=WAL")
    return folder / "whole.db"


@pytest.fixture
def results(empty_store: Path, tmp_path: Path) -> Path:
    """A results folder of the test's own, its store ready."""
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def bench(
    results: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Call ``python -m runners.bench`` in this process: arguments to (status, stdout, stderr)."""
    from runners import bench as module

    def call(*arguments: str) -> tuple[int, str, str]:
        # One thread: with two, a busy machine's waiting threads cost more than all the tests.
        own = ["device.threads=1", f"tracking.dir={results}"]
        monkeypatch.setattr("sys.argv", ["bench", *arguments, *own])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            module.main()
        out, err = capfd.readouterr()
        status = ended.value.code
        return (0 if status is None else int(status)), out, err

    yield call
