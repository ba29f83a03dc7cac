"""Conditions on rows, as people type them: ``where='batch.size>=4 and device=cpu'``.

A key may have several values: that of a group has the name of its option and the value that it
sets. One value that fits is enough. Numbers are compared exactly, as numbers; texts can only be
equal or not. A row without a value fits ``!=`` only, so every row fits either ``=`` or ``!=``.
"""

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

Value = str | Decimal
Facts = Mapping[str, tuple[Value, ...]]
"""The facts about one row: the values of each key, and no values for a key that has none."""

FORM = (
    "a condition is KEY=VALUE with one of = == != < <= > >=, a value with spaces in quotes, and "
    "several are joined by and: batch.size>=4 and device=cpu"
)
_KEY = re.compile(r"[^\W\d][\w.]*")
_OPERATOR = re.compile(r"==|!=|<=|>=|=|<|>")
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|(?!(?:and|or)\b)[^\s'\"<>=!]+", re.IGNORECASE)
_AND = re.compile(r"and\b", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?", re.ASCII | re.IGNORECASE)
_ORDER: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SHOWN = 6
"""The most values or names that a message lists."""


@dataclass(frozen=True)
class Condition:
    """One comparison."""

    key: str
    operator: str
    """``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``."""
    value: str
    """The value as typed, without its quotes."""

    def __str__(self) -> str:
        mark = "" if _VALUE.fullmatch(self.value) else '"' if "'" in self.value else "'"
        return f"{self.key}{self.operator}{mark}{self.value}{mark}"

    def fits(self, facts: Facts) -> bool:
        """Whether a row fits this condition."""
        values, asked = facts.get(self.key, ()), number(self.value)
        if self.operator in _ORDER:
            compare = _ORDER[self.operator]
            return asked is not None and any(
                isinstance(value, Decimal) and compare(value, asked) for value in values
            )
        equal = any(
            value == asked if isinstance(value, Decimal) else value == self.value
            for value in values
        )
        return equal == (self.operator == "=")


def number(text: str) -> Decimal | None:
    """The number that a text stands for; None if it is not a number."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def values(*found: Any, text: bool = False) -> tuple[Value, ...]:
    """``found`` as the values of a key.

    Empty values and None are left out. Digits become numbers unless ``text`` says that the key's
    values are texts.
    """
    texts = [str(one) for one in found if one is not None and str(one) not in ("", "None", "nan")]
    read: Iterable[Value] = texts if text else (_read(one) for one in texts)
    return tuple(dict.fromkeys(read))


def _read(text: str) -> Value:
    known = number(text)
    return (text.lower() if text in ("True", "False") else text) if known is None else known


def parse(where: str) -> list[Condition]:
    """The conditions in ``where``; none if it is empty. Raises ValueError with the wrong place."""
    conditions: list[Condition] = []
    at = 0

    def take(pattern: re.Pattern[str], what: str) -> str:
        nonlocal at
        at += len(where[at:]) - len(where[at:].lstrip())
        found = pattern.match(where, at)
        if not found:
            _refuse(where, at, what)
        at = found.end()
        return found[0]

    while where[at:].strip():
        if conditions:
            take(_AND, "the word and")
        key, sign = take(_KEY, "a key"), take(_OPERATOR, "an operator")
        value = take(_VALUE, "a value")
        bare = value[1:-1] if value[0] in "'\"" else value
        conditions.append(Condition(key, "=" if sign == "==" else sign, bare))
    return conditions


def _refuse(where: str, at: int, what: str) -> NoReturn:
    rest, hint = where[at:], ""
    place = f"at {rest!r}" if rest else "at its end"
    if not rest and what == "an operator":
        hint = "; without quotes around it all, a shell takes < and > for itself"
    raise ValueError(f"where={where}: {what} is missing {place}{hint}; {FORM}")


def select(
    where: str, rows: Sequence[Facts], known: Iterable[str] = (), hint: str = ""
) -> tuple[list[int], str]:
    """The numbers of the rows that fit every condition, and a note: empty, or which condition
    excluded the last row.

    Raises ValueError if a condition's value cannot be compared with the key's values, and if a key
    is neither in ``known`` nor in any row; ``hint`` then says which keys there are.
    """
    keys = {*known, *(key for row in rows for key in row)}
    kept, note = list(range(len(rows))), ""
    for condition in parse(where):
        if condition.key not in keys:
            near = _nearest(condition.key, keys) or hint
            raise ValueError(f"where={where}: {condition.key}: no such key; {near}")
        _require_sense(condition, where, rows)
        left = [n for n in kept if condition.fits(rows[n])]
        if kept and not left:
            there = _listed(value for n in kept for value in rows[n].get(condition.key, ()))
            note = f"where={where}: none of {len(kept)} rows has {condition}"
            note += f" ({condition.key}: {there or 'no value'})"
        kept = left
    return kept, note


def _require_sense(condition: Condition, where: str, rows: Sequence[Facts]) -> None:
    key = condition.key
    found = {value for row in rows for value in row.get(key, ())}
    numbers = {value for value in found if isinstance(value, Decimal)}
    ordered = condition.operator in _ORDER
    if ordered and found and not numbers:
        raise ValueError(
            f"where={where}: {key} is a text ({_listed(found)}): it compares with = and != only"
        )
    if number(condition.value) is None and (ordered or (found and numbers == found)):
        raise ValueError(
            f"where={where}: {condition}: {key} is a number, and {condition.value!r} is none"
        )


def _nearest(key: str, keys: Iterable[str]) -> str:
    names = sorted(keys)
    ends = [name for name in names if name.endswith(f".{key}")]
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    near = list(dict.fromkeys([*ends, *close]))[:_SHOWN]
    return f"did you mean {' or '.join(near)}?" if near else ""


def _listed(found: Iterable[Value]) -> str:
    ordered = sorted(set(found), key=lambda value: (isinstance(value, str), value))
    texts = [f"{value:f}" if isinstance(value, Decimal) else value for value in ordered]
    if len(texts) > _SHOWN:
        texts = [*texts[: _SHOWN - 2], "...", texts[-1]]
    return ", ".join(texts)
