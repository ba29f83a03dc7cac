"""A planted row of the cells table, for tests of what is made of such rows."""

import json
from typing import Any


def ok_row(rate: float = 100.0, n: int = 10, **changes: Any) -> dict[str, Any]:
    """An ok cell, all of whose ``n`` repeats have the same rate (tokens/s)."""
    greedy = {"repetition_penalty": "1.0", "temperature": "0.0", "top_p": "1.0"}
    return {
        "cell": "c",
        "sweep": "s",
        "outcome": "ok",
        "reason": "",
        "model": "tiny",
        "device": "cpu",
        "threads": 2,
        "batch": 1,
        "prompt_tokens": 8,
        "new_tokens": 64,
        "cache": "rolling",
        "sampler": "greedy",
        "sampling": json.dumps({f"sampler.{name}": value for name, value in greedy.items()}),
        "engine": "eager",
        "precision": "fp32",
        "round": 1,
        "seed": 1,
        "stable": "true",
        "rates": json.dumps([rate] * n),
        "weights": "w",
        "prompt": "p",
        "machine": "m x2",
        "torch": "2.13",
        "repeats": n,
        "output_tok_per_s": rate,
        "reference_ms": 50.0,
    } | changes
