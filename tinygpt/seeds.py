"""Seeds for torch's generators.

The CPU generator uses only the low 32 bits of its seed, but a seed here may have 63 bits. A hash
turns such a seed into 32 bits that depend on all 63.
"""

import hashlib


def row_seed(purpose: str, seed: int, row: int) -> int:
    """A seed below 2**32 that depends on purpose, seed and row."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{row}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def whole_seed(purpose: str, seed: int) -> int:
    """``seed`` itself if it is below 2**32, otherwise a hash of all its bits."""
    return seed if seed < 2**32 else row_seed(purpose, seed, 0)
