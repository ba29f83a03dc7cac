"""The model. Its blocks are those of a Llama, so that other programs can run its weights.

``forward`` computes logits at every position, for training and as a reference. ``step`` runs new
tokens over a cache and computes logits at the last position only, which is what generation needs.

Shapes: B rows, T tokens, H query heads, K key/value heads, D head_dim, V vocabulary.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinygpt.cache import CacheShape, KVCache, NoCache, Step
from tinygpt.config import ModelConfig
from tinygpt.quantisation import AT_ONCE, Int8Embedding, Int8Linear, dequantise, quantise
from tinygpt.rope import rotate
from tinygpt.seeds import whole_seed

ALL = slice(None)
SCALE = "weight_scale"
"""The end of the name of a parameter that scales another one, which is held as integers."""
Linear = type[nn.Linear] | type[Int8Linear]
"""The class of all layers that multiply by a matrix."""


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, linear: Linear) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = config.n_heads, config.n_kv_heads
        self.head_dim = config.head_dim
        heads = config.n_heads + 2 * config.n_kv_heads
        self.qkv = linear(config.d_model, heads * config.head_dim, bias=config.qkv_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.rotates = config.rotates
        self.out = linear(config.n_heads * config.head_dim, config.d_model, bias=False)

    def forward(self, x: Tensor, layer: int, cache: KVCache, step: Step) -> Tensor:
        B, T, _ = x.shape
        heads = self.qkv(x).view(B, T, -1, self.head_dim).transpose(1, 2)  # (B, H + 2K, T, D)
        qk, v = heads[:, : -self.n_kv_heads], heads[:, -self.n_kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk[:, : self.n_heads], qk[:, self.n_heads :]
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        if self.rotates(layer):
            qk = rotate(qk, step.cos, step.sin)
        q, k = qk[:, : self.n_heads], qk[:, self.n_heads :]
        k, v = cache.update(layer, k, v)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=step.mask,
            is_causal=step.is_causal,
            enable_gqa=self.n_heads != self.n_kv_heads,
        )
        out: Tensor = self.out(y.transpose(1, 2).reshape(B, T, -1))
        return out


class SwiGLU(nn.Module):
    def __init__(self, config: ModelConfig, linear: Linear) -> None:
        super().__init__()
        self.gate_up = linear(config.d_model, 2 * config.d_ff, bias=False)
        self.down = linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Block(nn.Module):
    def __init__(self, config: ModelConfig, linear: Linear) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config, linear)
        self.norm2 = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = SwiGLU(config, linear)

    def forward(self, x: Tensor, layer: int, cache: KVCache, step: Step) -> Tensor:
        x = x + self.attn(self.norm1(x), layer, cache, step)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """The language model; ``GPT(ModelConfig())`` has 5,795,072 parameters, 23.2 MB in fp32.

    With ``integers`` its matrices are held in int8 (quantisation.py), and all else in fp32.
    """

    def __init__(self, config: ModelConfig, *, integers: bool = False) -> None:
        super().__init__()
        self.config, self.integers = config, integers
        linear: Linear = Int8Linear if integers else nn.Linear
        embedding = Int8Embedding if integers else nn.Embedding
        self.emb = embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config, linear) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = linear(config.d_model, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the output head the embedding, if the config says so: after each got its storage."""
        if self.config.tie_embeddings:
            self.head.weight = self.emb.weight
            if self.integers:
                self.head.weight_scale = self.emb.weight_scale

    @property
    def device(self) -> torch.device:
        return self.emb.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and of a cache."""
        return self.norm.weight.dtype

    def cache_shape(self, batch: int, max_positions: int) -> CacheShape:
        """The shape of a cache for this model, of ``batch`` rows and ``max_positions`` tokens."""
        return CacheShape(self.config, batch, max_positions, self.device, self.dtype)

    def forward(
        self, ids: Tensor, cache: NoCache | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V) at every position of ``ids`` (B, T), with T at most ``context_length``.

        Give a ``cache`` to reuse its table of angles, as a pass under torch.compile must. With
        positions ``at`` (n,) the logits are computed at these only, (B, n, V). Raises ValueError if
        there are more tokens than ``context_length``.
        """
        B, T = ids.shape
        if self.config.context_length < T:
            raise ValueError(
                f"{T} tokens: the window is context_length={self.config.context_length}; "
                "pass the last ones only"
            )
        cache = cache or NoCache(self.cache_shape(B, T))
        hidden = self._hidden(ids, cache)
        logits: Tensor = self.head(self.norm(hidden if at is None else hidden[:, at]))
        return logits

    @torch.inference_mode()
    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Run the new tokens ``ids`` (B, T) over ``cache``; returns logits (B, V) of the last."""
        return self.last_logits(ids, cache)

    def last_logits(self, ids: Tensor, cache: KVCache) -> Tensor:
        """The same as ``step`` without inference mode, since torch cannot trace the model in it."""
        logits: Tensor = self.head(self.norm(self._hidden(ids, cache)[:, -1]))
        return logits

    def _hidden(self, ids: Tensor, cache: KVCache) -> Tensor:
        step = cache.step(ids.shape[1])
        x: Tensor = self.emb(ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, cache, step)
        cache.advance(ids.shape[1])
        return x


def init_weights(model: GPT, seed: int) -> GPT:
    """Fill the model with seeded random weights that are the same on every machine.

    The draws are uniform and made on the CPU in fp32, since torch's normal draws depend on the
    processor's vector width. Linear layers have a standard deviation of 1/sqrt(inputs), the
    embedding and biases have 0.02. With the same small deviation everywhere and a tied head, greedy
    text would repeat a single token, and a benchmark's gate would not see the errors it looks for.
    """
    generator = torch.Generator().manual_seed(whole_seed("weights", seed))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name.endswith(SCALE):
                continue
            if parameter.dim() == 1 and not name.endswith("bias"):
                parameter.fill_(1.0)
                continue
            small = name == "emb.weight" or name.endswith("bias")
            std = 0.02 if small else parameter.shape[1] ** -0.5
            draw = torch.rand(parameter.shape, generator=generator, dtype=torch.float32)
            put(parameters, name, draw.mul_(2.0).sub_(1.0).mul_(3.0**0.5 * std))
    return model


def put(parameters: Mapping[str, Tensor], name: str, values: Tensor, rows: slice = ALL) -> None:
    """Copy ``values`` into some ``rows`` of a model's parameter, rounded to what that can hold."""
    scale = parameters.get(f"{name}_scale")
    if scale is None:
        parameters[name][rows].copy_(values)
        return
    step = max(1, AT_ONCE // values.shape[1])
    pieces = [torch.split(held, step) for held in (parameters[name][rows], scale[rows], values)]
    for integers, scales, floats in zip(*pieces, strict=True):
        rounded = quantise(floats)
        integers.copy_(rounded[0])
        scales.copy_(rounded[1])


def weights(model: GPT) -> Iterator[tuple[str, Tensor]]:
    """The name of each parameter with its values; those that are held as integers as fp32."""
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        scale = parameters.get(f"{name}_scale")
        if not name.endswith(SCALE):
            yield name, parameter.detach() if scale is None else dequantise(parameter, scale)
