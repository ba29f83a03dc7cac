"""``python -m runners.train`` in this process, on a text and a results folder of a test's own."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runners import train as train_module
from tests.small_text import KEYS, text

QUICK = [
    "train.steps=10",
    "train.batch=4",
    "train.lr=1e-2",
    "train.min_lr=1e-3",
    "train.warmup_steps=2",
    "train.eval_every=5",
    "train.sample_every=5",
    "train.sample_tokens=12",
    "train.dropout=0.1",
    "device.threads=1",
]


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """All of standard error, which has to be one line."""
        [line] = self.err.strip().splitlines()
        return line


class Command:
    """Runs the entry point on one results folder and one text."""

    def __init__(self, results: Path, corpus: Path) -> None:
        self.results, self.corpus = results, corpus

    def __call__(
        self, capfd: Any, *arguments: str, module: Any = train_module, own: bool = True
    ) -> Ended:
        ours = [f"corpus.path={self.corpus}", *KEYS, *QUICK] if own else []
        kept = [word for word in ours if not any(_same_key(word, a) for a in arguments)]
        with pytest.MonkeyPatch.context() as patch:
            words = ["train", *arguments, *kept, f"tracking.dir={self.results}"]
            patch.setattr("sys.argv", words)
            if capfd:
                capfd.readouterr()
            with pytest.raises(SystemExit) as ended:
                module.main()
        out, err = capfd.readouterr() if capfd else ("", "")
        return Ended(int(ended.value.code or 0), out, err)

    def ids(self) -> list[str]:
        """The runs that began here, oldest first."""
        cells = self.results.glob("cells/*/cell.json")
        return [path.parent.name for path in sorted(cells, key=os.path.getmtime)]

    def rows(self, run: str, name: str) -> list[float]:
        """A figure of every step of a run, from its folder."""
        lines = (self.results / "cells" / run / "steps.jsonl").read_text("utf-8").splitlines()
        return [row[name] for row in map(json.loads, lines) if name in row]

    def cell(self, run: str) -> dict[str, Any]:
        path = self.results / "cells" / run / "cell.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def _same_key(word: str, other: str) -> bool:
    return word.split("=")[0] == other.split("=")[0]


def make_command(empty_store: Path, folder: Path) -> Command:
    results, corpus = folder / "results", folder / "story.txt"
    results.mkdir()
    shutil.copy(empty_store, results / "mlflow.db")
    corpus.write_text(text(), encoding="utf-8")
    return Command(results, corpus)
