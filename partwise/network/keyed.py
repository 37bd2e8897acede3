"""Random numbers from a key alone: the same for a client in every engine and beside any others."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from partwise.errors import ConfigError

DRAW_SALT = 0x5851F42D  # added to a key, so that draws differ from the dropout of the same step


def scramble(number: Tensor) -> Tensor:
    """Return an integer hash on 32 bits, held in int64 (torch has no unsigned arithmetic on all devices)."""
    number = number & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        number = number ^ (number >> shift)
        number = (number * factor) & 0xFFFFFFFF
    return number ^ (number >> 16)


def hashed(key: Tensor, shape: torch.Size) -> Tensor:
    """Return (shape) whole numbers below 2^32; with more rows, those of earlier rows stay the same."""
    return scramble(scramble(key) + torch.arange(shape.numel(), device=key.device).view(shape))


class Draws:
    """Random numbers of one key, one draw after the other."""

    def __init__(self, key: Tensor | None, dtype: torch.dtype):
        self.key, self.dtype, self.taken = key, dtype, 0

    def random(self, shape: Iterable[int]) -> Tensor:
        """Return (shape) numbers between 0 and 1, neither of them included, all equally likely."""
        return self.open_unit(shape).to(self.dtype).clamp(max=1 - torch.finfo(self.dtype).eps / 2)  # rounded to 1

    def normal(self, shape: Iterable[int]) -> Tensor:
        """Return (shape) numbers of the standard normal distribution."""
        return (math.sqrt(2) * torch.erfinv(2 * self.open_unit(shape) - 1)).to(self.dtype)

    def open_unit(self, shape: Iterable[int]) -> Tensor:
        """Return (shape) float64 numbers between 0 and 1, neither of them included; refuse where there is no client."""
        if self.key is None:
            raise ConfigError("random numbers belong to a client, and this function runs on the server")
        self.taken += 1
        # Scramble the key before counting: keys of neighbouring steps differ by a fixed number, and their draws would
        # repeat each other.
        whole = hashed(scramble(self.key + DRAW_SALT) + self.taken, torch.Size(shape))
        return (whole.double() + 0.5) / 2**32  # neither 0 nor 1: the normal distribution has no such places


NO_DRAWS = Draws(None, torch.float32)
