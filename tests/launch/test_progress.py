"""The bar and the line of a lone cell stay on one line of the terminal, however long their text."""

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from runners.harness import terminal
from runners.harness.launch import progress
from runners.harness.launch.progress import SweepProgress

LONG = "sampler=t0.8_topp0.9 batch=16 cache=rolling engine=compiled precision=bf16: traced pass"


@dataclass
class Screen:
    """What a terminal of some width is sent."""

    console: Console
    file: io.StringIO

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().replace("\r", "\n").split("\n")


@pytest.fixture(params=[60, 100])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    file = io.StringIO()
    console = Console(file=file, width=request.param, force_terminal=True, color_system=None)
    for module in (progress, terminal):
        monkeypatch.setattr(module, "console", console)
    return Screen(console, file)


@pytest.mark.parametrize("cells", [2, 12345])
def test_the_bar_is_cut_to_the_width(screen: Screen, cells: int) -> None:
    shown = SweepProgress([3000.0] * cells)
    shown.show(LONG)
    (task,) = shown._bar.tasks
    assert task.description.endswith("…")
    assert LONG.startswith(task.description[:-1])
    (drawn,) = screen.console.render_lines(shown._bar.get_renderable(), pad=False)
    text = "".join(part.text for part in drawn)
    assert text.startswith(task.description)
    assert text.rstrip().endswith("left")
    assert len(text) <= screen.console.width
    shown.show("short")
    assert task.description == "short"


def test_a_lone_cells_line_is_cut_and_clears_what_was_there(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = progress.CellProgress.__new__(progress.CellProgress)
    cell.title = LONG + LONG
    cell("repeat 3")
    cell.title = "abcd"
    cell("load")
    first, second = screen.lines[:2]
    assert first.endswith("…")
    assert second.rstrip() == "abcd: load"
    assert {len(first), len(second)} == {screen.console.width - 1}


def test_a_start_is_told_on_a_terminal_only(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.starting("torch")
    assert screen.lines[0] == "starting: loading torch"
    piped = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=piped))
    terminal.starting("torch")
    assert piped.getvalue() == ""
