"""Reads the texts that a run starts from: typed, a whole file, or one from each line of a file."""

import json
import re
from typing import NamedTuple

from runners.harness.config.text_files import read_utf8


class Prompts(NamedTuple):
    """The texts that a run starts from, and the contents of the file that they came from."""

    texts: tuple[str, ...]
    """The texts; none if no prompt was given."""
    files: dict[str, str]
    """The contents of the file, under the name by which a run keeps it; empty if there was no file.
    """


def typed(text: str | None) -> Prompts:
    """The prompts of a text as typed."""
    return Prompts(() if text is None else (text,), {})


def from_file(path: str) -> Prompts:
    """The whole text of a file as one prompt, exact to the byte. Raises ValueError, one line."""
    text = read_utf8("prompt.file", path)
    if not text:
        raise ValueError(
            f"prompt.file={path}: is empty; the model needs at least 1 token to start from"
        )
    return Prompts((text,), {"prompt.txt": text})


def from_jsonl(path: str) -> Prompts:
    """The prompts of a file that has one on each line. Raises ValueError, one line."""
    content, name = read_utf8("prompt.jsonl", path), f"prompt.jsonl={path}"
    texts = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: line {number} is not JSON ({error.msg})") from None
        text = row.get("prompt") if isinstance(row, dict) else row
        if not isinstance(text, str) or not text:
            raise ValueError(
                f'{name}: line {number} has no prompt; a line is "TEXT" or {{"prompt": "TEXT"}}, '
                "and not empty"
            )
        if re.search("[\ud800-\udfff]", text):
            raise ValueError(
                f"{name}: line {number} has half a surrogate pair, which UTF-8 cannot hold; write "
                "the character itself"
            )
        texts.append(text)
    if not texts:
        raise ValueError(f"{name}: has no prompts; give one a line")
    return Prompts(tuple(texts), {"prompts.jsonl": content})
