"""Weights on disk and in memory: a Hugging Face Llama folder, or seeded random ones.

A checkpoint is a folder of config.json and model.safetensors under the names and in the layout of
``LlamaForCausalLM``, so transformers and every engine that converts from it can read it as it is.
Only safetensors is read here: loading it cannot run code.
"""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.model import GPT, init_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def random_model(config: ModelConfig, seed: int) -> GPT:
    """The model with seeded random weights, in fp32 on the CPU."""
    return init_weights(_empty_model(config), seed).eval()


def load_model(folder: Path, config: ModelConfig) -> GPT:
    """The model of a checkpoint, in fp32 on the CPU.

    Raises ValueError, one line, for a file that is missing or damaged and for weights whose names
    or shapes are not those of ``config``, naming all of them.
    """
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; a checkpoint is a folder that has one") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); it is cut short or not a safetensors file: "
            "fetch or save it again"
        ) from None
    model = _empty_model(config)
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in tensors.items()}
    if config.tie_embeddings:
        tensors.pop("lm_head.weight", None)
    wanted = {name: list(tensor.shape) for name, tensor in to_llama(model).items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        raise ValueError(f"{path}: does not fit the model: {_differences(wanted, found)}")
    with torch.no_grad():
        for name, target in to_llama(model).items():
            target.copy_(tensors[name])
    return model.eval()


def save_model(model: GPT, folder: Path) -> None:
    """Write config.json and model.safetensors; each replaces an older one only when complete."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous().cpu() for name, tensor in to_llama(model).items()}
    dtype = str(model.dtype).removeprefix("torch.")
    temporary = folder / "model.safetensors.tmp"
    save_file(weights, temporary, metadata={"format": "pt"})
    temporary.replace(folder / "model.safetensors")
    temporary = folder / "config.json.tmp"
    config = {**model.config.to_llama(), "torch_dtype": dtype}
    temporary.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / "config.json")


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
    """The model with its weights rounded to ``precision``, on ``device``."""
    return model.to(device=device, dtype=DTYPES[precision.kind])


def _empty_model(config: ModelConfig) -> GPT:
    # skip_init would need every layer to take a device; torch's own draws are simply not made.
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    if config.tie_embeddings:
        model.head.weight = model.emb.weight  # to_empty gave each its own storage
    return model


def _differences(wanted: dict[str, list[int]], found: dict[str, list[int]]) -> str:
    missing = [f"missing {name} {wanted[name]}" for name in wanted if name not in found]
    extra = [f"unknown {name} {found[name]}" for name in found if name not in wanted]
    shaped = [
        f"{name} is {found[name]}, the model has {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    return "; ".join(shaped + missing + extra)
