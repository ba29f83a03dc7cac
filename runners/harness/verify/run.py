"""Verifies that a cache changes nothing: one greedy text per cache, compared step by step.

Inside the window everything must match. Past it the loop without a cache forgets what the entries
of a cache still carry, so there the first difference is shown but not judged.
"""

from math import isfinite

import torch
from torch import Tensor

from runners.harness.config.schema import VerifyConfig
from runners.harness.machine import environment, system
from runners.harness.measure import fingerprint
from runners.harness.measure.cell import Report
from runners.harness.measure.guard import guarded
from runners.harness.measure.result import CellResult
from runners.harness.measure.subject import Subject
from runners.harness.verify.caches import (
    Closeness,
    check_keys_seen,
    check_same,
    check_stated,
    check_token,
    check_window,
    first_difference,
    margin_at,
    must_match,
    tie_or_not,
    token_difference,
)
from runners.harness.verify.faults import FAULTS
from runners.harness.verify.report import Check, to_json, to_markdown, two_texts
from runners.harness.verify.sampler import check_sampler
from runners.harness.verify.watch import WatchedText, watch
from tinygpt.cache import CACHES, CacheClass
from tinygpt.model import GPT

_BYTES_OF_A_NOTE = 150
"""Bytes that are noted per step and layer: a pair of Python integers in a list."""


def verify(config: VerifyConfig, report: Report = lambda phase: None) -> CellResult:
    """Check what ``config`` asks for. Errors of the run become its outcome and are not raised."""
    return guarded(config.device, lambda result: _run(config, result, report))


def _run(config: VerifyConfig, result: CellResult, report: Report) -> None:
    device = torch.device(config.device.kind)
    checks: list[Check] = []
    if config.check == "sampler":
        result.tags |= _tags_without_model(config)
    else:
        shortage = _memory_shortage(config)
        if shortage:
            result.outcome, result.reason = "oom", shortage
            return
        checks += _verify_caches(config, result, report)
    if config.check != "cache":
        report("sampler")
        checks += check_sampler(config.seed, device)
    failed = [check.name for check in checks if check.outcome == "failed"]
    checks.sort(key=lambda check: check.outcome == "seen")  # what is not judged comes last
    counts = {
        outcome: sum(check.outcome == outcome for check in checks)
        for outcome in ("passed", "failed", "skipped")
    }
    result.metrics |= {f"checks_{outcome}": count for outcome, count in counts.items()}
    result.headline = ", ".join(f"{count} checks {name}" for name, count in counts.items() if count)
    if failed:
        result.outcome, result.headline = "mismatch", ""
        what = f" with fault={config.fault}" if config.fault != "none" else ""
        result.reason = f"{len(failed)} of {sum(counts.values())} checks failed{what}: " + (
            "; ".join(failed)
        )
    result.files["checks.json"] = to_json(checks)
    result.files["verify.md"] = to_markdown(_title(config), checks, two_texts(result.generations))


def _verify_caches(config: VerifyConfig, result: CellResult, report: Report) -> list[Check]:
    """Generate with every cache, judge, and put texts and figures into ``result``."""
    report("load")
    subject = Subject(config, result.notes)
    model, tokenizer, prompt = subject.model, subject.tokenizer, subject.prompt
    result.tags |= subject.tags()
    runs = _generate(config, model, prompt, report)
    result.tags["tinygpt.tokens_sha256"] = fingerprint.sha256([run.new for run in runs])
    prompt_ids = prompt[0].tolist()
    before = tokenizer.decode(prompt_ids) if tokenizer else None
    result.generations = [
        {
            "prompt": before,
            "cache": run.name,
            "prompt_ids": prompt_ids,
            "new_ids": run.new,
            "text": tokenizer.decode(run.new) if tokenizer else None,
        }
        for run in runs
    ]
    if config.length.new_tokens == 0:
        seen = "length.new_tokens=0: no token to compare; give at least 1"
        return [Check("caches", "skipped", seen)]
    report("compare")
    return _judge(config, model, runs, result)


def _caches(config: VerifyConfig) -> dict[str, CacheClass]:
    """The caches to write a text with, by name; for a fault: none, rolling and the broken one."""
    if config.fault == "none":
        return CACHES
    return {**{name: CACHES[name] for name in ("none", "rolling")}, "broken": FAULTS[config.fault]}


def _generate(
    config: VerifyConfig, model: GPT, prompt: Tensor, report: Report
) -> list[WatchedText]:
    """Let each cache write its text."""
    new_tokens = config.length.new_tokens
    runs = []
    for name, make in _caches(config).items():
        report(name)
        max_positions = prompt.shape[1] + new_tokens
        cache = make(model.cache_shape(1, max_positions))
        runs.append(watch(name, model, prompt, new_tokens, cache))
    return runs


def _judge(
    config: VerifyConfig, model: GPT, runs: list[WatchedText], result: CellResult
) -> list[Check]:
    """All checks, and after them what is shown without being judged.

    Exact caches are compared with the loop without a cache inside the window, and past it with
    ``rolling``, which keeps the same entries. Other caches promise only what their classes state.
    """
    window, precision = config.model.context_length, config.precision
    caches, by_name = _caches(config), {run.name: run for run in runs}
    plain, rolling = by_name["none"], by_name["rolling"]
    exact = [run for run in runs if caches[run.name].exact]
    checks: list[Check] = []
    told: list[Check] = []
    figures: dict[str, float] = {"must_match_tokens": must_match(plain, window)}
    for run in (run for run in runs if run is not plain):
        if caches[run.name].exact:
            judged, close = check_window(model, plain, run, precision)
            told.append(_first_difference(plain, run, window, close))
        else:
            judged, close = check_stated(model, run, caches[run.name], precision)
            told.append(_no_promise(plain, run))
        checks += judged
        figures |= _figures(plain, run, close)
    others = [run for run in exact if run.name not in ("none", "rolling")]
    same = {run.name: check_same(rolling, run, precision) for run in others}
    checks += [
        *(check for check, _ in same.values()),
        *(check_keys_seen(run, window) for run in exact),
        *(check_token(run, window, precision) for run in exact),
    ]
    if config.fault != "none":
        found = [check.name for check in checks if check.outcome == "failed"]
        close = same["broken"][1]
        told.append(_how_soon(config.fault, rolling, by_name["broken"], close, found))
    differences = [d for d in map(token_difference, exact) if d is not None]
    if differences:
        figures["keys_max_difference"] = max(differences)
    result.metrics |= {name: value for name, value in figures.items() if isfinite(value)}
    return checks + told


def _no_promise(plain: WatchedText, run: WatchedText) -> Check:
    """Where an approximate cache's text first differs from that without a cache, as it may."""
    parted = first_difference(plain.new, run.new)
    where = (
        f"no difference in {len(run.new)} new tokens"
        if parted is None
        else f"first difference after {parted} of {len(run.new)} new tokens"
    )
    return Check(
        f"{run.name} against none", "seen", f"{where}; an approximation promises none of them"
    )


def _figures(plain: WatchedText, run: WatchedText, close: Closeness) -> dict[str, float]:
    """Where a run and the loop without a cache part, and how close they are before."""
    figures = {"max_logit_difference": close.worst}
    parted = first_difference(plain.new, run.new)
    if parted is not None:
        figures["first_difference"] = parted
        figures["first_difference_with_prompt"] = run.prompt.shape[1] + parted
        figures["first_difference_margin"] = margin_at(plain, run, parted)
    return {f"{run.name}_{name}": value for name, value in figures.items()}


def _first_difference(plain: WatchedText, run: WatchedText, window: int, close: Closeness) -> Check:
    """Where the texts part, counted in new tokens and as the post does, and if rounding did it."""
    name, new, prompt = f"{run.name} against none", len(run.new), run.prompt.shape[1]
    parted = first_difference(plain.new, run.new)
    if parted is None:
        return Check(name, "seen", f"no difference in {new} new tokens")
    margin = margin_at(plain, run, parted)
    past = parted >= must_match(run, window) and not close.is_tie(margin)
    seen = (
        f"first difference after {parted} of {new} new tokens, {prompt + parted} of "
        f"{prompt + new} with the prompt: {tie_or_not(margin, close)}"
    )
    return Check(name, "seen", seen + (", the window has moved on" if past else ""))


def _how_soon(
    fault: str, rolling: WatchedText, broken: WatchedText, close: Closeness, found: list[str]
) -> Check:
    """After how many tokens a fault shows against the correct cache, and what finds it."""
    parted, n = first_difference(rolling.new, broken.new), len(broken.new)
    logits = f"are never off in {n}" if close.off is None else f"are off after {close.off}"
    ids = "never do" if parted is None else f"part after {parted}"
    by = f"found by {'; '.join(found)}" if found else "found by nothing here: give more tokens"
    seen = f"against rolling, new tokens: the logits {logits}, the ids {ids}; {by}"
    return Check(f"fault={fault}", "seen", seen)


def _memory_shortage(config: VerifyConfig) -> str:
    """Why weights, notes and the logits of every step will not fit into memory; empty if they will.
    Without this check, a process that runs out of CPU memory would be killed.
    """
    model, new_tokens, n = config.model, config.length.new_tokens, len(_caches(config))
    logits = n * new_tokens * model.vocab_size * 4
    window = 4 * min(new_tokens, model.context_length) * model.vocab_size * 4  # the reference's
    noted = n * new_tokens * model.n_layers * _BYTES_OF_A_NOTE
    needed = 4 * model.n_parameters + logits + window + noted
    free = system.available_bytes()
    if needed <= free:
        return ""
    return (
        f"length.new_tokens={new_tokens}: weights and the logits of every step need "
        f"{needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; give fewer tokens"
    )


def _tags_without_model(config: VerifyConfig) -> dict[str, str]:
    """The tag that identifies a run of the sampler's checks alone."""
    what = {"check": config.check, "seed": config.seed, "device": config.device.kind}
    code = environment.code()["sha256"]
    return {"tinygpt.cell_hash": fingerprint.sha256({**what, "code": code})}


def _title(config: VerifyConfig) -> str:
    """The title of the page: what was verified."""
    if config.check == "sampler":
        return "verify: the sampler"
    parts = [f"checkpoint={config.checkpoint}", f"{config.length.new_tokens} new tokens"]
    parts += [config.precision.kind] + ([f"fault={config.fault}"] if config.fault != "none" else [])
    return f"verify: {', '.join(parts)}"
