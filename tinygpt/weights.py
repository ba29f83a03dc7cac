"""Checks the tensors of a Llama checkpoint by the file's header: names, shapes, number formats.

A header is read in milliseconds and without torch, however large the weights are. So a file that
does not fit its config.json is refused before anything slow is loaded.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from tinygpt.config import ModelConfig

FLOATS = ("F64", "F32", "F16", "BF16")
"""The number formats of safetensors in which weights can be read."""


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
    found = {"model.embed_tokens.weight": [config.vocab_size, width], "model.norm.weight": [width]}
    for n in range(config.n_layers):
        found |= {f"model.layers.{n}.{name}.weight": shape for name, shape in block.items()}
    if not config.tie_embeddings:
        found["lm_head.weight"] = [config.vocab_size, width]
    return found


def plain_name(name: str) -> str:
    """The name of a tensor without the prefix that torch.compile adds."""
    return name.removeprefix("_orig_mod.")


def check_file(path: Path, config: ModelConfig) -> None:
    """Raise ValueError for a file of weights that is missing, damaged or does not fit ``config``.

    The message is one line that names all tensors whose name or shape is wrong, or the number
    formats that cannot be read. A tied output head may be in the file as well.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {plain_name(name): file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: part.get_shape() for name, part in parts.items()}
            formats = {part.get_dtype() for part in parts.values()}
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; a checkpoint is a folder that has one") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); it is cut short or not a safetensors file: "
            "fetch or save it again"
        ) from None
    wanted = shapes(config)
    if config.tie_embeddings:
        found.pop("lm_head.weight", None)
    if wanted != found:
        raise ValueError(f"{path}: does not fit the model: {_differences(wanted, found)}")
    unread = sorted(formats - {*FLOATS})
    if unread:
        raise ValueError(
            f"{path}: has weights in {', '.join(unread)}; only {', '.join(FLOATS)} are read"
        )


def _differences(wanted: dict[str, list[int]], found: dict[str, list[int]]) -> str:
    missing = [f"missing {name} {wanted[name]}" for name in wanted if name not in found]
    extra = [f"unknown {name} {found[name]}" for name in found if name not in wanted]
    shaped = [
        f"{name} is {found[name]}, the model has {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    return "; ".join(shaped + missing + extra)
