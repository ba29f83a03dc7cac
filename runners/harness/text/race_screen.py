"""The race on the screen: both passes replayed side by side at true speed, then a summary.

Only the main thread draws. Prompts and texts are shown without markup and control characters.
"""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from runners.harness import terminal
from runners.harness.config.commands import command
from runners.harness.terminal import printable, three_digits
from runners.harness.text.race import Pass, Race, Report, replay, speed

MIN_WIDTH, MIN_HEIGHT = 60, 18
_MOST_ROWS = 36
_SUMMARY_LINES = 9
_LONGEST_TAIL = 8000
_BLOCKS = " ▁▂▃▄▅▆▇█"
_STYLES = ("yellow", "green")
_CLEARLY, _APART, _DISTURBED = 1.1, 1.25, 1.5


@contextmanager
def phases() -> Iterator[Report]:
    """Show on standard error, if it is a terminal, what is being measured; cleared at the end."""
    live = Live(console=terminal.console, auto_refresh=False, transient=True)
    try:
        with live:
            yield lambda phase: live.update(_line(f"race: {phase}"), refresh=True)
    finally:
        terminal.console.show_cursor(True)


def show(race: Race) -> None:
    """Replay the race if standard output is a terminal; print the summary in any case."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the encoding may lack characters of a text
    console = _console()
    if _fits(console):
        factor = speed(race)
        live = Live(console=console, auto_refresh=False)

        def draw(at_s: float) -> None:
            live.update(_frame(race, at_s, factor, console), refresh=True)

        try:
            with live:
                replay(race, draw, factor)
        finally:
            console.show_cursor(True)  # also if a stop came while Live was starting
    else:
        console.print(Text(_header(race)))
    for line in summary(race):
        console.print(Text(line))


def _console() -> Console:
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=80, force_terminal=False)


def _fits(console: Console) -> bool:
    width, height = console.size
    if not console.is_interactive or (width >= MIN_WIDTH and height >= MIN_HEIGHT):
        return console.is_interactive
    terminal.complain(
        f"no replay: the terminal is {width}x{height}, and two texts side by side need "
        f"{MIN_WIDTH}x{MIN_HEIGHT}; make it larger"
    )
    return False


def _frame(race: Race, at_s: float, factor: float, console: Console) -> Group:
    """Both sides ``at_s`` seconds after their start, with room for the summary below."""
    width, height = console.size
    header = [_line(_header(race))]
    if factor > 1:
        words = f"replayed {factor:g} times as fast as it was: that took {race.slower_s:,.0f} s"
        header.append(_line(words, "bold red"))
    rows = max(min(height - _SUMMARY_LINES - len(header), _MOST_ROWS), 8)
    size = max((width - 2) // 2, 5), rows  # two columns for the ^C that a terminal writes
    both = Table.grid()
    pairs = zip(race.passes, _STYLES, strict=True)
    both.add_row(*(_panel(race, timed, style, at_s, size, console) for timed, style in pairs))
    return Group(*header, both)


def _panel(
    race: Race, timed: Pass, style: str, at_s: float, size: tuple[int, int], console: Console
) -> Panel:
    """One pass in ``size`` columns and rows: its text, its counts, its time per token."""
    width, height = size[0] - 4, size[1] - 2
    n, chart_rows = timed.done(at_s), max(1, height // 5)
    step = f"this step: {_tokens(timed.fed[max(n - 1, 0)])} run"
    step += f", {three_digits(timed.step_s[n - 1] * 1e3)} ms" if n else ""
    rate = f", {three_digits(n / timed.ends_s[n - 1])} tok/s" if n else ""
    top_ms = max(max(_bins(one, race.new_tokens, width)) for one in race.passes) * 1e3
    bins = _bins(timed, n, width)
    lines = [
        *_tail(race, timed, n, width, max(height - 4 - chart_rows, 1), console),
        _bar(n, race.new_tokens, width, style),
        _line(step),
        _line(f"so far: {timed.fed_so_far[n - 1] if n else 0:,} run{rate}"),
        _line(f"ms per token, top {three_digits(top_ms)}:", "dim"),
        *(_line(row, style) for row in chart(bins, top_ms / 1e3, chart_rows)),
    ]
    title = Text(f"{timed.name}: {min(at_s, timed.total_s):.2f} s")
    border = f"bold {style}" if n == race.new_tokens else "dim"
    return Panel(Group(*lines), title=title, width=size[0], height=size[1], border_style=border)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _bar(n: int, of: int, width: int, style: str) -> Text:
    count = f"{n:,} of {of:,} "
    room = max(width - len(count), 0)
    full = room * n // of
    return _line(count).append("━" * full, style).append("━" * (room - full), "dim")


def _tail(race: Race, timed: Pass, n: int, width: int, rows: int, console: Console) -> list[Text]:
    """The last lines of the text after ``n`` steps."""
    text = Text().append(_visible(race.prompt), "dim").append(_visible(timed.text(n)))
    # Wrapping all of a very long text takes longer than a frame. The cut moves only now and then.
    cut = max(0, (len(text) // _LONGEST_TAIL - 1) * _LONGEST_TAIL)
    lines = list(text[cut:].wrap(console, max(width, 2), overflow="fold"))[-rows:]
    return lines + [Text("")] * (rows - len(lines))


def _visible(text: str) -> str:
    """``text`` without tabs, whose width varies, and characters that would steer a terminal."""
    return printable(text.replace("\r\n", "\n").replace("\t", " "))


def _bins(timed: Pass, n: int, width: int) -> list[float]:
    """Median seconds per column of the first ``n`` steps, if all steps fill ``width`` columns."""
    of = len(timed.step_s)
    columns = max(1, min(width, of))
    bins: list[list[float]] = [[] for _ in range(columns)]
    for step, seconds in enumerate(timed.step_s[:n]):
        bins[step * columns // of].append(seconds)
    return [median(found) for found in bins if found]


def chart(values: list[float], top: float, rows: int) -> list[str]:
    """Lines of a bar chart, top row first: one column per value, with ``top`` filling all rows."""
    levels = [max(1, round(8 * rows * value / top)) for value in values]
    return [
        "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in levels)
        for row in reversed(range(rows))
    ]


def _header(race: Race) -> str:
    short = Text(json.dumps(_visible(race.prompt), ensure_ascii=False)[1:-1])
    short.truncate(24, overflow="ellipsis")
    return f'{race.new_tokens:,} tokens after "{short.plain}": {race.setting}'


def summary(race: Race) -> list[str]:
    """Both passes in figures, and what they say."""
    ends = race.without.n_ends
    rows = [["", "tokens run", f"ms: first {ends}", f"last {ends}", "total s", "tok/s"]]
    for timed in race.passes:
        figures = timed.first_ms, timed.last_ms, timed.total_s, race.new_tokens / timed.total_s
        rows.append([timed.name, f"{sum(timed.fed):,}", *map(three_digits, figures)])
    return [
        *("{:23}{:>12}{:>14}{:>10}{:>10}{:>9}".format(*row) for row in rows),
        sentence(race),
        same_text(race),
        *disturbed(race),
        *(f"note: {note}" for note in race.notes),
    ]


def sentence(race: Race) -> str:
    """Why the pass without a cache took longer than the other, or why it did not."""
    slow, fast = race.passes
    tokens, ratio = (sum(slow.fed), sum(fast.fed)), slow.total_s / fast.total_s
    work = (
        f"Without a cache step {race.new_tokens:,} runs {_tokens(slow.fed[-1])} through the model "
        f"to get one; with it, {fast.fed[-1]}: {tokens[0]:,} tokens in all against {tokens[1]:,}"
    )
    if ratio >= _CLEARLY:
        times = f"{three_digits(tokens[0] / tokens[1])} times the work, {ratio:.1f} times the time"
        return f"{work}, {times}."
    same = (
        f"about the same time ({three_digits(slow.total_s)} s and {three_digits(fast.total_s)} s)"
    )
    longer = f"the cache took {1 / ratio:.1f} times as long"
    yet = f"{work}, and yet {same if ratio > 1 / _CLEARLY else longer}"
    one_ms = three_digits(fast.last_ms)
    steps = f"{three_digits(slow.last_ms)} ms for {_tokens(slow.fed[-1])}, {one_ms} ms for 1"
    if slow.last_ms > _APART * fast.last_ms:
        return (
            f"{yet}: by the end a step is cheaper with it ({steps}); a longer text has more such."
        )
    if fast.last_ms > _APART * slow.last_ms:
        return f"{yet}: a step costs more with it than running the tokens again ({steps})."
    return f"{yet}: a step costs about the same whatever it runs ({steps})."


def same_text(race: Race) -> str:
    """Whether both wrote the same text, as they must inside the window with an exact cache."""
    at, window = race.first_difference, race.window
    if at is None:
        return f"Both wrote the same {race.new_tokens:,} tokens."
    part = f"The texts part at new token {at + 1:,} of {race.new_tokens:,}"
    if not race.exact:
        return f"{part}: the {race.cached.cache} cache is an approximation, and its text another."
    if at >= window + 1 - race.prompt_tokens:
        return f"{part}, past the window of {window}: a cache holds what a rerun has forgotten."
    return (
        f"{part}, inside the window of {window}, where only a tie by rounding can part them: "
        f"{command('verify')} looks closer."
    )


def disturbed(race: Race) -> list[str]:
    """A note for each pass whose steps on average took longer than those at both its ends."""
    notes = []
    for timed in race.passes:
        usual_s = max(timed.first_ms, timed.last_ms) / 1e3 * (race.new_tokens - 1)
        times = sum(timed.step_s[1:]) / usual_s  # the first is the prefill, not a decode step
        if times > _DISTURBED:
            notes.append(
                f"note: {timed.name} steps took {times:.1f} times as long as those at its "
                "beginning and its end: the machine was busy; run it again"
            )
    return notes


def _tokens(n: int) -> str:
    return f"{n:,} token{'s' if n != 1 else ''}"
