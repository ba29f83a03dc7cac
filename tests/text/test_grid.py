"""Settings side by side: every text of a sweep, as it is, in every format."""

import csv
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt  # rich brings it

from runners.harness.config.schema import SampleConfig, TrackingConfig
from runners.harness.launch.entry import Sweep
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.disk import Place
from runners.harness.store.tracking import Store
from runners.harness.text import grid as sample_grid

NASTY = (
    "<b>bold</b> a|b \\| \\\\ [red]x[/red] [y](http://z) ![i](j) `c` _d_ **e** ~~f~~ &lt; &amp; "
    "\"q\" 'r' # $g$ {h} <script>alert(1)</script>"
)
"""What a format or other would take for its own."""
LINES = ["a\nb", "a\rb", "a\r\nb", "a\u2028b", "a\x85b", "a\x0bb\x0cc", "\n", "a\n\nb\n"]
"""What some reader or other takes for the end of a line."""

Sweeper = Callable[..., Path]


def row(new_ids: list[int], text: str = "text", prompt: str = "Holmes", **more: Any) -> Any:
    """A row of generations."""
    figures = {"distinct_2": 0.5, "longest_repeat_tokens": 0, "longest_repeat": ""}
    known = {"prompt": prompt, "prompt_ids": [1], "new_ids": new_ids, "text": text}
    return {**known, "stopped": False, **figures, "mean_logprob_nats": -1.25, **more}


@pytest.fixture
def swept(tmp_path: Path) -> Sweeper:
    """Put down a sweep's cells: overrides and result of each; returns its folder."""

    def swept(*cells: tuple[list[str], CellResult], folder: Path = tmp_path / "sweep") -> Path:
        for number, (overrides, measured) in enumerate(cells):
            cell = f"{folder.name}-{number}"
            place = Place(folder / str(number), cell, folder.name, number, {}, overrides)
            disk.begin(place, "sample", {"seed": 1})
            disk.finish(place, measured)
        return folder

    return swept


def ok(*rows: Any) -> CellResult:
    return CellResult("ok", generations=list(rows))


def frame_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sample_grid.grid(folder).to_dict("records")
    return found


def column(folder: Path, name: str) -> list[Any]:
    return [row[name] for row in frame_of(folder)]


# rows


def test_a_row_is_a_text_with_its_figures(swept: Sweeper) -> None:
    rows = frame_of(swept((["sampler=greedy"], ok(row([1, 2, 3]), row([4], "other", "prompt")))))
    assert [tuple(found) for found in rows] == [tuple(sample_grid.COLUMNS)] * 2
    assert [found["new_tokens"] for found in rows] == [3, 1]
    assert [(found["prompt"], found["text"]) for found in rows] == [
        ("Holmes", "text"),
        ("prompt", "other"),
    ]
    assert rows[0]["distinct_2"] == 0.5
    assert rows[0]["mean_logprob_nats"] == -1.25


def test_cells_come_in_the_order_of_their_numbers(swept: Sweeper) -> None:
    folder = swept(*(([f"seed={n}"], ok(row([n]))) for n in range(12)))
    assert column(folder, "setting") == [str(n) for n in range(12)]


def test_a_cell_without_a_text_is_a_row(swept: Sweeper) -> None:
    folder = swept(
        (["sampler=greedy"], ok(row([1]))),
        (["sampler=t1.0"], CellResult("failed", "RuntimeError: planted")),
        (["sampler=t1.5"], CellResult("skipped", "no CUDA device")),
    )
    assert column(folder, "outcome") == ["ok", "failed", "skipped"]
    assert column(folder, "reason") == ["", "RuntimeError: planted", "no CUDA device"]
    assert column(folder, "new_tokens") == [1, 0, 0]


def test_a_cell_that_was_killed_is_a_row(swept: Sweeper) -> None:
    folder = swept((["sampler=greedy"], ok(row([1]))))
    place = Place(folder / "1", "sweep-1", "sweep", 1, {}, ["sampler=t1.0"])
    disk.begin(place, "sample", {"seed": 1})
    assert column(folder, "outcome") == ["ok", "running"]


@pytest.mark.parametrize("text", LINES, ids=ascii)
def test_a_text_ends_where_it_ends(text: str, swept: Sweeper) -> None:
    folder = swept((["a=1"], ok(row([1], text), row([2], prompt=text))), (["a=2"], ok(row([3]))))
    assert column(folder, "text") == [text, "text", "text"]
    assert column(folder, "prompt") == ["Holmes", text, "Holmes"]


# what sets them apart


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (["sampler=greedy model=tiny", "sampler=t1.0 model=tiny"], ["greedy", "t1.0"]),
        (
            ["sampler=greedy seed=1", "sampler=greedy seed=2", "sampler=t1.0 seed=1"],
            ["sampler=greedy seed=1", "sampler=greedy seed=2", "sampler=t1.0 seed=1"],
        ),
        (["stop=a=b", "stop=null"], ["a=b", "null"]),
        (["sampler=greedy"], ["greedy"]),
        ([""], ["as it is"]),
        (["sampler=greedy", "sampler=greedy"], ["as it is", "as it is"]),
    ],
)
def test_a_setting_is_what_differs(
    overrides: list[str], settings: list[str], swept: Sweeper
) -> None:
    folder = swept(*((words.split(), ok(row([1]))) for words in overrides))
    assert column(folder, "setting") == settings


def test_an_opening_is_shared_with_whoever_goes_along_longest(swept: Sweeper) -> None:
    folder = swept(
        (["s=a"], ok(row([1, 2, 3, 4]))),
        (["s=b"], ok(row([1, 2, 9, 4]))),
        (["s=c"], ok(row([1, 2, 3, 9]))),
        (["s=d"], ok(row([7]))),
        (["s=e"], CellResult("failed", "reason")),
        (["s=f"], CellResult("failed", "reason")),
    )
    assert column(folder, "opening") == ["c (3)", "a (2)", "a (3)", "", "", ""]


def test_an_opening_is_shared_after_the_same_prompt_only(swept: Sweeper) -> None:
    one, other = row([1, 2]), row([1, 2], prompt="other")
    folder = swept((["s=a"], ok(one, other)), (["s=b"], ok(row([1, 3]), row([3], prompt="other"))))
    assert column(folder, "opening") == ["b (1)", "", "a (1)", ""]


def test_an_opening_is_shared_with_another_setting(swept: Sweeper) -> None:
    """A prompt that comes twice gets the same text twice, which says nothing."""
    folder = swept((["s=a"], ok(row([1, 2]), row([1, 2]))), (["s=b"], ok(row([1, 3]))))
    assert column(folder, "opening") == ["b (1)", "b (1)", "a (1)"]


# as markdown


def table_of(markdown: str) -> list[list[str]]:
    """The cells of the rows of the only table, as one reads them; a break is a line feed."""
    page = (
        MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
    )
    rows: list[list[str]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag == "tr":
                rows.append([])
            elif tag in ("th", "td"):
                rows[-1].append("")
            elif tag == "br":
                rows[-1][-1] += "\n"
            elif tag not in ("table", "thead", "tbody"):
                rows[-1][-1] += f"(as {tag}:)"

        def handle_data(self, data: str) -> None:
            if rows and rows[-1]:
                rows[-1][-1] += data if data.strip("\n") else ""

    Reader().feed(page)
    return rows


@pytest.mark.parametrize("part", ["text", "prompt"])
def test_markdown_shows_a_text_as_it_is(part: str, swept: Sweeper) -> None:
    folder = swept((["s=a"], ok(row([1], **{part: f"{NASTY}\n*next* line"}))))
    _, cells = table_of(sample_grid.to_markdown(sample_grid.grid(folder)))
    assert len(cells) == 6
    assert f"{NASTY}\n*next* line" in cells[-1]


@pytest.mark.parametrize(
    "text", ["<b>", "a|b", "[y](z)", "*a*", "`a|b`", "_a_", "&lt;", "\\|", "~a~"]
)
def test_markdown_shows_a_character_as_it_is(text: str, swept: Sweeper) -> None:
    folder = swept((["s=a"], ok(row([1], text, "prompt: "))))
    assert table_of(sample_grid.to_markdown(sample_grid.grid(folder)))[1][-1] == f"prompt: {text}"


@pytest.mark.parametrize("text", LINES, ids=ascii)
def test_markdown_has_a_line_a_row(text: str, swept: Sweeper) -> None:
    folder = swept(
        (["s=a"], ok(row([1], text, "prompt "))), (["s=b"], CellResult("failed", "reason | more"))
    )
    _, first, second = table_of(sample_grid.to_markdown(sample_grid.grid(folder)))
    assert [cells[0] for cells in (first, second)] == ["a", "b"]
    assert [len(cells) for cells in (first, second)] == [6, 6]
    assert second[1:] == ["-", "-", "-", "", "failed: reason | more"]


def test_markdown_shows_a_setting_as_it_is(swept: Sweeper) -> None:
    settings = ["'a|b <i>'", "'a\nb'", "'*a*'"]
    folder = swept(*(([f"prompt.text={text}"], ok(row([1]))) for text in settings))
    rows = table_of(sample_grid.to_markdown(sample_grid.grid(folder)))[1:]
    assert [(len(cells), cells[0]) for cells in rows] == [(6, text) for text in settings]
    assert {cells[-1] for cells in rows} == {"Holmestext"}
    assert [cells[-2] for cells in rows] == [f"{settings[n]} (1)" for n in (1, 0, 0)]


def test_markdown_shows_figures_and_what_is_none(swept: Sweeper) -> None:
    nothing = {"distinct_2": None, "mean_logprob_nats": None}
    folder = swept(
        (["s=a"], ok(row([1], distinct_2=0.456, longest_repeat_tokens=12))),
        (["s=b"], ok(row([], "", **nothing))),
    )
    rows = table_of(sample_grid.to_markdown(sample_grid.grid(folder)))
    assert rows[0] == [
        "setting",
        "distinct-2",
        "longest repeat",
        "log-probability",
        "opening",
        "text",
    ]
    assert rows[1][1:4] == ["0.46", "12", "-1.25"]
    assert rows[2][1:4] == ["-", "0", "-"]
    assert rows[2][-1] == "Holmes"


# as a page


class Page(HTMLParser):
    """The texts of each card, what is marked in it, and every tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cards: list[str] = []
        self.titles: list[str] = []
        self.marked: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        for name, texts in (("pre", self.cards), ("h2", self.titles), ("mark", self.marked)):
            if tag == name:
                texts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for name, texts in (("pre", self.cards), ("h2", self.titles), ("mark", self.marked)):
            if name in self._open:
                texts[-1] += data


OURS = set("html head meta title style body main article h2 dl div dt dd pre b mark p".split())


def page_of(folder: Path) -> Page:
    return Page(sample_grid.to_html(sample_grid.grid(folder)))


def test_the_page_shows_texts_as_they_are(swept: Sweeper) -> None:
    folder = swept(
        (["s=<i>a</i>"], ok(row([1], NASTY), row([2], prompt=NASTY + "\n"))),
        (["s=b"], CellResult("failed", f"reason {NASTY}")),
    )
    page = page_of(folder)
    assert page.cards == ["Holmes" + NASTY, NASTY + "\ntext", f"failed: reason {NASTY}"]
    assert page.titles == ["<i>a</i>", "<i>a</i>", "b"]
    assert page.tags <= OURS


def test_the_page_needs_nothing_else(swept: Sweeper) -> None:
    page = sample_grid.to_html(sample_grid.grid(swept((["s=a"], ok(row([1]))))))
    assert not re.search(r"(src|href)=|https?:|@import|url\(", page)
    assert '<meta charset="utf-8">' in page


@pytest.mark.parametrize(
    ("text", "repeat", "tokens", "marked"),
    [
        ("of the man of the man.", " the man", 3, [" the man"] * 2),
        ("a<b>a<b>", "<b>", 3, ["<b>"] * 2),
        ("of of", "of", 2, []),  # too short to be worth it
        ("\n\n\n\n\n\n", "\n\n\n", 3, []),
        ("� is half, é", "�\x00", 3, []),  # not in the text as decoded as a whole
        ("cut by its stop", "went on", 3, []),
        ("Q&A amp and amp", "amp", 3, ["amp", "amp"]),
        ("5 < 6 lt; lt;", "lt;", 3, ["lt;", "lt;"]),
        ("it's x27 x27", "x27", 3, ["x27", "x27"]),
    ],
)
def test_the_page_marks_the_longest_repeat_and_changes_no_text(
    text: str, repeat: str, tokens: int, marked: list[str], swept: Sweeper
) -> None:
    more = {"longest_repeat": repeat, "longest_repeat_tokens": tokens}
    page = page_of(swept((["s=a"], ok(row([1], text, **more)))))
    assert page.cards == ["Holmes" + text]
    assert page.marked == marked


# the sweep's tables


@pytest.fixture
def put_down(results: Path, swept: Sweeper) -> Callable[..., Path]:
    """Track a sweep of cells; returns the folder of its tables."""

    def put_down(*cells: tuple[list[str], CellResult], planned: int = 0) -> Path:
        folder = results / "sweeps" / "5eed"
        config = SampleConfig(tracking=TrackingConfig(dir=str(results)))
        jobs = [words for words, _ in cells] or [["s=a"]]
        configs = [config] * (planned or len(cells))
        with sample_grid.tracked(Sweep(folder, ["-m"], jobs, configs)):
            swept(*cells, folder=folder)
        return folder / "tables"

    return put_down


def parent(results: Path) -> Any:
    (run,) = Store(results).search("sample", "tags.`tinygpt.kind` = 'sweep'")
    return run


def test_csv_and_json_hold_every_text(put_down: Callable[..., Path]) -> None:
    texts = [NASTY, *LINES, "NA", "1984", "", " a "]
    tables = put_down(
        (["s=a"], ok(*(row([n], text, text or "x") for n, text in enumerate(texts)))),
        (["s=b"], CellResult("failed", 'reason "q", more')),
    )
    wanted = [("a", text or "x", text) for text in texts]
    rows = json.loads((tables / "samples.json").read_bytes())
    assert [(row["setting"], row["prompt"], row["text"]) for row in rows] == [
        *wanted,
        ("b", None, None),
    ]
    assert rows[0]["distinct_2"] == 0.5
    assert rows[-1]["reason"] == 'reason "q", more'
    with (tables / "samples.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [(row["setting"], row["prompt"], row["text"]) for row in read] == [
        *wanted,
        ("b", "", ""),
    ]


def test_the_sweep_is_ok_when_every_planned_cell_is(
    put_down: Callable[..., Path], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_down((["s=a"], ok(row([1]))), (["s=b"], CellResult("skipped", "no CUDA device")))
    assert (parent(results).info.status, parent(results).data.tags["tinygpt.outcome"]) == (
        "FINISHED",
        "ok",
    )
    shown = capsys.readouterr().out
    assert "no CUDA device" in shown
    assert re.search(r"^a +ok ", shown, re.MULTILINE)


def test_a_cell_that_never_ran_fails_the_sweep(
    put_down: Callable[..., Path], results: Path
) -> None:
    put_down((["s=a"], ok(row([1]))), planned=2)
    assert parent(results).data.tags["tinygpt.outcome"] == "failed"


def test_a_sweep_without_a_text_says_so(
    put_down: Callable[..., Path], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = put_down(planned=1)
    assert "no text was written" in capsys.readouterr().out
    assert json.loads((tables / "samples.json").read_text()) == []
    assert parent(results).data.tags["tinygpt.outcome"] == "failed"


def test_what_is_printed_cannot_steer_the_terminal(
    put_down: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    put_down((["s=a"], ok(row([1], prompt="a\x1b[2Jb"), row([2], prompt="c\rd\x9b2J"))))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", capsys.readouterr().out)


def test_long_prompts_leave_room_for_the_figures(
    put_down: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for_each = [
        ([f"s={name}"], ok(*(row([1], prompt="x" * 300 + end, distinct_2=share) for end in "12")))
        for name, share in (("greedy", 0.25), ("t1.0", 0.75))
    ]
    put_down(*for_each)
    shown = capsys.readouterr().out
    for said in ("setting", "distinct-2", "greedy", "t1.0", "0.25", "0.75"):
        assert said in shown
