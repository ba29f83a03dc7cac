"""The error for a user's mistake, and the description of an exception in one line."""

import re


class UsageError(SystemExit):
    """A command or config that is wrong: one line for the user, exit status 2.

    It is a SystemExit, so that it ends a sweep and is not caught by Hydra's own handlers.
    """

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = " ".join(message.split())

    def __str__(self) -> str:
        return self.message


def require_utf8(text: str) -> None:
    """Raise ValueError if ``text``, typed or a path, has bytes that are not UTF-8. Python holds
    each such byte as half a surrogate pair, which no file and no store can take.
    """
    shown = re.sub("[\udc80-\udcff]", lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    shown = shown.encode("utf-8", "backslashreplace").decode()
    if shown != text:
        raise ValueError(
            f"{shown}: is not UTF-8; type a text in a UTF-8 terminal or give prompt.file=PATH, and "
            "rename a file whose name is not UTF-8"
        )


def first_line(error: BaseException) -> str:
    """The exception's kind and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
