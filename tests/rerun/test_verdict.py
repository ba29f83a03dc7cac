"""The verdict on a rerun: tokens and time, against an old run that is planted."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from runners.harness.machine.processes import Owner
from runners.harness.measure.result import CellResult
from runners.harness.rerun import verdict
from runners.harness.rerun.original import Original
from runners.harness.rerun.verdict import Verdict, first_difference
from runners.harness.store.records import CellRecord

HERE = {"tinygpt.machine": "a cpu x2", "tinygpt.threads": "1", "tinygpt.torch": "2.0"}
TWO = [
    {"prompt_ids": [1, 2, 3], "new_ids": [10, 11, 12, 13]},
    {"prompt_ids": [4, 5, 6], "new_ids": [20, 21, 22, 23]},
]
STEADY = [100.0, 100.1, 99.9, 100.2, 99.8, 100.0, 100.1, 99.9]
Changed = dict[str, tuple[Any, Any]]


class Old:
    """An old run of planted results, against which new ones are judged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kind = "bench"
        self.record: CellRecord | None = self.result()

    def result(self, outcome: str = "ok", reason: str = "") -> CellRecord:
        """What it came to, measured in the same place."""
        return CellRecord(
            **asdict(Owner.here()),
            kind=self.kind,
            started=0.0,
            cell="abcd1234",
            sweep=None,
            choices={},
            outcome=outcome,
            reason=reason,
            tags={**HERE},
        )

    @property
    def tags(self) -> dict[str, str]:
        assert self.record
        return self.record.tags

    @property
    def metrics(self) -> dict[str, float]:
        assert self.record
        return self.record.metrics

    def judge(self, new: CellResult, changed: Changed | None = None) -> Verdict:
        original = Original("abcd1234", self.kind, {}, lambda name: self.folder / name, self.record)
        return verdict.judge(original, changed or {}, [], new)

    def rows(self, rows: list[dict[str, Any]]) -> None:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (self.folder / "generations.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def old(tmp_path: Path) -> Old:
    """One that made TWO."""
    found = Old(tmp_path)
    found.rows(TWO)
    return found


def new(rows: list[dict[str, Any]] = TWO, **tags: str) -> CellResult:
    """A result with those rows, made in the same place but for ``tags``."""
    own = {f"tinygpt.{name}": value for name, value in tags.items()}
    return CellResult("ok", tags=HERE | own, generations=rows)


def with_ids(*ids: list[int]) -> list[dict[str, Any]]:
    """TWO with other new ids."""
    return [{**row, "new_ids": new_ids} for row, new_ids in zip(TWO, ids, strict=False)]


# tokens


def test_equal_tokens_are_identical_and_counted(old: Old) -> None:
    judged = old.judge(new())
    assert (judged.tokens, judged.tokens_said) == ("identical", "2 rows of 4 new tokens")
    assert judged.reproduced
    old.rows(TWO[:1])
    assert old.judge(new(TWO[:1])).tokens_said == "1 row of 4 new tokens"


def test_the_first_difference_is_told_with_row_token_and_position(old: Old) -> None:
    judged = old.judge(new(with_ids([10, 11, 12, 13], [20, 21, 99, 98])))
    assert judged.tokens == "different"
    assert not judged.reproduced
    assert judged.tokens_said == (
        "row 1 parts at new token 2 (position 5 with the prompt): 22 before, 99 now"
    )


def test_the_first_row_that_parts_is_told_however_late_it_does() -> None:
    found = first_difference(TWO, with_ids([10, 11, 12, 0], [0, 21, 22, 23]))
    assert found is not None
    assert found.startswith("row 0 parts at new token 3 (position 6 with the prompt)")
    assert first_difference(TWO, TWO) is None


@pytest.mark.parametrize("shorter", [2, 6], ids=["fewer", "more"])
def test_of_another_length_the_tokens_that_both_have_are_compared(shorter: int, old: Old) -> None:
    changed = {"length.new_tokens": (4, shorter)}
    rows = with_ids(*[[*row["new_ids"], 7, 7][:shorter] for row in TWO])
    judged = old.judge(new(rows), changed)
    assert (judged.tokens, judged.tokens_said) == (
        "identical",
        f"2 rows of {min(4, shorter)} new tokens",
    )
    assert old.judge(new(with_ids([10, 99])), changed).tokens == "different"
    assert judged.changed_by_command == [f"length.new_tokens 4 -> {shorter}"]


def test_a_text_that_ends_elsewhere_is_different_unless_that_was_asked_for(old: Old) -> None:
    judged = old.judge(new(with_ids([10, 11, 12, 13], [20, 21])))
    assert judged.tokens == "different"
    assert judged.tokens_said == "row 1 ends after 4 new tokens before, 2 now"


@pytest.mark.parametrize("n", [1, 3], ids=["fewer", "more"])
def test_of_another_batch_the_rows_that_both_have_are_compared(n: int, old: Old) -> None:
    three = [*TWO, {"prompt_ids": [7, 8, 9], "new_ids": [30, 31, 32, 33]}]
    judged = old.judge(new(three[:n]), {"batch.size": (2, n)})
    assert judged.tokens == "identical"
    assert judged.tokens_said.startswith(f"{min(n, 2)} row")
    assert old.judge(new(three[:n])).tokens_said == f"2 rows before, {n} now"


@pytest.mark.parametrize("key", ["sampler.temperature", "seed", "model.n_layers", "prompt.text"])
def test_what_changes_the_task_leaves_nothing_to_compare(key: str, old: Old) -> None:
    changed = {key: (0, 1), "length.new_tokens": (4, 2)}
    judged = old.judge(new(with_ids([0, 0], [0, 0])), changed)
    assert (judged.tokens, judged.tokens_said) == ("not comparable", f"the command changes {key}")
    assert judged.reproduced


@pytest.mark.parametrize(
    "changed",
    [
        {"device.kind": ("cpu", "cuda")},
        {"device.threads": (1, 2)},
        {"cache.kind": ("rolling", "static")},
        {"engine.kind": ("eager", "compiled")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_m6_other_arithmetic_is_equal_or_not_comparable_and_never_different(
    changed: Changed, old: Old
) -> None:
    (key,) = changed
    assert old.judge(new(), changed).tokens == "identical"
    judged = old.judge(new(with_ids([10, 11, 12, 13], [99, 21, 22, 23])), changed)
    assert judged.tokens == "not comparable"
    assert judged.tokens_said.startswith("row 1 parts at new token 0 (position 3 with the prompt)")
    assert judged.tokens_said.endswith(f"which {key} may bring about by rounding")
    assert judged.reproduced


@pytest.mark.parametrize(
    ("name", "value"), [("machine", "another cpu x8"), ("threads", "8"), ("torch", "3.0")]
)
def test_m6_on_another_machine_tokens_that_differ_are_not_comparable(
    name: str, value: str, old: Old
) -> None:
    assert old.judge(new(**{name: value})).tokens == "identical"
    judged = old.judge(new(with_ids([10, 11, 12, 99]), **{name: value}))
    assert judged.tokens == "not comparable"
    assert f"another {name} may" in judged.tokens_said


def test_a_change_of_batch_or_length_excuses_no_difference(old: Old) -> None:
    changed = {"batch.size": (2, 1), "length.new_tokens": (4, 3), "timing.min_repeats": (1, 2)}
    assert old.judge(new(with_ids([10, 11, 99])), changed).tokens == "different"


@pytest.mark.parametrize(
    "changed", [{}, {"batch.size": (2, 1)}, {"device.kind": ("cpu", "cuda")}], ids=str
)
def test_other_weights_or_prompts_leave_nothing_to_compare(changed: Changed, old: Old) -> None:
    old.tags["tinygpt.weights_sha256"] = "before"
    judged = old.judge(new(with_ids([99]), weights_sha256="now"), changed)
    assert (judged.tokens, judged.tokens_said) == (
        "not comparable",
        "the weights are not the old one's",
    )
    other_prompt = [{"prompt_ids": [1, 2, 0], "new_ids": [99]}]
    judged = old.judge(new(other_prompt, weights_sha256="before"), changed)
    assert (judged.tokens, judged.tokens_said) == (
        "not comparable",
        "the prompt is not the old one's",
    )


def test_a_text_may_hold_what_some_take_for_the_end_of_a_line(old: Old) -> None:
    rows = [{"prompt_ids": [1], "new_ids": [2, 3], "text": "a\u2028b\x85c"}]
    old.rows(rows)
    assert old.judge(new(rows)).tokens_said == "1 row of 2 new tokens"


@pytest.mark.parametrize("content", [None, "", '{"new_ids": [1', "[]\n{"], ids=repr)
def test_without_the_old_rows_nothing_is_identical(content: str | None, old: Old) -> None:
    path = old.folder / "generations.jsonl"
    path.unlink() if content is None else path.write_text(content)
    judged = old.judge(new())
    assert judged.tokens == "not comparable"
    assert "generations.jsonl" in judged.tokens_said
    assert old.judge(new([])).tokens == "not comparable"


def test_where_no_token_is_made_none_is_identical(old: Old) -> None:
    old.rows(with_ids([], []))
    for rows, changed in (
        (with_ids([], []), {}),
        (with_ids([1], [2]), {"length.new_tokens": (0, 1)}),
    ):
        judged = old.judge(new(rows), changed)
        assert judged.tokens == "not comparable"
        assert "no new tokens" in judged.tokens_said
    assert old.judge(new(with_ids([1], []))).tokens == "different"


def test_a_run_that_is_not_ok_is_not_judged(old: Old) -> None:
    skipped = CellResult("skipped", "no CUDA device")
    said = "this run is skipped: no CUDA device"
    judged = old.judge(skipped, {"device.kind": ("cpu", "cuda")})
    assert (judged.tokens, judged.tokens_said) == ("not comparable", said)
    assert (judged.timing, judged.timing_said) == ("not comparable", said)
    assert judged.reproduced
    old.record = old.result("oom", "needs about 9 GB")
    assert old.judge(new()).tokens_said == "the old run is oom: needs about 9 GB"
    old.record = None
    assert old.judge(new()).tokens_said == "there is no result beside the config"


def test_a_verify_run_that_found_its_fault_is_judged_all_the_same(old: Old) -> None:
    old.kind, old.record = "verify", old.result("mismatch")
    found = new()
    found.outcome = "mismatch"
    judged = old.judge(found)
    assert judged.tokens == "identical"
    assert judged.timing_said == "runs of kind verify are not timed"
    old.kind = "bench"
    assert old.judge(new()).tokens_said == "the old run is mismatch: "


# time


def timed(old: Old, before: list[float], now: list[float], changed: Changed | None = None) -> Any:
    old.tags["tinygpt.rates"] = json.dumps(before)
    return old.judge(new(rates=json.dumps(now)), changed)


@pytest.mark.parametrize(
    ("factor", "wanted"), [(1.0, "same"), (1.01, "same"), (1.15, "faster"), (0.85, "slower")]
)
def test_the_new_rate_over_the_old_one_is_judged(factor: float, wanted: str, old: Old) -> None:
    judged = timed(old, STEADY, [rate * factor for rate in STEADY])
    assert judged.timing == wanted
    assert judged.timing_said.startswith(f"{factor:.3f} times the old rate, 99 % interval ")
    assert judged.timing_said.endswith("(8 repeats against 8)")
    low, high = (float(word) for word in judged.timing_said.split()[8:11:2])
    assert low <= factor <= high
    assert judged.reproduced  # time is told, and fails nothing


def test_rates_that_scatter_or_are_few_are_unclear(old: Old) -> None:
    assert timed(old, STEADY, [90.0, 110.0] * 4).timing == "unclear"
    judged = timed(old, STEADY[:3], [200.0, 201.0])
    assert judged.timing == "unclear"
    assert judged.timing_said == "2.005 times the old rate (2 repeats against 3)"


def test_the_drift_of_the_machine_widens_the_interval(old: Old) -> None:
    old.metrics["reference_ms"] = 10.0
    old.tags["tinygpt.rates"] = json.dumps(STEADY)
    found = new(rates=json.dumps(STEADY))
    found.metrics["reference_ms"] = 10.0
    assert old.judge(found).timing == "same"
    found.metrics["reference_ms"] = 13.0
    assert old.judge(found).timing == "unclear"


def test_few_repeats_are_judged_on_a_quiet_machine_alone(old: Old) -> None:
    quiet = {"reference_ms": 10.0, "others_cpu_share": 0.02}
    old.metrics.update(quiet)
    old.tags["tinygpt.rates"] = json.dumps(STEADY)
    found = new(rates=json.dumps([40.0, 41.0, 42.0]))
    found.metrics |= quiet
    assert old.judge(found).timing == "slower"
    found.metrics["others_cpu_share"] = 0.5
    judged = old.judge(found)
    assert judged.timing == "unclear"
    assert judged.timing_said.endswith("(3 repeats against 8; noisy: load)")


@pytest.mark.parametrize(
    ("name", "value"), [("machine", "another cpu x8"), ("threads", "8"), ("torch", "3.0")]
)
def test_measured_elsewhere_the_time_is_told_with_it(name: str, value: str, old: Old) -> None:
    old.tags["tinygpt.rates"] = json.dumps(STEADY)
    judged = old.judge(new(rates=json.dumps([2 * r for r in STEADY]), **{name: value}))
    assert judged.timing == "faster"
    assert judged.timing_said.endswith(f"(8 repeats against 8, on another {name})")


def test_time_is_compared_where_nothing_but_the_timing_changes(old: Old) -> None:
    changed: Changed = {"timing.max_repeats": (20, 8)}
    assert timed(old, STEADY, STEADY, changed).timing == "same"
    changed["length.new_tokens"] = (4, 8)
    judged = timed(old, STEADY, STEADY, changed)
    assert judged.timing == "not comparable"
    assert judged.timing_said == "the command changes length.new_tokens"


def test_what_is_not_timed_says_so(old: Old) -> None:
    assert "without new tokens" in old.judge(new()).timing_said
    old.kind = "sample"
    judged = old.judge(new())
    assert (judged.timing, judged.timing_said) == (
        "not comparable",
        "runs of kind sample are not timed",
    )


# how it is written


def test_the_verdict_is_written_whole() -> None:
    judged = Verdict("identical", "1 row", "same", "1.0", ["seed 1 -> 2"], ["torch 2.0 -> 3.0"])
    assert judged.lines() == [
        "asked for: seed 1 -> 2",
        "changed since: torch 2.0 -> 3.0",
        "tokens identical: 1 row",
        "timing same: 1.0",
    ]
    assert json.loads(judged.to_json())["changed_since"] == ["torch 2.0 -> 3.0"]
    assert Verdict("", "", "", "", [], []).lines()[0] == "nothing has changed since"
