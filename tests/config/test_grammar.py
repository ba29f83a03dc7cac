"""Digits that name options, and text kept as typed; and that Hydra still needs the help."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runners.harness.config import checkpoints, conversion, grammar
from runners.harness.config.conversion import to_config
from runners.harness.config.paths import conf_dir
from runners.harness.config.schema import BenchConfig, TablesConfig
from runners.harness.errors import UsageError


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    conversion.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def bench(*arguments: str) -> BenchConfig:
    return to_config(compose("bench", overrides=list(arguments)), BenchConfig)


def jobs(*arguments: str) -> list[list[str]]:
    """The jobs that -m makes of the arguments."""
    loader = ConfigLoaderImpl(create_config_search_path(str(conf_dir())))
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
    return [list(job) for job in BasicSweeper.split_arguments(parsed, None)[0]]


@pytest.mark.parametrize("value", ["1", "16", "'16'", '"16"'])
def test_h1_a_number_names_an_option(value: str) -> None:
    size = bench(f"batch={value}").batch.size
    assert size == int(value.strip("'\""))
    assert type(size) is int


@pytest.mark.parametrize(
    ("axis", "sizes"),
    [
        ("batch=1,16", [1, 16]),
        ("batch=16", [16]),
        ("batch=glob(1*)", [1, 16]),
        ("batch=choice(1,16)", [1, 16]),
        ("batch=1,'16'", [1, 16]),
        ("batch=1, 16", [1, 16]),
    ],
)
def test_h1_a_sweep_over_numbers_is_jobs_with_integers(axis: str, sizes: list[int]) -> None:
    found = [bench(*job).batch.size for job in jobs(axis)]
    assert found == sizes
    assert {type(size) for size in found} == {int}


@pytest.mark.parametrize("written", ["1,16", 16, "'1','16'"], ids=str)
def test_h1_in_a_preset(written: Any, tmp_path: Path) -> None:
    preset = tmp_path / "experiment" / "mine.yaml"
    preset.parent.mkdir()
    content = OmegaConf.create({"hydra": {"sweeper": {"params": {"batch": written}}}})
    preset.write_text(f"# @package _global_\n{OmegaConf.to_yaml(content)}", encoding="utf-8")
    cfg = compose(
        "bench",
        overrides=["experiment=mine", f"hydra.searchpath=[file://{tmp_path}]"],
        return_hydra_config=True,
    )
    found = jobs(*(f"{key}={value}" for key, value in cfg.hydra.sweeper.params.items()))
    sizes = [bench(*job).batch.size for job in found]
    assert sizes == ([16] if written == 16 else [1, 16])


def test_a_number_that_is_no_option_is_told_the_options() -> None:
    with pytest.raises(conversion.CONFIG_ERRORS) as refused:
        bench("batch=17")
    line = conversion.one_line(refused.value)
    assert line == (
        "batch=17: no such option; choose one of 1, 2, 4, 8, 16, 32, 64, "
        "or give it by value: batch.size=17"
    )


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("1984", "1984"),
        ("007", "007"),
        ("83e5", "83e5"),
        ("1_000", "1_000"),
        ("true", "true"),
        ("False", "False"),
        ("nan", "nan"),
        ("-inf", "-inf"),
        ("'null'", "null"),
        ("nullable", "nullable"),
        ("  both ends\t", "  both ends\t"),
        ("1984 ", "1984 "),
        (" ", " "),
        ("naïve", "naïve"),
        ("it's", "it's"),
        ('say "hi"', 'say "hi"'),
        ("a=b", "a=b"),
        ("~/x", "~/x"),
        ("one\ntwo", "one\ntwo"),
        (r"a\nb", r"a\nb"),
        (r"a\\b", r"a\\b"),
        (r"two\ words", r"two\ words"),
        ("a\\", "a\\"),
        ("$5; #1 & <|x|> %d @y!", "$5; #1 & <|x|> %d @y!"),
        ("'true'", "true"),
        ('"1984"', "1984"),
        ("'a, b'", "a, b"),
        ("'a=b'", "a=b"),
        ("Holmes", "Holmes"),
        ("two words", "two words"),
        ("' kept '", " kept "),
        ("'it\\'s'", "it's"),
        ("a/b:c", "a/b:c"),
        ("'naïve'", "naïve"),
    ],
)
def test_text_stays_as_typed(typed: str, text: str | None) -> None:
    assert bench(f"prompt.text={typed}").prompt.text == text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_text_is_exact_or_refused_and_a_sweeps_jobs_get_the_same(text: str) -> None:
    typed = f"stop={text}"
    try:
        parsed = OverridesParser.create().parse_overrides([typed])
    except (UsageError, *conversion.CONFIG_ERRORS):
        return
    for words in BasicSweeper.split_arguments(parsed, None)[0]:
        (job,) = OverridesParser.create().parse_overrides(list(words))
        if parsed[0].is_sweep_override():
            assert job.value() is None or str(job.value()) in text
        elif parsed[0].value() is None:
            assert text.strip().lower() == "null"
        elif text.lstrip().startswith(("'", '"')):
            assert job.value() == parsed[0].value()
        else:
            assert job.value() == parsed[0].value() == text


@pytest.mark.parametrize("key", ["checkpoint", "tracking.uri", "prompt.text"])
def test_every_text_key_keeps_its_text(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "decided", lambda values, typed: values["model"])
    config: Any = bench(f"{key}=83e5")
    for name in key.split("."):
        config = getattr(config, name)
    assert config == "83e5"


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_forced_override_keeps_text_as_well(prefix: str) -> None:
    assert bench(f"{prefix}prompt.text=1e3").prompt.text == "1e3"


def test_numbers_stay_numbers_elsewhere() -> None:
    config = bench("batch.size=12", "sampler.temperature=1e-3", "device.threads=null", "seed=3")
    assert (config.batch.size, config.seed) == (12, 3)
    assert config.sampler.temperature == 0.001
    assert config.device.threads is None


@pytest.mark.parametrize(
    ("axis", "texts"),
    [
        ("prompt.text=1984,true,83e5", ["1984", "true", "83e5"]),
        ("prompt.text=Holmes, 007", ["Holmes", "007"]),
        ("prompt.text='a, b',c", ["a, b", "c"]),
        ("prompt.text='1','2'", ["1", "2"]),
        ("prompt.text=two words,b:c", ["two words", "b:c"]),
        ("prompt.text=choice(two words, b)", ["two words", "b"]),
    ],
)
def test_texts_are_swept_as_typed(axis: str, texts: list[str | None]) -> None:
    assert [bench(*job).prompt.text for job in jobs(axis)] == texts


@pytest.mark.parametrize(
    ("typed", "sweep"),
    [
        ("a,b", "a,b"),
        ("12345678,83e51234", "12345678,83e51234"),
        ("12345678", "12345678"),
        ("1e234567", "1e234567"),
        ("00000001", "00000001"),
        ("1234-0", "1234-0"),
        ("latest", "latest"),
    ],
)
def test_several_sweeps_are_one_text(typed: str, sweep: str) -> None:
    cfg = compose("tables", overrides=[f"sweep={typed}"])
    assert to_config(cfg, TablesConfig).sweep == sweep


def test_text_keys_are_those_typed_str() -> None:
    assert grammar.text_keys(BenchConfig) == {
        "model.rope_scaling.kind",
        "device.kind",
        "device.on_missing",
        "cache.kind",
        "engine.kind",
        "precision.kind",
        "prompt.text",
        "prompt.file",
        "tracking.dir",
        "tracking.uri",
        "checkpoint",
    }
    assert {"sweep", "table", "format"} <= grammar.text_keys(TablesConfig)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("[a", "prompt.file=PATH"),
        ("'a", "prompt.file=PATH"),
        ("a, b", "prompt.file=PATH"),
        ("a(b)", "prompt.file=PATH"),
        ("cost ${x} and $5", "prompt.file=PATH"),
        ("'cost ${x} and $5'", "prompt.file=PATH"),
        ("${seed}", "prompt.file=PATH"),
        (r"'\${x}'", "prompt.file=PATH"),
        (r"a\, b", "prompt.file=PATH"),
        ("str(a)", "prompt.file=PATH"),
        ("null", "prompt.file=PATH"),
        ("Null ", "prompt.file=PATH"),
        ("???", "prompt.file=PATH"),
        ("'???'", "prompt.file=PATH"),
        ("[a]", "prompt.text"),
        ("{a: 1}", "prompt.text"),
    ],
)
def test_what_the_grammar_cannot_carry_is_one_line(typed: str, hint: str) -> None:
    with pytest.raises((UsageError, *conversion.CONFIG_ERRORS)) as refused:
        bench(f"prompt.text={typed}")
    line = conversion.one_line(refused.value)
    assert hint in line
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("checkpoint='a", "checkpoint='a: is not a value in Hydra's grammar; put it into quotes"),
        ("tracking.dir=a(1)", "\"tracking.dir='…'\""),
        (r"prompt.file=a\,b", "\"prompt.file='…'\""),
        ("hydra.run.dir=~/x", "\"hydra.run.dir='…'\""),
        ("seed=???", "seed=???: is Hydra's sign for a missing value"),
        ("batch.size=[", "batch.size=[: the value cannot be read"),
    ],
)
def test_every_key_gets_its_own_hint_in_one_line(word: str, said: str) -> None:
    with pytest.raises((UsageError, *conversion.CONFIG_ERRORS)) as refused:
        bench(word)
    line = conversion.one_line(refused.value)
    assert said in line
    assert "Lexer" not in line
    assert "\n" not in line


def test_a_stop_that_a_shell_left_as_a_backslash_and_a_letter_is_told() -> None:
    for typed in (r"\n", r"'\n'", r"\n\n", r"a,'\t'"):
        with pytest.raises(UsageError, match=r"type the character itself: stop=\$'\\n'"):
            OverridesParser.create().parse_override(f"stop={typed}")
    for typed in ("\n", r"\nabla", "null"):  # and what can have been meant is not
        OverridesParser.create().parse_override(f"stop={typed}")


def test_installing_twice_is_installing_once() -> None:
    before = OverridesParser.parse_rule
    grammar.install()
    assert OverridesParser.parse_rule is before


PLAIN_HYDRA = """
import sys
from hydra import compose, initialize_config_dir
with initialize_config_dir(sys.argv[1], version_base="1.3"):
    try:
        compose("main", overrides=["batch=16"])
        print("batch=16 composes")
    except Exception as error:
        print(type(error).__name__, error)
    print(repr(compose("main", overrides=["text=83e5"]).text))
"""


def test_hydra_alone_still_refuses_digits_and_rewrites_text(tmp_path: Path) -> None:
    """When this fails, Hydra has mended it and runners/harness/config/grammar.py can go."""
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch" / "16.yaml").write_text("size: 16\n", encoding="utf-8")
    (tmp_path / "main.yaml").write_text(
        "defaults: [{optional batch: null}]\ntext: ''\n", encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_HYDRA, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    refusal, text = done.stdout.strip().splitlines()
    assert "Config group override must be a string or a list. Got int" in refusal
    assert text == "8300000.0"
