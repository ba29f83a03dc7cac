"""What a generation costs by formula: bytes held and floating-point operations.

This module imports no torch, so that a plan can be priced before anything slow is loaded.
"""

from tinygpt.config import ModelConfig, PrecisionConfig


def weights_bytes(model: ModelConfig, precision: PrecisionConfig) -> int:
    """Bytes of the weights in their precision; a tied output head counts once.

    In int8 each row of a matrix has a scale of 4 bytes, and so has each weight of the norms.
    """
    if precision.kind != "int8":
        return model.n_parameters * precision.bytes_per_weight
    weights = sum(outputs * inputs for outputs, inputs in model.matrices)
    scales = sum(outputs for outputs, _ in model.matrices)
    return weights * precision.bytes_per_weight + 4 * (scales + model.n_parameters - weights)


def held_weights_bytes(
    model: ModelConfig, precision: PrecisionConfig, *, integers: bool = False
) -> int:
    """Bytes of the weights as a model holds them: int8 ones take 4 bytes, unless as integers."""
    if integers and precision.kind == "int8":
        return weights_bytes(model, precision)
    return model.n_parameters * precision.bytes_per_value


def kv_cache_bytes(model: ModelConfig, batch: int, tokens: int, bytes_per_value: int) -> int:
    """Bytes of a full cache: 2 * layers * tokens * n_kv_heads * head_dim * bytes * batch.

    A cache holds at most ``context_length`` tokens.
    """
    held = min(tokens, model.context_length)
    per_token = 2 * model.n_layers * model.n_kv_heads * model.head_dim
    return per_token * held * bytes_per_value * batch


def activation_bytes(model: ModelConfig, batch: int, tokens: int, bytes_per_value: int) -> int:
    """Peak bytes of one forward pass over ``tokens`` per row, to within small factors.

    It is the sum of two parts: the MLP (x, its norm, gate and up, their product), and the logits in
    fp32 with their softmax, the sampler's noise and, for top-p, a sorted copy.
    """
    per_token = 3 * model.d_model + 3 * model.d_ff
    mlp = per_token * min(tokens, model.context_length) * bytes_per_value
    logits = 8 * model.vocab_size * 4
    return batch * (mlp + logits)


def forward_flops(model: ModelConfig, new: int, held: int) -> int:
    """Operations of one row's forward pass over ``new`` tokens with ``held`` tokens in the cache.

    Each weight takes two per token, but the output head is applied at the last position only. The
    two products of attention are added, over all keys and values that each new token sees.
    """
    matrices = model.n_parameters - model.vocab_size * model.d_model * (
        1 if model.tie_embeddings else 2
    )
    head = model.vocab_size * model.d_model
    seen = new * held + new * (new + 1) // 2
    attention = 4 * model.n_layers * model.n_heads * model.head_dim * seen
    return 2 * (matrices * new + head) + attention


def generation_flops(
    model: ModelConfig, batch: int, prompt_tokens: int, new_tokens: int, *, cached: bool
) -> int:
    """Operations of a whole generation of ``batch`` rows, with or without a cache."""
    window = model.context_length

    def step(n: int) -> int:
        if not cached or n == prompt_tokens:
            return forward_flops(model, min(n, window), 0)
        return forward_flops(model, 1, min(n - 1, window - 1))

    end = prompt_tokens + new_tokens
    growing = min(end, max(prompt_tokens, window) + 1)  # all later steps cost the same
    total = sum(step(n) for n in range(prompt_tokens, growing))
    return batch * (total + (end - growing) * step(window + 1))
