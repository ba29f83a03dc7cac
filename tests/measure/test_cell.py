"""One cell: what it leaves behind, what identifies it, and what becomes of what goes wrong."""

import dataclasses
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from runners.harness.config.conversion import to_dict
from runners.harness.config.schema import (
    BatchConfig,
    BenchConfig,
    DeviceConfig,
    LengthConfig,
    PromptConfig,
    TimingConfig,
    TrackingConfig,
)
from runners.harness.machine import environment, system
from runners.harness.measure import cell, fingerprint, gate, memory, subject
from runners.harness.measure.cell import run_cell
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.disk import Place
from tests.live_bytes import LiveBytes
from tinygpt.checkpoint import random_model
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig, SamplerConfig

NANO = ModelConfig(
    context_length=64, n_layers=2, d_model=64, n_heads=4, n_kv_heads=4, head_dim=16, d_ff=176
)
QUICK = TimingConfig(min_repeats=1, max_repeats=2, budget_s=5.0)
ONCE: dict[str, Any] = {
    "timing": TimingConfig(budget_s=0.0),
    "length": LengthConfig(new_tokens=1),
    "sampler": SamplerConfig(temperature=1.0),
}
"""Little to do where threads crowd each other."""


def config(**changes: Any) -> BenchConfig:
    """A nano cell of 8 new tokens on one thread."""
    parts: dict[str, Any] = {
        "model": NANO,
        "device": DeviceConfig(threads=1),
        "length": LengthConfig(new_tokens=8),
        "timing": QUICK,
        "tracking": TrackingConfig(dir="unused"),
    }
    return BenchConfig(**parts | changes)


def new_ids(measured: CellResult) -> list[list[int]]:
    assert measured.outcome == "ok", measured.reason
    return [row["new_ids"] for row in measured.generations]


SAMPLED = SamplerConfig(temperature=1.0)
CACHES = {kind: CacheConfig(kind=kind) for kind in ("none", "rolling", "static")}


@pytest.fixture(scope="module")
def plain() -> CellResult:
    """The plain cell, measured once."""
    return run_cell(config())


def test_an_ok_cell_has_the_contracts_figures(plain: CellResult) -> None:
    assert (plain.outcome, plain.reason, plain.notes, plain.error) == ("ok", "", [], "")
    wanted = (
        "output_tok_per_s decode_tok_per_s prefill_tok_per_s ttft_ms tpot_ms e2e_ms itl_ms_p50 "
        "kv_cache_bytes kv_cache_bytes_formula weights_bytes load_s warmup_s reference_ms repeats "
        "gate_max_difference gate_ties"
    )
    assert set(wanted.split()) <= set(plain.metrics)
    assert plain.metrics["weights_bytes"] == 362_816 * 4
    held = 8 + 8 - 1  # the last token is never fed
    assert plain.metrics["kv_cache_bytes_formula"] == 2 * 2 * held * 4 * 16 * 4
    assert plain.metrics["kv_cache_bytes"] == plain.metrics["kv_cache_bytes_formula"]
    assert plain.metrics["gate_max_difference"] < 1e-4
    assert all(value >= 0 for value in plain.metrics.values())


def test_every_raw_second_is_kept_apart_from_the_traced_pass(plain: CellResult) -> None:
    assert len(plain.timings["e2e_s"]) == len(plain.timings["ttft_s"]) == plain.metrics["repeats"]
    assert len(plain.timings["itl_s"]) == 7  # of one pass: the gaps between 8 tokens
    rates = json.loads(plain.tags["tinygpt.rates"])
    assert rates == pytest.approx([8 / seconds for seconds in plain.timings["e2e_s"]], rel=1e-5)


def test_an_expensive_traced_pass_is_left_out() -> None:
    measured = run_cell(config(timing=TimingConfig(budget_s=0.0)))
    assert measured.metrics["repeats"] == 1
    assert "itl_s" not in measured.timings
    assert "itl_ms_p50" not in measured.metrics


def test_generations_hold_prompt_and_new_ids(plain: CellResult) -> None:
    (row,) = plain.generations
    assert (len(row["prompt_ids"]), len(row["new_ids"])) == (8, 8)
    assert all(0 <= token < NANO.vocab_size for token in row["prompt_ids"] + row["new_ids"])
    assert plain.tags["tinygpt.tokens_sha256"] == fingerprint.sha256([row["new_ids"]])


@pytest.mark.parametrize("sampler", [SamplerConfig(), SAMPLED], ids=["greedy", "t1.0"])
def test_b2_no_cache_changes_what_the_next_cell_gives(sampler: SamplerConfig) -> None:
    there = {
        kind: new_ids(run_cell(config(cache=CACHES[kind], sampler=sampler))) for kind in CACHES
    }
    back = {
        kind: new_ids(run_cell(config(cache=CACHES[kind], sampler=sampler)))
        for kind in reversed(CACHES)
    }
    assert there == back
    assert there["none"] == there["rolling"] == there["static"]


def test_b2_a_cell_puts_everything_back() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for wanted in (threads + 1, 1):
        measured = run_cell(config(device=DeviceConfig(threads=wanted), **ONCE))
        assert measured.tags["tinygpt.threads"] == str(wanted)
        assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)
    assert gc.isenabled()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_threads_are_put_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    seen: list[int] = []

    def fail(*_: object) -> None:
        seen.append(torch.get_num_threads())
        raise RuntimeError("planted")

    monkeypatch.setattr(subject, "make_model", fail)
    assert run_cell(config(device=DeviceConfig(threads=threads + 1))).outcome == "failed"
    assert seen == [threads + 1]
    assert torch.get_num_threads() == threads


def test_by_default_a_cell_takes_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "usable_cores", lambda: 1)
    measured = run_cell(config(device=DeviceConfig()))
    assert measured.tags["tinygpt.threads"] == "1"
    assert measured.notes == []


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "usable_cores", lambda: 1)
    measured = run_cell(config(device=DeviceConfig(threads=2), **ONCE))
    assert measured.outcome == "ok"
    assert measured.notes == ["device.threads=2: only 1 cores are usable here"]


@pytest.mark.parametrize("sampler", [SamplerConfig(), SAMPLED], ids=["greedy", "t1.0"])
def test_row_0_is_the_same_at_any_batch(sampler: SamplerConfig) -> None:
    one = new_ids(run_cell(config(sampler=sampler)))
    four = new_ids(run_cell(config(sampler=sampler, batch=BatchConfig(size=4))))
    assert one[0] == four[0]
    assert len({tuple(row) for row in four}) == 4


def test_the_seed_decides_what_is_drawn() -> None:
    one, same, other = (new_ids(run_cell(config(sampler=SAMPLED, seed=s))) for s in (1, 1, 2))
    assert one == same != other


def test_bf16_passes_its_gate() -> None:
    measured = run_cell(config(precision=PrecisionConfig(kind="bf16")))
    assert measured.outcome == "ok", measured.reason
    assert measured.metrics["weights_bytes"] == 362_816 * 2


def test_int8_passes_the_gate_of_fp32_and_says_what_is_held() -> None:
    measured = run_cell(config(precision=PrecisionConfig(kind="int8")))
    assert measured.outcome == "ok", measured.reason
    assert measured.metrics["gate_max_difference"] < 1e-5
    assert measured.metrics["weights_bytes"] == 362_816 * 4  # eager runs what they stand for
    assert 362_816 < measured.metrics["weights_bytes_formula"] < 362_816 * 1.1
    assert measured.metrics["kv_cache_bytes"] == 2 * 2 * 15 * 4 * 16 * 4


def test_a_cell_says_its_share_of_the_limit(plain: CellResult) -> None:
    limit, tpot = plain.metrics["limit_ms"], plain.metrics["tpot_ms"]
    assert min(limit, tpot) > 0
    assert plain.metrics["limit_share"] == limit / tpot
    for other in (config(cache=CACHES["none"]), config(length=LengthConfig(new_tokens=1))):
        assert "limit_ms" not in run_cell(other).metrics


def test_a_cell_says_what_other_processes_took_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter([system.CpuTime(0.0, 2, 10.0, 1.0), system.CpuTime(4.0, 2, 16.0, 5.0)])
    monkeypatch.setattr(system, "cpu_time", lambda: next(moments))
    assert run_cell(config(**ONCE)).metrics["others_cpu_share"] == 0.25
    monkeypatch.setattr(system, "cpu_time", lambda: None)
    assert "others_cpu_share" not in run_cell(config(**ONCE)).metrics


def test_past_the_window_a_cell_is_ok() -> None:
    measured = run_cell(config(length=LengthConfig(new_tokens=70), cache=CACHES["static"]))
    assert len(new_ids(measured)[0]) == 70
    window = 2 * 2 * 64 * 4 * 16 * 4
    assert measured.metrics["kv_cache_bytes"] == window
    assert measured.metrics["kv_cache_bytes_formula"] == window


def test_no_new_tokens_give_the_prompt_back_and_no_rate() -> None:
    measured = run_cell(config(length=LengthConfig(new_tokens=0), batch=BatchConfig(size=2)))
    assert new_ids(measured) == [[], []]
    assert [len(row["prompt_ids"]) for row in measured.generations] == [8, 8]
    assert measured.timings == {}
    assert not [name for name in measured.metrics if name.endswith(("_per_s", "_ms_p50"))]
    assert not {"ttft_ms", "e2e_ms", "tpot_ms"} & set(measured.metrics)


def test_one_new_token_has_a_rate_and_no_decode_rate() -> None:
    measured = run_cell(config(length=LengthConfig(new_tokens=1)))
    assert len(new_ids(measured)[0]) == 1
    assert measured.metrics["output_tok_per_s"] > 0
    assert "decode_tok_per_s" not in measured.metrics


def test_a_prompt_longer_than_the_window_is_cut_and_noted() -> None:
    measured = run_cell(config(prompt=PromptConfig(tokens=100)))
    assert measured.notes == ["prompt of 100 tokens cut to its last 64"]
    assert len(measured.generations[0]["prompt_ids"]) == 64
    assert measured.tags["tinygpt.prompt_tokens"] == "64"
    whole: list[str] = []
    assert (
        len(subject.make_prompts(config(prompt=PromptConfig(tokens=64)), None, whole)[0][0]) == 64
    )
    assert whole == []


def test_the_cut_keeps_the_end_of_a_text() -> None:
    text = "".join(chr(97 + n % 26) for n in range(100))
    measured = run_cell(config(prompt=PromptConfig(text=text)))
    assert bytes(measured.generations[0]["prompt_ids"]).decode() == text[-64:]


def test_a_text_is_its_bytes_in_every_row() -> None:
    measured = run_cell(config(prompt=PromptConfig(text="né"), batch=BatchConfig(size=2)))
    assert [row["prompt_ids"] for row in measured.generations] == [[110, 195, 169]] * 2


def test_a_files_text_is_kept_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"cost ${x}\r\n and $5 \n")
    measured = run_cell(config(prompt=PromptConfig(file=str(path))))
    assert bytes(measured.generations[0]["prompt_ids"]) == path.read_bytes()


def test_a_byte_without_an_entry_fails_the_cell_in_one_line() -> None:
    small = dataclasses.replace(NANO, vocab_size=128)
    measured = run_cell(config(model=small, prompt=PromptConfig(text="né")))
    assert measured.outcome == "failed"
    assert "vocabulary of 128" in measured.reason
    assert "\n" not in measured.reason


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (RuntimeError("planted\nand more"), "failed", "RuntimeError: planted"),
        (KeyError(), "failed", "KeyError"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (MemoryError(), "oom", "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom", "OutOfMemoryError: CUDA out of"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom", "RuntimeError: Def"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_goes_wrong_becomes_the_outcome(
    error: BaseException, outcome: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(subject, "make_model", fail)
    measured = run_cell(config())
    assert measured.outcome == outcome
    assert measured.reason.startswith(reason)
    assert "\n" not in measured.reason
    assert measured.generations == []


def test_ctrl_c_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subject, "make_model", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_cell(config())


def test_a_failed_cell_carries_its_traceback_to_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(subject, "make_model", fail)
    place = Place(tmp_path / "cell", "id", None, 0, {"model": "nano"}, ["model=nano"])
    disk.begin(place, "bench", to_dict(config()))
    running = json.loads((place.folder / "cell.json").read_text())
    assert running["outcome"] == "running"
    assert {"host", "pid", "process_started", "started"} <= set(running)
    disk.finish(place, run_cell(config()))
    error = (place.folder / "error.txt").read_text()
    assert error.startswith("Traceback")
    assert "in fail" in error
    assert error.endswith("RuntimeError: planted\n")
    assert json.loads((place.folder / "cell.json").read_text())["outcome"] == "failed"


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_device_that_is_not_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    skipped = run_cell(config(device=DeviceConfig(kind=kind)))
    assert skipped.outcome == "skipped"
    assert kind.upper() in skipped.reason
    failed = run_cell(config(device=DeviceConfig(kind=kind, on_missing="fail")))
    assert (failed.outcome, failed.reason) == ("failed", skipped.reason)


def test_the_reason_tells_a_missing_gpu_from_a_torch_without_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert subject.missing_device("cuda").startswith("this torch is built without CUDA: ")
    assert "install" in subject.missing_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert subject.missing_device("cuda") == "no CUDA device"


def test_h9_a_cell_that_cannot_fit_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "available_bytes", lambda: 2_000_000_000)

    def never(*_: object) -> None:
        raise AssertionError("a cell that cannot fit must not be loaded")

    assert memory.memory_shortage(config(), torch.device("cpu")) == ""
    monkeypatch.setattr(subject, "make_model", never)
    measured = run_cell(config(batch=BatchConfig(size=100_000)))
    assert measured.outcome == "oom"
    assert "2.0 GB are free" in measured.reason
    assert "batch.size" in measured.reason


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"prompt": PromptConfig(tokens=2**31 - 1)}, "ids 34.4"),
        ({"length": LengthConfig(new_tokens=2**31 - 1)}, "ids 171.8"),
        ({"length": LengthConfig(new_tokens=10**8), "cache": CACHES["none"]}, "ids 8.0"),
        ({"prompt": PromptConfig(tokens=10**8), "batch": BatchConfig(size=4)}, "ids 6.4"),
    ],
    ids=["prompt", "new tokens", "without a cache", "rows"],
)
def test_everything_that_is_allocated_counts(
    changes: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "available_bytes", lambda: 4_000_000_000)
    monkeypatch.setattr(subject, "make_prompts", lambda *_: pytest.fail("it was not foreseen"))
    measured = run_cell(config(**changes))
    assert measured.outcome == "oom"
    assert what in measured.reason
    assert "prompt.tokens" in measured.reason


def test_the_host_counts_for_a_cell_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "available_bytes", lambda: 4_000_000_000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80_000_000_000, 80_000_000_000))
    long = config(prompt=PromptConfig(tokens=2**31 - 1))
    assert "4.0 GB are free" in memory.memory_shortage(long, torch.device("cuda"))
    assert memory.memory_shortage(config(), torch.device("cuda")) == ""


@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("sampler", [SamplerConfig(), SAMPLED])
@pytest.mark.parametrize("kind", CACHES)
def test_what_a_cell_needs_is_foreseen_to_a_small_factor(
    kind: str, sampler: SamplerConfig, batch: int
) -> None:
    """The tensors alive at once, weights and gate included, against the estimate."""
    cell = config(
        model=ModelConfig(n_layers=2),
        cache=CACHES[kind],
        sampler=sampler,
        batch=BatchConfig(size=batch),
        length=LengthConfig(new_tokens=20),
    )
    with LiveBytes() as counted:
        assert run_cell(cell).outcome == "ok"
    assert counted.peak < memory.needed_bytes(cell).total < 4 * counted.peak


@pytest.mark.parametrize(
    "bigger",
    [
        {"prompt": PromptConfig(tokens=48)},
        {"prompt": PromptConfig(text="a" * 48)},
        {"length": LengthConfig(new_tokens=56)},
        {"batch": BatchConfig(size=64)},
    ],
    ids=["random ids", "text", "length", "batch"],
)
def test_what_a_cell_needs_grows_with_its_prompt_length_and_batch(
    bigger: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(**changes: Any) -> float:
        cell_config = config(**{"batch": BatchConfig(size=32), "cache": CACHES["static"]} | changes)
        low, high = 0.0, 1e12
        for _ in range(60):
            middle = (low + high) / 2
            monkeypatch.setattr(system, "available_bytes", lambda at=middle: int(at))
            short = memory.memory_shortage(cell_config, torch.device("cpu"))
            low, high = (middle, high) if short else (low, middle)
        return high

    assert needed(**bigger) > 1.05 * needed()


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": dataclasses.replace(NANO, rope_base=500.0)},
    "window": {"model": dataclasses.replace(NANO, context_length=32)},
    "batch": {"batch": BatchConfig(size=2)},
    "length": {"length": LengthConfig(new_tokens=9)},
    "cache": {"cache": CACHES["static"]},
    "sampler": {"sampler": SAMPLED},
    "precision": {"precision": PrecisionConfig(kind="bf16")},
    "prompt": {"prompt": PromptConfig(tokens=9)},
    "text": {"prompt": PromptConfig(text="another")},
    "seed": {"seed": 2},
    "round": {"round": 2},
    "device": {"device": DeviceConfig(kind="mps", threads=1)},
}
CHANGES_NOTHING: dict[str, dict[str, Any]] = {
    "timing": {"timing": TimingConfig(min_repeats=3)},
    "tracking": {"tracking": TrackingConfig(dir="elsewhere", uri="http://127.0.0.1:9")},
    "on_missing": {"device": DeviceConfig(threads=1, on_missing="fail")},
    "threads by default": {"device": DeviceConfig()},
}


@pytest.fixture
def cell_hash(monkeypatch: pytest.MonkeyPatch) -> Callable[[BenchConfig], str]:
    """The hash of a cell, under one thread."""
    model = random_model(NANO, 1)  # the weights' own share has a test of its own
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def cell_hash(config: BenchConfig) -> str:
        [prompt] = subject.make_prompts(config, None, [])
        return fingerprint.tags(config, model, prompt.tolist())["tinygpt.cell_hash"]

    return cell_hash


@pytest.mark.parametrize("what", CHANGES)
def test_cell_hash_changes_with_what_changes_tokens_or_time(
    what: str, cell_hash: Callable[[BenchConfig], str]
) -> None:
    assert cell_hash(config(**CHANGES[what])) != cell_hash(config())


@pytest.mark.parametrize("what", CHANGES_NOTHING)
def test_cell_hash_is_that_of_the_cell_not_of_how_it_is_kept(
    what: str, cell_hash: Callable[[BenchConfig], str]
) -> None:
    assert cell_hash(config(**CHANGES_NOTHING[what])) == cell_hash(config())


def test_cell_hash_follows_weights_threads_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def hash_of(seed: int) -> str:
        [prompt] = subject.make_prompts(config(), None, [])
        return fingerprint.tags(config(), random_model(NANO, seed), prompt.tolist())[
            "tinygpt.cell_hash"
        ]

    one = hash_of(1)
    assert hash_of(1) == one
    assert hash_of(2) != one
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert hash_of(1) != one
    monkeypatch.undo()
    monkeypatch.setattr(environment, "code", lambda: {"sha256": "changed"})
    assert hash_of(1) != one


def test_a_prompt_is_identified_by_its_ids_not_by_where_they_came_from(
    tmp_path: Path, cell_hash: Callable[[BenchConfig], str]
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Holmes", encoding="utf-8")
    from_file = cell_hash(config(prompt=PromptConfig(file=str(path))))
    assert cell_hash(config(prompt=PromptConfig(text="Holmes"))) == from_file


def test_tokens_sha256_is_of_the_new_ids_alone() -> None:
    measured = [run_cell(config(sampler=SAMPLED, seed=seed)) for seed in (1, 2)]
    assert len({m.tags["tinygpt.tokens_sha256"] for m in measured}) == 2
    rerun = run_cell(config(sampler=SAMPLED, cache=CACHES["none"], round=2))
    assert rerun.tags["tinygpt.tokens_sha256"] == measured[0].tags["tinygpt.tokens_sha256"]
    assert rerun.tags["tinygpt.cell_hash"] != measured[0].tags["tinygpt.cell_hash"]


def test_a_mismatch_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "check", lambda *_: gate.GateResult(0.5, 0, "logits differ by 0.5"))
    monkeypatch.setattr(cell, "_measure", lambda *_: pytest.fail("timed all the same"))
    measured = run_cell(config())
    assert (measured.outcome, measured.reason) == ("mismatch", "logits differ by 0.5")
    assert measured.metrics["gate_max_difference"] == 0.5
    assert measured.timings == {}
    assert "tinygpt.rates" not in measured.tags


def test_nan_logits_while_timing_fail_the_cell_naming_the_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "check", lambda *_: gate.GateResult(0.0, 0, ""))
    model = random_model(NANO, 1)
    with torch.no_grad():
        model.emb.weight[:] = float("nan")
    monkeypatch.setattr(subject, "make_model", lambda *_: model)
    measured = run_cell(config(sampler=SAMPLED))
    assert measured.outcome == "failed"
    assert measured.reason.startswith("ValueError: row 0: the logits were NaN")
    assert "Traceback" in measured.error
    assert measured.error.count("Traceback") == 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak")
def test_h9_what_is_used_is_foreseen_to_a_half() -> None:
    run_cell(config())  # first use
    big = config(batch=BatchConfig(size=256), length=LengthConfig(new_tokens=32))
    before = psutil.Process().memory_info().rss
    environment.reset_peak_memory("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "reset_peak_memory", lambda _: None)  # the gate counts as well
        assert run_cell(big).outcome == "ok"
    peak = environment.peak_memory_bytes("cpu")
    assert peak is not None
    enough = (peak - before) // 2  # an allocator takes up to a third more than it gives
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "available_bytes", lambda: enough)
        assert memory.memory_shortage(big, torch.device("cpu"))
