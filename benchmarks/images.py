"""Random images: what is learned does not matter where time is measured."""

import torch

from partwise.data import Source


def shape_of(model: str) -> tuple[int, int, int]:
    """Of the images that a network takes here."""
    return (1, 28, 28) if model == "mlp-100" else (3, 32, 32)


def random_source(model: str, train: int, test: int, random: torch.Generator) -> Source:
    """Images of ten classes for a network: those to train on, then those to test on."""
    shape = shape_of(model)
    x = torch.randint(0, 256, (train + test, *shape), dtype=torch.uint8, generator=random)
    y = torch.randint(0, 10, (train + test,), generator=random)
    return Source("random images", x, y, 10, train, (127.5,) * shape[0], (127.5,) * shape[0])
