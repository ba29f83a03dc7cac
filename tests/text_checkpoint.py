"""A checkpoint that writes text, and ``python -m runners.sample`` on it in this process."""

import io
import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from runners import sample as sample_module
from runners.harness.store.tracking import Store
from tests.small_text import KEYS, MODEL, text
from tests.train_command import Ended
from tinygpt.tokenizer import Tokenizer


@cache
def tokenizer() -> Tokenizer:
    """One that knows the small text; the model can write every token of it and no other."""
    made = Tokenizer.train(text(), MODEL.vocab_size)
    assert made.vocab_size == MODEL.vocab_size
    return made


def save(folder: Path) -> Path:
    """Write small random weights and their tokenizer into ``folder``, which is made.

    Weights as large as learnt ones: what is written depends on the prompt.
    """
    import torch  # not before conftest.py has set its threads

    from tinygpt.checkpoint import random_model, save_model

    model = random_model(MODEL, 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(24 if weight.ndim > 1 else 1)
    save_model(model, folder, tokenizer=tokenizer())
    return folder


class Sample:
    """Runs the entry point on one results folder and one checkpoint."""

    def __init__(self, empty_store: Path, folder: Path, checkpoint: Path) -> None:
        self.results, self.checkpoint = folder / "results", checkpoint
        self.results.mkdir()
        shutil.copy(empty_store, self.results / "mlflow.db")

    def __call__(self, *arguments: str, own: bool = True) -> Ended:
        """``own``: with the small checkpoint and few tokens, where ``arguments`` say nothing."""
        ours = [f"checkpoint={self.checkpoint}", "length.new_tokens=6", *KEYS] if own else []
        given = {word.partition("=")[0] for word in arguments}
        kept = [word for word in ours if word.partition("=")[0] not in given]
        words = [*arguments, *kept, "device.threads=1", f"tracking.dir={self.results}"]
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            patch.setattr("sys.argv", ["sample", *words])
            with pytest.raises(SystemExit) as ended:
                sample_module.main()
        return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    def cells(self) -> list[Path]:
        """The folders of the cells, oldest first."""
        found = [*self.results.glob("cells/*/cell.json")]
        found += self.results.glob("sweeps/*/*/cell.json")
        return [path.parent for path in sorted(found, key=os.path.getctime)]

    def rows(self) -> list[dict[str, Any]]:
        """The generations of every cell."""
        return [row for cell in self.cells() for row in generations(cell)]

    def runs(self, kind: str = "sample") -> list[Any]:
        """MLflow's runs of one kind, in order of their cell's number."""
        found = Store(self.results).search("sample", f"tags.`tinygpt.kind` = '{kind}'")
        return sorted(found, key=lambda run: str(run.data.tags.get("tinygpt.cell")))

    def made_nothing(self) -> bool:
        """Neither a folder nor a run."""
        nothing = [path for path in self.results.iterdir() if path.is_dir()] == []
        return nothing and Store(self.results).search("sample", "") == []


def generations(cell: Path) -> list[dict[str, Any]]:
    """The rows of a cell's generations.jsonl, of which a line feed and nothing else ends one."""
    content = (cell / "generations.jsonl").read_bytes().decode("utf-8")
    return [json.loads(line) for line in content.split("\n") if line]
