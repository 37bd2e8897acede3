"""A network without convolutions."""

import math
from collections import OrderedDict

from torch import nn

from partwise.parts import Parts


def mlp_100(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """One hidden layer of 100 features (FedFCD on Fashion-MNIST)."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(math.prod(shape), 100)]
    layers += [nn.BatchNorm1d(100)] * norm
    layers += [nn.ReLU()]
    layers += [nn.Dropout(dropout)] * (dropout > 0)
    body = nn.Sequential(OrderedDict(fc1=nn.Sequential(*layers)))
    return Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(100, classes))))
