"""What the compiled engine compiles: the model's arithmetic, in forms that vectorise.

Weights and cache are buffers that are lent: the compiled code reads and writes them where they
lie (packed and int8 matrices are copies). Activations are fp32 in every precision, but library and
tiles multiply them in that of the weights.

Shapes: B rows, T tokens, H query heads, K key/value heads, D head_dim, V vocabulary, n filled
slots, M inputs and N outputs of a product.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinygpt.cache import NoCache, StaticCache, Step
from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.engines import toolchain
from tinygpt.model import GPT
from tinygpt.quantisation import quantise

LANES = 16
"""Outputs side by side in a packed matrix: a vector of AVX-512, two of AVX2."""
SUMS_AT_ONCE = 16
"""Sums that share one pass over the weights; the registers of a core hold no more."""
FEW = 4
"""Rows up to which weights are used as they lie, without a packed copy."""


def stored(x: Tensor) -> Tensor:
    """``x`` itself, kept in memory: otherwise each consumer's inner loop works it out again."""
    return x.as_strided(x.shape, x.stride())


def form(batch: int, dtype: torch.dtype, device: str, model: ModelConfig) -> str:
    """How ``batch`` rows are multiplied by weights: as ``rows``, ``packed``, by the ``library`` or
    by ``tiles``.

    The first two are sums over one range, which Inductor fuses, so that the weights are read and
    widened once for ``SUMS_AT_ONCE`` rows. Many rows are the library's, which blocks for caches.
    Tiles (tiles.py) take bf16 as it is, two inputs at once; at any batch nothing is faster.
    """
    if device != "cpu":
        return "rows" if batch == 1 or dtype == torch.int8 else "library"
    even = all(inputs % 2 == 0 for _, inputs in model.matrices)
    if dtype == torch.bfloat16 and even and toolchain.has_tiles():
        return "tiles"
    if batch <= FEW:
        return "rows"
    return "packed" if batch <= SUMS_AT_ONCE or dtype == torch.int8 else "library"


def pack(weight: Tensor) -> Tensor:
    """``weight`` (N, M) as (N / LANES, M, LANES), its last outputs filled up with zeros."""
    full = F.pad(weight, (0, 0, 0, -len(weight) % LANES))
    return full.view(-1, LANES, weight.shape[1]).mT.contiguous()


def times_rows(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` (B, M) times ``weight`` (N, M) transposed: a vector runs along a row of weights."""
    return _in_passes(x, lambda row: (row * weight.float()).sum(-1))


def times_packed(x: Tensor, packed: Tensor) -> Tensor:
    """``x`` (B, M) times a packed matrix, (B, N): a vector is as many outputs, and none of its
    sums has to be added up across the vector.
    """
    return _in_passes(x, lambda row: (row[:, None] * packed.float()).sum(1)).flatten(1)


def _in_passes(x: Tensor, times: Callable[[Tensor], Tensor]) -> Tensor:
    starts = range(0, len(x), SUMS_AT_ONCE)
    passes = [torch.stack([times(row) for row in x[n : n + SUMS_AT_ONCE]]) for n in starts]
    return torch.cat(passes) if len(passes) > 1 else passes[0]


class Lent(nn.Module):
    """A module over tensors that are somebody else's: buffers by the parameters' names.

    Where a matrix is packed, or int8, it is a copy, and the original is there for the prefill only.
    """

    def __init__(self, model: GPT, precision: PrecisionConfig, batch: int) -> None:
        super().__init__()
        self.config = model.config
        dtype = torch.int8 if precision.kind == "int8" else model.dtype
        self.form = form(batch, dtype, model.device.type, model.config)
        self.shapes: dict[str, torch.Size] = {}
        for name, parameter in model.named_parameters():  # a tied head is not named again
            self._lend(name.replace(".", "_"), parameter.detach(), precision.kind == "int8")

    def _lend(self, name: str, tensor: Tensor, int8: bool) -> None:
        if tensor.dim() == 2:
            self.shapes[name] = tensor.shape
            if int8:
                tensor, scale = quantise(tensor)
                self.register_buffer(f"{name}_scale", scale)
            if self.form == "packed" and name in self.matrices():
                self.register_buffer(f"{name}_packed", pack(tensor))
                if name != "emb_weight":  # whose rows are looked up
                    return
        self.register_buffer(name, tensor)

    @property
    def head(self) -> str:
        """The name of the matrix that makes logits."""
        return "emb_weight" if self.config.tie_embeddings else "head_weight"

    def matrices(self) -> list[str]:
        """The matrices that a step multiplies by, in that order."""
        blocks = [name for name in self.shapes if name not in ("emb_weight", "head_weight")]
        return [*blocks, self.head]

    def tiled(self) -> list[Tensor]:
        """Those that are multiplied by tiles."""
        return [self.get_buffer(name) for name in self.matrices() if self.form == "tiles"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``x`` (B, M) times the matrix ``name``, (B, N) in fp32."""
        if self.form == "packed":
            y = times_packed(x, self.get_buffer(f"{name}_packed"))[:, : self.shapes[name][0]]
        elif self.form == "rows":
            y = times_rows(x, self.get_buffer(name))
        else:
            weight = self.get_buffer(name)
            y = F.linear(x.to(weight.dtype), weight).float()
        scale = getattr(self, f"{name}_scale", None)
        return y if scale is None else y * scale


class DecodeStep(Lent):
    """One token a row over a static cache."""

    def __init__(self, model: GPT, cache: StaticCache, precision: PrecisionConfig) -> None:
        super().__init__(model, precision, batch=len(cache.k[0]))
        for layer, (k, v) in enumerate(zip(cache.k, cache.v, strict=True)):
            self.register_buffer(f"k{layer}", k)
            self.register_buffer(f"v{layer}", v)

    def forward(
        self, ids: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, filled: Tensor
    ) -> Tensor:
        """Logits (B, V) after ``ids`` (B,), whose keys and values go to ``slot`` (1,).

        ``cos`` and ``sin`` (D,) are those of its position. Of ``filled`` only the size n counts:
        attention runs over exactly the slots in use, so there is no mask.
        """
        x = self._embed(ids)
        for layer in range(self.config.n_layers):
            block = f"blocks_{layer}"
            y = self._norm(f"{block}_norm1_weight", x)
            x = stored(x + self._attention(layer, y, cos, sin, slot, filled.shape[0]))
            y = self._norm(f"{block}_norm2_weight", x)
            gate, up = self.linear(f"{block}_mlp_gate_up_weight", y).chunk(2, dim=-1)
            x = stored(x + self.linear(f"{block}_mlp_down_weight", stored(F.silu(gate) * up)))
        return self.linear(self.head, self._norm("norm_weight", x))

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.get_buffer("emb_weight")[ids].float()
        scale = getattr(self, "emb_weight_scale", None)
        return stored(x if scale is None else x * scale[ids, None])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return stored(x * scale * getattr(self, name).float())

    def _attention(
        self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, n: int
    ) -> Tensor:
        H, K, D = self.config.n_heads, self.config.n_kv_heads, self.config.head_dim
        heads = self.linear(f"blocks_{layer}_attn_qkv_weight", x).view(-1, H + 2 * K, D)
        qk, v = heads[:, : H + K], heads[:, H + K :]
        qk = qk * cos + qk.roll(D // 2, dims=-1) * sin
        q, k = stored(qk[:, :H].reshape(-1, K, H // K, 1, D) * D**-0.5), qk[:, H:]
        keys, values = getattr(self, f"k{layer}"), getattr(self, f"v{layer}")
        keys.index_copy_(2, slot, k[:, :, None].to(keys.dtype))
        values.index_copy_(2, slot, v[:, :, None].to(values.dtype))
        seen, held = keys[:, :, None, :n].float(), values[:, :, None, :n].float()
        shares = (q * seen).sum(-1).softmax(-1)  # (B, K, H / K, n): written out, so that it fuses
        y = (shares[..., None] * held).sum(-2)
        return self.linear(f"blocks_{layer}_attn_out_weight", stored(y.reshape(-1, H * D)))


class WindowPass(nn.Module):
    """A window of T tokens without a cache, for comparison: the model's own forward pass."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.config, self.model = model.config, model

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Logits (B, V) after the last of ``ids`` (B, T); ``cos`` and ``sin`` (T, D)."""
        return self.model.last_logits(ids, _Rows(cos, sin))


class _Rows(NoCache):
    """No cache, whose angles are inputs: a table of its own would be a constant of the package."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._rows = Step(cos, sin, None, is_causal=True)

    def step(self, n_new: int) -> Step:
        return self._rows


class Products(Lent):
    """The weight products of one decode step and nothing else: the least that a token costs."""

    def forward(self, *rows: Tensor) -> list[Tensor]:
        """Each matrix times a (B, M) of its own, as none can wait for the one before it."""
        return [self.linear(name, x) for name, x in zip(self.matrices(), rows, strict=True)]
