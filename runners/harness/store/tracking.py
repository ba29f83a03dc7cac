"""The only writer to MLflow. It reads cells from disk, so a result can be delivered at any later
time.

The store is an sqlite file in ``tracking.dir``, or a server; it does not depend on the folder in
which a command was typed. A run costs one call to create it, one batch, and one call for its
artifacts.
"""

import io
import logging
import math
import os
import re
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    closing,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from runners.harness.config.paths import absolute, unwritable
from runners.harness.config.schema import TrackingConfig
from runners.harness.machine.processes import Owner
from runners.harness.store import experiments
from runners.harness.store import local as local_store
from runners.harness.store.disk import TRACKED
from runners.harness.store.records import SweepRecord, write_json
from runners.harness.store.run_data import RunData, owner_tags

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_RUN_STATUS = {"ok": "FINISHED", "skipped": "FINISHED", "interrupted": "KILLED"}
_MAX_METRICS = 1000  # MLflow takes no more in one call
_DATABASE_TRIES = 4  # to connect, for about a second; MLflow's own ten tries take a hundred
_MAX_TAG, _MAX_PARAM = 8000, 6000  # characters; MLflow's own limits


class TrackingError(Exception):
    """The store could not be reached or written. What should be tracked is complete on disk."""


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Turn the store's errors in the block into a TrackingError of one line, with a known cure."""
    try:
        yield
    except _errors() as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        of_version = re.search(r"database schema \(found version (\w+)", line)
        if of_version:
            found = local_store.of_version(uri, of_version[1])
            raise TrackingError(f"{found.what}; {found.cure}") from error
        raise TrackingError(f"{uri}: {line}") from error


def _errors() -> tuple[type[Exception], ...]:
    """The exceptions of a store that is out of reach or broken, or whose driver is missing."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, ImportError, OSError, sqlite3.Error


def open_store(config: TrackingConfig) -> "Store":
    """The store that ``config`` names. There is one per process, so that its cells share a
    connection.
    """
    given_uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
    return _open(absolute(config.dir), given_uri)


@lru_cache(maxsize=8)
def _open(folder: Path, given_uri: str) -> "Store":
    return Store(folder, given_uri)


class Store:
    """One MLflow store. It is connected to when it is first used."""

    def __init__(self, folder: Path, given_uri: str = "") -> None:
        self.dir, self._given_uri = folder, given_uri
        self._experiment_ids: dict[str, str] = {}

    @property
    def uri(self) -> str:
        """MLflow's tracking URI."""
        return self._given_uri or local_store.to_uri(self.dir / "mlflow.db")

    @property
    def database(self) -> Path | None:
        """The sqlite file of the store; None for a server."""
        return local_store.to_path(self.uri)

    @property
    def own_database(self) -> Path | None:
        """The sqlite file, if it is the one in the store's own folder; otherwise None."""
        own = self.dir / "mlflow.db"
        return own if self.database == own else None

    @property
    def server(self) -> str:
        """The URI if the store is not the sqlite file in its own folder; otherwise empty."""
        return "" if self.own_database else self.uri

    @property
    def exists(self) -> bool:
        """Whether anything can have been tracked yet."""
        return self.database is None or self.database.is_file()

    def check(self) -> None:
        """Raise TrackingError, with the cure, if MLflow cannot open a local store."""
        path = self.database
        obstacle = local_store.obstacle(path) if path and path.is_file() else None
        if obstacle:
            raise TrackingError(f"{obstacle.what}; {obstacle.cure}")

    def deleted(self, kind: str) -> str:
        """How to restore the experiment of ``kind``, if it was deleted; otherwise empty."""
        name, path, identity = f"tinygpt/{kind}", self.database, None
        with reaching(self.uri):
            if path and path.is_file():
                identity = local_store.deleted_experiments(path).get(name)
            elif not path:
                found = self.client.get_experiment_by_name(name)
                if found and found.lifecycle_stage == "deleted":
                    identity = found.experiment_id
        return experiments.deleted(kind, identity, self.uri) if identity else ""

    @cached_property
    def client(self) -> "MlflowClient":
        """MLflow's client. MLflow is imported here, and a new store is made here.

        Raises TrackingError if the installed MLflow cannot open the file.
        """
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # our error says it
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow.tracking import MlflowClient

        if not self.uri.startswith("http"):
            from mlflow.store.db import utils

            utils.MAX_RETRY_COUNT = _DATABASE_TRIES
        path = self.database
        if path is None:
            return MlflowClient(self.uri)
        with self._lock(path):
            if path.is_file():
                self.check()
            else:
                with closing(sqlite3.connect(path)) as connection:
                    connection.execute("PRAGMA journal_mode=WAL")  # stays set in the file
            client = MlflowClient(self._readable_uri)
            client.search_experiments(max_results=1)
            return client

    def _lock(self, path: Path) -> AbstractContextManager[object]:
        """A lock on making the store, since processes that open a new sqlite store at the same time
        break each other's migrations; no lock where it can only be read.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        lock, reason = path.with_name("mlflow.lock"), unwritable(path.parent)
        if reason and not path.is_file():
            raise OSError(f"{path.parent} cannot be written ({reason})")
        only_read = reason or (lock.exists() and not os.access(lock, os.W_OK))
        return nullcontext() if only_read else FileLock(lock)

    @cached_property
    def _readable_uri(self) -> str:
        """The store's URI or, where MLflow cannot read the file in place, the URI of a copy that
        exists as long as this object.
        """
        path = self.database
        if path is None or not path.is_file() or not local_store.needs_copy(path):
            return self.uri
        self._copied = tempfile.TemporaryDirectory()
        return local_store.to_uri(local_store.copy(path, Path(self._copied.name)))

    def experiment_id(self, kind: str) -> str:
        """The id of the experiment ``tinygpt/KIND``, which is made if it is missing."""
        if kind not in self._experiment_ids:
            folder = None if self._given_uri else self.dir / "artifacts" / kind
            made = experiments.find_or_make(self.client, kind, folder, self.uri)
            self._experiment_ids[kind] = made
        return self._experiment_ids[kind]

    def begin_sweep(self, sweep: SweepRecord, data: RunData | None = None) -> SweepRecord:
        """Open the run of a sweep; returns the sweep's record with the run's id and the URI."""
        with reaching(self.uri):
            run_id = self._create(data or RunData.of_sweep(sweep))
        return replace(sweep, run_id=run_id, uri=self.uri)

    def reopen_sweep(self, run_id: str) -> None:
        """Reopen the run of a sweep that this process resumes."""
        with reaching(self.uri):
            for key, value in owner_tags(Owner.here()).items():
                self.client.set_tag(run_id, key, value)
            self.client.update_run(run_id, "RUNNING")

    def end_sweep(self, run_id: str, outcome: str, tables: Path, ended: float = 0.0) -> None:
        """Attach a sweep's tables and end its run."""
        with reaching(self.uri):
            if tables.is_dir():
                self.client.log_artifacts(run_id, str(tables), "tables")
            self.client.set_tag(run_id, "tinygpt.outcome", outcome)
            status = _RUN_STATUS.get(outcome, "FAILED")
            self.client.set_terminated(run_id, status, int(ended * 1000) or None)

    def open_cell(self, folder: Path, data: RunData | None = None) -> str:
        """Create the run of a cell that still runs, to let people watch it; returns MLflow's id."""
        with reaching(self.uri):
            return self._create(data or RunData.of_cell(folder))

    def log_steps(
        self, run_id: str, rows: Sequence[Mapping[str, float]], files: Sequence[Path] = ()
    ) -> None:
        """Deliver files, and figures by their ``step``, to an open run. Figures that are not finite
        are left out.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, float(value), now, int(row["step"]))
            for row in rows
            for name, value in row.items()
            if name != "step" and math.isfinite(value)
        ]
        with reaching(self.uri):
            for first in range(0, len(metrics), _MAX_METRICS):
                self.client.log_batch(run_id, metrics[first : first + _MAX_METRICS])
            for file in files:
                self.client.log_artifact(run_id, str(file))

    def log_cell(self, folder: Path, open_run: str = "", data: RunData | None = None) -> str:
        """Deliver the finished cell in ``folder`` and end its run; returns MLflow's id.

        The run is ``open_run`` if given, and is created otherwise.
        """
        cell = data or RunData.of_cell(folder)
        with reaching(self.uri):
            if open_run:
                self._log(open_run, cell, cell.tags)
            run_id = open_run or self._create(cell)
            self.client.log_artifacts(run_id, str(folder))
            status = _RUN_STATUS.get(cell.outcome, "FAILED")
            self.client.set_terminated(run_id, status, int(cell.ended * 1000))
        write_json(folder / TRACKED, {"uri": self.uri, "run_id": run_id})
        return run_id

    def search(self, kind: str, where: str, limit: int | None = None) -> list["Run"]:
        """The runs of ``tinygpt/KIND`` that match MLflow's filter ``where``, newest first."""
        runs: list[Run] = []
        token: str | None = None
        with reaching(self.uri):
            experiment = self.client.get_experiment_by_name(f"tinygpt/{kind}")
            while experiment is not None:
                page = self.client.search_runs(
                    [experiment.experiment_id], where, max_results=limit or 1000, page_token=token
                )
                runs.extend(page)
                token = page.token
                if not token or limit:
                    break
        return runs

    def artifact(self, run_id: str, name: str) -> Path:
        """The path of a run's artifact on this machine, downloaded if need be."""
        from mlflow.artifacts import download_artifacts

        with reaching(self.uri):
            return Path(
                download_artifacts(
                    run_id=run_id, artifact_path=name, tracking_uri=self._readable_uri
                )
            )

    def erase(self, run_ids: list[str]) -> str:
        """Remove deleted runs from the database as well, which only MLflow's command line can do.

        Returns a text on what is left in the database, to be printed after "removed"; usually
        empty.
        """
        from mlflow.entities import ViewType

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's, about its other commands
            from mlflow.cli import gc
        if self.client.search_experiments(ViewType.DELETED_ONLY, max_results=1):
            return (
                "; in the database its runs are only marked as deleted, since `mlflow gc` would "
                "remove the deleted experiments there as well"
            )
        os.environ["MLFLOW_TRACKING_URI"] = self.uri  # nothing of ours reads it after open_store
        try:
            with redirect_stdout(io.StringIO()):
                words = ["--backend-store-uri", self.uri, "--run-ids", ",".join(run_ids)]
                gc.main(words, standalone_mode=False)
        finally:
            del os.environ["MLFLOW_TRACKING_URI"]
        return ""

    def _create(self, data: RunData) -> str:
        """Create a run with all that is known about it; returns MLflow's id."""
        tags = {key: value[:_MAX_TAG] for key, value in data.tags.items()}
        experiment, started_ms = self.experiment_id(data.kind), int(data.started * 1000)
        run = self.client.create_run(experiment, started_ms, tags, data.name)
        self._log(run.info.run_id, data)
        return str(run.info.run_id)

    def _log(self, run_id: str, data: RunData, tags: Mapping[str, str] | None = None) -> None:
        from mlflow.entities import Metric, Param, RunTag

        ended_ms = int(data.ended * 1000)
        self.client.log_batch(
            run_id,
            metrics=[Metric(k, float(v), ended_ms, 0) for k, v in data.metrics.items()],
            params=[Param(k, str(v)[:_MAX_PARAM]) for k, v in data.params.items()],
            tags=[RunTag(k, v[:_MAX_TAG]) for k, v in (tags or {}).items()],
        )
