"""Finds or makes MLflow's experiments ``tinygpt/KIND``, unless they were deleted or moved."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from runners.harness.config.commands import command

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def find_or_make(client: "MlflowClient", kind: str, artifacts: Path | None, uri: str) -> str:
    """The id of ``tinygpt/KIND``, which is made if it is missing. Its artifacts go to the folder
    ``artifacts`` or, if that is None, where the server puts them.

    Raises OSError if the results folder was moved, since MLflow would write to the old place, and
    if the experiment was deleted, since only its user can decide to bring it and its runs back.
    """
    from mlflow.exceptions import MlflowException

    name = f"tinygpt/{kind}"
    found = client.get_experiment_by_name(name)
    if found is None:
        location = artifacts.as_uri() if artifacts else None
        # Without this tag the UI opens its view for traces of agents.
        tags = {"mlflow.experimentKind": "custom_model_development"}
        try:
            return str(client.create_experiment(name, location, tags))
        except MlflowException:  # another process was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if artifacts and _path(found.artifact_location).resolve() != artifacts.resolve():
        raise FileNotFoundError(
            f"the results folder was moved: {name} has its artifacts in {found.artifact_location}; "
            + command("doctor", "fix=true", folder=artifacts.parents[1])
        )
    if found.lifecycle_stage == "deleted":
        raise FileNotFoundError(deleted(kind, found.experiment_id, uri))
    return str(found.experiment_id)


def deleted(kind: str, identity: str, uri: str) -> str:
    """One line that says how to restore an experiment that its user deleted."""
    restore = shlex.join(["mlflow", "experiments", "restore", "--experiment-id", identity])
    where = shlex.quote(uri)
    return (
        f"the experiment tinygpt/{kind} was deleted, and its runs with it; this restores them: "
        f"MLFLOW_TRACKING_URI={where} {restore}"
    )


def _path(uri: str) -> Path:
    return Path(url2pathname(urlsplit(uri).path))
