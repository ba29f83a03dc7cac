"""What ``--help`` says is what the command takes; ``python -m runners`` lists every command."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from runners import __main__ as commands
from runners.harness.config.paths import conf_dir, config_groups, group_options
from runners.harness.config.presets import foreign_keys
from runners.harness.config.schema import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = sorted(path.stem for path in (ROOT / "runners").glob("[a-z]*.py"))


def help_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        import_module(f"runners.{name}").main()
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ENTRIES)
def test_help_fits_and_ends_with_the_exit_statuses(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(name, monkeypatch, capsys)
    assert text.startswith(f"usage: python -m runners.{name}")
    assert max(map(len, text.splitlines())) <= 100
    (last,) = re.findall(r"^exit status: .*\Z", text, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    assert re.findall(r"\b[012]\b", last)[:1] == ["0"]
    assert re.search(r"\b2\b.*(is|refused)", last)


@pytest.mark.parametrize("name", ["bench", "sample", "verify", "race", "train"])
def test_help_lists_each_group_with_its_default_marked(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(name, monkeypatch, capsys)
    listing = text.partition("(* the default):")[2].replace("\n" + 14 * " ", "  ")  # wrapped
    rows = dict(re.findall(r"^  (\w+) {2,}(.+)$", listing, re.M))
    assert set(rows) <= config_groups()
    assert {"model", "device"} <= set(rows)
    for group, row in rows.items():
        listed = row.replace("*", "").split()
        if group == "experiment":
            fit = [p for p in group_options(group) if not foreign_keys(p, SCHEMAS[name])]
            assert listed == fit
            continue
        assert [word for word in listed if "=" not in word] == group_options(group)
        (default,) = re.findall(r"(\S+)\*", row)
        conf = (conf_dir() / f"{name}.yaml").read_text(encoding="utf-8")
        key, _, value = default.rpartition("=")
        wanted = rf"{key.rpartition('.')[2] or group}: \"?{re.escape(value)}\"?$"
        assert re.search(wanted, conf, re.MULTILINE)


def test_runners_lists_every_command_and_loads_nothing() -> None:
    for words in ([], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "runners", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.findall(r"-m runners\.(\w+)  +\S", done.stdout) == ENTRIES
        loaded = re.findall(r"\| +(\w+)$", done.stderr, re.MULTILINE)
        assert not {"hydra", "omegaconf", "torch", "mlflow"} & set(loaded)


@pytest.mark.parametrize(
    ("word", "said"), [("bench", "python -m runners.bench, with a dot"), ("x", "bench, compare, ")]
)
def test_a_command_without_its_dot_is_told_how(
    word: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["runners", word, "batch=1"])
    assert commands.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"runners: {word}: ")
    assert said in err
    assert err.count("\n") == 1
