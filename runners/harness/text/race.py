"""Two passes over the same prompt, one without a cache and one with, one after the other.

Every step is timed, so that both can be replayed side by side at the speed they really had. Both
passes are greedy and have one row, so that they differ in the cache and in nothing else.

Shapes: P prompt tokens, N new tokens.
"""

import math
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from statistics import median
from time import perf_counter, sleep

import torch
from torch import Tensor

from runners.harness.config.schema import RaceConfig
from runners.harness.measure import timing
from runners.harness.measure.subject import Generation, Subject
from tinygpt.cache import CACHES
from tinygpt.config import CacheConfig, EngineConfig, SamplerConfig
from tinygpt.engines import Engine
from tinygpt.generation import OnToken, Pick, never_stop

Report = Callable[[str], None]
"""Called with what is being done; never called inside timed code."""

FRAME_S = 0.05
WHOLE_S = 50.0
"""Seconds that measuring and replaying may take together before the replay is sped up."""
MIN_REPLAY_S = 10.0

_WARM_UP_STEPS, _WARM_UP_STRIDE, _ENDS = 64, 16, 16


def pass_name(kind: str) -> str:
    """The name of a pass with that kind of cache."""
    return "without a cache" if kind == "none" else f"with the {kind} cache"


@dataclass(frozen=True)
class Pass:
    """One pass and its timing."""

    cache: str
    """The kind of its cache; ``none`` runs the whole window again at every step."""
    step_s: list[float]
    """(N) seconds of each step, the prefill first."""
    fed: list[int]
    """(N) tokens that each step runs through the model to get one."""
    ids: list[int]
    """(N) new tokens."""
    pieces: list[bytes]
    """(N) their bytes; a character may begin in one and end in another."""

    @property
    def name(self) -> str:
        return pass_name(self.cache)

    @cached_property
    def ends_s(self) -> list[float]:
        """(N) seconds from the start to the end of each step."""
        return list(accumulate(self.step_s))

    @cached_property
    def fed_so_far(self) -> list[int]:
        """(N) tokens that were run through the model by the end of each step."""
        return list(accumulate(self.fed))

    @property
    def total_s(self) -> float:
        return self.ends_s[-1]

    def done(self, at_s: float) -> int:
        """Steps that have ended ``at_s`` seconds after the start."""
        return bisect_right(self.ends_s, at_s)

    def text(self, steps: int) -> str:
        """The text of the first ``steps`` steps, without a character that a later one completes."""
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        return decoder.decode(b"".join(self.pieces[:steps]), final=steps == len(self.pieces))

    @property
    def n_ends(self) -> int:
        """The number of steps that count as the beginning, and of those that count as the end."""
        return min(_ENDS, len(self.step_s) // 2)

    @property
    def first_ms(self) -> float:
        """Milliseconds of a step at the beginning: a median, as one step may be slow by chance."""
        return median(self.step_s[: self.n_ends]) * 1e3

    @property
    def last_ms(self) -> float:
        """Milliseconds of a step at the end, also a median."""
        return median(self.step_s[-self.n_ends :]) * 1e3


@dataclass(frozen=True)
class Race:
    """Both passes, and what they ran."""

    prompt: str
    prompt_tokens: int
    setting: str
    """What ran where, in words."""
    window: int
    """Tokens that the model can see (``context_length``)."""
    without: Pass
    cached: Pass
    measured_s: float = 0.0
    """Seconds that loading, warming up and both passes took."""
    notes: list[str] = field(default_factory=list)
    exact: bool = True
    """Whether the cache should give the same text as no cache, inside the window."""

    @property
    def passes(self) -> tuple[Pass, Pass]:
        return self.without, self.cached

    @property
    def new_tokens(self) -> int:
        return len(self.without.ids)

    @property
    def slower_s(self) -> float:
        """Seconds of the slower pass."""
        return max(side.total_s for side in self.passes)

    @property
    def first_difference(self) -> int | None:
        """Index of the first new token that the passes do not share; None if they share all."""
        pairs = zip(self.without.ids, self.cached.ids, strict=True)
        return next((n for n, (one, other) in enumerate(pairs) if one != other), None)


def fed(kind: str, prompt_tokens: int, new_tokens: int, window: int) -> list[int]:
    """Tokens that each step runs through the model: all in the window, or what a cache lacks."""
    if kind == "none":
        return [min(n, window) for n in range(prompt_tokens, prompt_tokens + new_tokens)]
    return [min(prompt_tokens, window), *[1] * (new_tokens - 1)]


def race(config: RaceConfig, report: Report = lambda phase: None) -> Race:
    """Run the prompt without a cache, then with ``config.cache``. Errors of both are raised."""
    start = perf_counter()
    report("load")
    notes: list[str] = []
    subject = Subject(config, notes)
    assert subject.tokenizer is not None, "checked before the run"
    passes = [
        _run_pass(subject, config.engine, cache, report)
        for cache in (CacheConfig(kind="none"), config.cache)
    ]
    device = subject.device.type
    threads = f", threads {torch.get_num_threads()}" if device == "cpu" else ""
    kinds = f"{config.precision.kind}, {config.engine.kind}"
    return Race(
        prompt=subject.tokenizer.decode(subject.prompt[0].tolist()),
        prompt_tokens=subject.prompt.shape[1],
        setting=f"{config.checkpoint} on {device}{threads}, {kinds}",
        window=config.model.context_length,
        without=passes[0],
        cached=passes[1],
        measured_s=perf_counter() - start,
        notes=notes,
        exact=CACHES[config.cache.kind].exact,
    )


def _run_pass(subject: Subject, engine: EngineConfig, cache: CacheConfig, report: Report) -> Pass:
    """One pass over the prompt (1, P), timed step by step after a warm-up."""
    prompt, new_tokens = subject.prompt, subject.config.length.new_tokens
    ran = fed(cache.kind, prompt.shape[1], new_tokens, subject.config.model.context_length)
    greedy = subject.sampler(SamplerConfig())
    generation = Generation(subject, subject.engine(engine, cache), greedy)
    name = pass_name(cache.kind)
    report(f"{name}: warm-up")
    start = perf_counter()
    generation.reset()
    steps = _warm_up(generation.engine, cache.kind, prompt, ran, greedy)
    subject.synchronize()
    expected_s = (perf_counter() - start) / steps * new_tokens

    def generate(on_token: OnToken) -> None:
        on_token(prompt[:, 0])  # the gap from here to the first new token is the prefill
        generation(on_token)

    report(f"{name}: {new_tokens:,} tokens, about {max(1.0, expected_s):,.0f} s")
    step_s = timing.traced_gaps(generate, subject.synchronize)
    greedy.check()
    new_ids = generation.ids[0, prompt.shape[1] :].tolist()
    assert subject.tokenizer is not None, "checked before the run"
    pieces = [subject.tokenizer.decode_bytes([token_id]) for token_id in new_ids]
    return Pass(cache.kind, step_s, ran, new_ids, pieces)


def _warm_up(engine: Engine, kind: str, prompt: Tensor, ran: list[int], pick: Pick) -> int:
    """Use everything that the pass will use, before it is timed; returns the number of steps run.

    A whole pass without a cache takes too long, so one step is run at every 16th of its lengths and
    at the last one.
    """
    if kind != "none":
        steps = min(len(ran), _WARM_UP_STEPS)
        engine.generate(prompt, steps, pick, never_stop)
        return steps
    text = prompt.repeat(1, -(-ran[-1] // prompt.shape[1]))
    lengths = [*range(ran[0], ran[-1], _WARM_UP_STRIDE), ran[-1]]
    for length in lengths:
        engine.generate(text[:, :length], 1, pick, never_stop)
    return len(lengths)


def speed(race: Race) -> float:
    """How many times faster than true the replay is, to stay within ``WHOLE_S`` if possible."""
    left_s = max(WHOLE_S - race.measured_s, MIN_REPLAY_S)
    return max(1.0, math.ceil(10 * race.slower_s / left_s) / 10)


def replay(
    race: Race,
    draw: Callable[[float], None],
    factor: float = 1.0,
    clock: Callable[[], float] = perf_counter,
    wait: Callable[[float], None] = sleep,
) -> None:
    """Call ``draw`` frame by frame with the seconds since both started, until both are done."""
    start, at_s = clock(), 0.0
    while at_s < race.slower_s:
        draw(at_s)
        wait(min(FRAME_S, (race.slower_s - at_s) / factor))
        at_s = (clock() - start) * factor
    draw(race.slower_s)
