"""What the tests share: a place for results that is not the user's, and one CPU thread count."""

import gc
import io
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import text_checkpoint
from tests.text_checkpoint import Sample
from tests.train_command import Command, Ended, make_command

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# With more, a busy machine's waiting threads cost more than all the tests; before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")


hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")  # new examples are looked for by people, not by CI


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracking server that the developer uses is none of a test's business."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _packages(pytestconfig: pytest.Config) -> Iterator[Path]:
    """Compiled code is kept between test runs, since it is named by all that it depends on, and
    apart from the developer's own.
    """
    folder = pytestconfig.cache.mkdir("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYGPT_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _small_heap() -> None:
    """A timed repeat collects garbage first, which takes the longer the more has been imported:
    what was there before the test is none of its garbage.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite store with no runs, made once: making one takes seconds."""
    from runners.harness.store.tracking import Store

    folder = tmp_path_factory.mktemp("store")
    _ = Store(folder).client
    # The store's newest pages are in the log beside it: put them into one file, to copy.
    with (
        closing(sqlite3.connect(folder / "mlflow.db")) as store,
        closing(sqlite3.connect(folder / "whole.db")) as whole,
    ):
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
) -> Callable[..., tuple[int, str, str]]:
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

    return call


@pytest.fixture(scope="session")
def entry() -> Callable[..., Ended]:
    """Call ``python -m runners.NAME`` in this process: name, results folder, arguments."""

    def call(name: str, results: Path, *arguments: str) -> Ended:
        module = import_module(f"runners.{name}")
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            patch.setattr("sys.argv", [name, *arguments, f"tracking.dir={results}"])
            with pytest.raises(SystemExit) as ended:
                module.main()
        return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Cells are ok at once, and nothing is measured: the configs of those that ran, in order."""
    from runners.harness.measure import cell
    from runners.harness.measure.result import CellResult
    from runners.harness.sweep import plan

    ran: list[Any] = []

    def run_cell(config: Any, report: object = None) -> CellResult:
        ran.append(config)
        return CellResult("ok", metrics={"output_tok_per_s": 100.0})

    monkeypatch.setattr(cell, "run_cell", run_cell)
    monkeypatch.setattr(plan, "calibrate", lambda *_: plan.Machine(1e-4, 1e9))
    return ran


@pytest.fixture
def train(empty_store: Path, tmp_path: Path) -> Command:
    """Call ``python -m runners.train`` in this process, on a results folder of the test's own."""
    return make_command(empty_store, tmp_path)


@pytest.fixture(scope="session")
def done(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The same on a folder in which one whole run was made, and published as ``story``."""
    made = make_command(empty_store, tmp_path_factory.mktemp("trained"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert made(None, "out=story").status == 0
    return made


@pytest.fixture
def run_id(done: Command) -> str:
    """The id of the run that ``done`` made."""
    return done.ids()[0]


@pytest.fixture
def checkpoint(done: Command) -> Path:
    """What that run published."""
    return done.results / "checkpoints" / "story"


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer, its weights small and random."""
    return text_checkpoint.save(tmp_path_factory.mktemp("writer") / "small")


@pytest.fixture
def sample(empty_store: Path, writer: Path, tmp_path: Path) -> Sample:
    """Call ``python -m runners.sample`` in this process, on that checkpoint."""
    return Sample(empty_store, tmp_path, writer)
