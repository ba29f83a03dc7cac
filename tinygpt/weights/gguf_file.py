"""A GGUF file, as llama.cpp uses it: metadata and tensors, quantised tensor by tensor, in one file.

Quantised weights are dequantised with the package ``gguf``; what a model then computes is what
llama.cpp would compute with the same weights in fp32.
"""

import gc
import pickle
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygpt.chat import ChatTemplate
from tinygpt.config import ModelConfig, RopeScalingConfig, require
from tinygpt.weights.names import require_shapes

if TYPE_CHECKING:
    from torch import Tensor

TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q4_K", "Q5_K", "Q6_K"),
)
"""The number formats that are read."""
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"permuted": True},
    "qwen2": {"permuted": False, "qkv_bias": True},
    "qwen3": {"permuted": False, "qk_norm": True},
    "smollm3": {"permuted": True, "no_rope_every": 4},
}
"""By ``general.architecture``. ``permuted``: whether the rows of queries and keys are in the order
of a rotation of neighbours (0, 1), (2, 3), and not of halves (0, D / 2)."""
_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor in which a file has what llama3's scaling divides each frequency by."""
_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""The names that a chat template has for special tokens, and the metadata with their ids."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 8192}
"""What every published llama3 scaling has; a file holds the factors that result, and not these."""


class GGUFFile:
    """A model in one file."""

    def __init__(self, path: Path) -> None:
        """Read the metadata; raises ValueError, one line, for a model that is not supported."""
        self.path = path
        try:
            self.model = self._read_config()
        except ValueError as error:
            message = str(error)
            raise ValueError(message if str(path) in message else f"{path}: {message}") from None

    @property
    def metadata(self) -> dict[str, Any]:
        """All values by their keys; raises as ``_contents`` does."""
        return self._contents[0]

    @property
    def stored(self) -> dict[str, "_Stored"]:
        """Where each tensor is in the file, by its name there."""
        return self._contents[1]

    @cached_property
    def _contents(self) -> tuple[dict[str, Any], dict[str, "_Stored"]]:
        """What is in the file. Raises ValueError for one that is no GGUF file, or cut short.

        The package's reader has an array object for every token, more than a hundred megabytes. So
        it is dropped, and what was read is made anew after that: between the arrays it would keep
        Python from giving the memory back.
        """
        try:
            packed = pickle.dumps(_read(self.path))
        except ImportError:
            raise ValueError(
                f"{self.path}: reading it needs the package gguf; pip install 'tinygpt[gguf]'"
            ) from None
        except Exception as error:  # the package raises whatever it stumbles over
            raise ValueError(
                f"{self.path}: cannot be read ({type(error).__name__}: {str(error)[:120]}); it is "
                "cut short or not a GGUF file: fetch it again"
            ) from None
        gc.collect()
        found: tuple[dict[str, Any], dict[str, _Stored]] = pickle.loads(packed)
        return found

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the metadata."""
        found = self.metadata.get(key)
        return default if found is None else found

    @cached_property
    def architecture(self) -> str:
        """``general.architecture``; ValueError for one that is not supported."""
        found = str(self.value("general.architecture"))
        require(
            found in ARCHITECTURES,
            f"general.architecture={found}: is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}",
        )
        return found

    def _read_config(self) -> ModelConfig:
        name = self.architecture

        def size(key: str, default: Any = None) -> int:
            value = self.value(f"{name}.{key}", default)
            require(type(value) is int, f"{name}.{key}={value!r:.60}: must be a whole number")
            return int(value)

        experts, window = size("expert_count", 0), size("attention.sliding_window", 0)
        context = size("context_length")
        require(experts == 0, f"{name}.expert_count={experts}: only dense models are supported")
        require(
            window == 0 or window >= context,
            f"{name}.attention.sliding_window={window}: only full attention is supported",
        )
        heads, width = size("attention.head_count"), size("embedding_length")
        require(heads > 0, f"{name}.attention.head_count={heads}: must be at least 1")
        head_dim = size("attention.key_length", width // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            other = size(key, head_dim)
            require(other == head_dim, f"{name}.{key}={other}: only {head_dim} is supported")
        embedding = self.stored.get("token_embd.weight")
        require(embedding is not None, "missing token_embd.weight")
        known = ARCHITECTURES[name]
        return ModelConfig(
            vocab_size=embedding.shape[0],  # type: ignore[union-attr]
            context_length=context,
            n_layers=size("block_count"),
            d_model=width,
            n_heads=heads,
            n_kv_heads=size("attention.head_count_kv", heads),
            head_dim=head_dim,
            d_ff=size("feed_forward_length"),
            rope_base=float(self.value(f"{name}.rope.freq_base", 10_000.0)),
            rope_scaling=self._rope_scaling(head_dim),
            norm_eps=float(str(np.float32(self.value(f"{name}.attention.layer_norm_rms_epsilon")))),
            tie_embeddings="output.weight" not in self.stored,
            qkv_bias=bool(known.get("qkv_bias", False)),
            qk_norm=bool(known.get("qk_norm", False)),
            no_rope_every=int(known.get("no_rope_every", 0)),
        )

    def _rope_scaling(self, head_dim: int) -> RopeScalingConfig:
        """The scaling that llama.cpp would compute: a factor without a type is a linear one."""
        rope = f"{self.architecture}.rope"
        kind = self.value(f"{rope}.scaling.type", "linear")
        old_name = self.value(f"{rope}.scale_linear", 1.0)
        factor = float(self.value(f"{rope}.scaling.factor", old_name)) or 1.0
        magnitude = self.value(f"{rope}.scaling.attn_factor", 1.0)
        require(
            kind in ("none", "linear"),
            f"{rope}.scaling.type={kind}: only linear is supported, and llama3 by {ROPE_FACTORS}",
        )
        require(magnitude == 1.0, f"{rope}.scaling.attn_factor={magnitude:g}: only 1 is supported")
        scaled = kind == "linear" and factor != 1.0
        factors = self.stored.get(ROPE_FACTORS)
        if factors:
            require(
                not scaled,
                f"{rope}.scaling.factor={factor:g}: only 1 is supported beside {ROPE_FACTORS}",
            )
            return self._llama3(self._data(factors).astype(np.float32), head_dim)
        return RopeScalingConfig(kind="linear", factor=factor) if scaled else RopeScalingConfig()

    def _llama3(
        self, factors: np.ndarray[Any, np.dtype[np.float32]], head_dim: int
    ) -> RopeScalingConfig:
        """The scaling that divides each frequency by ``factors``; ValueError for another one."""
        base = float(self.value(f"{self.architecture}.rope.freq_base", 10_000.0))
        low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
        plain = 1.0 / base ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
        factor = float(factors.max())
        turns = _LLAMA3["original_context"] * plain / (2 * np.pi)
        share = np.clip((turns - low) / (high - low), 0.0, 1.0)
        wanted = 1.0 / ((1.0 - share) / factor + share)
        if factors.shape != wanted.shape or not np.allclose(factors, wanted, rtol=1e-3):
            raise ValueError(f"{ROPE_FACTORS}: is no llama3 scaling that is known")
        return RopeScalingConfig(
            kind="llama3",
            factor=factor,
            low_freq_factor=low,
            high_freq_factor=high,
            original_context=int(_LLAMA3["original_context"]),
        )

    @property
    def weights_path(self) -> Path:
        """The file itself."""
        return self.path

    def check(self, model: ModelConfig | None = None) -> None:
        """Raise ValueError, one line, for tensors that are not those of the model, or whose number
        format is not read.
        """
        found, unread = {}, set[str]()
        for name, tensor in self.stored.items():
            if name == ROPE_FACTORS:
                continue
            found[_name(name)] = list(tensor.shape)
            if tensor.kind not in TYPES:
                unread.add(tensor.kind)
        require_shapes(model or self.model, found, self.path)
        require(
            not unread,
            f"{self.path}: has weights in {', '.join(sorted(unread))}; only {', '.join(TYPES)} are "
            "read",
        )

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end tokens that the metadata names."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = (self.value(f"tokenizer.ggml.{key}") for key in keys)
        return tuple(token_id for token_id in found if token_id is not None)

    def tokenizer_metadata(self) -> dict[str, Any]:
        """What the file says of its tokenizer, by keys without ``tokenizer.ggml.``."""
        prefix = "tokenizer.ggml."
        found = self.metadata.items()
        return {key.removeprefix(prefix): v for key, v in found if key.startswith(prefix)}

    def chat_template(self) -> ChatTemplate | None:
        """The template in the metadata."""
        source = self.value("tokenizer.chat_template")
        if source is None:
            return None
        names = self.value("tokenizer.ggml.tokens", [])
        ids = {ours: self.value(f"tokenizer.ggml.{key}") for ours, key in _SPECIAL_TOKENS.items()}
        tokens = {name: names[n] for name, n in ids.items() if n is not None and n < len(names)}
        return ChatTemplate(str(source), tokens, self.path)

    def tensors(self) -> Iterator[tuple[str, "Tensor"]]:
        """Each tensor in fp32."""
        import torch
        from gguf import GGMLQuantizationType, dequantize

        heads = {"attn_q": self.model.n_heads, "attn_k": self.model.n_kv_heads}
        permuted = ARCHITECTURES[self.architecture]["permuted"]
        for name, tensor in self.stored.items():
            if name == ROPE_FACTORS:
                continue
            kind = GGMLQuantizationType[tensor.kind]
            values = dequantize(self._data(tensor), kind).reshape(tensor.shape)
            weight = torch.from_numpy(np.array(values, dtype=np.float32))
            part = name.split(".")[-2]
            if permuted and part in heads:
                weight = _halves(weight, heads[part])
            yield _name(name), weight

    def _data(self, tensor: "_Stored") -> np.ndarray[Any, Any]:
        """A tensor as it is stored, mapped from the file."""
        whole = np.memmap(self.path, mode="r")
        part = whole[tensor.start : tensor.start + tensor.nbytes]
        return part.view(tensor.dtype).reshape(tensor.held)


class _Stored(NamedTuple):
    """A tensor in a file."""

    shape: tuple[int, ...]
    """Its sizes as torch has them, the outputs of a matrix first."""
    kind: str
    """Its number format, such as Q4_1."""
    start: int
    nbytes: int
    dtype: str
    """numpy's name for what is stored: numbers, or the bytes of quantised ones."""
    held: tuple[int, ...]
    """The shape of what is stored."""


def _read(path: Path) -> tuple[dict[str, Any], dict[str, _Stored]]:
    """The metadata and the tensors' places; raises whatever the package gguf stumbles over."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    stored = {}
    for tensor in reader.tensors:  # of a file that is cut short the last ones are
        start, nbytes = int(tensor.data_offset), int(tensor.n_bytes)
        require(start + nbytes <= reader.data.nbytes, f"tensor {tensor.name} ends beyond the file")
        stored[tensor.name] = _Stored(
            shape=tuple(int(size) for size in reversed(tensor.shape.tolist())),
            kind=tensor.tensor_type.name,
            start=start,
            nbytes=nbytes,
            dtype=tensor.data.dtype.str,
            held=tensor.data.shape,
        )
    return {key: field.contents() for key, field in reader.fields.items()}, stored


def _halves(rows: "Tensor", heads: int) -> "Tensor":
    """Rows of queries or keys in the order of a rotation of halves, as transformers has them."""
    pairs = rows.view(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _name(theirs: str) -> str:
    """The name in ``LlamaForCausalLM`` of a tensor of a GGUF file; its own if it is unknown."""
    if theirs in _TOP_NAMES:
        return _TOP_NAMES[theirs]
    block, _, rest = theirs.partition(".")
    number, _, part = rest.partition(".")
    if block == "blk" and part in _NAMES:
        return f"model.layers.{number}.{_NAMES[part]}"
    return theirs
