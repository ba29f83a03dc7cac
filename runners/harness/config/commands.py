"""Makes the commands that messages print, so that they can be pasted into a shell as they are."""

import re
import shlex
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from runners.harness.config.paths import absolute, results_dir

GRAMMAR = re.compile(r"""\s*['"]|.*[,()\[\]{}]|\s*null\s*\Z""", re.DOTALL | re.IGNORECASE)
"""Texts that mean something else in Hydra's grammar unless they are quoted."""
_AS_TYPED = ("sweep", "where")
"""Keys whose text is taken as it is, whatever it contains."""


def word(key: str, text: Path | str) -> str:
    """``KEY=TEXT``, written such that Hydra reads exactly ``text`` for a key of type ``str``.

    The text gets Hydra's quotes where it needs them; the word is not yet quoted for a shell.
    """
    text = str(text)
    if key not in _AS_TYPED and GRAMMAR.match(text):
        text = QuotedString(text, Quote.single).with_quotes()
    return f"{key}={text}"


def command(entry: str, *words: str, folder: Path | str | None = None, uri: str = "") -> str:
    """The command line of an entry point, quoted for a shell.

    ``folder`` becomes tracking.dir, which is left out if it is the default, and ``uri`` becomes
    tracking.uri, if it is not empty.
    """
    place = []
    if folder is not None and str(folder) != "???":  # Hydra's sign for a missing value
        folder = absolute(str(folder))
        if folder.resolve() != results_dir().resolve():
            place.append(word("tracking.dir", folder))
    if uri:
        place.append(word("tracking.uri", uri))
    return shlex.join(["python", "-m", f"runners.{entry}", *words, *place])
