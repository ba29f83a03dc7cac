"""Pages for a browser. Each is a template in this folder and needs no other file to be shown."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(name: str, **values: Any) -> str:
    """The page ``name`` with ``values`` in it; what looks like HTML in them is shown as text."""
    return _environment().get_template(f"{name}.jinja").render(values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("runners.harness.report.pages", ".")
    return Environment(autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True)
