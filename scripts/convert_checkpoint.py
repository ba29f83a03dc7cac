"""Make a checkpoint folder of a `.pt` state dict, such as Part 3 of the post writes.

    python scripts/convert_checkpoint.py gpu1500.pt --out results/checkpoints/post \
        --tokenizer tokenizer.json

The file is read with weights_only=True: tensors and plain containers, nothing that could run. Names
are the post's: emb, blocks.N.attn.qkv, attn.out, norm1, norm2, mlp, norm, head; the mlp is SwiGLU
with gate, up, down (or w1, w3, w2), or gate_up and down. Widths come from the shapes. What no shape
tells has to be said where it is not the post's: heads, window, RoPE.
"""

import argparse
import pickle
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tinygpt.checkpoint import FILES, save_model
from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.model import GPT
from tinygpt.tokenizer import Tokenizer

NESTED = ("model", "state_dict", "model_state_dict")
"""Where a training script may have put the weights beside other things."""
SWIGLU = (("gate", "up", "down"), ("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))
KINDS = (
    (r"(^|\.)norm\d?\.bias$|(^|\.)ln\w*\.", "its norm is a LayerNorm with a bias, not RMSNorm"),
    (r"pos|wpe", "it has learned positions, not RoPE"),
    (r"mlp\.(0|2|fc\w*|c_fc|c_proj|net\.\d)\.", "its mlp is two linears, not SwiGLU"),
    (r"\.bias$", "its linears have biases"),
    (r"attn\.(?!qkv\.|out\.)\w+\.weight", "its attention is not one qkv and one out"),
    (r"experts?\.|router", "its mlp is a mixture of experts"),
)
"""Names by which another kind of block is known, and what it is."""
NAMES = re.compile(r"(emb|norm|head|blocks\.\d+\.(norm[12]|attn\.(qkv|out)|mlp\.\w+))\.weight")


def read(path: Path) -> dict[str, Tensor]:
    """The weights of a file by name. Raises ValueError, one line, for what holds none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's, of pickles that are not its own
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise ValueError(
            f"{path}: refused and not executed: it holds {found[1] if found else 'something'} "
            "beside tensors in plain containers; save the model's state_dict() alone"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path}: cannot be read ({reason[:120]}); it is cut short or not a file of torch.save"
        ) from None
    for key in NESTED:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path}: no state dict of names and tensors; save model.state_dict()")
    return {str(name).removeprefix("_orig_mod."): tensor for name, tensor in content.items()}


def joint_swiglu(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with each mlp's gate and up in one matrix, as the model has them."""
    weights = dict(weights)
    layers = sorted({m[1] for name in weights if (m := re.match(r"(blocks\.\d+\.mlp)\.", name))})
    for layer in layers:
        for gate, up, down in SWIGLU:
            three = [weights.get(f"{layer}.{name}.weight") for name in (gate, up, down)]
            if all(part is not None for part in three):
                parts = [weights.pop(f"{layer}.{name}.weight") for name in (gate, up, down)]
                weights[f"{layer}.gate_up.weight"] = torch.cat(parts[:2])
                weights[f"{layer}.down.weight"] = parts[2]
    return weights


def shape_of(weights: dict[str, Tensor], options: argparse.Namespace) -> ModelConfig:
    """The model that has these weights. Raises ValueError for one of another kind."""
    for name in weights:
        for pattern, meaning in KINDS:
            if re.search(pattern, name):
                raise ValueError(f"{options.file}: another kind of model: {meaning} ({name})")
    unknown = sorted(name for name in weights if not NAMES.fullmatch(name))
    if unknown:
        raise ValueError(
            f"{options.file}: another kind of model: unknown {', '.join(unknown[:5])}; the names "
            "are emb, blocks.N.attn.qkv, attn.out, norm1, norm2, mlp, norm, head"
        )
    layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    first = ("emb", "blocks.0.attn.qkv", "blocks.0.attn.out", "blocks.0.mlp.down")
    missing = [name for name in first if f"{name}.weight" not in weights]
    if missing:
        raise ValueError(f"{options.file}: another kind of model: missing {', '.join(missing)}")
    emb, qkv, out, down = (weights[f"{name}.weight"] for name in first)
    width, heads = emb.shape[1], options.heads
    if heads < 1 or out.shape[1] % heads:
        raise ValueError(f"--heads={heads}: must divide the attention's width of {out.shape[1]}")
    head_dim = out.shape[1] // heads
    head = weights.get("head.weight", emb)
    return ModelConfig(
        vocab_size=emb.shape[0],
        context_length=options.context,
        n_layers=layers,
        d_model=width,
        n_heads=heads,
        n_kv_heads=(qkv.shape[0] // head_dim - heads) // 2,
        head_dim=head_dim,
        d_ff=down.shape[1],
        rope_base=options.rope_base,
        norm_eps=options.norm_eps,
        tie_embeddings=torch.equal(head, emb),
    )


def halves(qkv: Tensor, config: ModelConfig) -> Tensor:
    """Query and key rows from RoPE on neighbours (0, 1), (2, 3) to RoPE on halves (0, D / 2)."""
    rotated = (config.n_heads + config.n_kv_heads) * config.head_dim
    pairs = qkv[:rotated].view(-1, config.head_dim // 2, 2, qkv.shape[1])
    return torch.cat([pairs.transpose(1, 2).reshape(rotated, -1), qkv[rotated:]])


def convert(options: argparse.Namespace) -> GPT:
    """The model in the file. Raises ValueError, one line, for what is none of this kind."""
    weights = joint_swiglu(read(options.file))
    config = shape_of(weights, options)
    if options.rope == "neighbours":
        for name in [name for name in weights if name.endswith("attn.qkv.weight")]:
            weights[name] = halves(weights[name], config)
    weights.setdefault("head.weight", weights["emb.weight"])
    model = GPT(config)
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in weights.items()}
    wrong = [n for n in sorted({*wanted, *found}) if wanted.get(n) != found.get(n)]
    if wrong:
        parts = [f"{n} is {found.get(n, 'missing')}, not {wanted.get(n, 'there')}" for n in wrong]
        raise ValueError(f"{options.file}: does not fit together: {'; '.join(parts[:5])}")
    model.load_state_dict(weights)
    return model.eval()


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; returns the exit status."""
    parser = argparse.ArgumentParser(description="A .pt state dict as a checkpoint folder.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--tokenizer", type=Path, help="its tokenizer.json, to put beside it")
    parser.add_argument("--heads", type=int, default=8, help="query heads (%(default)s)")
    parser.add_argument("--context", type=int, default=256, help="trained window (%(default)s)")
    parser.add_argument("--rope-base", type=float, default=10_000.0, help="(%(default)s)")
    parser.add_argument("--norm-eps", type=float, default=1e-5, help="(%(default)s)")
    parser.add_argument(
        "--rope",
        choices=("halves", "neighbours"),
        default="halves",
        help="which elements of a head are rotated together (%(default)s)",
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args(arguments)
    options.file, options.out = options.file.expanduser(), options.out.expanduser()
    options.tokenizer = options.tokenizer and options.tokenizer.expanduser()
    try:
        model = convert(options)
        tokenizer = Tokenizer.load(options.tokenizer) if options.tokenizer else None
        if tokenizer and tokenizer.vocab_size != model.config.vocab_size:
            raise ValueError(
                f"--tokenizer={options.tokenizer}: has {tokenizer.vocab_size} entries and the "
                f"model {model.config.vocab_size}: give the one it was trained with"
            )
        old = [name for name in FILES if (options.out / name).exists()]
        if old:
            raise ValueError(
                f"--out={options.out}: has a {old[0]}, and nothing is replaced; name a new folder, "
                "or move that one away"
            )
        precision = PrecisionConfig(kind=options.precision)
        save_model(model, options.out, precision=precision, tokenizer=tokenizer)
    except (ValueError, OSError) as error:
        print(f"convert_checkpoint: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    config = model.config
    print(
        f"{options.out}: {config.n_parameters:,} parameters, {config.n_layers} layers of width "
        f"{config.d_model}, {config.n_heads} heads, window {config.context_length}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
