"""``python -m runners.verify``: what it prints, keeps and refuses, and its exit status."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import verify as verify_module
from runners.harness.measure import subject
from runners.harness.store.tracking import Store
from tests import small_text
from tinygpt.checkpoint import random_model, save_model
from tinygpt.sampling import Sampler
from tinygpt.tokenizer import Tokenizer

Verify = Callable[..., tuple[int, str, str]]
FEW = "length.new_tokens=20"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights with a tokenizer; its window is 16."""
    path = tmp_path_factory.mktemp("checkpoint")
    tokenizer = Tokenizer.train(small_text.text(), small_text.MODEL.vocab_size)
    save_model(random_model(small_text.MODEL, seed=7), path, tokenizer=tokenizer)
    return path


@pytest.fixture
def verify(
    results: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Verify:
    """Call the entry point in this process: arguments to (status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        own = ["device.threads=1", f"tracking.dir={results}", *small_text.KEYS]
        if not any(word.startswith("checkpoint=") for word in arguments):
            own.append(f"checkpoint={folder}")
        monkeypatch.setattr("sys.argv", ["verify", *arguments, *own])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            verify_module.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def runs(results: Path) -> list[Any]:
    return Store(results).search("verify", "tags.`tinygpt.kind` = 'verify'")


def artifact(run: Any, name: str) -> str:
    path = Path(run.info.artifact_uri.removeprefix("file://")) / name
    return path.read_text(encoding="utf-8")


def nothing_was_made(results: Path) -> bool:
    return not [path for path in results.iterdir() if path.is_dir()]


def test_it_holds_and_is_kept(verify: Verify, results: Path) -> None:
    status, out, err = verify(FEW, "prompt.text=It was a")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("ok      rolling ids            the first 11 of 11 are those")
    assert sum(line.startswith("ok      ") for line in lines) == 16
    assert sum(line.startswith("skipped ") for line in lines) == 3
    assert "rolling against none" in lines[-2]
    assert "ok 16 checks passed, 3 checks skipped" in err
    (run,) = runs(results)
    assert (run.info.status, run.data.tags["tinygpt.outcome"]) == ("FINISHED", "ok")
    assert run.data.metrics["checks_passed"] == 16
    assert run.data.metrics["rolling_max_logit_difference"] < 1e-4
    assert run.data.params["prompt.text"] == "It was a"
    assert len(json.loads(artifact(run, "checks.json"))) == 21
    assert artifact(run, "verify.md").startswith("# verify: checkpoint=")
    rows = [json.loads(line) for line in artifact(run, "generations.jsonl").splitlines()]
    assert [row["cache"] for row in rows] == ["none", "rolling", "static"]


def test_a_fault_is_a_mismatch_with_both_texts(verify: Verify, results: Path) -> None:
    status, out, err = verify(FEW, "fault=mask", "check=cache")
    assert status == 1
    assert "FAILED  broken keys seen" in out
    assert "found by broken ids; broken logits; broken = rolling; broken keys seen" in out
    _, texts = out.split("\n\n", maxsplit=1)
    assert texts.split("\n")[0].split() == ["correct", "|", "broken"]
    assert "It was a" in texts
    assert " mismatch: 4 of 11 checks failed with fault=mask: broken ids; " in err
    (run,) = runs(results)
    assert (run.info.status, run.data.tags["tinygpt.outcome"]) == ("FAILED", "mismatch")
    assert run.data.tags["tinygpt.reason"].startswith("4 of 11 checks failed with fault=mask")
    assert "## correct and broken" in artifact(run, "verify.md")


def test_the_samplers_checks_need_no_model(
    verify: Verify, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "make_model", lambda *_: pytest.fail("a model was loaded"))
    status, out, _ = verify("check=sampler")
    assert status == 0
    assert [line[:15] for line in out.splitlines()] == ["ok      sampler"] * 8
    (run,) = runs(results)
    assert run.data.tags["tinygpt.cell_hash"]
    assert artifact(run, "verify.md").startswith("# verify: the sampler")
    monkeypatch.setattr(Sampler, "_argmax", lambda self, scores: scores.argmin(dim=-1))
    status, out, err = verify("check=sampler")
    assert status == 1
    assert "FAILED  sampler temperature 0" in out
    assert "2 of 8 checks failed: sampler temperature 0; sampler penalty 2" in err


def test_a_sweep_of_faults_says_which_is_which(verify: Verify, results: Path) -> None:
    status, out, err = verify("-m", "fault=none,rope", FEW, "check=cache")
    assert status == 1
    titles = [line for line in out.splitlines() if line.startswith("fault=") and "  " not in line]
    assert [title.split()[0] for title in titles] == ["fault=none", "fault=rope"]
    assert "fault=none: ok" in err
    (sweep,) = Store(results).search("verify", "tags.`tinygpt.kind` = 'sweep'")
    assert sweep.data.tags["tinygpt.outcome"] == "failed"
    assert len(runs(results)) == 2


def test_a_prompt_is_text_and_no_markup(verify: Verify) -> None:
    status, out, _ = verify("fault=mask", "check=cache", FEW, "prompt.text='[red]x[/red]'")
    assert status == 1
    assert "[red]x[/red]" in out


def test_a_terminal_gets_colour_and_whole_words(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    status, out, _ = verify("fault=mask", FEW)
    assert status == 1
    assert "\x1b[32mok      \x1b[0mrolling ids" in out
    assert "\x1b[1;31mFAILED  \x1b[0mbroken ids" in out
    lines = re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" " * 31) and line.strip() for line in lines)


def test_no_tokens_compare_nothing(verify: Verify, results: Path) -> None:
    status, out, _ = verify("length.new_tokens=0", "check=cache")
    assert status == 0
    assert out == "skipped caches  length.new_tokens=0: no token to compare; give at least 1\n"
    (run,) = runs(results)
    assert "tinygpt.nonfinite" not in run.data.tags


def test_a_long_prompt_is_cut_and_it_is_said(verify: Verify, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Q" * 30, encoding="utf-8")
    status, out, err = verify(f"prompt.file={prompt}", FEW)
    assert status == 0
    assert "the first 1 of 1 are those without a cache" in out
    assert "note: prompt of 30 tokens cut to its last 16" in err


@pytest.mark.parametrize(
    ("content", "arguments", "line"),
    [
        (None, ["prompt.file={file}"], "cannot be read (No such file or directory)"),
        (b"caf\xe9", ["prompt.file={file}"], "byte 3 is not UTF-8; save the file as UTF-8"),
        (b"", ["prompt.file={file}"], "is empty; the model needs at least 1 token"),
        (None, ["prompt.text="], "prompt.text= is empty"),
        (None, ["fault=tape"], "fault=tape: must be one of none, rope, mask, window"),
        (None, ["check=caches"], "check=caches: must be one of all, cache, sampler"),
        (None, ["fault=rope", "check=sampler"], "give check=cache"),
        (None, ["checkpoint=none"], "checkpoint=none: verify shows texts"),
        (None, ["length.new_tokens=-1"], "length.new_tokens=-1: must be from 0"),
        (None, ["cache=rolling"], "cache"),
        (None, ["experiment=post"], "experiment=post: is for another command"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_runs(
    verify: Verify,
    results: Path,
    tmp_path: Path,
    content: bytes | None,
    arguments: list[str],
    line: str,
) -> None:
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)
    status, out, err = verify(*(argument.format(file=file) for argument in arguments))
    assert (status, out) == (2, "")
    (said,) = err.strip().splitlines()
    assert said.startswith("verify: ")
    assert line in said
    assert nothing_was_made(results)
    assert runs(results) == []


def test_help_names_every_key(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["verify", "--help"])
    with pytest.raises(SystemExit) as ended:
        verify_module.main()
    assert ended.value.code == 0
    out, _ = capfd.readouterr()
    for key in ("check", "fault", "checkpoint", "prompt.text|file", "seed", "tracking.dir|uri"):
        assert key in out
