"""Learning-rate schedules: the factor on every learning rate in a round, counted from 0 where the schedule begins."""

import math

from partwise.errors import ConfigError
from partwise.training import Training


def rate_factor(settings: Training, round: int, rounds: int) -> float:
    """Return the factor in a round of a schedule over `rounds` rounds: warm-up, then the schedule proper."""
    if round < settings.lr_warmup:
        return (round + 1) / (settings.lr_warmup + 1)
    round, rounds = round - settings.lr_warmup, rounds - settings.lr_warmup
    if settings.lr_schedule == "step":
        return stepped(round, settings.lr_step, settings.lr_factor)
    if settings.lr_schedule == "cosine":
        return cosine(round, rounds)
    return decayed(round, settings.lr_decay)


def decayed(round: int, decay: float) -> float:
    """Return `decay` to the power of the round, as torch's ExponentialLR."""
    return decay**round


def stepped(round: int, every: int, factor: float) -> float:
    """Return `factor` to the power of the times that `every` rounds are over, as torch's StepLR."""
    return factor ** (round // every)


def cosine(round: int, rounds: int) -> float:
    """Return half a cosine from 1 in the first of `rounds` rounds to nearly 0 in the last, as CosineAnnealingLR.

    It stays there: a method may train once more after the last round.
    """
    return (1 + math.cos(math.pi * min(round, rounds - 1) / rounds)) / 2


def check_schedule(settings: Training, spans: list[int]) -> None:
    """Refuse a warm-up that does not end, and steps that are never reached; `spans`: rounds between restarts."""
    if settings.lr_warmup >= min(spans):
        raise ConfigError(
            f"lr_warmup = {settings.lr_warmup} leaves no round after it: the schedule has {min(spans)}; set it lower"
        )
    left = max(spans) - settings.lr_warmup
    if settings.lr_schedule == "step" and settings.lr_step >= left:
        raise ConfigError(
            f"lr_step = {settings.lr_step} is never reached: the schedule has {left} rounds; set lr_step lower"
        )
