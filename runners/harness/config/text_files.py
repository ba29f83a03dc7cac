"""Reads text files that a user names, with an error of one line."""

from runners.harness.config.paths import absolute

BYTE_ORDER_MARK = "\ufeff"


def read_utf8(key: str, path: str, cure: str = "give the path of a UTF-8 file") -> str:
    """The text of the UTF-8 file that ``key=path`` names. Raises ValueError, one line.

    A byte-order mark at the beginning, which editors on Windows add unasked, is removed, except for
    ``prompt.file``, whose text is exact to the byte.
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
