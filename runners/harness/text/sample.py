"""Texts that a model writes; the text of a prompt does not depend on the other prompts."""

from collections.abc import Callable
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from runners.harness.config.schema import SampleConfig
from runners.harness.launch.progress import CellProgress
from runners.harness.measure import fingerprint, memory
from runners.harness.measure.guard import guarded
from runners.harness.measure.result import CellResult
from runners.harness.measure.subject import Subject
from runners.harness.text import figures as text_figures
from runners.harness.text.screen import Screen
from runners.harness.text.stream import TextStream
from tinygpt.engines import Engine
from tinygpt.hf_tokenizer import AnyTokenizer
from tinygpt.sampling import Sampler
from tinygpt.tokenizer import EOT

Show = Callable[[str, str], None]
"""Called with (prompt, "") first, then with ("", piece) for each piece of the text after it."""


def sample(config: SampleConfig, show: Show) -> CellResult:
    """Write a text after every prompt. Errors of the run become its outcome and are not raised."""
    return guarded(config.device, lambda result: _run(config, result, show))


def quietly(config: SampleConfig, report: CellProgress) -> CellResult:
    """Write the texts and show none of them."""
    return sample(config, lambda prompt, piece: None)


def on_screen(config: SampleConfig, report: CellProgress) -> CellResult:
    """Write the texts and show them as they come, under a title if they are part of a sweep."""
    with Screen(report.title if report.swept else "") as screen:
        return sample(config, screen)


def _run(config: SampleConfig, result: CellResult, show: Show) -> None:
    result.outcome, result.reason = memory.obstacle(config, torch.device(config.device.kind))
    if result.reason:
        return
    subject = Subject(config, result.notes)
    engine, sampler = subject.engine(config.engine, config.cache), subject.sampler(config.sampler)
    assert subject.tokenizer is not None, "checked before the run"
    result.tags |= subject.tags() | fingerprint.approximate(config.cache)
    for text, prompt in zip(config.prompt.content.texts, subject.prompts, strict=True):
        show(text, "")
        writer = _Writer(config, engine, sampler, subject.tokenizer)
        row = writer.write(prompt, lambda piece: show("", piece))
        result.generations.append({"prompt": text, **row})
    _sum_up(result)


class _Writer:
    """Writes one text: draws, decodes, stops."""

    def __init__(
        self, config: SampleConfig, engine: Engine, sampler: Sampler, tokenizer: AnyTokenizer
    ) -> None:
        self._config, self._engine, self._sampler = config, engine, sampler
        end_ids = tokenizer.end_ids if config.stop == EOT else frozenset[int]()
        if config.prompt.chat:
            end_ids |= tokenizer.end_of_turn_ids
        self._tokenizer, self._stream = tokenizer, TextStream(tokenizer, config.stop, end_ids)
        self._logprobs: list[Tensor] = []

    def write(self, prompt: Tensor, show: Callable[[str], None]) -> dict[str, Any]:
        """The text after ``prompt`` (1, P), as one row of generations; ``show`` gets its pieces."""

        def on_token(ids: Tensor) -> bool:
            show(self._stream.feed(int(ids[0])))
            return self._stream.stopped

        self._sampler.reset(prompt, self._config.model.vocab_size)
        ids = self._engine.generate(prompt, self._config.length.new_tokens, self._pick, on_token)
        self._sampler.check()
        show(self._stream.end())
        new = ids[0, prompt.shape[1] :].tolist()
        repeat = text_figures.longest_repeat(new)
        return {
            "prompt_ids": prompt[0].tolist(),
            "new_ids": new,
            "text": self._stream.text,
            "stopped": self._stream.stopped,
            "distinct_2": text_figures.distinct_2(new),
            "longest_repeat_tokens": len(repeat),
            "longest_repeat": self._tokenizer.decode(repeat),
            "mean_logprob_nats": float(torch.cat(self._logprobs).mean()) if new else None,
        }

    def _pick(self, logits: Tensor) -> Tensor:
        ids = self._sampler(logits)
        chosen = logits.float().log_softmax(dim=-1).gather(-1, ids[:, None])
        self._logprobs.append(chosen[:, 0])
        return ids


def _sum_up(result: CellResult) -> None:
    rows = result.generations
    result.tags["tinygpt.tokens_sha256"] = fingerprint.sha256([row["new_ids"] for row in rows])
    figures: dict[str, float] = {"new_tokens": sum(len(row["new_ids"]) for row in rows)}
    for name in ("distinct_2", "mean_logprob_nats"):
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            figures[name] = mean(values)
    if figures["new_tokens"]:
        figures["longest_repeat_tokens"] = max(row["longest_repeat_tokens"] for row in rows)
    result.metrics |= figures
    result.headline = headline(figures)
    pages = [f"{row['prompt']}{row['text']}\n" for row in rows]
    result.files["text.txt"] = "\n---\n".join(pages)


def headline(figures: dict[str, float]) -> str:
    """The figures of a text in one line."""
    parts = [f"{figures['new_tokens']:.0f} tokens"]
    if "distinct_2" in figures:
        parts.append(f"distinct-2 {figures['distinct_2']:.2f}")
    if "longest_repeat_tokens" in figures:
        parts.append(f"longest repeat {figures['longest_repeat_tokens']:.0f}")
    if "mean_logprob_nats" in figures:
        parts.append(f"mean log-probability {figures['mean_logprob_nats']:.2f} nats")
    return ", ".join(parts)
