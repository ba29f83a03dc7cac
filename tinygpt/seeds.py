"""Seeds for torch's generators.

The generator of the CPU looks at the low 32 bits of its seed only, and a seed of ours may have 63:
a hash makes 32 bits of them that depend on all.
"""

import hashlib


def row_seed(purpose: str, seed: int, row: int) -> int:
    """A seed of its own, below 2**32, for each (purpose, seed, row)."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{row}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def whole_seed(purpose: str, seed: int) -> int:
    """``seed`` itself below 2**32, and a hash of the whole of it from there on."""
    return seed if seed < 2**32 else row_seed(purpose, seed, 0)
