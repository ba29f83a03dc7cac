"""The commands that we print, which can be pasted into a shell as they stand."""

import re
import shlex
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from runners.harness.config.paths import absolute, results_dir

GRAMMAR = re.compile(r"""\s*['"]|.*[,()\[\]{}]|\s*null\s*\Z""", re.DOTALL | re.IGNORECASE)
"""Texts that mean something else in Hydra's grammar unless they are in quotes."""
_AS_TYPED = ("sweep", "where")
"""Keys whose text is taken as it is whatever it holds."""


def word(key: str, text: Path | str) -> str:
    """``KEY=TEXT`` of which a key typed ``str`` gets exactly ``text``, in Hydra's quotes where it
    takes them; not yet quoted for a shell.
    """
    text = str(text)
    if key not in _AS_TYPED and GRAMMAR.match(text):
        text = QuotedString(text, Quote.single).with_quotes()
    return f"{key}={text}"


def command(entry: str, *words: str, folder: Path | str | None = None, uri: str = "") -> str:
    """The command line of an entry point, quoted for a shell.

    ``folder`` is the tracking.dir that it is about, written down where it is not the default, and
    ``uri`` the MLflow server, if it is about one.
    """
    place = []
    if folder is not None and str(folder) != "???":  # Hydra's sign for: nobody said
        folder = absolute(str(folder))
        if folder.resolve() != results_dir().resolve():
            place.append(word("tracking.dir", folder))
    if uri:
        place.append(word("tracking.uri", uri))
    return shlex.join(["python", "-m", f"runners.{entry}", *words, *place])
