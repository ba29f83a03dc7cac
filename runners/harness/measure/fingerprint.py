"""Tags that identify a cell: a hash of all that changes tokens or time, and facts to pair by."""

import hashlib
import json
from dataclasses import asdict

import torch

from runners.harness.config.conversion import CHANGES_NOTHING
from runners.harness.config.schema import RunConfig
from runners.harness.machine import environment
from tinygpt.cache import CACHES
from tinygpt.checkpoint import weights_sha256
from tinygpt.config import CacheConfig
from tinygpt.hf_tokenizer import AnyTokenizer
from tinygpt.model import GPT


def tags(
    config: RunConfig, model: GPT, prompts: list[list[int]], tokenizer: AnyTokenizer | None = None
) -> dict[str, str]:
    """The tags of a cell that runs ``model`` on the ids ``prompts`` with the threads set now."""
    facts = environment.collect()
    machine = f"{facts['cpu']['model']} x{facts['cpu']['usable']}"
    if config.device.kind == "cuda":
        machine += f" + {torch.cuda.get_device_name()}"
    weights, prompt_ids = weights_sha256(model), sha256(prompts)
    cell = asdict(config) | {
        "device": {"kind": config.device.kind, "threads": torch.get_num_threads()},
        "weights": weights,
        "prompt": prompt_ids,
        "code": environment.code()["sha256"],
    }
    for name in (*CHANGES_NOTHING, "checkpoint"):  # the weights stand for the checkpoint
        cell.pop(name, None)
    text = {"tinygpt.tokenizer_sha256": tokenizer.sha256} if tokenizer else {}
    return text | {
        "tinygpt.cell_hash": sha256(cell),
        "tinygpt.weights_sha256": weights,
        "tinygpt.prompt_sha256": prompt_ids,
        "tinygpt.prompt_tokens": str(max(map(len, prompts))),
        "tinygpt.threads": str(torch.get_num_threads()),
        "tinygpt.machine": machine,
        "tinygpt.torch": torch.__version__,
    }


def approximate(cache: CacheConfig) -> dict[str, str]:
    """The tag of a cell whose cache is an approximation by design; none for an exact one."""
    return {} if CACHES[cache.kind].exact else {"tinygpt.approximate": "true"}


def sha256(content: object) -> str:
    """A digest of anything that JSON can hold; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
