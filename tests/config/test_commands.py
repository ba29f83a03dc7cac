"""What we print as a command does, pasted, what it says."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from runners.harness.config import commands, conversion
from runners.harness.config.commands import command, word
from runners.harness.config.conversion import to_config
from runners.harness.config.paths import conf_dir, results_dir
from runners.harness.config.schema import RerunConfig, TablesConfig
from tests.train_command import Ended

AWKWARD = ("plain", "two  words", "it's (a), b", "a,b", "[x]{y}", "null", "'quoted'", "a=b", "é~$x")


@pytest.mark.parametrize("name", AWKWARD)
def test_a_folder_of_any_name_comes_back_from_a_pasted_command(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    line = command("tables", "table=runs", folder=folder)
    python, module, entry, *words = shlex.split(line)
    assert (python, module, entry) == ("python", "-m", "runners.tables")
    conversion.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = to_config(compose("tables", overrides=words), TablesConfig)
        again = to_config(
            compose("rerun", overrides=[word("config", folder), "run=null"]), RerunConfig
        )
    assert (config.table, config.tracking.dir) == ("runs", str(folder))
    assert again.config == str(folder)


def test_the_default_folder_and_its_own_store_go_without_saying(tmp_path: Path) -> None:
    plain = "python -m runners.doctor fix=true"
    assert command("doctor", "fix=true") == plain
    assert command("doctor", "fix=true", folder="???") == plain
    assert command("doctor", "fix=true", folder=results_dir()) == plain
    assert command("doctor", folder=tmp_path).endswith(f" tracking.dir={tmp_path}")
    server = command("doctor", folder=results_dir(), uri="http://127.0.0.1:1")
    assert server == "python -m runners.doctor tracking.uri=http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("entry_name", "arguments"),
    [
        ("tables", ("sweep=zzzz",)),
        ("tables", ("table=runs",)),
        ("compare", ()),
        ("rerun", ()),
        ("rerun", ("run=zzzz",)),
    ],
)
def test_what_is_said_about_ids_can_be_pasted(
    entry_name: str, arguments: tuple[str, ...], entry: Callable[..., Ended], tmp_path: Path
) -> None:
    folder = tmp_path / "my results"
    ended = entry(entry_name, folder, *arguments)
    found = re.search(r"python -m runners\.(\w+) ([^`\n]*)", f"{ended.out}{ended.err}")
    assert found, ended
    words = shlex.split(found[2])
    assert f"tracking.dir={folder}" in words
    if found[1] == "tables":
        shown = entry("tables", folder, *words)
        assert (shown.status, "nothing is tracked" in shown.out) == (0, True)
    else:  # which would measure
        planned = entry(found[1], folder, *words, "plan=true")
        assert planned.status == 0


def test_every_printed_command_is_made_in_one_place() -> None:
    made = Path(commands.__file__)
    harness = made.parents[1]
    others = [
        path.name
        for path in harness.rglob("*.py")
        if path != made and re.search(r'"[^"]*python -m runners', path.read_text("utf-8"))
    ]
    assert others == []
