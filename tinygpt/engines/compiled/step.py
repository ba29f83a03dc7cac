"""The modules that the compiled engine compiles: the model's arithmetic, written to vectorise well.

The compiled code reads and writes the weights and the cache of the model in place. Only packed and
int8 matrices are copies. Activations are fp32 in every precision, except that the forms ``library``
and ``tiles`` (see ``form``) multiply them in the dtype of the weights.

Shapes: B rows, T tokens, H query heads, K key/value heads, D head_dim, V vocabulary, n filled
slots, M inputs and N outputs of a product.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinygpt.cache import NoCache, Step
from tinygpt.config import ModelConfig, PrecisionConfig
from tinygpt.engines import toolchain
from tinygpt.model import GPT
from tinygpt.quantisation import quantise

LANES = 16
"""Outputs side by side in a packed matrix: one vector of AVX-512, or two of AVX2."""
SUMS_AT_ONCE = 16
"""Sums that share one pass over the weights; a core's registers do not hold more."""
WORD = 4
"""Bytes of an integer of 32 bits."""
FEW = 4
"""Up to this many rows, weights are used in the model's own layout, without a packed copy."""


def stored(x: Tensor) -> Tensor:
    """``x`` unchanged, but written to memory: otherwise Inductor computes it again for each use."""
    return x.as_strided(x.shape, x.stride())


def form(batch: int, dtype: torch.dtype, device: str, model: ModelConfig) -> str:
    """How ``batch`` rows are multiplied by the weights: rows, packed, words, library or tiles.

    ``rows``, ``packed`` and ``words`` are sums over the same range, which Inductor fuses, so that
    weights are read and converted to fp32 once for ``SUMS_AT_ONCE`` rows. ``words`` reads four int8
    weights at once, where the processor has no fast way to read eight single bytes. ``library`` is
    for many rows, since the library's product makes better use of the processor's caches.
    ``tiles`` (tiles.py) takes bf16 without conversion, two inputs at once, and is the fastest at
    any batch.
    """
    if device != "cpu":
        return "rows" if batch == 1 or dtype == torch.int8 else "library"
    even = all(inputs % 2 == 0 for _, inputs in model.matrices)
    if dtype == torch.bfloat16 and even and toolchain.has_tiles():
        return "tiles"
    whole_words = all(inputs % WORD == 0 for _, inputs in model.matrices)
    if dtype == torch.int8 and whole_words and toolchain.is_avx2():
        return "words"
    if batch <= FEW:
        return "rows"
    return "packed" if batch <= SUMS_AT_ONCE or dtype == torch.int8 else "library"


def pack(weight: Tensor) -> Tensor:
    """``weight`` (N, M) as (N / LANES, M, LANES), padded with outputs of zeros."""
    full = F.pad(weight, (0, 0, 0, -len(weight) % LANES))
    return full.view(-1, LANES, weight.shape[1]).mT.contiguous()


def times_rows(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` (B, M) times ``weight`` (N, M) transposed; a vector holds weights of one output."""
    return _in_passes(x, lambda row: (row * weight.float()).sum(-1))


def times_packed(x: Tensor, packed: Tensor) -> Tensor:
    """``x`` (B, M) times a packed matrix, (B, N).

    A vector holds ``LANES`` outputs, so that no sum has to be added up across a vector.
    """
    return _in_passes(x, lambda row: (row[:, None] * packed.float()).sum(1)).flatten(1)


def times_words(x: Tensor, words: Tensor) -> Tensor:
    """``x`` (B, M) times an int8 matrix (N, M), of which ``words`` (N, M / 4) has four in each.

    The inputs are put in the order of the words' bytes first. Shifting a byte to the top and down
    again gives its value with its sign.
    """
    parts = stored(x.view(len(x), -1, WORD).mT.contiguous())  # (B, 4, M / 4)

    def times(row: Tensor) -> Tensor:
        shifts = range(8 * (WORD - 1), -1, -8)  # the lowest byte comes first in memory
        pairs = zip(row, shifts, strict=True)
        a, b, c, d = (part * ((words << up) >> 24).float() for part, up in pairs)
        sums: Tensor = (a + b + c + d).sum(-1)
        return sums

    return _in_passes(parts, times)


def _in_passes(x: Tensor, times: Callable[[Tensor], Tensor]) -> Tensor:
    starts = range(0, len(x), SUMS_AT_ONCE)
    passes = [torch.stack([times(row) for row in x[n : n + SUMS_AT_ONCE]]) for n in starts]
    return torch.cat(passes) if len(passes) > 1 else passes[0]


class SharedWeights(nn.Module):
    """A module whose buffers are the weights of a model, under the names of its parameters.

    A packed matrix is a copy, and so is an int8 one if the model holds floats; the prefill uses the
    original. ``device`` is the kind of device to generate code for, which the tensors do not tell
    if they are on "meta".
    """

    def __init__(self, model: GPT, precision: PrecisionConfig, batch: int, device: str) -> None:
        super().__init__()
        self.config = model.config
        dtype = torch.int8 if precision.kind == "int8" else model.dtype
        self.form = form(batch, dtype, device, model.config)
        self.shapes: dict[str, torch.Size] = {}
        for name, parameter in model.named_parameters():  # a tied head is named only once
            self._share(name.replace(".", "_"), parameter.detach(), precision.kind == "int8")

    def _share(self, name: str, tensor: Tensor, int8: bool) -> None:
        if tensor.dim() == 2:
            self.shapes[name] = tensor.shape
            if int8 and tensor.dtype != torch.int8:
                tensor, scale = quantise(tensor)
                self.register_buffer(f"{name}_scale", scale)
            if self.form in ("packed", "words") and name in self.matrices():
                if self.form == "packed":
                    self.register_buffer(f"{name}_packed", pack(tensor))
                else:  # the same memory
                    self.register_buffer(f"{name}_words", tensor.view(torch.int32))
                if name != "emb_weight":  # the embedding's rows are also looked up
                    return
        self.register_buffer(name, tensor)

    @property
    def head(self) -> str:
        """The name of the matrix that computes the logits."""
        return "emb_weight" if self.config.tie_embeddings else "head_weight"

    def matrices(self) -> list[str]:
        """The names of the matrices that a step multiplies by, in the order of their use."""
        blocks = [name for name in self.shapes if name not in ("emb_weight", "head_weight")]
        return [*blocks, self.head]

    def tiled(self) -> list[Tensor]:
        """The matrices that are multiplied on tile units, in the order of their use."""
        return [self.get_buffer(name) for name in self.matrices() if self.form == "tiles"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        """``x`` (B, M) times the matrix ``name``, (B, N) in fp32, without a bias."""
        if self.form == "packed":
            y = times_packed(x, self.get_buffer(f"{name}_packed"))[:, : self.shapes[name][0]]
        elif self.form == "words":
            y = times_words(x, self.get_buffer(f"{name}_words"))
        elif self.form == "rows":
            y = times_rows(x, self.get_buffer(name))
        else:
            weight = self.get_buffer(name)
            y = F.linear(x.to(weight.dtype), weight).float()
        scale = getattr(self, f"{name}_scale", None)
        return y if scale is None else y * scale


class DecodeStep(SharedWeights):
    """One new token per row over a static cache, whose tensors are inputs: their size may vary."""

    def forward(
        self, ids: Tensor, cos: Tensor, sin: Tensor, slot: Tensor, filled: Tensor, *ring: Tensor
    ) -> Tensor:
        """Logits (B, V) after ``ids`` (B,), whose keys and values are written to ``slot`` (1,).

        ``cos`` and ``sin`` (D,) belong to their position. ``filled`` (n,) gives by its size the
        number of filled slots: attention runs over exactly these, so it needs no mask. ``ring`` has
        the keys of each layer (B, K, slots, D), then the values of each.
        """
        x = self._embed(ids)
        for layer in range(self.config.n_layers):
            block = f"blocks_{layer}"
            y = self._norm(f"{block}_norm1_weight", x)
            held = ring[layer], ring[self.config.n_layers + layer]
            x = stored(x + self._attention(layer, y, cos, sin, slot, filled.shape[0], *held))
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
        self,
        layer: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        slot: Tensor,
        n: int,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        H, K, D = self.config.n_heads, self.config.n_kv_heads, self.config.head_dim
        block = f"blocks_{layer}_attn"
        heads = self.linear(f"{block}_qkv_weight", x)
        if self.config.qkv_bias:
            heads = heads + self.get_buffer(f"{block}_qkv_bias").float()
        heads = heads.view(-1, H + 2 * K, D)
        qk, v = heads[:, : H + K], heads[:, H + K :]
        if self.config.qk_norm:
            q, k = stored(qk[:, :H].contiguous()), stored(qk[:, H:].contiguous())
            q, k = self._norm(f"{block}_q_norm_weight", q), self._norm(f"{block}_k_norm_weight", k)
            qk = torch.cat([q, k], dim=1)
        if self.config.rotates(layer):
            qk = qk * cos + qk.roll(D // 2, dims=-1) * sin
        q, k = stored(qk[:, :H].reshape(-1, K, H // K, 1, D) * D**-0.5), qk[:, H:]
        keys.index_copy_(2, slot, k[:, :, None].to(keys.dtype))
        values.index_copy_(2, slot, v[:, :, None].to(values.dtype))
        seen, held = keys[:, :, None, :n].float(), values[:, :, None, :n].float()
        shares = (q * seen).sum(-1).softmax(-1)  # (B, K, H / K, n); sums fuse, a matmul would not
        y = (shares[..., None] * held).sum(-2)
        return self.linear(f"{block}_out_weight", stored(y.reshape(-1, H * D)))


class WindowPass(nn.Module):
    """The model's own forward pass over a window of T tokens without a cache."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.config, self.model = model.config, model

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Logits (B, V) after the last of ``ids`` (B, T); ``cos`` and ``sin`` (T, D)."""
        return self.model.last_logits(ids, _Rows(cos, sin))


class _Rows(NoCache):
    """A ``NoCache`` that is given its angles; a table of its own would be put into the package."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._rows = Step(cos, sin, None, is_causal=True)

    def step(self, n_new: int) -> Step:
        return self._rows


class Products(SharedWeights):
    """The weight products of one decode step and nothing else: the least work for one token."""

    def forward(self, *rows: Tensor) -> list[Tensor]:
        """Each matrix times its own input (B, M), so that no product depends on another."""
        return [self.linear(name, x) for name, x in zip(self.matrices(), rows, strict=True)]
