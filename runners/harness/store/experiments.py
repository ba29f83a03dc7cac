"""MLflow's experiments ``tinygpt/KIND``: made, restored, and still where they say they are."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from runners.harness.config.commands import command

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def find_or_make(client: "MlflowClient", kind: str, artefacts: Path | None) -> str:
    """The id of ``tinygpt/KIND``, whose artefacts go to a folder, or where a server puts them.

    Raises OSError where the results folder was moved since: MLflow would write to the old place.
    """
    from mlflow.exceptions import MlflowException

    name = f"tinygpt/{kind}"
    found = client.get_experiment_by_name(name)
    if found is None:
        location = artefacts.as_uri() if artefacts else None
        # Without this tag the UI opens its view for traces of agents.
        tags = {"mlflow.experimentKind": "custom_model_development"}
        try:
            return str(client.create_experiment(name, location, tags))
        except MlflowException:  # another process was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if artefacts and _path(found.artifact_location).resolve() != artefacts.resolve():
        raise FileNotFoundError(
            f"the results folder was moved: {name} has its artifacts in {found.artifact_location}; "
            + command("doctor", "fix=true", folder=artefacts.parents[1])
        )
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _path(uri: str) -> Path:
    return Path(url2pathname(urlsplit(uri).path))
