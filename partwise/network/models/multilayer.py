"""Networks without convolutions."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from partwise.errors import ConfigError
from partwise.network.parts import Parts
from partwise.trees import Shape

EMBEDDED = 8  # features of a text's code


def hidden_layer(inputs: int, outputs: int, norm: bool, dropout: float = 0.0) -> nn.Sequential:
    """Return linear, (batch-norm,) ReLU, (dropout), for samples of any shape."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(inputs, outputs)]
    layers += [nn.BatchNorm1d(outputs)] * norm
    layers += [nn.ReLU()]
    layers += [nn.Dropout(dropout)] * (dropout > 0)
    return nn.Sequential(*layers)


def mlp_100(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return one hidden layer of 100 features (FedFCD on Fashion-MNIST)."""
    body = nn.Sequential(OrderedDict(fc1=hidden_layer(math.prod(shape), 100, norm, dropout)))
    return Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(100, classes))))


def tabular(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return two small hidden layers, for rows of a table."""
    fc1, fc2 = hidden_layer(math.prod(shape), 64, norm), hidden_layer(64, 32, norm, dropout)
    body = nn.Sequential(OrderedDict(fc1=fc1, fc2=fc2))
    return Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(32, classes))))


class Row(nn.Module):
    """A row of a table as one vector: its numbers, and for each of its texts the features of its code."""

    starts: Tensor

    def __init__(self, code_sizes: tuple[int, ...]):
        super().__init__()
        self.embedding = nn.Embedding(sum(code_sizes), EMBEDDED)  # of all columns, one after the other
        self.register_buffer("starts", torch.tensor([0, *code_sizes[:-1]]).cumsum(0), persistent=False)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """Return (rows, numbers + EMBEDDED x columns of texts)."""
        texts: Tensor = self.embedding(x["codes"] + self.starts).flatten(1)
        return torch.cat([x["row"], texts], 1) if "row" in x else texts


def tabular_embedding(
    shape: Shape, classes: int, code_sizes: tuple[int, ...], norm: bool = False, dropout: float = 0.0
) -> Parts:
    """Return the two hidden layers of `tabular` on numbers and embedded texts."""
    if not isinstance(shape, dict) or not code_sizes:
        raise ConfigError("model 'tabular-embedding' takes tables whose texts are codes; set categories = codes")
    inputs = sum(shape.get("row", ())) + EMBEDDED * len(code_sizes)
    fc1, fc2 = hidden_layer(inputs, 64, norm), hidden_layer(64, 32, norm, dropout)
    body = nn.Sequential(OrderedDict(row=Row(code_sizes), fc1=fc1, fc2=fc2))
    return Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(32, classes))))


def projector(features: int, depth: int = 2, hidden: int = 256, norm: bool = True) -> nn.Sequential:
    """Return the projector of DualFed, between features and a personal head.

    It has `depth` linear layers that leave features of the same size; batch-norm comes after the activation, and last.
    """
    layers: list[nn.Module] = []
    size = features
    for _ in range(depth - 1):
        layers += [nn.Linear(size, hidden), nn.ReLU(), *[nn.BatchNorm1d(hidden)] * norm]
        size = hidden
    return nn.Sequential(*layers, nn.Linear(size, features), *[nn.BatchNorm1d(features)] * norm)
