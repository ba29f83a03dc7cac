"""Chat templates: how a checkpoint was taught to tell what a user says from what it answers.

A template is a program in the Jinja2 language that comes with somebody else's checkpoint, so it
runs in Jinja2's sandbox. What transformers offers to templates is offered here: the same options,
``raise_exception``, ``strftime_now``, ``tojson`` and the tag ``generation``.
"""

import json
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Environment, Template

_TODAY = datetime(2024, 7, 26)
"""The date that a template is told, Llama 3's own default: with the real one, a rerun on another
day would start from another prompt."""
_MARK = "\ue000text\ue001"
"""Stands for a text, in characters that no template has."""


class ChatTemplate:
    """A template, and the special tokens that it may name."""

    def __init__(self, source: str, tokens: dict[str, str], path: Path) -> None:
        """Take the ``source`` read from ``path``; ``tokens`` has ``bos_token`` and the like."""
        self.source, self._tokens, self._path = source, tokens, path

    def prompt(self, text: str) -> str:
        """``text`` as a user's turn, up to where the answer begins. Raises ValueError, one line."""
        return self._render([{"role": "user", "content": text}], add_generation_prompt=True)

    @cached_property
    def around_a_prompt(self) -> tuple[str, str]:
        """What stands before and after a user's text. Raises ValueError, one line."""
        before, _, after = self.prompt(_MARK).partition(_MARK)
        return before, after

    @cached_property
    def after_an_answer(self) -> str:
        """What stands after an answer, which begins with the end of its turn; "" if that is not
        told. Raises ValueError, one line.
        """
        answer = {"role": "assistant", "content": _MARK}
        turns = [{"role": "user", "content": "?"}, answer]
        return self._render(turns, add_generation_prompt=False).partition(_MARK)[2]

    def _render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._tokens
            )
        except Exception as error:  # a template can raise whatever Python can
            raise self._refused(error) from None

    @cached_property
    def _template(self) -> "Template":
        try:
            return _environment().from_string(self.source)
        except Exception as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> ValueError:
        said = " ".join(str(error).split())[:160]
        return ValueError(
            f"{self._path}: its chat template cannot be used ({type(error).__name__}: {said}); "
            "leave prompt.chat out, or write the turns yourself with prompt.special=true"
        )


def _environment() -> "Environment":
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag with which a template marks what a model generates; its content is kept."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    found.globals["raise_exception"] = _raise
    found.globals["strftime_now"] = _TODAY.strftime
    found.filters["tojson"] = _to_json
    return found


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
