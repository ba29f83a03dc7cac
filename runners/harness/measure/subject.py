"""Sets up what a run works on: weights, tokenizer and prompts on a device, and its threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from runners.harness.config.checks import prompt_ids, read_tokenizer
from runners.harness.config.paths import find_checkpoint
from runners.harness.config.schema import (
    BenchConfig,
    DeviceConfig,
    PromptedConfig,
    RaceConfig,
    RunConfig,
    SampleConfig,
)
from runners.harness.config.text_files import BYTE_ORDER_MARK
from runners.harness.machine import system
from runners.harness.measure import fingerprint, timing
from tinygpt.checkpoint import DTYPES, cast, load_model, random_model
from tinygpt.config import CacheConfig, EngineConfig, ModelConfig, SamplerConfig
from tinygpt.engines import Engine, engine_class, make_engine, toolchain
from tinygpt.generation import OnToken
from tinygpt.hf_tokenizer import AnyTokenizer
from tinygpt.model import GPT
from tinygpt.sampling import Sampler, make_sampler
from tinygpt.seeds import row_seed


def missing_device(kind: str) -> str:
    """Why torch cannot use this kind of device here, and the cure; empty if it can."""
    if kind == "cuda" and not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return (
                f"this torch is built without CUDA: {torch.__version__}; install a CUDA build of "
                "torch (see README, Install)"
            )
        return "no CUDA device"
    if kind == "mps" and not torch.backends.mps.is_available():
        if not torch.backends.mps.is_built():
            return f"this torch is built without MPS: {torch.__version__}; MPS needs macOS on ARM"
        return "no MPS device"
    return ""


@contextmanager
def threads(device: DeviceConfig, notes: list[str]) -> Iterator[None]:
    """Set torch's number of threads for one job, and restore it at the end.

    Before that, torch's compiler gets a folder that it can work in, since torch looks for one.
    """
    toolchain.choose_folder()
    before, usable = torch.get_num_threads(), system.usable_cores()
    wanted = device.threads or usable
    if wanted > usable:
        notes.append(f"device.threads={wanted}: only {usable} cores are usable here")
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if device.kind == "cuda":
            torch.cuda.empty_cache()


def make_model(config: RunConfig, device: torch.device) -> GPT:
    """The run's weights, rounded to its precision, on its device."""
    dtype = DTYPES[config.precision.kind]
    if isinstance(config, BenchConfig | SampleConfig | RaceConfig):
        integers = engine_class(config.engine.kind).holds_integers(config.cache)
        dtype = torch.int8 if integers and config.precision.kind == "int8" else dtype
    if config.checkpoint == "none":
        model = random_model(config.model, config.seed, dtype)
    else:
        path = find_checkpoint(config.checkpoint, config.tracking.dir)
        model = load_model(path, config.model, dtype)
    return cast(model, config.precision, device)


def make_tokenizer(config: RunConfig, notes: list[str]) -> AnyTokenizer | None:
    """The checkpoint's tokenizer; None if it has none."""
    tokenizer = read_tokenizer(config)
    if tokenizer and tokenizer.vocab_size < config.model.vocab_size:
        notes.append(
            f"the tokenizer has {tokenizer.vocab_size} entries and the model "
            f"{config.model.vocab_size}: ids from {tokenizer.vocab_size} on are no text"
        )
    return tokenizer


def make_prompts(
    config: PromptedConfig, tokenizer: AnyTokenizer | None, notes: list[str]
) -> list[Tensor]:
    """Prompt ids, cut to the window: (1, P) for each text. A benchmark has (B, P), with its text in
    every row, or random ids. Raises what ``checks.prompt_ids`` raises.
    """
    texts = config.prompt.content.texts
    rows = config.batch.size if isinstance(config, BenchConfig) else 1
    if isinstance(config, BenchConfig) and not texts:
        ids = [_random_row(config, row) for row in range(rows)]
        return [_cut(torch.stack(ids), config.model, notes)]
    prompts = []
    for n, text in enumerate(texts, 1):
        own: list[str] = []
        prompts.append(_encode(text, tokenizer, config, own).repeat(rows, 1))
        notes += [f"prompt {n}: {note}" if len(texts) > 1 else note for note in own]
    return prompts


def _random_row(config: BenchConfig, row: int) -> Tensor:
    """Random ids from a generator per row, so that row 0 is the same at any batch size."""
    generator = torch.Generator().manual_seed(row_seed("prompt", config.seed, row))
    size = (config.prompt.tokens,)
    return torch.randint(config.model.vocab_size, size, generator=generator)


def _encode(
    text: str, tokenizer: AnyTokenizer | None, config: PromptedConfig, notes: list[str]
) -> Tensor:
    if text.startswith(BYTE_ORDER_MARK):
        notes.append("the prompt begins with a byte-order mark, which is fed as it stands there")
    return _cut(torch.tensor([prompt_ids(text, tokenizer, config)]), config.model, notes)


def _cut(prompt: Tensor, model: ModelConfig, notes: list[str]) -> Tensor:
    tokens, window = prompt.shape[1], model.context_length
    if tokens > window:
        notes.append(f"prompt of {tokens} tokens cut to its last {window}")
    return prompt[:, -window:]


class Subject:
    """What a run works on, made once: the model, the prompts' ids (both on the device), and a
    tokenizer if the prompts are texts and the checkpoint has one.
    """

    def __init__(self, config: PromptedConfig, notes: list[str]) -> None:
        self.config = config
        self.device = torch.device(config.device.kind)
        self.synchronize = timing.synchronizer(self.device)
        self.model = make_model(config, self.device)
        written = bool(config.prompt.content.texts)
        self.tokenizer = make_tokenizer(config, notes) if written else None
        self.prompts = [ids.to(self.device) for ids in make_prompts(config, self.tokenizer, notes)]

    @property
    def prompt(self) -> Tensor:
        """The ids (B, P) of a run that has one prompt."""
        [prompt] = self.prompts
        return prompt

    def tags(self) -> dict[str, str]:
        """The tags that identify the run, with torch's present number of threads."""
        prompts = [row for ids in self.prompts for row in ids.tolist()]
        return fingerprint.tags(self.config, self.model, prompts, self.tokenizer)

    def engine(
        self,
        config: EngineConfig,
        cache: CacheConfig,
        report: Callable[[str], None] = lambda phase: None,
    ) -> Engine:
        """An engine that is large enough for every prompt and the new tokens after it."""
        longest = max(prompt.shape[1] for prompt in self.prompts)
        return make_engine(
            config,
            self.model,
            cache,
            batch=len(self.prompts[0]),
            max_positions=longest + self.config.length.new_tokens,
            precision=self.config.precision,
            report=report,
        )

    def sampler(self, config: SamplerConfig) -> Sampler:
        """A sampler for a prompt's rows."""
        rows, seed = len(self.prompts[0]), self.config.seed
        return make_sampler(config, batch=rows, seed=seed, device=self.device)


class Generation:
    """Generates the new tokens after one prompt, from the start at each call."""

    def __init__(self, subject: Subject, engine: Engine, sampler: Sampler) -> None:
        self.engine, self.sampler, self.prompt = engine, sampler, subject.prompt
        self._new_tokens = subject.config.length.new_tokens
        self._vocab_size = subject.config.model.vocab_size
        self.ids = self.prompt
        """The ids (B, P + N) of the last call; before the first one, the prompt."""

    def reset(self) -> None:
        """Put the sampler into the state in which every call starts."""
        self.sampler.reset(self.prompt, self._vocab_size)

    def __call__(self, on_token: OnToken) -> None:
        """Generate, calling ``on_token`` after each token."""
        self.reset()
        self.ids = self.engine.generate(self.prompt, self._new_tokens, self.sampler, on_token)
