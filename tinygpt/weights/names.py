"""The names and shapes of a model's tensors, as transformers' ``LlamaForCausalLM`` has them."""

from pathlib import Path

from tinygpt.config import ModelConfig

_TOLD = 20
"""Tensors that a message names at most."""


def shapes(config: ModelConfig) -> dict[str, list[int]]:
    """The shape of every tensor of a model, under the names of ``LlamaForCausalLM``."""
    width, inner = config.d_model, config.d_ff
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    block = {
        "self_attn.q_proj": [q, width],
        "self_attn.k_proj": [kv, width],
        "self_attn.v_proj": [kv, width],
        "self_attn.o_proj": [width, q],
        "mlp.gate_proj": [inner, width],
        "mlp.up_proj": [inner, width],
        "mlp.down_proj": [width, inner],
        "input_layernorm": [width],
        "post_attention_layernorm": [width],
    }
    if config.qk_norm:
        block |= {f"self_attn.{letter}_norm": [config.head_dim] for letter in "qk"}
    biases = {"q": q, "k": kv, "v": kv} if config.qkv_bias else {}
    found = {"model.embed_tokens.weight": [config.vocab_size, width], "model.norm.weight": [width]}
    for n in range(config.n_layers):
        layer = f"model.layers.{n}"
        found |= {f"{layer}.{name}.weight": shape for name, shape in block.items()}
        found |= {f"{layer}.self_attn.{x}_proj.bias": [size] for x, size in biases.items()}
    if not config.tie_embeddings:
        found["lm_head.weight"] = [config.vocab_size, width]
    return found


def plain_name(name: str) -> str:
    """The name of a tensor without the prefix that torch.compile adds."""
    return name.removeprefix("_orig_mod.")


def require_shapes(config: ModelConfig, found: dict[str, list[int]], path: Path) -> None:
    """Raise ValueError, one line, for tensors of ``path`` that are not those of the model.

    A tied output head may be there as well.
    """
    wanted = shapes(config)
    if config.tie_embeddings:
        found = {name: shape for name, shape in found.items() if name != "lm_head.weight"}
    if wanted != found:
        raise ValueError(f"{path}: does not fit the model: {_differences(wanted, found)}")


def _differences(wanted: dict[str, list[int]], found: dict[str, list[int]]) -> str:
    missing = [f"missing {name} {wanted[name]}" for name in wanted if name not in found]
    extra = [f"unknown {name} {found[name]}" for name in found if name not in wanted]
    shaped = [
        f"{name} is {found[name]}, the model has {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    told = shaped + missing + extra
    more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    return "; ".join(told[:_TOLD]) + more
