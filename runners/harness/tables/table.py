"""A table, before it becomes text."""

from dataclasses import dataclass, field

import pandas as pd


@dataclass
class Table:
    """A table and how it is introduced."""

    name: str
    frame: pd.DataFrame
    title: str
    empty: str = ""
    """What fills it, where it has no rows."""
    footer: list[str] = field(default_factory=list)
