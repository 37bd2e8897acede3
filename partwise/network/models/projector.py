"""The projector of DualFed, which stands between features and a personal head."""

from torch import nn


def projector(features: int, depth: int = 2, hidden: int = 256, norm: bool = True) -> nn.Sequential:
    """`depth` linear layers that leave features of the same size; batch-norm comes after the activation, and last."""
    layers: list[nn.Module] = []
    size = features
    for _ in range(depth - 1):
        layers += [nn.Linear(size, hidden), nn.ReLU(), *[nn.BatchNorm1d(hidden)] * norm]
        size = hidden
    return nn.Sequential(*layers, nn.Linear(size, features), *[nn.BatchNorm1d(features)] * norm)
