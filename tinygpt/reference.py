"""A reference for approximate caches: the same result in one pass over all tokens, without a cache.

The results of a cache that drops or rounds entries differ from those of the plain forward pass. Its
class states what each query sees (``Seen``), and this pass computes just that from the weights. It
calls neither the cache nor the model's own attention.

Shapes: B rows, n tokens, H query heads, K key/value heads, D head_dim, V vocabulary.
"""

import torch
from torch import Tensor

from tinygpt.cache import Seen
from tinygpt.config import Rope
from tinygpt.model import GPT, Attention, Block
from tinygpt.rope import rope_table, rotate

QUERIES_AT_ONCE = 256
"""Queries whose scores over all keys are in memory at the same time."""


@torch.inference_mode()
def forward(model: GPT, ids: Tensor, seen: Seen, at: Tensor) -> Tensor:
    """Logits (B, len(at), V) at the positions ``at`` of ``ids`` (B, n).

    Each token sees the tokens that ``seen`` says.
    """
    device = ids.device
    seen = seen._replace(mask=seen.mask.to(device), distances=seen.distances.to(device))
    x: Tensor = model.emb(ids)
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        rope = model.config.rope if model.config.rotates(layer) else None
        x = x + _attention(block.attn, block.norm1(x), seen, rope)
        x = x + block.mlp(block.norm2(x))
    logits: Tensor = model.head(model.norm(x[:, at.to(device)]))
    return logits


def _attention(attention: Attention, x: Tensor, seen: Seen, rope: Rope | None) -> Tensor:
    """Attention of ``x`` (B, n, d_model) over what ``seen`` says.

    Keys are rotated by their position in the text. If ``seen`` states another distance between a
    query and a key than they have in the text, the query is rotated by another position instead.
    """
    B, n, _ = x.shape
    H, K, D = attention.n_heads, attention.n_kv_heads, attention.head_dim
    at = torch.arange(n, device=x.device)
    turned = (seen.distances + at).masked_fill(~seen.mask, 0)  # the position of each query, per key
    positions = max(n, int(turned.max()) + 1)
    if rope is None:  # a layer that rotates nothing: all angles are 0
        cos, sin = x.new_ones(positions, D), x.new_zeros(positions, D)
    else:
        cos, sin = rope_table(positions, rope, str(x.device))
    heads = attention.qkv(x).view(B, n, -1, D).transpose(1, 2)
    q, k, v = torch.split(heads, [H, K, K], dim=1)
    if attention.q_norm is not None and attention.k_norm is not None:
        q, k = attention.q_norm(q), attention.k_norm(k)
    k, v = seen.kept(rotate(k, cos[at], sin[at]), v)
    k, v = (held.float().repeat_interleave(H // K, dim=1) for held in (k, v))
    parts = []
    for rows in torch.split(at, QUERIES_AT_ONCE):
        mask, shift = seen.mask[rows], turned[rows] - rows[:, None]
        scores = torch.full((B, H, len(rows), n), float("-inf"), device=x.device)
        for by in sorted(set(shift[mask].tolist())):  # only 0 if distances are as in the text
            places = (rows + by).clamp(min=0)
            query = rotate(q[:, :, rows], cos[places], sin[places]).float() * D**-0.5
            scores = torch.where(mask & (shift == by), query @ k.mT, scores)
        shares = scores.softmax(dim=-1).masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
        parts.append(shares @ v)
    y = torch.cat(parts, dim=2).transpose(1, 2).reshape(B, n, H * D)
    out: Tensor = attention.out(y.to(x.dtype))
    return out
