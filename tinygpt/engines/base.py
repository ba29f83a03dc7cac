"""What all engines share: their base class, what one is made from, and what it states beforehand.

An engine is one way to run the model's weights. It is made for one batch size and text length, and
generates as often as it is asked to. The measured path of a cell is the same for all engines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinygpt.cache import CacheShape
from tinygpt.config import CacheConfig, ModelConfig, PrecisionConfig
from tinygpt.generation import OnToken, Pick
from tinygpt.model import GPT

Report = Callable[[str], None]
"""Is called with the name of a phase, such as "compile", when that phase begins."""
Multiply = Callable[[], object]
"""Runs all weight products of one decode step once."""


def quiet(phase: str) -> None:
    """The ``Report`` that does nothing."""


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """What an engine is made from."""

    model: GPT
    """The weights, rounded to ``precision``, on the device that they run on."""
    cache: CacheConfig
    batch: int
    """Rows that are generated side by side."""
    max_positions: int
    """The most tokens of one text, prompt and new ones together."""
    precision: PrecisionConfig
    report: Report = quiet
    """Is told "compile" before anything is compiled or recorded."""

    @property
    def cache_shape(self) -> CacheShape:
        """The shape of a cache for ``batch`` rows of ``max_positions`` tokens."""
        return self.model.cache_shape(self.batch, self.max_positions)


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What an engine will have to run, known before any weights are loaded."""

    model: ModelConfig
    cache: CacheConfig
    batch: int
    max_positions: int
    """The most tokens of one text, prompt and new ones together."""
    precision: PrecisionConfig
    device: str
    """Kind of device: cpu, cuda or mps."""
    threads: int
    """Number of threads that torch will use."""


@dataclass(frozen=True)
class Code:
    """Code that an engine compiles once and keeps on disk."""

    key: str
    """Names the code: two plans with the same key share it."""
    kept: bool
    """Whether it is on disk already, so that nothing has to be compiled."""


class Engine(ABC):
    """The base class of all engines.

    What the class states before an engine is made (``caches``, ``unsupported``, ``code``, sizes in
    bytes) must work without the packages that only this engine needs, since ``unsupported`` tells
    the user to install them. So import those packages inside functions.
    """

    caches: ClassVar[tuple[str, ...] | None] = None
    """The kinds of cache that the engine runs; None for all of them."""
    compile_s: float = 0.0
    """Seconds spent on compiling or recording when the engine was made."""
    compile_peak_bytes: int = 0
    """The most memory of a process of its own that compiled; 0 if nothing was, or in this one."""

    @abstractmethod
    def __init__(self, args: EngineArgs) -> None:
        """Make the engine. Callers use ``make_engine``, which first checks ``unsupported``."""

    @property
    @abstractmethod
    def kv_cache_bytes(self) -> int:
        """Bytes of keys and values held now."""

    @property
    @abstractmethod
    def weights_bytes(self) -> int:
        """Bytes of the weights held for prefill and decode; shared memory counts once."""

    @abstractmethod
    def generate(self, prompt: Tensor, new_tokens: int, pick: Pick, on_token: OnToken) -> Tensor:
        """Continue ``prompt`` (B, P); returns prompt and new tokens (B, P + N).

        There are fewer new tokens if ``on_token`` ends the text.
        """

    @staticmethod
    def unsupported(model: ModelConfig, device: str) -> str:
        """Why the engine cannot run ``model`` on a ``device`` here, and the cure; "" if it can."""
        return ""

    @staticmethod
    def cache_positions(plan: EnginePlan) -> int:
        """Positions that the engine's cache and its rotation angles are made for."""
        return plan.max_positions

    @staticmethod
    def holds_integers(cache: CacheConfig) -> bool:
        """Whether the engine runs a model that holds int8 matrices as integers, and not as fp32."""
        return False

    @staticmethod
    def copied_weights_bytes(plan: EnginePlan) -> int:
        """Bytes of the weights that the engine holds in addition to the model's own."""
        return 0

    @staticmethod
    def code(plan: EnginePlan) -> tuple[Code, ...]:
        """The code that a cell with this engine needs; () if the engine compiles nothing."""
        return ()

    @staticmethod
    def products(
        model: GPT, precision: PrecisionConfig, batch: int, *, may_compile: bool, report: Report
    ) -> Iterable[Multiply]:
        """Ways to run the weight products of a decode step; a benchmark times them as its limit.

        Code that is not on disk already is compiled only if ``may_compile``.
        """
        return ()

    @staticmethod
    def products_bytes(plan: EnginePlan) -> int:
        """Bytes of the weights that ``products`` holds in addition to the model's own."""
        return 0


def step_products(model: GPT, batch: int) -> list[tuple[Tensor, Tensor]]:
    """The weight products of one decode step: random inputs (B, M), each with a matrix (N, M).

    There are none of a model that holds integers, for which torch has no products.
    """
    if model.integers:
        return []
    matrices = [
        weight.detach()
        for name, weight in model.named_parameters()
        if weight.dim() == 2 and name not in ("emb.weight", "head.weight")
    ]
    matrices.append(model.head.weight.detach())
    return [
        (torch.randn(batch, matrix.shape[1], device=model.device, dtype=model.dtype), matrix)
        for matrix in matrices
    ]
