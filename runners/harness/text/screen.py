"""Shows a text on the terminal while it is written."""

import sys
from types import TracebackType
from typing import Self

from runners.harness.terminal import printable, reader_gone


class Screen:
    """Shows prompts and the pieces of text after them, under a title if one is given."""

    def __init__(self, title: str) -> None:
        self._title, self._began = title, False

    def __enter__(self) -> Self:
        if self._title:
            self._write(f"--- {self._title}\n")
        return self

    def __call__(self, prompt: str, piece: str) -> None:
        """Begin a text with ``prompt`` if it is not empty, then continue it with ``piece``."""
        if prompt:
            self._write("\n\n" if self._began else "")
            self._began = True
            bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
            self._write(bold + printable(prompt) + plain)
        self._write(printable(piece))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._began:
            self._write("\n\n" if self._title else "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # the run is stored anyway
            reader_gone()
