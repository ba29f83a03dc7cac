"""The race measures what the engines do, replays it at the speed it had, and says what it saw."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from runners import race as module
from runners.harness.config.schema import (
    DeviceConfig,
    LengthConfig,
    RaceConfig,
    TextPromptConfig,
    TrackingConfig,
)
from runners.harness.errors import UsageError
from runners.harness.launch.entry import Sweep, Terminated
from runners.harness.measure import subject
from runners.harness.text import race as race_run
from runners.harness.text import race_screen
from runners.harness.text.race import FRAME_S, Pass, Race, fed, race, replay, speed
from tests.small_text import KEYS, MODEL, text
from tinygpt.checkpoint import random_model, save_model
from tinygpt.config import CacheConfig
from tinygpt.model import GPT
from tinygpt.tokenizer import Tokenizer

WINDOW = MODEL.context_length
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("race") / "small"
    tokenizer = Tokenizer.train(text(), MODEL.vocab_size)
    save_model(random_model(MODEL, 1), folder, tokenizer=tokenizer)
    return folder


def config(
    checkpoint: Path, new: int, prompt: str = "The lamp", cache: str = "rolling"
) -> RaceConfig:
    return RaceConfig(
        model=MODEL,
        device=DeviceConfig(threads=1),
        length=LengthConfig(new_tokens=new),
        cache=CacheConfig(kind=cache),
        prompt=TextPromptConfig(text=prompt),
        checkpoint=str(checkpoint),
        tracking=TrackingConfig(dir=str(checkpoint.parent)),
    )


def side(cache: str, step_s: list[float], prompt_tokens: int = 3, window: int = 256) -> Pass:
    n = len(step_s)
    ran = fed(cache, prompt_tokens, n, window)
    return Pass(cache, step_s, ran, list(range(n)), [b"word "] * n)


def made(slow: list[float], fast: list[float], prompt: str = "It was a") -> Race:
    return Race(
        prompt=prompt,
        prompt_tokens=3,
        setting="holmes on cpu, threads 2, fp32, eager",
        window=256,
        without=side("none", slow),
        cached=side("rolling", fast),
    )


GROWING = [0.004 + 0.00006 * n for n in range(256)]
RACE = made(GROWING, [0.004] * 256)


# What is measured.


@pytest.mark.parametrize("cache", ["rolling", "static"])
@pytest.mark.parametrize(("new", "prompt"), [(2, "The"), (30, "The"), (5, text()[:400])])
def test_tokens_run_are_those_that_the_engines_feed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, cache: str, new: int, prompt: str
) -> None:
    ran: list[int] = []
    make_model = subject.make_model

    def watched(*arguments: object) -> GPT:
        model = make_model(*arguments)  # type: ignore[arg-type]
        model.emb.register_forward_hook(lambda module, args, out: ran.append(args[0].shape[1]))
        return model

    monkeypatch.setattr(subject, "make_model", watched)
    starts: list[int] = []

    def report(phase: str) -> None:
        if "tokens, about" in phase:  # the warm-up is over
            starts.append(len(ran))

    found = race(config(checkpoint, new, prompt, cache), report)
    assert [ran[start : start + new] for start in starts] == [one.fed for one in found.passes]
    assert len(ran) == starts[1] + new
    tokens = found.prompt_tokens
    assert found.without.fed == [min(n, WINDOW) for n in range(tokens, tokens + new)]
    assert found.cached.fed == [tokens, *[1] * (new - 1)]


def test_each_side_has_every_step_and_the_text_it_wrote(checkpoint: Path) -> None:
    phases: list[str] = []
    found = race(config(checkpoint, 12), phases.append)
    assert [one.cache for one in found.passes] == ["none", "rolling"]
    tokenizer = Tokenizer.load(checkpoint / "tokenizer.json")
    for one in found.passes:
        assert len(one.step_s) == len(one.ids) == len(one.pieces) == 12
        assert all(seconds > 0 for seconds in one.step_s)
        assert one.text(12) == tokenizer.decode(one.ids)
        assert one.total_s == pytest.approx(sum(one.step_s))
    assert sum(one.total_s for one in found.passes) < found.measured_s
    inside = WINDOW + 1 - found.prompt_tokens
    assert found.without.ids[:inside] == found.cached.ids[:inside]
    assert found.prompt == "The lamp"
    assert [phase.split(":")[0] for phase in phases] == [
        "load",
        *["without a cache"] * 2,
        *["with the rolling cache"] * 2,
    ]


def test_k2_a_prompt_longer_than_the_window_is_cut_and_said(checkpoint: Path) -> None:
    long = text()[:400]
    found = race(config(checkpoint, 2, long))
    assert found.prompt_tokens == WINDOW
    assert long.endswith(found.prompt)
    [note] = found.notes
    assert re.fullmatch(rf"prompt of \d+ tokens cut to its last {WINDOW}", note)
    assert f"note: {note}" in race_screen.summary(found)


def test_a_character_in_two_tokens_shows_once_it_is_whole() -> None:
    one = replace(side("none", [1.0, 1.0, 1.0]), pieces=[b"a\xe2\x80", b"\x9c", b"\xe2"])
    assert [one.text(n) for n in range(4)] == ["", "a", "a“", "a“�"]


# The replay.


class Clock:
    """Time that passes by waiting only."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        assert 0 < seconds <= FRAME_S
        self.now += seconds


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_the_replay_is_at_true_speed_and_the_faster_side_is_done_first(factor: float) -> None:
    found = made([0.25] * 8, [0.07] * 8)
    clock, seen = Clock(), dict[float, tuple[int, int]]()

    def draw(at_s: float) -> None:
        seen[clock.now - 100] = found.without.done(at_s), found.cached.done(at_s)

    replay(found, draw, factor, lambda: clock.now, clock.wait)
    assert max(seen) == pytest.approx(2.0 / factor)
    assert seen[max(seen)] == (8, 8)
    for at, done in seen.items():
        exact = at * factor / 0.25, at * factor / 0.07
        assert all(abs(n - min(8, e)) <= 1 for n, e in zip(done, exact, strict=True))
    finished = [min(at for at, n in seen.items() if n[who] == 8) for who in (1, 0)]
    assert finished[0] == pytest.approx(0.56 / factor, abs=FRAME_S)
    assert finished[1] == pytest.approx(2.0 / factor)


def test_a_slow_machine_is_replayed_faster_within_a_minute_and_said() -> None:
    assert speed(RACE) == 1.0
    slow = replace(made([0.5] * 100, [0.1] * 100), measured_s=70.0)
    assert speed(slow) == 5.0
    assert speed(replace(slow, measured_s=20.0)) == 1.7  # 50 s in 30
    assert "replayed 5 times as fast as it was: that took 50 s" in drawn(slow, 1.0, 80, 24, 5.0)
    assert "replayed" not in drawn(slow, 1.0, 80, 24)


def drawn(found: Race, at_s: float, width: int, height: int, factor: float = 1.0) -> str:
    """A frame as text."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(race_screen._frame(found, at_s, factor, console))
    return capture.get()


def test_a_frame_shows_both_at_the_same_moment() -> None:
    frame = drawn(RACE, 0.102, 80, 24)
    assert "without a cache: 0.10 s" in frame
    assert "with the rolling cache: 0.10 s" in frame
    n = RACE.without.done(0.102)
    assert 10 < n < 25 == RACE.cached.done(0.102)
    assert f"{n} of 256" in frame
    assert "25 of 256" in frame
    assert f"this step: {n + 2} tokens run, {GROWING[n - 1] * 1e3:.2f} ms" in frame
    assert "this step: 1 token run, 4.00 ms" in frame
    assert f"so far: {sum(range(3, 3 + n))} run" in frame
    assert "so far: 27 run, 250 tok/s" in frame
    start = drawn(RACE, 0.0, 80, 24)
    assert start.count("0 of 256") == start.count("this step: 3 tokens run ") == 2


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (7, 3), (20, 5), (60, 18), (80, 24), (300, 90)]
)
@pytest.mark.parametrize("at_s", [0.0, 0.5, 9.0])
def test_a_frame_fits_and_no_size_breaks_it(width: int, height: int, at_s: float) -> None:
    lines = drawn(RACE, at_s, width, height).splitlines()
    assert max(map(len, lines)) <= width
    if width >= 80:
        console = Console(file=io.StringIO(), width=width, height=height)
        with console.capture() as capture:
            console.print(*race_screen.summary(RACE), sep="\n")
        assert len(lines) + len(capture.get().splitlines()) < height


def test_texts_are_text() -> None:
    found = made(GROWING, [0.004] * 256, prompt="[bold]a[/x] :smile:\n\x1b[31m日本語\tb [red]")
    found = replace(found, cached=replace(found.cached, pieces=[b"[/no] \x1b]0;x\x07"] * 256))
    frame = drawn(found, 0.0, 80, 24)
    assert "[bold]a[/x] :smile:" in frame
    assert "�[31m日本語 b [red]" in frame
    later = drawn(found, 9.0, 80, 24)
    assert "[/no]" in later
    assert "\x1b" not in frame + later
    assert "\x07" not in later


def test_the_end_of_a_very_long_text_is_there() -> None:
    found = replace(RACE, prompt="word " * 8000 + "here it ends")
    assert "here it ends" in drawn(found, 0.0, 80, 24)


def test_the_chart_grows_with_the_time_of_a_token() -> None:
    assert race_screen.chart([0.1, 1.0, 2.0], 2.0, 1) == ["▁▄█"]
    assert race_screen.chart([0.1, 1.0, 1.5, 2.0], 2.0, 2) == ["  ▄█", "▁███"]


# What it says.


@pytest.mark.parametrize(
    ("slow", "fast", "said"),
    [
        (GROWING, [0.004] * 256, r"129 times the work, 2\.9 times the time\.$"),
        ([0.02] * 256, [0.0021] * 256, r"129 times the work, 9\.5 times the time\.$"),
        (
            [0.0041] * 64,
            [0.0040] * 64,
            r"and yet about the same time \(0\.26 s and 0\.26 s\): a step costs about the same "
            r"whatever it runs \(4\.10 ms for 66 tokens, 4\.00 ms for 1\)\.$",
        ),
        (
            [0.002] * 64,
            [0.003] * 64,
            r"and yet the cache took 1\.5 times as long: a step costs more with it than running "
            r"the tokens again \(2\.00 ms for 66 tokens, 3\.00 ms for 1\)\.$",
        ),
        (
            [0.0035] * 48 + [0.0055] * 16,
            [0.004] * 64,
            r"and yet about the same time .*: by the end a step is cheaper with it "
            r"\(5\.50 ms for 66 tokens, 4\.00 ms for 1\); a longer text has more such\.$",
        ),
    ],
)
def test_the_sentence_follows_the_numbers(slow: list[float], fast: list[float], said: str) -> None:
    sentence = race_screen.sentence(made(slow, fast))
    n = len(slow)
    last, total = (256, "33,405") if n == 256 else (66, "2,208")
    assert sentence.startswith(
        f"Without a cache step {n} runs {last} tokens through the model to get one; with it, 1: "
        f"{total} tokens in all against {n + 2}, "
    )
    assert re.search(said, sentence), sentence


def test_the_summary_has_both_sides_figures() -> None:
    lines = race_screen.summary(RACE)
    assert lines[0].split() == "tokens run ms: first 16 last 16 total s tok/s".split()
    assert lines[1].split() == ["without", "a", "cache", "33,405", "4.45", "18.8", "2.98", "85.8"]
    assert lines[2].split()[4:] == ["258", "4.00", "4.00", "1.02", "250"]
    assert len(lines) == 5  # nothing was disturbed


def test_where_the_texts_part_is_said() -> None:
    def parting(at: int) -> str:
        ids = [n if n < at else -1 for n in range(256)]
        return race_screen.same_text(replace(RACE, cached=replace(RACE.cached, ids=ids)))

    assert parting(256) == "Both wrote the same 256 tokens."
    assert parting(254).startswith("The texts part at new token 255 of 256, past the window of 256")
    assert "inside the window of 256" in parting(253)
    assert "python -m runners.verify" in parting(253)


def test_a_busy_machine_is_said() -> None:
    busy = [0.003] * 20 + [0.05] * 20 + [0.003] * 20
    [note] = race_screen.disturbed(made(GROWING[:60], busy))
    assert note.startswith("note: with the rolling cache steps took 6.3 times as long as those")
    prefill = made(GROWING[:20], [0.3] + [0.003] * 19)
    assert race_screen.disturbed(prefill) == []


# The command.


@pytest.fixture
def command(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Call ``python -m runners.race`` in this process: arguments to (status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        ours = [f"checkpoint={checkpoint}", *KEYS, "device.threads=1"]
        given = {word.partition("=")[0] for word in arguments}
        kept = [word for word in ours if word.partition("=")[0] not in given]
        words = [*arguments, *kept, f"tracking.dir={checkpoint.parent}/results"]
        monkeypatch.setattr("sys.argv", ["race", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            module.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_without_a_terminal_the_summary_is_all_and_nothing_is_written(
    command: Run, checkpoint: Path
) -> None:
    before = sorted(checkpoint.parent.rglob("*"))
    status, out, err = command("length.new_tokens=12", "prompt.text='[red] lamp'")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "\x1b" not in out
    assert max(map(len, lines)) <= 80
    assert '12 tokens after "[red] lamp": ' in out
    assert "tokens run" in out
    joined = " ".join(out.split())
    assert re.search(r"Without a cache step 12 runs \d+ tokens through the model to get", joined)
    assert "─" not in out
    assert sorted(checkpoint.parent.rglob("*")) == before


def test_a_character_that_the_output_cannot_hold_is_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(content, encoding="ascii"))
    race_screen.show(replace(RACE, prompt="lamp’s"))
    sys.stdout.flush()
    assert b'256 tokens after "lamp?s": ' in content.getvalue()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["-m", "length=64,256"], 2, "race: -m: a race is one run on one screen"),
        (["length.new_tokens=0"], 2, "race: length.new_tokens=0: nothing to race"),
        (["length.new_tokens=1"], 2, "race: length.new_tokens=1: nothing to race"),
        (["cache=none"], 2, "race: cache.kind=none: races against itself"),
        (["checkpoint=none"], 2, "race: checkpoint=none: race shows texts"),
        (["prompt.text="], 2, "race: prompt.text= is empty"),
        (["prompt.file=no/such"], 2, "/no/such: cannot be read"),
        (["batch=4"], 2, "race: "),
        (["device.kind=mps"], 1, "race failed: "),
        (["model.context_length=17"], 2, "has 16; leave model.context_length out, or give at most"),
    ],
)
def test_what_is_wrong_is_one_line(
    command: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    monkeypatch.setattr(race_run, "race", pytest.fail)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    found, out, err = command(*arguments)
    assert (found, out) == (status, "")
    [line] = err.splitlines()
    assert said in line


def test_a_run_that_fails_is_one_line(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Race:
        raise ValueError("row 0: the logits were NaN")

    monkeypatch.setattr(race_run, "race", fail)
    assert command() == (1, "", "race failed: ValueError: row 0: the logits were NaN\n")


def test_help_and_config_errors_load_no_torch() -> None:
    code = "import sys, runners.race; print(*{'torch', 'mlflow', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# On a terminal.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Terminal]:
    """Make standard output a terminal of so many columns and rows."""

    def make(width: int, height: int) -> Terminal:
        out = Terminal()
        for key, value in (("TERM", "xterm"), ("COLUMNS", width), ("LINES", height)):
            monkeypatch.setenv(key, str(value))
        monkeypatch.setattr("sys.stdout", out)
        return out

    return make


QUICK = made([0.002] * 4, [0.001] * 4)


def test_on_a_terminal_it_is_replayed_and_summed_up(
    terminal: Callable[[int, int], Terminal],
) -> None:
    out = terminal(80, 24)
    race_screen.show(QUICK)
    shown = out.getvalue()
    assert shown.count("with the rolling cache: ") >= 2  # drawn before the end, and at the end
    assert "4 of 4" in shown
    assert shown.rindex("tokens run") > shown.rindex("╰")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
@pytest.mark.parametrize("early", [False, True])
def test_a_stop_leaves_the_cursor_and_goes_on_its_way(
    terminal: Callable[[int, int], Terminal],
    monkeypatch: pytest.MonkeyPatch,
    stop: type[KeyboardInterrupt],
    early: bool,
) -> None:
    start = Live.start

    def stopped(*arguments: Any) -> None:
        if early:  # once the cursor is hidden, before anything is drawn
            start(*arguments)
        raise stop

    if early:
        monkeypatch.setattr(Live, "start", lambda live, refresh: stopped(live))
    else:
        monkeypatch.setattr(race_screen, "replay", stopped)
    out = terminal(80, 24)
    with pytest.raises(stop):
        race_screen.show(QUICK)
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    assert "tokens run" not in out.getvalue()


def test_too_small_a_terminal_gets_the_summary_and_the_reason(
    terminal: Callable[[int, int], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    out = terminal(50, 12)
    race_screen.show(QUICK)
    assert "╰" not in out.getvalue()
    assert "tokens run" in out.getvalue()
    assert "no replay: the terminal is 50x12, and" in capsys.readouterr().err


def test_a_sweep_is_refused_before_anything() -> None:
    with pytest.raises(UsageError, match=r"python -m runners\.bench -m"):
        module.RACE.prepared(Sweep(Path(), [], [], []))
