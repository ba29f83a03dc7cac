"""The only writer to MLflow, and where its store is. Reads cells from disk, so that a result can
be delivered at any time after it was made.

The store is absolute wherever a command was typed: an sqlite file in ``tracking.dir``, or a
server. One run costs one create, one batch and one call for its artefacts.
"""

import logging
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from runners.harness.config.paths import absolute
from runners.harness.config.schema import TrackingConfig
from runners.harness.store import experiments, record
from runners.harness.store.disk import owner, write_json

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

TRACKED = "tracked.json"
"""The file that says as which run a cell's folder was delivered."""
_RUN_STATUS = {"ok": "FINISHED", "skipped": "FINISHED", "interrupted": "KILLED"}
_MAX_METRICS = 1000  # MLflow takes no more in one call
_MAX_TAG, _MAX_PARAM = 8000, 6000  # characters; MLflow's own limits


class TrackingError(Exception):
    """The store could not be reached or written; what was to be tracked is complete on disk."""


@contextmanager
def _reaching(uri: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError, sqlite3.Error) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TrackingError(f"{uri}: {line}") from error


def open_store(config: TrackingConfig) -> "Store":
    """The store that ``config`` names; one a process, so that its cells share a connection."""
    given_uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
    return _open(absolute(config.dir), given_uri)


@lru_cache(maxsize=8)
def _open(folder: Path, given_uri: str) -> "Store":
    return Store(folder, given_uri)


class Store:
    """One MLflow store, reached when first used."""

    def __init__(self, folder: Path, given_uri: str = "") -> None:
        self.dir, self._given_uri = folder, given_uri
        self._experiment_ids: dict[str, str] = {}

    @property
    def uri(self) -> str:
        """MLflow's tracking URI."""
        return self._given_uri or f"sqlite:///{self._database}"

    @property
    def _database(self) -> Path:
        return self.dir / "mlflow.db"

    @property
    def exists(self) -> bool:
        """Whether anything can have been tracked yet."""
        return bool(self._given_uri) or self._database.is_file()

    @cached_property
    def client(self) -> "MlflowClient":
        """MLflow, imported and its store made where there is none yet."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(name).setLevel(logging.WARNING)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow.tracking import MlflowClient

        if self._given_uri:
            return MlflowClient(self.uri)
        self.dir.mkdir(parents=True, exist_ok=True)
        # Processes that open a fresh sqlite store at once break each other's migrations.
        with FileLock(self.dir / "mlflow.lock"):
            if not self._database.exists():
                with closing(sqlite3.connect(self._database)) as connection:
                    connection.execute("PRAGMA journal_mode=WAL")  # stays set in the file
            client = MlflowClient(self.uri)
            client.search_experiments(max_results=1)
            return client

    def experiment_id(self, kind: str) -> str:
        """The id of experiment ``tinygpt/KIND``, made or restored where need be."""
        if kind not in self._experiment_ids:
            folder = None if self._given_uri else self.dir / "artifacts" / kind
            self._experiment_ids[kind] = experiments.find_or_make(self.client, kind, folder)
        return self._experiment_ids[kind]

    def begin_sweep(self, facts: Mapping[str, Any], tags: dict[str, str] | None = None) -> str:
        """Open the run of a sweep, of which sweep.json has the facts; returns MLflow's id."""
        name, tags = f"sweep {facts['sweep']}", tags or record.sweep_tags(facts)
        with _reaching(self.uri):
            run = self._create(facts["kind"], name, tags, facts["started"])
            self._log(run.info.run_id, params={"cells": facts["cells"]})
        return str(run.info.run_id)

    def reopen_sweep(self, run_id: str) -> None:
        """Let a sweep's run go on, as one of this process."""
        with _reaching(self.uri):
            for key, value in record.owner_tags(owner()).items():
                self.client.set_tag(run_id, key, value)
            self.client.update_run(run_id, "RUNNING")

    def end_sweep(self, run_id: str, outcome: str, tables: Path, ended: float = 0.0) -> None:
        """Attach a sweep's tables and end its run."""
        with _reaching(self.uri):
            if tables.is_dir():
                self.client.log_artifacts(run_id, str(tables), "tables")
            self.client.set_tag(run_id, "tinygpt.outcome", outcome)
            status = _RUN_STATUS.get(outcome, "FAILED")
            self.client.set_terminated(run_id, status, int(ended * 1000) or None)

    def open_cell(self, folder: Path, cell: record.Record | None = None) -> str:
        """Create the run of the cell that runs in ``folder``, to be watched; returns its id."""
        cell = cell or record.read(folder)
        with _reaching(self.uri):
            run = self._create(cell.kind, cell.name, cell.tags, cell.started)
            self._log(run.info.run_id, params=cell.params)
        return str(run.info.run_id)

    def log_steps(
        self, run_id: str, rows: Sequence[Mapping[str, float]], files: Sequence[Path] = ()
    ) -> None:
        """Deliver finite figures by their ``step``, and files, to a run that is open."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, float(value), now, int(row["step"]))
            for row in rows
            for name, value in row.items()
            if name != "step" and math.isfinite(value)
        ]
        with _reaching(self.uri):
            for first in range(0, len(metrics), _MAX_METRICS):
                self.client.log_batch(run_id, metrics[first : first + _MAX_METRICS])
            for file in files:
                self.client.log_artifact(run_id, str(file))

    def log_cell(self, folder: Path, open_run: str = "", cell: record.Record | None = None) -> str:
        """Deliver the finished cell of ``folder`` and end its run, made here unless it is open;
        returns MLflow's id.
        """
        cell = cell or record.read(folder)
        with _reaching(self.uri):
            run_id = open_run
            if not open_run:
                run = self._create(cell.kind, cell.name, cell.tags, cell.started)
                run_id = str(run.info.run_id)
            tags = cell.tags if open_run else {}
            self._log(run_id, params=cell.params, metrics=cell.metrics, tags=tags, at=cell.ended)
            self.client.log_artifacts(run_id, str(folder))
            status = _RUN_STATUS.get(cell.outcome, "FAILED")
            self.client.set_terminated(run_id, status, int(cell.ended * 1000))
        write_json(folder / TRACKED, {"uri": self.uri, "run_id": run_id})
        return run_id

    def search(self, kind: str, where: str, limit: int | None = None) -> list["Run"]:
        """The runs of ``tinygpt/KIND`` that MLflow's filter ``where`` fits, newest first."""
        runs: list[Run] = []
        token: str | None = None
        with _reaching(self.uri):
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

    def artefact(self, run_id: str, name: str) -> Path:
        """A file of a run, on this machine."""
        from mlflow.artifacts import download_artifacts

        with _reaching(self.uri):
            return Path(
                download_artifacts(run_id=run_id, artifact_path=name, tracking_uri=self.uri)
            )

    def _create(
        self, kind: str, name: str, tags: dict[str, str], started: float | None = None
    ) -> "Run":
        tags = {key: value[:_MAX_TAG] for key, value in tags.items()}
        at = None if started is None else int(started * 1000)
        run: Run = self.client.create_run(self.experiment_id(kind), at, tags, name)
        return run

    def _log(
        self,
        run_id: str,
        *,
        params: dict[str, Any],
        metrics: dict[str, float] | None = None,
        tags: dict[str, str] | None = None,
        at: float = 0.0,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        self.client.log_batch(
            run_id,
            metrics=[Metric(k, float(v), int(at * 1000), 0) for k, v in (metrics or {}).items()],
            params=[Param(k, str(v)[:_MAX_PARAM]) for k, v in params.items()],
            tags=[RunTag(k, v[:_MAX_TAG]) for k, v in (tags or {}).items()],
        )
