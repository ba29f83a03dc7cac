"""Loading, making and saving weights: a checkpoint on disk, or seeded random weights.

What is saved is a folder with a config.json and a model.safetensors, in the names and the layout of
transformers, so that transformers and tools that convert from it can read it unchanged. What can be
loaded is in weights/.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.model import GPT, init_weights
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


def random_model(config: ModelConfig, seed: int) -> GPT:
    """A model with seeded random weights, in fp32 on the CPU."""
    return init_weights(_empty_model(config), seed).eval()


def load_model(path: Path, config: ModelConfig, dtype: torch.dtype = torch.float32) -> GPT:
    """The model of a checkpoint, a folder or a .gguf file, in ``dtype`` on the CPU.

    ``config`` is the checkpoint's own, or the same with another window. Tensors are read one at a
    time, so that not much more than the model itself is in memory. Raises ValueError, with a
    message of one line, for a checkpoint whose files do not fit it, for an output head that differs
    from the embedding although the model ties them, and for weights that are NaN or infinite.
    """
    checkpoint = open_checkpoint(path)
    checkpoint.check(config)
    path = checkpoint.weights_path
    model = _empty_model(config, dtype)
    targets = to_llama(model)
    head = None
    with torch.no_grad():
        for name, tensor in checkpoint.tensors():
            if name in targets:
                targets[name].copy_(tensor)
            elif name == "lm_head.weight":
                head = tensor
    if head is not None and not torch.equal(head.to(dtype), targets["model.embed_tokens.weight"]):
        raise ValueError(
            f"{path}: lm_head.weight is not the embedding, and the model ties them; "
            "set model.tie_embeddings=false (tie_word_embeddings in config.json)"
        )
    _require_finite(model, path)
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
    weights = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in llama.items()}
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
    save_file(weights, new["model.safetensors"], metadata={"format": "pt"})
    for name, path in new.items():
        path.replace(folder / name)


def to_llama(model: GPT) -> dict[str, Tensor]:
    """Views of the model's weights under the names that ``LlamaForCausalLM`` gives them."""
    config = model.config
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    views = {"model.embed_tokens.weight": state["emb.weight"]}
    for n in range(config.n_layers):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        projections = state[f"{ours}.attn.qkv.weight"].split([q, kv, kv])
        for letter, projection in zip("qkv", projections, strict=True):
            views[f"{theirs}.self_attn.{letter}_proj.weight"] = projection
        if config.qkv_bias:
            biases = state[f"{ours}.attn.qkv.bias"].split([q, kv, kv])
            for letter, bias in zip("qkv", biases, strict=True):
                views[f"{theirs}.self_attn.{letter}_proj.bias"] = bias
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            views[f"{theirs}.self_attn.{name}.weight"] = state[f"{ours}.attn.{name}.weight"]
        gate, up = state[f"{ours}.mlp.gate_up.weight"].split(config.d_ff)
        views[f"{theirs}.self_attn.o_proj.weight"] = state[f"{ours}.attn.out.weight"]
        views[f"{theirs}.mlp.gate_proj.weight"] = gate
        views[f"{theirs}.mlp.up_proj.weight"] = up
        views[f"{theirs}.mlp.down_proj.weight"] = state[f"{ours}.mlp.down.weight"]
        views[f"{theirs}.input_layernorm.weight"] = state[f"{ours}.norm1.weight"]
        views[f"{theirs}.post_attention_layernorm.weight"] = state[f"{ours}.norm2.weight"]
    views["model.norm.weight"] = state["norm.weight"]
    if not config.tie_embeddings:
        views["lm_head.weight"] = state["head.weight"]
    return views


def weights_sha256(model: GPT) -> str:
    """A digest of the weights' names, shapes and values; it does not depend on their file."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(parameter.detach().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def cast(model: GPT, precision: PrecisionConfig, device: torch.device) -> GPT:
    """The model with its weights rounded to ``precision``, on ``device``.

    int8 weights are rounded but stay fp32, so that every engine can run them, and so that the eager
    engine is a reference for an engine that reads the integers themselves.
    """
    if precision.kind == "int8":
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
        model = GPT(config).to(dtype)
    model.to_empty(device="cpu")
    if config.tie_embeddings:
        model.head.weight = model.emb.weight  # to_empty gives each its own storage
    return model


def _require_finite(model: GPT, path: Path) -> None:
    """Raise ValueError for weights that are NaN or infinite, so that no engine is blamed."""
    # The minimum and maximum are NaN if any value is, and computing them takes no extra memory.
    weights = to_llama(model).items()
    bad = [(name, w) for name, w in weights if not torch.stack(w.aminmax()).isfinite().all()]
    if not bad:
        return
    count = sum(int((~weight.isfinite()).sum()) for _, weight in bad)
    raise ValueError(
        f"{path}: {count:,} of {model.config.n_parameters:,} weights are NaN or infinite, first in "
        f"{bad[0][0]}; the file is damaged, or training went wrong: fetch it again, or train with "
        "a lower train.lr"
    )
