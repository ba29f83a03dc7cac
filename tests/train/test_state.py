"""The state to resume from: bit for bit, one file without a pickle, whole or the older one."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from runners.harness.config.conversion import from_dict
from runners.harness.config.schema import LearningConfig, TrainConfig
from runners.harness.train import state as train_state
from runners.harness.train.trainer import Row, first_weights
from tests.small_text import MODEL
from tests.train.test_trainer import QUICK, losses, trainer
from tinygpt.checkpoint import save_model, weights_sha256

FACTS = {"seed": 1, "model.n_layers": 2}


@pytest.mark.parametrize("options", [QUICK, replace(QUICK, dropout=0.2, autocast="bf16")])
def test_c1_ten_steps_are_five_and_a_resume_and_five(
    options: LearningConfig, tmp_path: Path
) -> None:
    whole = trainer(options)
    expected = losses(whole, 10)
    half = trainer(options)
    history: list[Row] = [half.step() for _ in range(5)]
    train_state.save(tmp_path, half, FACTS, history)
    del half
    rest = trainer(options)
    state = train_state.read(tmp_path, FACTS)
    train_state.restore(state, rest)
    assert (rest.done, state.history) == (5, history)
    assert losses(rest, 5) == expected[5:]
    assert weights_sha256(rest.model) == weights_sha256(whole.model)
    assert rest.held_out_loss() == whole.held_out_loss()


def test_the_state_is_one_file_without_a_pickle(tmp_path: Path) -> None:
    of = trainer()
    of.step()
    train_state.save(tmp_path, of, FACTS, [])
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    names = {name for name, _ in of.model.named_parameters()}
    assert set(load_file(tmp_path / "state.safetensors")) == {
        f"{part}.{name}" for part in ("weight", "exp_avg", "exp_avg_sq") for name in names
    }


def test_a_state_of_another_run_names_what_differs(tmp_path: Path) -> None:
    of = trainer()
    of.step()
    train_state.save(tmp_path / "abc" / "last", of, FACTS, [])
    with pytest.raises(ValueError, match="abc is another run") as raised:
        train_state.read(tmp_path / "abc" / "last", {"seed": 2, "model.n_layers": 3})
    message = str(raised.value)
    assert "seed is 1 in it and 2 here" in message
    assert "model.n_layers is 2 in it and 3 here" in message
    assert "\n" not in message


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_c6_a_state_cut_short_is_one_line_with_the_path(size: int, tmp_path: Path) -> None:
    of = trainer()
    of.step()
    train_state.save(tmp_path, of, FACTS, [])
    path = tmp_path / train_state.FILE
    assert path.stat().st_size > 20_000
    os.truncate(path, size)
    with pytest.raises(ValueError, match="cut short or no state") as raised:
        train_state.read(tmp_path, FACTS)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_weights_are_no_state(tmp_path: Path) -> None:
    save_model(first_weights(MODEL, 1), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / train_state.FILE)
    with pytest.raises(ValueError, match="no state of a training run"):
        train_state.read(tmp_path, FACTS)


def test_c6_a_save_that_fails_leaves_the_older_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = trainer()
    of.step()
    train_state.save(tmp_path, of, FACTS, [])
    of.step()

    def disk_full(tensors: object, path: Path, metadata: object) -> None:
        Path(path).write_bytes(b"\0" * 100)
        raise OSError("No space left on device")

    monkeypatch.setattr(train_state, "save_file", disk_full)
    with pytest.raises(OSError, match="No space"):
        train_state.save(tmp_path, of, FACTS, [])
    assert train_state.read(tmp_path, FACTS).done == 1


def test_what_a_resume_compares() -> None:
    def facts(**change: Any) -> dict[str, Any]:
        values = {"corpus": {"path": "x"}, "tracking": {"dir": "y"}} | change
        return train_state.identity(from_dict(values, TrainConfig), "digest")

    same = [
        {"train": {"eval_every": 7, "sample_every": 3, "sample_prompt": "a", "stop_after": 5}},
        {"corpus": {"path": "moved"}},
        {"device": {"threads": 3}},
        {"out": "name", "resume": "abc"},
    ]
    other = [
        {"train": {"lr": 1e-3}},
        {"train": {"steps": 1400}},
        {"train": {"autocast": "bf16"}},
        {"corpus": {"path": "x", "held_out": 0.1}},
        {"model": {"n_layers": 3}},
        {"seed": 2},
    ]
    assert all(facts(**change) == facts() for change in same)
    assert all(facts(**change) != facts() for change in other)
    assert json.loads(json.dumps(facts())) == facts()
