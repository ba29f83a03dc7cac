"""Records on disk: what is saved is loaded, whatever version wrote it, and half a file is told."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.harness.store.records import (
    CellRecord,
    SweepRecord,
    UnreadableRecordError,
    sweep_outcome,
)

OWNER: dict[str, Any] = {"host": "a", "pid": 7, "process_started": 1.5, "started": 2.5}
CELL = {**OWNER, "kind": "bench", "cell": "ab-0", "sweep": "ab", "choices": {}, "outcome": "ok"}
SWEEP = {**OWNER, "kind": "bench", "sweep": "ab", "overrides": [], "cells": 2, "digests": []}
SWEEP |= {"run_id": "f00"}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
cells = st.builds(
    CellRecord,
    host=text,
    pid=st.integers(1, 2**22),
    process_started=st.floats(0.0, 2e9),
    kind=st.sampled_from(["bench", "sample", "verify", "train"]),
    started=st.floats(0.0, 2e9),
    rerun_of=st.none() | text,
    cell=text,
    sweep=st.none() | text,
    choices=st.dictionaries(text, text, max_size=3),
    outcome=text,
    load_average=st.none() | st.lists(st.floats(0.0, 99.0), min_size=3, max_size=3),
    reason=text,
    headline=text,
    metrics=st.dictionaries(text, st.floats(allow_nan=False), max_size=3),
    tags=st.dictionaries(text, text, max_size=3),
    notes=st.lists(text, max_size=3),
    ended=st.floats(0.0, 2e9),
)


@settings(max_examples=50, deadline=None)
@given(cell=cells)
def test_what_is_saved_is_loaded(
    cell: CellRecord, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cell")
    cell.save(folder)
    assert CellRecord.load(folder) == cell
    assert [path.name for path in folder.iterdir()] == ["cell.json"]


def test_a_figure_that_is_not_finite_comes_back(tmp_path: Path) -> None:
    CellRecord(**CELL, metrics={"a": math.nan, "b": math.inf}).save(tmp_path)
    found = CellRecord.load(tmp_path).metrics
    assert math.isnan(found["a"])
    assert found["b"] == math.inf


def test_a_file_of_before_there_was_a_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text(json.dumps({**CELL, "key_of_another_time": 1}))
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    assert CellRecord.load(tmp_path) == CellRecord(**CELL)
    assert SweepRecord.load(tmp_path) == SweepRecord(**SWEEP)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "it has no cell.json"),
        ('{"kind": "ben', "its cell.json cannot be read (Unterminated string"),
        ("[]", "its cell.json is not complete"),
        (json.dumps({**CELL, "format": 2}), "has format 2, and this tinygpt reads 1"),
        (json.dumps({k: v for k, v in CELL.items() if k != "host"}), "(host: Field required)"),
        (json.dumps({**CELL, "pid": "x"}), "(pid: Input should be a valid integer"),
        (json.dumps({**CELL, "metrics": {"a": []}}), "(metrics.a: Input should be a valid number"),
    ],
)
def test_what_cannot_be_read_is_told(content: str | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "cell.json").write_text(content)
    with pytest.raises(UnreadableRecordError) as raised:
        CellRecord.load(tmp_path)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("outcomes", "wanted"),
    [(["ok", "skipped"], "ok"), (["ok"], "failed"), (["ok", "oom"], "failed")],
)
def test_a_sweep_is_ok_where_all_its_planned_cells_are_fine(
    outcomes: list[str], wanted: str, tmp_path: Path
) -> None:
    SweepRecord(**SWEEP).save(tmp_path)
    for n, outcome in enumerate(outcomes):
        (tmp_path / str(n)).mkdir()
        CellRecord(**{**CELL, "outcome": outcome}).save(tmp_path / str(n))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cell.json").write_text("{")  # half a file counts as no cell
    assert sweep_outcome(tmp_path) == wanted
