"""What goes wrong in training is one line, and nothing that was good is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runners import bench as bench_module
from runners import train as train_module
from runners.harness.config import paths, presets
from runners.harness.config.conversion import from_dict
from runners.harness.config.schema import BenchConfig, TrainConfig
from runners.harness.errors import UsageError
from runners.harness.store.tracking import Store, TrackingError
from runners.harness.train.trainer import NonFiniteError, Trainer
from tests.small_text import MODEL
from tests.train_command import Command
from tinygpt.checkpoint import load_model
from tinygpt.tokenizer import Tokenizer


def test_c2_a_loss_that_is_not_finite_fails_and_keeps_the_last_good_weights(
    train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = train(capfd, "train.lr=1e6", "train.steps=50", "train.eval_every=1", "out=bad")
    [run] = train.ids()
    assert ended.status == 1
    cell = train.cell(run)
    assert cell["outcome"] == "failed"
    assert "lower train.lr=1e+06" in cell["reason"]
    assert f"{run} failed: step" in ended.err.splitlines()[-1]
    best = train.rows(run, "held_out_loss_nats")
    assert f"the weights of step {best.index(min(best)) + 1} are kept" in cell["reason"]
    model = load_model(train.results / "checkpoints" / run, MODEL)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert not (train.results / "checkpoints" / "bad").exists()
    [tracked] = Store(train.results).search("train", "")
    assert tracked.info.status == "FAILED"
    assert tracked.data.tags["tinygpt.reason"] == cell["reason"]
    points = Store(train.results).client.get_metric_history(tracked.info.run_id, "loss_nats")
    assert [point.value for point in points] == train.rows(run, "loss_nats")


def test_a_failed_run_leaves_an_older_checkpoint_of_that_name(
    done: Command,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    step = Trainer.step

    def breaks(self: Trainer) -> Any:
        if self.done == 7:
            raise NonFiniteError("step 8: the loss is nan")
        return step(self)

    monkeypatch.setattr(Trainer, "step", breaks)
    assert done(capfd, "out=story", "seed=2").status == 1
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before
    reason = done.cell(done.ids()[-1])["reason"]
    assert reason == "step 8: the loss is nan; the weights of step 5 are kept"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["corpus.path=/no/such/file"], "corpus.path=/no/such/file: cannot be read"),
        (["corpus.path=null"], "corpus.path: no text is given"),
        (["model.context_length=100000"], "model.context_length=100000 needs at least 100001"),
        (["model.vocab_size=3000"], "set model.vocab_size="),
        (["train.warmup_steps=11"], "train.warmup_steps=11: must be from 0 to train.steps=10"),
        (["train.stepps=3"], "did you mean train.steps?"),
        (["train.lr=fast"], "train.lr: 'fast' is not a number"),
        (["batch=4"], "batch"),
        (["train.lr=1e-3,1e-2"], "a list of values is a sweep; add -m"),
        (["-m", "seed=1,2", "out=x"], "out=x: the 2 runs of a sweep would replace each other"),
    ],
)
def test_what_is_wrong_is_one_line_and_no_run(
    arguments: list[str], said: str, train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = train(capfd, *arguments)
    assert ended.status == 2
    assert said in ended.line
    assert not list(train.results.glob("cells/*"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"corpus": {"held_out": 0}}, "corpus.held_out=0.0: must be above 0"),
        ({"corpus": {"held_out": 0.6}}, "corpus.held_out=0.6: must be above 0 and at most 0.5"),
        *(
            ({"train": {name: 0}}, f"train.{name}=0: must be at least 1")
            for name in ("steps", "batch", "eval_every", "sample_tokens", "stop_after")
        ),
        ({"train": {"min_lr": 1}}, "train.min_lr=1.0: must be from 0 to train.lr=0.002"),
        ({"train": {"lr": -1}}, "train.lr=-1.0: must be finite and above 0"),
        ({"train": {"lr": float("nan")}}, "train.lr=nan: must be finite and above 0"),
        ({"train": {"grad_clip": float("inf")}}, "train.grad_clip=inf: must be finite"),
        ({"train": {"weight_decay": -0.1}}, "train.weight_decay=-0.1: must be finite"),
        ({"train": {"warmup_steps": -1}}, "train.warmup_steps=-1: must be from 0"),
        ({"train": {"sample_every": -1}}, "train.sample_every=-1: must be at least 0"),
        ({"train": {"dropout": 1}}, "train.dropout=1.0: must be at least 0 and below 1"),
        ({"train": {"beta2": 1}}, "train.beta2=1.0: must be at least 0 and below 1"),
        ({"train": {"autocast": "fp16"}}, "train.autocast=fp16: must be one of none, bf16"),
        ({"train": {"sample_prompt": ""}}, "train.sample_prompt= is empty"),
        ({"out": "a/b"}, "out=a/b: must be a name of letters"),
        ({"out": ".."}, "out=..: must be a name of letters"),
        ({"out": "none"}, "out=none: checkpoint=none means random weights"),
        ({"seed": -1}, "seed=-1: must be from 0"),
    ],
)
def test_values_out_of_range(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_dict({"tracking": {"dir": "x"}} | values, TrainConfig)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; give a text"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"A few words.", "needs at least 17"),
    ],
)
def test_a_text_that_will_not_do_is_one_line(
    content: bytes, said: str, train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    train.corpus.write_bytes(content)
    ended = train(capfd)
    assert ended.status == 2
    assert said in ended.line
    assert str(train.corpus) in ended.line


def test_names_that_look_like_numbers_stay_text(
    train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "resume=83e5: no such run" in train(capfd, "resume=83e5").line
    assert "out=true" not in train(capfd, "out=true", "resume=1_000").line


def test_training_that_cannot_fit_is_foreseen(
    train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = train(capfd, "train.batch=1000000000")
    [run] = train.ids()
    cell = train.cell(run)
    assert (ended.status, cell["outcome"]) == (1, "oom")
    assert cell["reason"].startswith("train.batch=1000000000: needs at least ")


def test_a_missing_device_is_a_row(train: Command, capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert train(capfd, "device=cuda").status == 0
    assert train.cell(train.ids()[0])["outcome"] == "skipped"
    assert train(capfd, "device=cuda", "device.on_missing=fail").status == 1


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        (bench_module, ["experiment=holmes"], "bench: experiment=holmes: is for another command"),
        (bench_module, ["-m", "experiment=post,holmes"], "corpus, train, which bench does not"),
        (train_module, ["experiment=post"], "train: experiment=post: is for another command"),
        (train_module, ["experiment=post"], "train takes holmes"),
        (train_module, ["experiment=nothing"], "experiment=nothing: no such option; choose one of"),
    ],
)
def test_a_preset_of_another_command_is_one_line(
    module: Any,
    arguments: list[str],
    said: str,
    train: Command,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = train(capfd, *arguments, module=module, own=False)
    assert ended.status == 2
    assert said in ended.line


def test_every_preset_fits_a_command() -> None:
    for preset in paths.group_options("experiment"):
        fits = [s for s in (BenchConfig, TrainConfig) if not presets.foreign_keys(preset, s)]
        assert fits, preset


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("model.context_length=16,100000", "model.context_length=100000 needs at least 100001"),
        ("model.vocab_size=300,3000", "set model.vocab_size="),
        ("resume=null,abcdef", "resume=abcdef: no such run"),
    ],
)
def test_what_is_wrong_with_a_later_job_is_known_before_the_first(
    axis: str, said: str, train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = train(capfd, "-m", axis)
    assert ended.status == 2
    assert said in ended.line
    assert not list(train.results.glob("*/*"))


def test_the_jobs_of_a_sweep_share_their_tokens(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    learn, learnt = Tokenizer.train.__func__, []  # type: ignore[attr-defined]

    def count(cls: type[Tokenizer], text: str, vocab_size: int = 4096) -> Any:
        learnt.append(vocab_size)
        return learn(cls, text, vocab_size)

    monkeypatch.setattr(Tokenizer, "train", classmethod(count))
    train.corpus.write_text(train.corpus.read_text("utf-8") + "\nOnly here.\n", "utf-8")
    assert train(capfd, "-m", "seed=1,2", "train.stop_after=1").status == 0
    assert learnt == [300]


@pytest.mark.parametrize("leaving", [SystemExit(0), SystemExit("enough"), OSError("no room")])
def test_a_job_that_exits_in_any_way_is_a_failed_row_and_the_others_run(
    leaving: BaseException,
    train: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    step = Trainer.step

    def leave(self: Trainer) -> Any:
        if self.seed == 1:
            raise leaving
        return step(self)

    monkeypatch.setattr(Trainer, "step", leave)
    ended = train(capfd, "-m", "seed=1,2", "train.stop_after=2")
    assert ended.status == 1
    assert f"failed: {type(leaving).__name__}: {leaving}" in ended.err
    assert _outcomes(train) == ["failed", "ok"]


def test_a_run_that_cannot_be_opened_in_a_sweep_is_a_failed_row(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    open_cell = Store.open_cell

    def refuse(self: Store, folder: Path, *rest: Any) -> str:
        if folder.name == "0":
            raise TrackingError("database is locked")
        return open_cell(self, folder, *rest)

    monkeypatch.setattr(Store, "open_cell", refuse)
    ended = train(capfd, "-m", "seed=1,2", "train.stop_after=2")
    assert ended.status == 1
    assert "-0 failed: nothing was run; tracking: database is locked" in ended.err
    assert _outcomes(train) == ["failed", "ok"]


def _outcomes(train: Command) -> list[str]:
    cells = sorted(train.results.glob("sweeps/*/*/cell.json"))
    return [json.loads(path.read_text("utf-8"))["outcome"] for path in cells]
