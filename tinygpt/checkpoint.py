"""Weights on disk and in memory: a Hugging Face Llama folder, or seeded random ones.

A checkpoint is a folder of config.json and model.safetensors under the names and in the layout of
``LlamaForCausalLM``, so transformers and every engine that converts from it can read it as it is.
Only safetensors is read here: loading it cannot run code.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.model import GPT, init_weights
from tinygpt.quantisation import round_to_int8
from tinygpt.tokenizer import EOT, Tokenizer
from tinygpt.weights import check_file, plain_name

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
"""What the weights of a precision are held in; int8 ones as the fp32 that they stand for."""
FILES = (
    "README.md",
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors",
)
"""What a checkpoint that ``save_model`` wrote consists of."""
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",  # a LlamaTokenizer would put <s> in front
    "bos_token": EOT,
    "eos_token": EOT,
    "clean_up_tokenization_spaces": False,
}


def random_model(config: ModelConfig, seed: int) -> GPT:
    """The model with seeded random weights, in fp32 on the CPU."""
    return init_weights(_empty_model(config), seed).eval()


def load_model(folder: Path, config: ModelConfig) -> GPT:
    """The model of a checkpoint, in fp32 on the CPU.

    Raises ValueError, one line, for a file that ``weights.check_file`` refuses, for a head that is
    not the embedding though the model ties them, and for weights that are no numbers.
    """
    path = folder / "model.safetensors"
    check_file(path, config)
    model = _empty_model(config)
    tensors = {plain_name(name): tensor for name, tensor in load_file(path).items()}
    if config.tie_embeddings and "lm_head.weight" in tensors:
        head, embedding = tensors.pop("lm_head.weight"), tensors["model.embed_tokens.weight"]
        if not torch.equal(head, embedding):
            raise ValueError(
                f"{path}: lm_head.weight is not the embedding, and the model ties them; "
                "set model.tie_embeddings=false (tie_word_embeddings in config.json)"
            )
    with torch.no_grad():
        for name, target in to_llama(model).items():
            target.copy_(tensors[name])
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
    """Write config.json and model.safetensors, with a tokenizer and a README.md where given.

    The weights are cast to ``precision`` (fp32, bf16), or kept as they are. Nothing of an older
    checkpoint is replaced before everything of the new one is written.
    """
    dtype = DTYPES[precision.kind] if precision else model.dtype
    llama = to_llama(model)
    weights = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in llama.items()}
    config = {**model.config.to_llama(), "torch_dtype": str(dtype).removeprefix("torch.")}
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
    """A digest of the weights' names, shapes and values, whatever file they came from."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(parameter.detach().cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def cast(model: GPT, precision: PrecisionConfig, device: torch.device) -> GPT:
    """The model with its weights rounded to ``precision``, on ``device``.

    int8 weights are rounded and stay fp32: any engine can run them, and is a reference for one that
    reads the integers themselves.
    """
    if precision.kind == "int8":
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(round_to_int8(parameter))
    return model.to(device=device, dtype=DTYPES[precision.kind])


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _empty_model(config: ModelConfig) -> GPT:
    # skip_init would need every layer to take a device; torch's own draws are simply not made.
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    if config.tie_embeddings:
        model.head.weight = model.emb.weight  # to_empty gave each its own storage
    return model


def _require_finite(model: GPT, path: Path) -> None:
    """ValueError for weights that are NaN or infinite, before anything that runs them is blamed."""
    # The extremes are NaN where a value is, and take no memory beside the weights.
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
