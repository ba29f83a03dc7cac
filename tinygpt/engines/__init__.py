"""Engines: ways to run the same weights. Each is a subclass of ``Engine``, in a file of its own.

``tinygpt.config.ENGINES`` lists them. An engine's module is imported when it is asked for.
"""

from importlib import import_module

from tinygpt.config import ENGINES, CacheConfig, EngineConfig, ModelConfig, PrecisionConfig
from tinygpt.engines.base import Code, Engine, EngineArgs, EnginePlan, Report, quiet
from tinygpt.model import GPT

__all__ = [
    "Code",
    "Engine",
    "EngineArgs",
    "EnginePlan",
    "Report",
    "engine_class",
    "make_engine",
    "quiet",
    "unsupported",
]


def engine_class(kind: str) -> type[Engine]:
    """The class of the engine that is listed as ``kind``."""
    module, _, name = ENGINES[kind].partition(":")
    found: type[Engine] = getattr(import_module(module), name)
    return found


def unsupported(engine: EngineConfig, model: ModelConfig, cache: CacheConfig, device: str) -> str:
    """Why ``engine`` cannot run ``model`` and ``cache`` here, and the cure; empty if it can."""
    found = engine_class(engine.kind)
    if found.caches is not None and cache.kind not in found.caches:
        runs = " or ".join(f"cache={kind}" for kind in found.caches)
        return (
            f"engine={engine.kind}: does not run cache={cache.kind}; choose {runs}, or engine=eager"
        )
    return found.unsupported(model, device)


def make_engine(
    config: EngineConfig,
    model: GPT,
    cache: CacheConfig,
    *,
    batch: int,
    max_positions: int,
    precision: PrecisionConfig,
    report: Report = quiet,
) -> Engine:
    """Make the engine that ``config`` names; ``EngineArgs`` says what the other parameters are.

    Raises ValueError if ``unsupported`` gives a reason.
    """
    reason = unsupported(config, model.config, cache, model.device.type)
    if reason:
        raise ValueError(reason)
    args = EngineArgs(
        model=model,
        cache=cache,
        batch=batch,
        max_positions=max_positions,
        precision=precision,
        report=report,
    )
    return engine_class(config.kind)(args)
