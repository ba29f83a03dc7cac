"""Conditions on rows: what they mean, and that what is wrong with one is a line that says where."""

import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.harness.config import conversion
from runners.harness.config.conversion import to_config
from runners.harness.config.filters import Condition, Facts, Value, parse, select, values
from runners.harness.config.paths import conf_dir
from runners.harness.config.schema import TablesConfig

ROOT = Path(__file__).parents[2]
SIGNS = ["=", "!=", "<", "<=", ">", ">="]


@pytest.mark.parametrize(
    ("where", "conditions"),
    [
        ("", []),
        ("  ", []),
        ("batch.size>=4", ["batch.size >= 4"]),
        ("batch.size>=4 and device=cpu", ["batch.size >= 4", "device = cpu"]),
        (" a == 1  AND\tb!=2 ", ["a = 1", "b != 2"]),
        ("sampler='t0.8_topp0.9'", ["sampler = t0.8_topp0.9"]),
        ('machine="an x2" and a<.5', ["machine = an x2", "a < .5"]),
        ("text=' a=b and c>d '", ["text =  a=b and c>d "]),
        ('text="it\'s"', ["text = it's"]),
        ("text=''", ["text = "]),
        (
            "a=-1e3 and b=+.5 and c=/x/y.txt and d=a,b",
            ["a = -1e3", "b = +.5", "c = /x/y.txt", "d = a,b"],
        ),
        ("device=android", ["device = android"]),
        ("a='x'and b=1", ["a = x", "b = 1"]),
    ],
)
def test_what_is_typed_is_what_is_meant(where: str, conditions: list[str]) -> None:
    assert [f"{c.key} {c.operator} {c.value}" for c in parse(where)] == conditions


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("batch.size", "an operator is missing at its end"),
        ("batch.size>=", "a value is missing at its end"),
        (">=4", "a key is missing at '>=4'"),
        ("a=1 b=2", "the word and is missing at 'b=2'"),
        ("a=1, b=2", "the word and is missing at 'b=2'"),
        ("a=1 or b=2", "the word and is missing at 'or b=2'"),
        ("a=1 and", "a key is missing at its end"),
        ("and a=1", "an operator is missing at 'a=1'"),
        ("a= and b=2", "a value is missing at 'and b=2'"),
        ("a='x", 'a value is missing at "\'x"'),
        ("a=x'y'", "the word and is missing at \"'y'\""),
        ("a=>4", "a value is missing at '>4'"),
        ("a===4", "a value is missing at '=4'"),
        ("a=b=c", "the word and is missing at '=c'"),
        ("4=a", "a key is missing at '4=a'"),
        ("a!4", "an operator is missing at '!4'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_the_form(where: str, said: str) -> None:
    with pytest.raises(ValueError, match="where=") as refused:
        parse(where)
    assert f"where={where}: {said};" in str(refused.value)
    assert "a condition is KEY=VALUE" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_shell_that_took_the_rest_is_suspected() -> None:
    with pytest.raises(ValueError, match="a shell takes < and > for itself"):
        parse("batch.size")


@settings(deadline=None)
@given(st.text())
def test_any_text_is_conditions_or_a_value_error(where: str) -> None:
    try:
        found = parse(where)
    except ValueError:
        return
    assert bool(found) == bool(where.strip())


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Condition,
            st.from_regex(r"[a-z_][a-z_.0-9]*", fullmatch=True),
            st.sampled_from(SIGNS),
            st.text().filter(lambda text: not ("'" in text and '"' in text)),
        )
    )
)
def test_conditions_survive_being_written_down(conditions: list[Condition]) -> None:
    assert parse(" and ".join(map(str, conditions))) == conditions


# what fits

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from(["1", "1.0", "01", "+1", "1e0", "10e-1", ".5", "0.5", "-0", "0"]),
)


def one(value: str, *, text: bool = False) -> Facts:
    return {"key": values(value, text=text)}


@settings(deadline=None)
@given(NUMBERS, st.sampled_from(SIGNS), NUMBERS)
def test_numbers_compare_as_numbers_to_the_last_digit(a: str, sign: str, b: str) -> None:
    x, y = Fraction(a), Fraction(b)
    wanted = {"=": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}
    assert Condition("key", sign, b).fits(one(a)) == wanted[sign]


@settings(deadline=None)
@given(st.text(min_size=1).filter(lambda text: text not in ("None", "nan")), st.text())
def test_texts_are_equal_or_not(a: str, b: str) -> None:
    assert Condition("key", "=", b).fits(one(a, text=True)) == (a == b)
    assert Condition("key", "!=", b).fits(one(a, text=True)) == (a != b)


@pytest.mark.parametrize("text", ["007", "83e5", "1.0", "12345678"])
def test_digits_of_a_text_are_no_number(text: str) -> None:
    assert Condition("key", "=", text).fits(one(text, text=True))
    assert not Condition("key", "=", str(float(text))).fits(one("x" + text, text=True))
    assert Condition("key", "=", "7").fits(one("007"))
    assert not Condition("key", "=", "7").fits(one("007", text=True))


VALUES = st.lists(st.one_of(NUMBERS.map(Decimal), st.sampled_from(["cpu", "rolling", "a b"])))


@settings(deadline=None)
@given(VALUES, st.one_of(NUMBERS, st.sampled_from(["cpu", "a b", "x"])))
def test_equal_and_unequal_part_all_rows(found: list[Value], value: str) -> None:
    row = {"key": tuple(found)}
    assert Condition("key", "=", value).fits(row) != Condition("key", "!=", value).fits(row)


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("row", [{}, {"key": ()}, {"key": values(None, "", "None")}])
def test_a_row_without_a_value_fits_unequal_alone(sign: str, row: Facts) -> None:
    assert Condition("key", sign, "4").fits(row) == (sign == "!=")


def test_one_of_a_group_s_names_is_enough() -> None:
    row = {"batch": values("1 size=12", "12")}
    assert Condition("batch", "=", "12").fits(row)
    assert Condition("batch", "=", "1 size=12").fits(row)
    assert Condition("batch", ">", "11").fits(row)
    assert not Condition("batch", "=", "1").fits(row)
    assert not Condition("batch", "<", "12").fits(row)


@pytest.mark.parametrize(("stored", "typed"), [("True", "true"), ("False", "false")])
def test_a_switch_is_typed_as_in_the_config(stored: str, typed: str) -> None:
    assert Condition("key", "=", typed).fits(one(stored))


# rows

ROWS: list[Facts] = [
    {"size": values(size), "cache": values(cache), "rate": values(rate)}
    for size in (1, 4, 16)
    for cache, rate in (("none", 50.0), ("rolling", None))
]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("", [0, 1, 2, 3, 4, 5]),
        ("size>=4", [2, 3, 4, 5]),
        ("size>=4 and cache=none", [2, 4]),
        ("size>=4 and size<16", [2, 3]),
        ("rate=50", [0, 2, 4]),
        ("rate!=50", [1, 3, 5]),
    ],
)
def test_every_condition_has_to_fit(where: str, kept: list[int]) -> None:
    assert select(where, ROWS) == (kept, "")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("size>16 and cache=none", "none of 6 rows has size>16 (size: 1, 4, 16)"),
        ("size>=4 and cache='a b'", "none of 4 rows has cache='a b' (cache: none, rolling)"),
        ("cache=rolling and rate>0", "none of 3 rows has rate>0 (rate: no value)"),
    ],
)
def test_where_nothing_is_left_the_condition_is_named(where: str, said: str) -> None:
    assert select(where, ROWS) == ([], f"where={where}: {said}")


def test_many_values_are_cut() -> None:
    rows = [{"size": values(size)} for size in range(100)]
    assert select("size>99", rows)[1].endswith("(size: 0, 1, 2, 3, ..., 99)")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("cache<3", "cache is a text (none, rolling): it compares with = and != only"),
        ("size<four", "size<four: size is a number, and 'four' is none"),
        ("size=four", "size=four: size is a number, and 'four' is none"),
        ("size>9 and siez=3", "siez: no such key; did you mean size?"),
        ("temperature=1", "temperature: no such key; did you mean sampler.temperature?"),
        ("xyzzy=1", "xyzzy: no such key; there are some"),
    ],
)
def test_a_condition_without_sense_is_refused(where: str, said: str) -> None:
    with pytest.raises(ValueError, match="where=") as refused:
        select(where, ROWS, ["sampler.temperature"], "there are some")
    assert str(refused.value) == f"where={where}: {said}"


def test_no_rows_no_complaint() -> None:
    assert select("size>4 and cache=none", [], ["size", "cache"]) == ([], "")


# on the command line

TYPED = [
    "batch.size>=4 and device=cpu",
    "batch.size >= 4 and device = cpu",
    "a=1,2 and b==[x]",
    "machine='Intel(R) Xeon(R) x2' and text=\"a, b\"",
    "",
    "83e5",
    "sampler!=t0.8_topp0.9",
    "prompt.text='naïve {x}: $5'",
]


@pytest.mark.parametrize("where", TYPED)
def test_the_value_reaches_the_config_as_typed(where: str) -> None:
    conversion.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("tables", overrides=[f"where={where}", "sweep=a,b"])
    config = to_config(cfg, TablesConfig)
    assert (config.where, config.sweep) == (where, "a,b")


@pytest.mark.skipif(sys.platform == "win32", reason="quotes as of a POSIX shell")
def test_from_a_shell() -> None:
    command = f"{sys.executable} -m runners.tables --cfg job where='size>=4 and cpu=\"a, b\"'"
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert 'where: size>=4 and cpu="a, b"\n' in done.stdout
