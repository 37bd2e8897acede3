"""Networks for series: samples of (time steps, features)."""

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from partwise.errors import ConfigError
from partwise.network.parts import BUILD_AGAIN, Parts

STATES = 64  # of each layer of the GRU
STEP_FEATURES, HEADS, FEEDFORWARD = 32, 4, 64  # of the transformer; the last are the hidden features

# `--dropout` falls before the head alone, as in all networks by name.
encoder_layer = partial(nn.TransformerEncoderLayer, STEP_FEATURES, HEADS, FEEDFORWARD, dropout=0.0, batch_first=True)


class Outputs(nn.Module):
    """A recurrent layer that hands on the outputs of all steps."""

    def __init__(self, inputs: int):
        super().__init__()
        self.gru = nn.GRU(inputs, STATES, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, steps, STATES)."""
        outputs: Tensor = self.gru(x)[0]
        return outputs


class LastStep(nn.Module):
    """The features of the last step."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, features)."""
        return x[:, -1]


class MeanOfSteps(nn.Module):
    """The mean of all steps."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, features)."""
        return x.mean(1)


class Positions(nn.Module):
    """Features of its own for every step, added to what the step has."""

    def __init__(self, steps: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, STEP_FEATURES))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw as usual for transformers."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, steps, STEP_FEATURES)."""
        return x + self.weight


def gru(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return two GRU layers (Cho et al., 2014), whose last step is classified."""
    _, features = steps_and_features("gru", shape, norm)
    layers = OrderedDict[str, nn.Module](gru1=Outputs(features), gru2=Outputs(STATES), last=LastStep())
    return with_head(layers, STATES, classes, dropout)


def transformer(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return two encoder layers (Vaswani et al., 2017) on steps with learned positions; their mean is classified."""
    steps, features = steps_and_features("transformer", shape, norm)
    layers = OrderedDict[str, nn.Module](embed=nn.Linear(features, STEP_FEATURES), positions=Positions(steps))
    for number in (1, 2):
        layers[f"encoder{number}"] = encoder_layer()
        setattr(layers[f"encoder{number}"], BUILD_AGAIN, encoder_layer)  # attention has no reset_parameters
    layers["mean"] = MeanOfSteps()
    return with_head(layers, STEP_FEATURES, classes, dropout)


def with_head(layers: OrderedDict[str, nn.Module], features: int, classes: int, dropout: float) -> Parts:
    """Return the layers as the body, with dropout before a linear head."""
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    return Parts(nn.Sequential(OrderedDict(body=nn.Sequential(layers), head=nn.Linear(features, classes))))


def steps_and_features(name: str, shape: tuple[int, ...], norm: bool) -> tuple[int, int]:
    """Return the length of a series and the features of a step; refuse samples that are no series."""
    if norm:
        raise ConfigError(f"batch_norm applies to networks for images and tables; leave it out for model '{name}'")
    if len(shape) != 2:
        raise ConfigError(
            f"model '{name}' takes series, samples of (time steps, features), but the data's have the shape {shape}"
        )
    return shape[0], shape[1]
