"""Stopping and going on: seeds, resuming bit for bit, Ctrl-C, the best weights."""

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from runners import train as train_module
from runners.harness.store.tracking import Store
from runners.harness.train import state as train_state
from runners.harness.train.trainer import Trainer
from tests.train_command import Command, make_command


def test_the_best_weights_are_kept_and_not_the_last(
    done: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = {5: 2.0, 10: 9.0}
    monkeypatch.setattr(Trainer, "held_out_loss", lambda self: looks[self.done])
    assert done(capfd).status == 0
    run = done.ids()[-1]
    assert done.cell(run)["metrics"]["best_step"] == 5
    assert done(capfd, "train.stop_after=5").status == 0
    folder = done.results / "checkpoints"
    best, last, fifth = (
        (folder / name / "model.safetensors").read_bytes()
        for name in (run, f"{run}/last", done.ids()[-1])
    )
    assert best == fifth != last
    assert "Step 5 of 10" in (folder / run / "README.md").read_text(encoding="utf-8")


def test_c1_a_run_that_is_resumed_is_the_run_that_was_not(
    done: Command, run_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = done(capfd, "train.stop_after=5")
    half = done.ids()[-1]
    assert first.status == 0
    assert f"resume={half}" in first.out
    assert "train.stop_after" not in first.out
    assert done.rows(half, "loss_nats") == done.rows(run_id, "loss_nats")[:5]
    assert done(capfd, f"resume={half[:6]}").status == 0
    rest = done.ids()[-1]
    for name in ("loss_nats", "held_out_loss_nats", "learning_rate"):
        assert done.rows(rest, name) == done.rows(run_id, name)
    folder = done.results / "checkpoints"
    weights = [(folder / run / "model.safetensors").read_bytes() for run in (run_id, rest)]
    assert weights[0] == weights[1]
    assert done.cell(rest)["tags"]["tinygpt.resumed_from"] == half


def test_another_seed_gives_other_losses(
    done: Command, run_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert done(capfd, "seed=2", "train.stop_after=3").status == 0
    found = done.rows(done.ids()[-1], "loss_nats")
    assert found != done.rows(run_id, "loss_nats")[:3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["train.lr=2e-2"], "train.lr is 0.01 in it and 0.02 here"),
        (["model.n_layers=3"], "model.n_layers is 2 in it and 3 here"),
        (["model.vocab_size=290"], "model.vocab_size is 300 in it and 290 here"),
        (["seed=2", "train.steps=11"], "seed is 1 in it and 2 here; train.steps is 10 in it"),
    ],
)
def test_resuming_another_run_is_refused(
    done: Command,
    run_id: str,
    change: list[str],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = done.ids()
    ended = done(capfd, f"resume={run_id}", *change)
    assert ended.status == 2
    assert said in ended.line
    assert done.ids() == before
    assert len(list((done.results / "cells").iterdir())) == len(before), "an empty folder is left"


def test_resuming_nothing_names_what_is_there(
    done: Command, run_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = done(capfd, "resume=zzz")
    assert ended.status == 2
    assert "resume=zzz: no such run" in ended.line
    assert run_id in ended.line


def test_a_cut_state_is_one_line(train: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(capfd, "train.stop_after=2").status == 0
    [run] = train.ids()
    state = train.results / "checkpoints" / run / "last" / train_state.FILE
    os.truncate(state, 1000)
    ended = train(capfd, f"resume={run}")
    assert ended.status == 2
    assert f"{state}: cannot be read" in ended.line


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_it_keeps_the_last_state(
    number: signal.Signals,
    status: int,
    done: Command,
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    step = Trainer.step

    def asked(self: Trainer) -> Any:
        if self.done == 6:
            os.kill(os.getpid(), number)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", asked)
        ended = done(capfd)
    run = done.ids()[-1]
    assert ended.status == status
    cell = done.cell(run)
    assert cell["outcome"] == "interrupted"
    assert cell["reason"] == ("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    with safe_open(done.results / "checkpoints" / run / "last" / train_state.FILE, "pt") as file:
        assert json.loads(file.metadata()["training"])["done"] == 7
    [tracked] = Store(done.results).search("train", f"tags.`tinygpt.cell` = '{run}'")
    assert tracked.info.status == "KILLED"
    if number == signal.SIGINT:
        assert done(capfd, f"resume={run}").status == 0
        assert done.rows(done.ids()[-1], "loss_nats") == done.rows(run_id, "loss_nats")


def test_asked_twice_it_stops_at_once(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    step = Trainer.step

    def asked(self: Trainer) -> Any:
        if self.done == 6:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Trainer, "step", asked)
    assert train(capfd).status == 130
    [run] = train.ids()
    assert train.cell(run)["outcome"] == "interrupted"
    assert len(train.rows(run, "loss_nats")) == 5


def test_the_printed_command_goes_on_when_pasted(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    train = make_command(empty_store, folder)
    first = train(capfd, "train.stop_after=2")
    [line] = [line for line in first.out.splitlines() if "resume=" in line]
    python, module, name, *words = shlex.split(line)
    assert (python, module, name) == ("python", "-m", "runners.train")
    monkeypatch.setattr("sys.argv", ["train", *words])
    with pytest.raises(SystemExit) as ended:
        train_module.main()
    assert not ended.value.code
    half, rest = train.ids()
    assert train.cell(rest)["tags"]["tinygpt.resumed_from"] == half
