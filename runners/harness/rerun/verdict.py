"""The verdict on a rerun: its tokens and its time, compared with those of the run it repeats."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runners.harness import stats
from runners.harness.measure.result import CellResult
from runners.harness.rerun.original import Original
from runners.harness.tables import noise

HARMLESS = ("length.new_tokens", "batch.size", "round", "timing.")
"""Keys whose change must not change the tokens that both runs have."""
ARITHMETIC = ("device.", "cache.", "engine.")
"""Keys that change the arithmetic but not the task. Equal tokens are then a result; different ones
may come from rounding and prove nothing.
"""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a rerun."""

    tokens: str
    """``identical``, ``different`` or ``not comparable``."""
    tokens_said: str
    timing: str
    """``faster``, ``slower``, ``same``, ``unclear`` or ``not comparable``."""
    timing_said: str
    changed_by_command: list[str]
    changed_since: list[str]

    @property
    def reproduced(self) -> bool:
        """Whether no tokens differ that should be equal."""
        return self.tokens != "different"

    def lines(self) -> list[str]:
        """All lines, for the terminal and the artifact."""
        asked = [f"asked for: {line}" for line in self.changed_by_command]
        since = [f"changed since: {line}" for line in self.changed_since]
        return [
            *asked,
            *(since or ["nothing has changed since"]),
            *self.verdicts(),
        ]

    def verdicts(self) -> list[str]:
        """The lines about tokens and timing; a single line if both say the same."""
        if self.tokens_said == self.timing_said:
            return [f"{self.tokens}: {self.tokens_said}"]
        return [
            f"tokens {self.tokens}: {self.tokens_said}",
            f"timing {self.timing}: {self.timing_said}",
        ]

    def to_json(self) -> str:
        """The whole verdict as JSON."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def judge(
    original: Original, changed: dict[str, tuple[Any, Any]], since: list[str], new: CellResult
) -> Verdict:
    """The verdict on ``new``. Its command changed the keys ``changed``, and ``since`` lists what
    else has changed since the original.
    """
    tokens, tokens_said = _tokens(original, changed, new)
    timing, timing_said = _timing(original, changed, new)
    return Verdict(tokens, tokens_said, timing, timing_said, asked_for(changed), since)


def asked_for(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """What the command changed, one line per key."""
    return [f"{key} {old} -> {value}" for key, (old, value) in changed.items()]


def _tokens(
    original: Original, changed: dict[str, tuple[Any, Any]], new: CellResult
) -> tuple[str, str]:
    missing = _without_result(original, new)
    if missing:
        return "not comparable", missing
    decisive = [key for key in changed if not key.startswith((*HARMLESS, *ARITHMETIC))]
    if decisive:
        return "not comparable", f"the command changes {', '.join(decisive)}"
    weights = [tags.get("tinygpt.weights_sha256") for tags in (original.tags, new.tags)]
    if weights[0] and weights[0] != weights[1]:
        return "not comparable", "the weights are not the old one's"
    old_rows, new_rows = original.generations, new.generations
    if new_rows and not old_rows:
        return "not comparable", "the old run's generations.jsonl is not there, or cannot be read"
    both = list(zip(old_rows, new_rows, strict=False))
    if any(one.get("prompt_ids") != other.get("prompt_ids") for one, other in both):
        return "not comparable", "the prompt is not the old one's"
    found = first_difference(old_rows, new_rows) or _other_size(old_rows, new_rows, changed)
    if found is None and not _common(old_rows, new_rows):
        return "not comparable", "there are no new tokens to compare"
    if found is None:
        rows = f"{len(both)} {'row' if len(both) == 1 else 'rows'}"
        if len(old_rows) != len(new_rows):
            rows += " that both have,"
        return "identical", f"{rows} of {_common(old_rows, new_rows):,} new tokens"
    rounding = [key for key in changed if key.startswith(ARITHMETIC)]
    rounding += [f"another {name}" for name in _elsewhere(original, new)]
    if rounding:
        return "not comparable", f"{found}, which {', '.join(rounding)} may bring about by rounding"
    return "different", found


def _elsewhere(original: Original, new: CellResult) -> list[str]:
    """Which of machine, threads and torch differ: these decide rounding and speed."""
    names, old = ("machine", "threads", "torch"), original.tags
    return [name for name in names if old.get(f"tinygpt.{name}") != new.tags.get(f"tinygpt.{name}")]


def _other_size(
    old: Sequence[dict[str, Any]],
    new: Sequence[dict[str, Any]],
    changed: dict[str, tuple[Any, Any]],
) -> str | None:
    """Which row is missing or ends elsewhere although the same size was asked for, in words; None
    if there is none.
    """
    if "batch.size" not in changed and len(old) != len(new):
        return f"{len(old)} rows before, {len(new)} now"
    if "length.new_tokens" in changed:
        return None
    for number, (one, other) in enumerate(zip(old, new, strict=False)):
        before, now = len(one["new_ids"]), len(other["new_ids"])
        if before != now:
            return f"row {number} ends after {before:,} new tokens before, {now:,} now"
    return None


def first_difference(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> str | None:
    """Where the rows first differ, in words; None if all tokens that both have are equal."""
    for number, (one, other) in enumerate(zip(old, new, strict=False)):
        pairs = zip(one["new_ids"], other["new_ids"], strict=False)
        for n, (a, b) in enumerate(pairs):
            if a != b:
                position = n + len(one.get("prompt_ids", []))
                return (
                    f"row {number} parts at new token {n} (position {position} with the prompt): "
                    f"{a} before, {b} now"
                )
    return None


def _common(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> int:
    both = zip(old, new, strict=False)
    return max((min(len(a["new_ids"]), len(b["new_ids"])) for a, b in both), default=0)


def _timing(
    original: Original, changed: dict[str, tuple[Any, Any]], new: CellResult
) -> tuple[str, str]:
    missing = _without_result(original, new)
    if missing:
        return "not comparable", missing
    sides = [json.loads(tags.get("tinygpt.rates", "[]")) for tags in (new.tags, original.tags)]
    if not all(sides):
        untimed = original.kind != "bench"
        why = f"runs of kind {original.kind} are" if untimed else "a run without new tokens is"
        return "not comparable", f"{why} not timed"
    decisive = [key for key in changed if not key.startswith("timing.")]
    if decisive:
        return "not comparable", f"the command changes {', '.join(decisive)}"
    elsewhere = _elsewhere(original, new)
    figures = (new.metrics, original.metrics)
    times = [
        [f["reference_ms"]] if f.get("reference_ms") and not elsewhere else [] for f in figures
    ]
    mark = noise.together([_row(new.tags, new.metrics), _row(original.tags, figures[1])])
    ratio = stats.compare(
        stats.Pair([sides[0]], [sides[1]], stats.drift(*times), quiet=mark == noise.QUIET)
    )
    n = f"{ratio.n[0]} repeats against {ratio.n[1]}"
    interval = "" if ratio.low is None else f", 99 % interval {ratio.low:.3f} to {ratio.high:.3f}"
    where = f", on another {', '.join(elsewhere)}" if elsewhere else ""
    busy = f"; noisy: {mark}" if noise.is_noisy(mark) else ""
    return ratio.verdict, f"{ratio.ratio:.3f} times the old rate{interval} ({n}{where}{busy})"


def _row(tags: dict[str, str], metrics: dict[str, float]) -> dict[str, Any]:
    """The facts that ``noise`` needs about a cell; the kind of device is left out."""
    return {**metrics, **{name: tags.get(f"tinygpt.{name}") for name in ("machine", "threads")}}


def _without_result(original: Original, new: CellResult) -> str:
    if original.record is None:
        return "there is no result beside the config"
    for which, outcome, reason in (
        ("the old run", original.record.outcome, original.record.reason),
        ("this run", new.outcome, new.reason),
    ):
        verified = original.kind == "verify" and outcome == "mismatch"  # a fault was asked for
        if outcome != "ok" and not verified:
            return f"{which} is {outcome}: {reason}"
    return ""
