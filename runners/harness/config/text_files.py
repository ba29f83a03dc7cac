"""Reading a file of text that a user names: one way, and one line for what cannot be read."""

from runners.harness.config.paths import absolute

BYTE_ORDER_MARK = "\ufeff"


def read_utf8(key: str, path: str, cure: str = "give the path of a UTF-8 file") -> str:
    """The text of the file that ``key=path`` names, to the byte; ValueError, one line, for what
    cannot be read.

    A byte-order mark at its head says how the file is written (Windows' editors put one there
    unasked) and is no text, unless ``prompt.file`` asks for a text to the byte.
    """
    try:
        text = absolute(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"{key}={path}: cannot be read ({error.strerror}); {cure}") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{key}={path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    return text if key == "prompt.file" else text.removeprefix(BYTE_ORDER_MARK)
