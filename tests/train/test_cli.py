"""What ``python -m runners.train`` leaves: folder, figures, a checkpoint that ships."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from runners import bench as bench_module
from runners.harness.config import paths
from runners.harness.config.conversion import from_dict
from runners.harness.config.schema import TrainConfig
from runners.harness.errors import UsageError
from runners.harness.train import corpus, inputs
from runners.harness.train import run as train_run
from runners.harness.train.report import bits_per_byte, command
from tests.small_text import KEYS, MODEL
from tests.train_command import Command
from tinygpt.checkpoint import load_model
from tinygpt.tokenizer import Tokenizer


def test_the_run_s_folder_is_complete(done: Command, run_id: str) -> None:
    cell = done.cell(run_id)
    assert (cell["kind"], cell["outcome"], cell["reason"]) == ("train", "ok", "")
    folder = done.results / "cells" / run_id
    assert {
        "cell.json",
        "config.yaml",
        "overrides.yaml",
        "environment.json",
        "steps.jsonl",
        "samples.txt",
        "generations.jsonl",
        "loss.png",
    } <= {path.name for path in folder.iterdir()}
    assert len(done.rows(run_id, "loss_nats")) == 10
    assert len(done.rows(run_id, "held_out_loss_nats")) == 2
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    samples = (folder / "samples.txt").read_text(encoding="utf-8")
    assert samples.count("--- step 5\nHolmes") == samples.count("--- step 10\nHolmes") == 1


def test_the_figures_are_the_shipped_weights(done: Command, run_id: str, checkpoint: Path) -> None:
    metrics = done.cell(run_id)["metrics"]
    values = {"corpus": {"path": str(done.corpus)}, "tracking": {"dir": "x"}}
    config = from_dict(values, TrainConfig)
    config.model = MODEL
    found = corpus.load(config, Tokenizer.load(checkpoint / "tokenizer.json"))
    ids = torch.tensor(found.held_out_ids)
    loss = train_run.mean_held_out_nats(load_model(checkpoint, MODEL), ids, 4)
    assert metrics["val_loss_nats"] == pytest.approx(loss, rel=1e-5)
    assert metrics["held_out_tokens"] == len(ids)
    size = len(found.tokenizer.decode_bytes(found.held_out_ids[1:]))
    assert metrics["bits_per_byte"] == pytest.approx(bits_per_byte(loss, len(ids) - 1, size))
    assert 0 < metrics["trigram_loss_nats"] < metrics["unigram_loss_nats"] < 6
    assert metrics["val_loss_nats"] < 5
    assert metrics["best_step"] == 10


def test_bits_per_byte_by_hand() -> None:
    assert bits_per_byte(nats=1.3862943611198906, tokens=10, size_bytes=20) == pytest.approx(1.0)


def test_the_checkpoint_is_what_ships(checkpoint: Path) -> None:
    assert sorted(path.name for path in checkpoint.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    assert config["torch_dtype"] == "bfloat16"


def test_the_card_says_how_and_not_where(done: Command, run_id: str, checkpoint: Path) -> None:
    card = (checkpoint / "README.md").read_text(encoding="utf-8")
    metrics, cell = done.cell(run_id)["metrics"], done.cell(run_id)
    for name in ("val_loss_nats", "unigram_loss_nats", "trigram_loss_nats", "bits_per_byte"):
        assert f"{metrics[name]:.3f}" in card
    assert "Step 10 of 10" in card
    assert "corpus.path=story.txt" in card
    assert "out=story" in card
    for private in (str(done.results), str(done.corpus), cell["host"], "threads", "tracking"):
        assert private not in card


def test_a_command_on_a_card_leaves_the_machine_out() -> None:
    words = ["experiment=holmes", "corpus.path=/home/a/b.txt", "tracking.uri=x", "device=cuda"]
    words += ["device.threads=3", "resume=abc", "train.stop_after=4", "train.lr=1e-3"]
    assert command(words) == (
        "python -m runners.train experiment=holmes corpus.path=b.txt device=cuda train.lr=1e-3"
    )
    assert command(words, private=True).endswith(" ".join(words))


def test_transformers_reads_the_folder(checkpoint: Path) -> None:
    llama = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ours = Tokenizer.load(checkpoint / "tokenizer.json")
    said = "The clerk’s lamp  was\n\n   found 12 times — “again”."
    ids = tokenizer(said)["input_ids"]
    assert ids == ours.encode(said)
    assert tokenizer.decode(ids) == said
    assert tokenizer.eos_token_id == llama.config.eos_token_id == ours.eot_id
    rows = torch.tensor([ids[:16]])
    with torch.inference_mode():
        wanted = load_model(checkpoint, MODEL)(rows)
        torch.testing.assert_close(llama(rows).logits, wanted, atol=1e-4, rtol=0)
    assert LlamaForCausalLM.from_pretrained(checkpoint).dtype == torch.bfloat16


def test_it_is_found_by_name_and_by_the_run_s_id(
    done: Command, run_id: str, checkpoint: Path
) -> None:
    assert paths.find_checkpoint("story", str(done.results)) == checkpoint
    best = paths.find_checkpoint(run_id, str(done.results))
    same = [(folder / "model.safetensors").read_bytes() for folder in (best, checkpoint)]
    assert same[0] == same[1]


def test_a_wheel_has_the_weights_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path)
    folder = tmp_path / "checkpoints" / "holmes"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert paths.checkpoint_dirs("anywhere")[-1] / "holmes" == folder
    build = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"results/checkpoints/holmes" = "runners/checkpoints/holmes"' in build


def test_bench_measures_it(
    done: Command, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["timing=quick", "length.new_tokens=3", "prompt.text=lamp", *KEYS, "device.threads=1"]
    ended = done(capfd, *words, f"checkpoint={checkpoint}", module=bench_module, own=False)
    assert ended.status == 0, ended.err


def test_the_preset_that_ships_is_1500_steps_of_16_windows_of_tiny(
    train: Command, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TrainConfig] = []

    def refuse(config: TrainConfig) -> None:
        seen.append(config)
        raise UsageError("seen")

    monkeypatch.setattr(inputs, "check", refuse)
    train(capfd, "experiment=holmes", own=False)
    config = seen[0]
    assert config.model == type(config.model)()
    assert (config.train.steps, config.train.batch, config.train.warmup_steps) == (1500, 16, 100)
    assert config.corpus.path == str(paths.results_dir() / "corpus" / "holmes.txt")
    assert (config.corpus.held_out, config.out) == (0.05, None)


def test_help_and_typos_load_nothing_heavy() -> None:
    code = (
        "import sys, runners.train; sys.argv = ['train', '--help']\n"
        "try: runners.train.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'mlflow', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage: python -m runners.train" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
