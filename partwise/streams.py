"""Random streams: every draw has a name for its purpose, and is never taken from a running generator.

A client's shuffle in round 7 is `stream(seed, "shuffle", client, 7, ...)`. It does not depend on other clients or their
order, and a resumed run draws the same numbers as one without interruption.
"""

import hashlib
from numbers import Integral

import numpy as np
import torch


def stream_key(seed: int, *names: str | int) -> int:
    """Return 64 bits for this seed and these names, different for all others."""
    plain = [int(name) if isinstance(name, Integral) else name for name in (seed, *names)]  # numpy's integers too
    text = "/".join(f"{type(name).__name__}:{str(name).replace('/', '//')}" for name in plain)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the numpy generator of this name."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, *names)))


def torch_stream(seed: int, *names: str | int) -> torch.Generator:
    """Return the torch generator of this name, on the CPU."""
    return torch.Generator().manual_seed(stream_key(seed, *names))
