"""Each engine's own seed: engines with equal seeds would play equal games."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

SEED = "--randomSeed"


def with_seed(args: Sequence[str], engine_id: str, seed: int | None = None) -> list[str]:
    """The arguments with a seed: the one among them, else ``seed``, else one that follows from the engine's id."""
    if any(arg == SEED or arg.startswith(f"{SEED}=") for arg in args):
        return list(args)
    return [*args, SEED, str(seed if seed is not None else derived_seed(engine_id))]


def derived_seed(engine_id: str) -> int:
    """A seed from 1 to 2**31 - 1 that is the same each time the same engine is made."""
    return int.from_bytes(hashlib.sha256(engine_id.encode()).digest()[:4], "big") % (2**31 - 1) + 1
