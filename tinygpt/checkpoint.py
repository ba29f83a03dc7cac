"""Loading, making and saving weights: a checkpoint on disk, or seeded random weights.

What is saved is a folder with a config.json and a model.safetensors, in the names and the layout of
transformers, so that transformers and tools that convert from it can read it unchanged. What can be
loaded is in weights/.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.model import ALL, GPT, init_weights, put, weights
from tinygpt.quantisation import round_to_int8
from tinygpt.tokenizer import EOT, Tokenizer
from tinygpt.weights import hf_config, open_checkpoint

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
"""The dtype that the model holds its weights in; int8 weights are held as their fp32 values."""
FILES = (
    "README.md",
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors",
)
"""All files that ``save_model`` can write into a checkpoint."""
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",  # a LlamaTokenizer would put <s> in front
    "bos_token": EOT,
    "eos_token": EOT,
    "clean_up_tokenization_spaces": False,
}


def random_model(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> GPT:
    """A model with seeded random weights on the CPU, rounded to ``dtype`` as in ``load_model``."""
    return init_weights(_empty_model(config, dtype), seed).eval()


def load_model(path: Path, config: ModelConfig, dtype: torch.dtype = torch.float32) -> GPT:
    """The model of a checkpoint, a folder or a .gguf file, in ``dtype`` on the CPU.

    In ``torch.int8`` the matrices are held as integers and all else is fp32. ``config`` is the
    checkpoint's own, or the same with another window. Tensors are read one at a time, so that not
    much more than the model itself is in memory. Raises ValueError, with a message of one line, for
    a checkpoint whose files do not fit it, for an output head that differs from the embedding
    although the model ties them, and for weights that are NaN or infinite.
    """
    checkpoint = open_checkpoint(path)
    checkpoint.check(config)
    path = checkpoint.weights_path
    model = _empty_model(config, dtype)
    parameters, places = dict(model.named_parameters()), _places(config)
    bad: dict[str, int] = {}
    head = None
    with torch.no_grad():
        for name, read in checkpoint.tensors():
            tensor = read.to(model.dtype)
            # The minimum and maximum are NaN if any value is; they take no memory.
            if not torch.stack(tensor.aminmax()).isfinite().all():
                bad[name] = int((~tensor.isfinite()).sum())
            if name in places:
                put(parameters, places[name].name, tensor, places[name].rows)
            elif name == "lm_head.weight":
                head = round_to_int8(tensor) if model.integers else tensor
    if bad:
        raise ValueError(
            f"{path}: {sum(bad.values()):,} of {config.n_parameters:,} weights are NaN or "
            f"infinite, first in {next(iter(bad))}; the file is damaged, or training went wrong: "
            "fetch it again, or train with a lower train.lr"
        )
    # The embedding is the first of the weights.
    if head is not None and not torch.equal(head, next(weights(model))[1]):
        raise ValueError(
            f"{path}: lm_head.weight is not the embedding, and the model ties them; "
            "set model.tie_embeddings=false (tie_word_embeddings in config.json)"
        )
    return model.eval()


def save_model(
    model: GPT,
    folder: Path,
    *,
    precision: PrecisionConfig | None = None,
    tokenizer: Tokenizer | None = None,
    card: str = "",
) -> None:
    """Write config.json and model.safetensors, with a tokenizer and a README.md if given.

    The weights are cast to ``precision`` (fp32 or bf16), or keep their dtype without one. The files
    of an older checkpoint are replaced only after all new files have been written.
    """
    dtype = DTYPES[precision.kind] if precision else model.dtype
    llama = to_llama(model)
    tensors = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in llama.items()}
    config = {**hf_config.write(model.config), "torch_dtype": str(dtype).removeprefix("torch.")}
    texts = {"README.md": card} if card else {}
    if tokenizer:
        config |= {"bos_token_id": tokenizer.eot_id, "eos_token_id": tokenizer.eot_id}
        texts["tokenizer_config.json"] = _json(_TOKENIZER_CONFIG)
    texts["config.json"] = _json(config)
    folder.mkdir(parents=True, exist_ok=True)
    new = {name: folder / f"{name}.tmp" for name in texts}
    for name, path in new.items():
        path.write_text(texts[name], encoding="utf-8")
    if tokenizer:
        new["tokenizer.json"] = folder / "tokenizer.json.tmp"
        tokenizer.save(new["tokenizer.json"])
    new["model.safetensors"] = folder / "model.safetensors.tmp"
    save_file(tensors, new["model.safetensors"], metadata={"format": "pt"})
    for name, path in new.items():
        path.replace(folder / name)


class _Place(NamedTuple):
    """Where a tensor of ``LlamaForCausalLM`` is in a model."""

    name: str
    """The name of the model's parameter."""
    rows: slice
    """Its rows; queries, keys and values are one matrix here, and so are gate and up."""


def _places(config: ModelConfig) -> dict[str, _Place]:
    """Where each tensor of ``LlamaForCausalLM`` is, by its name there."""
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    ends = {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}
    places = {"model.embed_tokens.weight": _Place("emb.weight", ALL)}
    for n in range(config.n_layers):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            for letter, rows in ends.items():
                name = f"{theirs}.self_attn.{letter}_proj.{kind}"
                places[name] = _Place(f"{ours}.attn.qkv.{kind}", rows)
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            places[f"{theirs}.self_attn.{name}.weight"] = _Place(f"{ours}.attn.{name}.weight", ALL)
        gate, up = slice(0, config.d_ff), slice(config.d_ff, 2 * config.d_ff)
        places |= {
            f"{theirs}.self_attn.o_proj.weight": _Place(f"{ours}.attn.out.weight", ALL),
            f"{theirs}.mlp.gate_proj.weight": _Place(f"{ours}.mlp.gate_up.weight", gate),
            f"{theirs}.mlp.up_proj.weight": _Place(f"{ours}.mlp.gate_up.weight", up),
            f"{theirs}.mlp.down_proj.weight": _Place(f"{ours}.mlp.down.weight", ALL),
            f"{theirs}.input_layernorm.weight": _Place(f"{ours}.norm1.weight", ALL),
            f"{theirs}.post_attention_layernorm.weight": _Place(f"{ours}.norm2.weight", ALL),
        }
    places["model.norm.weight"] = _Place("norm.weight", ALL)
    if not config.tie_embeddings:
        places["lm_head.weight"] = _Place("head.weight", ALL)
    return places


def to_llama(model: GPT) -> dict[str, Tensor]:
    """The model's weights under the names that ``LlamaForCausalLM`` gives them.

    They are views, except of weights that are held as integers.
    """
    ours = dict(weights(model))
    return {name: ours[place.name][place.rows] for name, place in _places(model.config).items()}


def weights_sha256(model: GPT) -> str:
    """A digest of the weights' names, shapes and values.

    It depends neither on their file nor on whether rounded ones are held as integers or as floats.
    """
    digest = hashlib.sha256()
    for name, parameter in weights(model):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(parameter.detach().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def cast(model: GPT, precision: PrecisionConfig, device: torch.device) -> GPT:
    """The model with its weights rounded to ``precision``, on ``device``.

    int8 weights that are held as floats are rounded but stay fp32, so that every engine can run
    them, and so that the eager engine is a reference for one that reads the integers themselves.
    """
    if precision.kind == "int8" and not model.integers:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(round_to_int8(parameter))
    return model.to(device=device, dtype=DTYPES[precision.kind])


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _empty_model(config: ModelConfig, dtype: torch.dtype = torch.float32) -> GPT:
    # On "meta" no memory is filled with torch's own random weights, which would be overwritten.
    with torch.device("meta"):
        model = GPT(config, integers=dtype == torch.int8)
    if dtype != torch.int8:
        model = model.to(dtype)
    model.to_empty(device="cpu")
    model.tie()
    return model
