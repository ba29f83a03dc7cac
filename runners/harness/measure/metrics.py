"""Turns raw seconds into named figures. Shapes: B rows, P prompt tokens, N new tokens.

Only the prefill's rate counts the prompt's tokens. The rate of each repeat is kept. The reported
rate is the tokens over the median time, never the mean of rates, so that the figures of a cell fit
together. A figure that cannot be computed for this N is left out, not set to zero or infinity.
"""

import json
from collections.abc import Sequence

from runners.harness import stats
from runners.harness.config.schema import BenchConfig
from runners.harness.measure.result import CellResult


def rates(tokens: int, seconds: Sequence[float]) -> list[float]:
    """Tokens per second of each repeat."""
    return [tokens / s for s in seconds]


def summarise(config: BenchConfig, result: CellResult, *, prompt_tokens: int) -> None:
    """Add the figures of ``result.timings`` to its metrics, and whether they are stable."""
    e2e, ttft = result.timings.get("e2e_s", []), result.timings.get("ttft_s", [])
    if not e2e:
        return
    batch, new = config.batch.size, config.length.new_tokens
    per_repeat = rates(batch * new, e2e)
    output, ttft_s = stats.rate_spread(per_repeat), stats.spread(ttft).median
    figures: dict[str, float | None] = {
        "output_tok_per_s": output.median,
        "output_tok_per_s_low": output.low,
        "output_tok_per_s_high": output.high,
        "output_tok_per_s_cv": output.variation,
        "repeats": output.n,
        "ttft_ms": ttft_s * 1e3,
        "e2e_ms": stats.spread(e2e).median * 1e3,
        "prefill_tok_per_s": batch * prompt_tokens / ttft_s,
    }
    if new > 1:
        decode_s = stats.spread([end - first for first, end in zip(ttft, e2e, strict=True)]).median
        figures["tpot_ms"] = decode_s / (new - 1) * 1e3
        figures["decode_tok_per_s"] = batch * (new - 1) / decode_s
    gaps = result.timings.get("itl_s")
    if gaps:
        for percent, value in stats.percentiles(gaps).items():
            figures[f"itl_ms_p{percent}"] = value * 1e3
    result.metrics |= {name: value for name, value in figures.items() if value is not None}
    result.headline = f"{output.median:,.0f} tok/s"
    # Tables compare every repeat; a tag brings the rates with the query that they make anyway.
    result.tags["tinygpt.rates"] = json.dumps([float(f"{rate:.6g}") for rate in per_repeat])
    result.tags["tinygpt.stable"] = str(output.stable).lower()
