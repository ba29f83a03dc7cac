"""The commands that we print, which can be pasted into a shell as they stand."""

import shlex
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from runners.harness.config import grammar
from runners.harness.config.paths import absolute, results_dir


def word(key: str, value: object) -> str:
    """``KEY=VALUE`` from which the config gets exactly ``value``, in Hydra's quotes where it takes
    them; not yet quoted for a shell.
    """
    text = str(value)
    if grammar.needs_quotes(key, text):
        text = QuotedString(text, Quote.single).with_quotes()
    return f"{key}={text}"


def command(entry: str, *words: str, folder: Path | str | None = None, uri: str = "") -> str:
    """The command line of an entry point, quoted for a shell.

    ``folder`` is the tracking.dir and ``uri`` the MLflow server that it is about; each is written
    down only where the command would not take it anyway.
    """
    place = []
    if folder is not None:
        folder = absolute(str(folder))
        if folder.resolve() != results_dir().resolve():
            place.append(word("tracking.dir", folder))
        if uri and uri != f"sqlite:///{folder / 'mlflow.db'}":
            place.append(word("tracking.uri", uri))
    return shlex.join(["python", "-m", f"runners.{entry}", *words, *place])
