"""The clock: where it waits, how long it goes on, and what its seconds come to."""

import gc
import itertools
import json
from collections.abc import Callable

import pytest
import torch

from runners.harness.config.schema import BatchConfig, BenchConfig, LengthConfig, TimingConfig
from runners.harness.measure import timing
from runners.harness.measure.metrics import summarise
from runners.harness.measure.result import CellResult

QUICK = TimingConfig(min_repeats=1, max_repeats=3, interval=0.05, budget_s=5.0)
STANDARD = TimingConfig()


class Clock:
    """A perf_counter that only moves when told to, and a device that notes when it is awaited."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waited_at: list[float] = []

    def __call__(self) -> float:
        return self.now

    def synchronize(self) -> None:
        self.waited_at.append(self.now)

    def generation(self, steps: list[float]) -> Callable[[timing.OnToken], None]:
        """A generation whose tokens take ``steps`` seconds."""

        def generate(on_token: timing.OnToken) -> None:
            for seconds in steps:
                self.now += seconds
                on_token(torch.zeros(1))

        return generate

    def repeats(self, seconds: list[float]) -> Callable[[timing.OnToken], None]:
        """Generations of one token that take ``seconds``, in turn and over again."""
        turns = itertools.cycle(seconds)
        return lambda on_token: self.generation([next(turns)])(on_token)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


def no_report(repeat: int) -> None:
    """Nobody watches."""


def test_b1_a_repeat_waits_at_its_start_its_first_token_and_its_end(clock: Clock) -> None:
    ttft, e2e = timing.timed_repeat(clock.generation([2.0, 1.0, 1.0, 1.0]), clock.synchronize)
    assert clock.waited_at == [1000.0, 1002.0, 1005.0]
    assert (ttft, e2e) == (2.0, 5.0)


def test_b1_a_repeat_of_one_token_waits_thrice_as_well(clock: Clock) -> None:
    assert timing.timed_repeat(clock.generation([2.0]), clock.synchronize) == (2.0, 2.0)
    assert clock.waited_at == [1000.0, 1002.0, 1002.0]


def test_b1_waiting_is_part_of_what_is_timed(clock: Clock) -> None:
    def device_finishes_later() -> None:
        clock.now += 0.5

    ttft, e2e = timing.timed_repeat(clock.generation([1.0, 1.0]), device_finishes_later)
    assert (ttft, e2e) == (1.5, 3.0)  # the wait at the start is not: 1 + 0.5, 1 + 0.5 + 1 + 0.5


def test_b1_repeats_wait_three_times_each(clock: Clock) -> None:
    repeats = timing.measure(clock.generation([0.25] * 4), clock.synchronize, QUICK, no_report)
    assert len(repeats.e2e_s) == 3
    assert len(clock.waited_at) == 9


def test_every_raw_second_is_kept(clock: Clock) -> None:
    generate = clock.repeats([0.25, 0.5, 1.0])
    repeats = timing.measure(generate, clock.synchronize, QUICK, no_report)
    assert repeats.e2e_s == [0.25, 0.5, 1.0]
    assert repeats.ttft_s == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("seconds", "n"),
    [(0.0625, 3), (2.0, 3), (2.5, 3), (2.625, 2), (3.0, 2), (5.0, 2), (5.25, 1), (60.0, 1)],
)
def test_quick_stops_at_three_or_before_five_seconds_beyond_the_first(
    clock: Clock, seconds: float, n: int
) -> None:
    repeats = timing.measure(clock.repeats([seconds]), clock.synchronize, QUICK, no_report)
    assert repeats.e2e_s == [seconds] * n


@pytest.mark.parametrize(
    ("seconds", "n"),
    [(0.125, 5), (6.0, 5), (8.0, 4), (10.0, 4), (12.0, 3), (30.0, 2), (31.0, 1)],
)
def test_standard_wants_five_and_the_budget_wins_over_the_count(
    clock: Clock, seconds: float, n: int
) -> None:
    repeats = timing.measure(clock.repeats([seconds]), clock.synchronize, STANDARD, no_report)
    assert len(repeats.e2e_s) == n


def test_repeats_go_on_until_the_interval_is_narrow(clock: Clock) -> None:
    settling = [1.0, 1.25, 0.75, 1.25, 0.75, *[1.0] * 100]
    repeats = timing.measure(clock.repeats(settling), clock.synchronize, STANDARD, no_report)
    assert 5 < len(repeats.e2e_s) < 29


def test_a_wide_interval_uses_the_budget_up_and_no_more(clock: Clock) -> None:
    repeats = timing.measure(clock.repeats([1.0, 2.0]), clock.synchronize, STANDARD, no_report)
    spent = sum(repeats.e2e_s[1:])
    assert STANDARD.budget_s - 2.0 < spent <= STANDARD.budget_s


def test_the_slowest_repeat_decides_whether_another_fits(clock: Clock) -> None:
    config = TimingConfig(min_repeats=5, max_repeats=200, interval=0.05, budget_s=9.0)
    repeats = timing.measure(clock.repeats([4.0, 1.0]), clock.synchronize, config, no_report)
    assert repeats.e2e_s == [4.0, 1.0, 4.0, 1.0]  # 6 s are spent, another may take 4


def test_max_repeats_ends_a_fast_and_restless_cell(clock: Clock) -> None:
    config = TimingConfig(min_repeats=5, max_repeats=9, interval=0.05, budget_s=30.0)
    repeats = timing.measure(clock.repeats([0.01, 0.02]), clock.synchronize, config, no_report)
    assert len(repeats.e2e_s) == 9


def test_no_budget_is_one_repeat(clock: Clock) -> None:
    config = TimingConfig(budget_s=0.0)
    repeats = timing.measure(clock.repeats([0.5]), clock.synchronize, config, no_report)
    assert repeats.e2e_s == [0.5]


def test_reports_are_made_outside_the_clock(clock: Clock) -> None:
    seen: list[int] = []

    def slow_report(repeat: int) -> None:
        clock.now += 100.0
        seen.append(repeat)

    repeats = timing.measure(clock.repeats([1.0]), clock.synchronize, QUICK, slow_report)
    assert seen == [1, 2, 3]
    assert repeats.e2e_s == [1.0] * 3


def test_garbage_collection_is_off_inside_a_repeat_and_on_again_after() -> None:
    inside: list[bool] = []

    def generate(on_token: timing.OnToken) -> None:
        inside.append(gc.isenabled())
        on_token(torch.zeros(1))

    timing.timed_repeat(generate, lambda: None)
    assert gc.isenabled()
    timing.traced_gaps(generate, lambda: None)
    assert gc.isenabled()
    assert inside == [False, False]


def test_garbage_collection_is_on_again_after_a_repeat_that_fails() -> None:
    def fail(on_token: timing.OnToken) -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        timing.timed_repeat(fail, lambda: None)
    assert gc.isenabled()


def test_garbage_collection_stays_off_for_whoever_turned_it_off() -> None:
    gc.disable()
    try:
        timing.timed_repeat(lambda on_token: on_token(torch.zeros(1)), lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_traced_pass_waits_at_every_token_and_leaves_the_prefill_out(clock: Clock) -> None:
    gaps = timing.traced_gaps(clock.generation([9.0, 1.0, 2.0, 4.0]), clock.synchronize)
    assert gaps == [1.0, 2.0, 4.0]
    assert clock.waited_at == [1009.0, 1010.0, 1012.0, 1016.0]


def test_a_traced_pass_of_one_token_has_no_gap(clock: Clock) -> None:
    assert timing.traced_gaps(clock.generation([9.0]), clock.synchronize) == []


def test_a_hiccup_is_no_drift_of_the_reference(clock: Clock) -> None:
    """24 products of 2 ms each, and one of them held up for a second."""

    def synchronize() -> None:
        clock.synchronize()
        clock.now += 1.0 if len(clock.waited_at) == 10 else 0.002

    assert timing.reference_ms(torch.device("cpu"), synchronize) == pytest.approx(48.0)
    assert len(clock.waited_at) == 1 + 24


def measured(batch: int, new: int, **timings: list[float]) -> CellResult:
    result = CellResult("ok", timings=timings)
    config = BenchConfig(batch=BatchConfig(size=batch), length=LengthConfig(new_tokens=new))
    summarise(config, result, prompt_tokens=8)
    return result


def test_b3_16_rows_of_64_tokens_in_half_a_second_are_2048_a_second() -> None:
    figures = measured(16, 64, ttft_s=[0.1], e2e_s=[0.5]).metrics
    assert figures["output_tok_per_s"] == 2048.0
    assert figures["e2e_ms"] == 500.0
    assert figures["ttft_ms"] == 100.0
    assert figures["repeats"] == 1
    assert figures["prefill_tok_per_s"] == pytest.approx(16 * 8 / 0.1)
    assert figures["decode_tok_per_s"] == pytest.approx(16 * 63 / 0.4)
    assert figures["tpot_ms"] == pytest.approx(400 / 63)


def test_b4_the_reported_rate_is_the_median_of_the_repeats() -> None:
    result = measured(1, 100, ttft_s=[0.5, 0.5, 1.0], e2e_s=[1.0, 1.0, 2.0])
    assert result.metrics["output_tok_per_s"] == 100.0
    assert json.loads(result.tags["tinygpt.rates"]) == [100.0, 100.0, 50.0]


def test_the_figures_of_a_cell_belong_together() -> None:
    figures = measured(1, 150, ttft_s=[0.2, 0.4], e2e_s=[1.0, 2.0]).metrics
    assert figures["e2e_ms"] == 1500.0
    assert figures["output_tok_per_s"] == pytest.approx(100.0)  # 150 / 1.5, and not (150 + 75) / 2
    assert figures["prefill_tok_per_s"] == pytest.approx(8 / 0.3)
    assert figures["decode_tok_per_s"] == pytest.approx(149 / 1.2)
    assert figures["decode_tok_per_s"] == pytest.approx(1e3 / figures["tpot_ms"])


def test_one_new_token_has_no_decode_figures() -> None:
    figures = measured(2, 1, ttft_s=[0.5], e2e_s=[0.5]).metrics
    assert figures["output_tok_per_s"] == 4.0
    assert not {"tpot_ms", "decode_tok_per_s"} & set(figures)


def test_nothing_timed_gives_no_figures() -> None:
    result = measured(2, 0)
    assert result.metrics == {}
    assert result.tags == {}


def test_what_the_sample_does_not_support_is_left_out() -> None:
    few = measured(1, 9, ttft_s=[0.1] * 4, e2e_s=[0.5] * 4, itl_s=[0.05] * 8)
    assert few.metrics["itl_ms_p50"] == pytest.approx(50.0)
    assert not {"itl_ms_p90", "itl_ms_p99", "output_tok_per_s_low"} & set(few.metrics)
    assert few.tags["tinygpt.stable"] == "false"
    many = measured(1, 9, ttft_s=[0.1] * 5, e2e_s=[0.5] * 5, itl_s=[0.05] * 64)
    assert {"itl_ms_p90", "output_tok_per_s_low", "output_tok_per_s_high"} <= set(many.metrics)
    assert many.tags["tinygpt.stable"] == "true"


def test_the_traced_pass_does_not_touch_the_headline() -> None:
    plain = measured(1, 9, ttft_s=[0.1], e2e_s=[0.5]).metrics
    traced = measured(1, 9, ttft_s=[0.1], e2e_s=[0.5], itl_s=[9.9] * 8).metrics
    assert {k: v for k, v in traced.items() if not k.startswith("itl_")} == plain
