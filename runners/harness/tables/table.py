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
    """What is shown if the table has no rows: what would fill it."""
    footer: list[str] = field(default_factory=list)
