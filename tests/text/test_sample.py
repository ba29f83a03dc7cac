"""Texts that a model writes: each what it is alone, with figures that are the model's own."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runners.harness.config.checks import check_text
from runners.harness.config.conversion import from_dict
from runners.harness.config.schema import (
    DeviceConfig,
    LengthConfig,
    PromptsConfig,
    SampleConfig,
    TrackingConfig,
)
from runners.harness.errors import UsageError
from runners.harness.measure import fingerprint, subject
from runners.harness.measure.result import CellResult
from runners.harness.text import figures as text_figures
from runners.harness.text.sample import sample
from tests.small_text import MODEL
from tests.text_checkpoint import tokenizer
from tinygpt.cache import make_cache
from tinygpt.checkpoint import load_model, random_model
from tinygpt.config import CacheConfig, SamplerConfig
from tinygpt.generation import generate
from tinygpt.sampling import make_sampler
from tinygpt.tokenizer import EOT

CPU = torch.device("cpu")
WINDOW = MODEL.context_length
SAMPLERS = {
    "greedy": SamplerConfig(),
    "t1.0": SamplerConfig(temperature=1.0),
    "t1.5_topp0.9": SamplerConfig(temperature=1.5, top_p=0.9),
    "penalty1.3": SamplerConfig(repetition_penalty=1.3),
    "penalty0.3": SamplerConfig(repetition_penalty=0.3),  # takes up what the prompt has
}
CACHES = {kind: CacheConfig(kind=kind) for kind in ("none", "rolling", "static")}
PROMPTS = ["the river ", "a", "It was a lamp under the bridge, and before the clerk", "é👩 x"]
"""Of different length in tokens; the third is longer than the window."""

Config = Callable[..., SampleConfig]


@pytest.fixture
def config(writer: Path) -> Config:
    """A config with 8 new tokens on one thread."""

    def config(**changes: Any) -> SampleConfig:
        parts: dict[str, Any] = {
            "model": MODEL,
            "device": DeviceConfig(threads=1),
            "length": LengthConfig(new_tokens=8),
            "prompt": PromptsConfig(text="the river "),
            "checkpoint": str(writer),
            "tracking": TrackingConfig(dir="unused"),
        }
        return SampleConfig(**parts | changes)

    return config


def quiet(prompt: str, piece: str) -> None:
    """Shows nothing."""


def written(config: SampleConfig) -> CellResult:
    result = sample(config, quiet)
    assert result.outcome == "ok", result.error
    return result


def lines(folder: Path, prompts: Sequence[str]) -> PromptsConfig:
    """The prompts, in a file of one a line."""
    path = folder / "prompts.jsonl"
    rows = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    path.write_text("".join(rows), encoding="utf-8")
    return PromptsConfig(jsonl=str(path))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], None]:
    """Let every text be given ids, whatever the model thinks of them."""

    class Script:
        def __init__(self, ids: Sequence[int]) -> None:
            self._ids = list(ids)

        def reset(self, prompt: Tensor, vocab_size: int) -> None:
            self._left = iter(self._ids)

        def check(self) -> None:
            pass

        def __call__(self, logits: Tensor) -> Tensor:
            return torch.tensor([next(self._left)])

    def scripted(ids: Sequence[int]) -> None:
        monkeypatch.setattr(subject, "make_sampler", lambda *_, **__: Script(ids))

    return scripted


# what is written


@pytest.mark.parametrize(
    ("sampler", "cache"),
    [
        ("greedy", "rolling"),
        ("t1.0", "rolling"),
        ("t1.0", "static"),
        ("t1.0", "none"),
        ("penalty0.3", "static"),
    ],
)
def test_a_prompt_among_others_gets_the_text_it_gets_alone(
    sampler: str, cache: str, config: Config, tmp_path: Path
) -> None:
    same = {"sampler": SAMPLERS[sampler], "cache": CACHES[cache]}
    alone = {}
    for prompt in PROMPTS:
        result = written(config(prompt=PromptsConfig(text=prompt), **same))
        (alone[prompt],) = result.generations
    assert len({row["text"] for row in alone.values()}) == len(PROMPTS)
    for order in (PROMPTS[::-1], [PROMPTS[n] for n in (1, 2, 1, 3, 0)]):
        rows = written(config(prompt=lines(tmp_path, order), **same)).generations
        assert [row["prompt"] for row in rows] == order
        for row, prompt in zip(rows, order, strict=True):
            logprobs = row.pop("mean_logprob_nats"), alone[prompt]["mean_logprob_nats"]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
            assert row | {"mean_logprob_nats": logprobs[1]} == alone[prompt]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_it_is_what_generate_gives_with_that_sampler(
    sampler: str, config: Config, writer: Path
) -> None:
    (row,) = written(config(sampler=SAMPLERS[sampler], seed=3, stop=None)).generations
    prompt = torch.tensor([tokenizer().encode("the river ")])
    cache = make_cache(
        CACHES["rolling"], MODEL, batch=1, max_positions=40, device=CPU, dtype=torch.float32
    )
    pick = make_sampler(SAMPLERS[sampler], batch=1, seed=3, device=CPU)
    pick.reset(prompt, MODEL.vocab_size)
    ids = generate(load_model(writer, MODEL), prompt, 8, cache=cache, pick=pick)[0].tolist()
    assert row["prompt_ids"] == prompt[0].tolist()
    assert row["prompt_ids"] + row["new_ids"] == ids
    assert row["text"] == tokenizer().decode(row["new_ids"])
    assert row["stopped"] is False


@pytest.mark.parametrize("sampler", ["greedy", "t1.0"])
@pytest.mark.parametrize("tokens", [3, WINDOW, WINDOW + 4])
def test_k2_every_cache_gives_the_same_text_inside_the_window(
    tokens: int, sampler: str, config: Config
) -> None:
    text = "x" * tokens  # a token a letter: no word has it, so no merge does
    same = {
        "prompt": PromptsConfig(text=text),
        "sampler": SAMPLERS[sampler],
        "length": LengthConfig(new_tokens=20),
        "stop": None,
    }
    results = {kind: written(config(cache=CACHES[kind], **same)) for kind in CACHES}
    equal = WINDOW + 1 - min(tokens, WINDOW)
    ids = {kind: result.generations[0]["new_ids"] for kind, result in results.items()}
    assert len(results["none"].generations[0]["prompt_ids"]) == min(tokens, WINDOW)
    assert ids["none"][:equal] == ids["rolling"][:equal] == ids["static"][:equal]
    assert ids["rolling"] == ids["static"]


def test_the_seed_and_nothing_else_changes_a_text(config: Config) -> None:
    drawn = {"sampler": SAMPLERS["t1.0"]}

    def sha(**changes: Any) -> str:
        return written(config(**drawn | changes)).tags["tinygpt.tokens_sha256"]

    first = sha()
    assert sha() == first
    assert sha(cache=CACHES["none"]) == first
    assert sha(seed=2) != first
    assert sha(prompt=PromptsConfig(text="a")) != first


def test_a_prompt_longer_than_the_window_is_cut_and_said(config: Config, tmp_path: Path) -> None:
    long = "x" * (WINDOW - 1) + "yz"
    result = written(config(prompt=PromptsConfig(text=long)))
    assert result.notes == [f"prompt of {WINDOW + 1} tokens cut to its last {WINDOW}"]
    (row,) = result.generations
    assert row["prompt"] == long  # whole, as it was asked for
    assert row["prompt_ids"] == tokenizer().encode(long)[-WINDOW:]
    several = written(config(prompt=lines(tmp_path, ["a", long, long[1:], long + long])))
    assert several.notes == [
        f"prompt 2: prompt of {WINDOW + 1} tokens cut to its last {WINDOW}",
        f"prompt 4: prompt of {2 * WINDOW + 2} tokens cut to its last {WINDOW}",
    ]


# where it ends


def test_it_ends_at_the_end_of_a_text(
    config: Config, scripted: Callable[[Sequence[int]], None]
) -> None:
    said = tokenizer().encode(" was")
    scripted([*said, tokenizer().eot_id, *tokenizer().encode(" hidden again and again")])
    result = written(config())
    (row,) = result.generations
    assert (row["text"], row["stopped"]) == (" was", True)
    assert row["new_ids"] == [*said, tokenizer().eot_id]
    assert result.metrics["new_tokens"] == len(said) + 1
    assert result.files["text.txt"] == "the river  was\n"


def test_null_lets_it_run_to_its_full_length(
    config: Config, scripted: Callable[[Sequence[int]], None]
) -> None:
    ids = [tokenizer().eot_id, *b"abcdefg"]
    scripted(ids)
    (row,) = written(config(stop=None)).generations
    assert (row["text"], row["stopped"], row["new_ids"]) == (f"{EOT}abcdefg", False, ids)


def test_a_stop_ends_a_text_early_and_leaves_its_start_as_it_was(config: Config) -> None:
    drawn = {"sampler": SAMPLERS["t1.0"], "length": LengthConfig(new_tokens=24)}
    (whole,) = written(config(stop=None, **drawn)).generations
    tried = 0
    for at in range(1, len(whole["text"]) - 3):
        stop = whole["text"][at : at + 2]
        if "�" in stop:
            continue
        (row,) = written(config(stop=stop, **drawn)).generations
        n = len(row["new_ids"])
        assert row["text"] == whole["text"].partition(stop)[0]
        assert row["stopped"]
        assert row["new_ids"] == whole["new_ids"][:n]
        assert stop in tokenizer().decode(whole["new_ids"][:n])
        assert stop not in tokenizer().decode(whole["new_ids"][: n - 1])
        tried += n < 24
    assert tried >= 3


def test_a_stop_ends_its_own_text_alone(config: Config, tmp_path: Path) -> None:
    same = {"prompt": lines(tmp_path, PROMPTS), "sampler": SAMPLERS["t1.0"]}
    whole = written(config(stop=None, **same)).generations
    stop = next(c for c in whole[0]["text"] if c not in "�" + whole[1]["text"])
    rows = written(config(stop=stop, **same)).generations
    assert [row["stopped"] for row in rows] == [stop in row["text"] for row in whole]
    assert [row["text"] for row in rows] == [row["text"].partition(stop)[0] for row in whole]
    assert (rows[0]["stopped"], rows[1]["stopped"]) == (True, False)


def test_k7_no_new_tokens_give_the_prompt_back_and_no_figures(config: Config) -> None:
    result = written(config(length=LengthConfig(new_tokens=0)))
    (row,) = result.generations
    assert (row["prompt"], row["text"], row["new_ids"]) == ("the river ", "", [])
    assert (row["distinct_2"], row["mean_logprob_nats"]) == (None, None)
    assert result.metrics == {"new_tokens": 0}
    assert result.files["text.txt"] == "the river \n"
    assert result.headline == "0 tokens"


def test_one_new_token_has_no_pair(config: Config) -> None:
    result = written(config(length=LengthConfig(new_tokens=1)))
    assert set(result.metrics) == {"new_tokens", "mean_logprob_nats", "longest_repeat_tokens"}
    assert all(math.isfinite(value) for value in result.metrics.values())


# figures


@pytest.mark.parametrize("cache", ["none", "rolling"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_mean_logprob_is_the_models_own(
    sampler: str, cache: str, config: Config, writer: Path
) -> None:
    """Of the logits as they come, whatever the sampler makes of them."""
    same = {"sampler": SAMPLERS[sampler], "cache": CACHES[cache], "stop": None}
    (row,) = written(config(**same)).generations
    ids = torch.tensor([row["prompt_ids"] + row["new_ids"]])
    new = len(row["new_ids"])
    assert ids.shape[1] <= WINDOW
    with torch.inference_mode():
        logits = load_model(writer, MODEL)(ids[:, :-1])[0, -new:]
    wanted = -torch.nn.functional.cross_entropy(logits.double(), ids[0, -new:])
    assert row["mean_logprob_nats"] == pytest.approx(float(wanted), abs=1e-4)


def test_figures_are_of_each_texts_ids_and_of_all_of_them(config: Config, tmp_path: Path) -> None:
    result = written(
        config(prompt=lines(tmp_path, PROMPTS), length=LengthConfig(new_tokens=40), stop=None)
    )
    for row in result.generations:
        new = row["new_ids"]
        assert row["distinct_2"] == text_figures.distinct_2(new)
        repeat = text_figures.longest_repeat(new)
        assert row["longest_repeat_tokens"] == len(repeat)
        assert row["longest_repeat"] == tokenizer().decode(repeat)

    def column(name: str) -> list[float]:
        return [row[name] for row in result.generations]

    assert result.metrics == {
        "new_tokens": 160,
        "distinct_2": pytest.approx(sum(column("distinct_2")) / 4),
        "mean_logprob_nats": pytest.approx(sum(column("mean_logprob_nats")) / 4),
        "longest_repeat_tokens": max(column("longest_repeat_tokens")),
    }
    assert len(set(column("longest_repeat_tokens"))) > 1  # so that the most is not the mean
    assert result.tags["tinygpt.tokens_sha256"] == fingerprint.sha256(
        [row["new_ids"] for row in result.generations]
    )


def test_the_headline_says_them_in_one_line(config: Config) -> None:
    result = written(config(stop=None))
    figures = result.metrics
    assert result.headline == (
        f"8 tokens, distinct-2 {figures['distinct_2']:.2f}, longest repeat "
        f"{figures['longest_repeat_tokens']:.0f}, mean log-probability "
        f"{figures['mean_logprob_nats']:.2f} nats"
    )


def test_text_txt_has_every_prompt_with_its_text(config: Config, tmp_path: Path) -> None:
    result = written(config(prompt=lines(tmp_path, PROMPTS)))
    pages = [row["prompt"] + row["text"] + "\n" for row in result.generations]
    assert result.files == {"text.txt": "\n---\n".join(pages)}


# as it comes


def test_it_is_shown_as_it_comes(config: Config, tmp_path: Path) -> None:
    shown: list[tuple[str, str]] = []
    prompts = lines(tmp_path, PROMPTS[:2])
    result = sample(
        config(prompt=prompts, sampler=SAMPLERS["t1.0"]), lambda *piece: shown.append(piece)
    )
    began = [n for n, (prompt, _) in enumerate(shown) if prompt]
    assert [shown[n] for n in began] == [(prompt, "") for prompt in PROMPTS[:2]]
    for first, last, row in zip(began, [*began[1:], len(shown)], result.generations, strict=True):
        pieces = [piece for _, piece in shown[first + 1 : last]]
        assert "".join(pieces) == row["text"]
        assert len(pieces) == len(row["new_ids"]) + 1  # one a token, and what was held back


# what goes wrong


def test_a_device_that_is_not_there_is_skipped(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = sample(config(device=DeviceConfig(kind="cuda")), quiet)
    assert (result.outcome, result.generations) == ("skipped", [])
    assert "CUDA" in result.reason


def test_nan_logits_fail_and_are_named(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subject.make_model

    def broken(*arguments: Any) -> Any:
        model = real(*arguments)
        with torch.no_grad():
            model.emb.weight[:] = float("nan")
        return model

    monkeypatch.setattr(subject, "make_model", broken)
    result = sample(config(sampler=SAMPLERS["t1.0"]), quiet)
    assert result.outcome == "failed"
    assert result.reason.startswith("ValueError: row 0: the logits were NaN")
    assert result.metrics == {}


def test_what_was_written_before_it_failed_is_kept(config: Config, tmp_path: Path) -> None:
    def show(prompt: str, piece: str) -> None:
        if prompt == PROMPTS[1]:
            raise RuntimeError("planted")

    result = sample(config(prompt=lines(tmp_path, PROMPTS[:2])), show)
    assert (result.outcome, result.reason) == ("failed", "RuntimeError: planted")
    assert [row["prompt"] for row in result.generations] == PROMPTS[:1]


def test_ctrl_c_passes(config: Config) -> None:
    def show(prompt: str, piece: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(config(), show)


def test_a_vocabulary_that_is_not_the_tokenizers_fails_in_one_line(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(MODEL, vocab_size=256)
    monkeypatch.setattr(subject, "make_model", lambda *_: random_model(small, 1))
    result = sample(config(model=small, prompt=PromptsConfig(text="the river")), quiet)
    assert result.outcome == "failed"
    assert "vocabulary of 256" in result.reason


# prompts of a file


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        ('{"prompt": "a"}\n{"prompt": "b"}\n', ["a", "b"]),
        ('"a"\n"b"', ["a", "b"]),  # the last line may lack its end
        ('\n  \n"a"\n\n', ["a"]),
        ('"a"\r\n"b"\r\n', ["a", "b"]),
        ('{"id": 7, "prompt": "a", "note": null}', ["a"]),
        ('"${x} and $5 a/b \\n\\t\\"q\\" \\u00e9"', ['${x} and $5 a/b \n\t"q" é']),
        ('" "\n"a"', [" ", "a"]),
        ('"\\ud83d\\udc69"', ["👩"]),
        (f'"{"x" * 7000}"', ["x" * 7000]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_line_is_a_prompt(content: str, prompts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content.encode())
    assert list(PromptsConfig(jsonl=str(path)).content.texts) == prompts


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x7f"], ids=ascii)
def test_a_line_of_json_ends_with_a_line_feed_and_nothing_else(
    character: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(f'"a{character}b"\n{{"prompt": "c{character}"}}\n'.encode())
    assert list(PromptsConfig(jsonl=str(path)).content.texts) == [f"a{character}b", f"c{character}"]


def test_a_file_is_one_prompt_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    for text in ("cost ${x} and $5", "a\r\nb\n", "\n", " a ", "\ufeffa", "a\0b", "x" * 7000):
        path.write_bytes(text.encode())
        assert list(PromptsConfig(file=str(path)).content.texts) == [text]


def test_without_a_prompt_it_is_holmes() -> None:
    assert list(SampleConfig().prompt.content.texts) == ["Holmes"]


WRONG_FILES = {
    "empty": (b"", "has no prompts"),
    "blank": (b"\n \n", "has no prompts"),
    "cut": (b'"a"\n\n{"prompt": \n"b"', "line 3 is not JSON"),
    "no key": (b'"a"\n{"text": "b"}', "line 2 has no prompt"),
    "number": (b"1984", "line 1 has no prompt"),
    "null": (b"null", "line 1 has no prompt"),
    "list": (b'["a"]', "line 1 has no prompt"),
    "no text": (b'"a"\n"b"\n{"prompt": ""}', "line 3 has no prompt"),
    "half a character": (b'"a"\n"\\ud83d"', "line 2"),
    "not UTF-8": (b'"a"\n"\xe9"', "byte 5 is not UTF-8"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_line_is_named(case: str, config: Config, tmp_path: Path) -> None:
    content, said = WRONG_FILES[case]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        check_text(config(prompt=PromptsConfig(jsonl=str(path))))
    assert str(error.value).startswith(f"prompt.jsonl={path}: {said}")


def test_a_file_that_cannot_be_a_prompt_is_named(config: Config, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"ab\xe9")
    for name, said in {
        "latin.txt": "byte 2 is not UTF-8",
        "empty.txt": "is empty",
        "no.txt": "cannot be read (No such file",
        "": "cannot be read (Is a directory)",
    }.items():
        path = str(tmp_path / name)
        with pytest.raises(UsageError) as error:
            check_text(config(prompt=PromptsConfig(file=path)))
        assert str(error.value).startswith(f"prompt.file={path}: {said}")


@pytest.mark.parametrize(
    "given", [{"text": "a", "file": "b"}, {"text": "a", "jsonl": "b"}, {"file": "a", "jsonl": "b"}]
)
def test_two_sources_of_prompts_are_one_too_many(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give one of them"):
        PromptsConfig(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"checkpoint": "none"}, "checkpoint=none: sample writes text"),
        ({"stop": ""}, "stop= is empty"),
        ({"prompt": {"text": ""}}, "prompt.text= is empty"),
        ({"prompt": {"text": "a", "jsonl": "/b"}}, "prompt.jsonl=/b: prompt.text is given as well"),
        ({"checkpoint": "nothere"}, "checkpoint=nothere: no such checkpoint"),
        ({"model": {"n_layers": 3}}, "checkpoint=holmes: model.n_layers is 6 in it and 3 here"),
    ],
)
def test_a_config_that_cannot_be_run_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        check_text(from_dict({"tracking": {"dir": "unused"}} | given, SampleConfig))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("given", [{"file": "/a"}, {"jsonl": "/a"}, {"text": "a"}, {}])
def test_one_source_is_enough_on_a_command_line_too(given: dict[str, str]) -> None:
    config = from_dict({"prompt": given, "tracking": {"dir": "unused"}}, SampleConfig)
    assert (config.prompt.file, config.prompt.jsonl) == (given.get("file"), given.get("jsonl"))


def test_a_text_that_cannot_fit_is_foreseen(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "make_model", lambda *_: pytest.fail("it was not foreseen"))
    found = sample(config(length=LengthConfig(new_tokens=2**31 - 1)), quiet)
    assert found.outcome == "oom"
    assert "ids 171.8" in found.reason
