"""Networks for series: samples of (time steps, features), which may end with steps of NaN, where one is shorter."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from partwise.errors import ConfigError
from partwise.network.parts import BUILD_AGAIN, Parts

STATES = 64  # of each layer of the GRU
STEP_FEATURES, HEADS, FEEDFORWARD = 32, 4, 64  # of the transformer; the last are the hidden features

Series = tuple[Tensor, Tensor]  # (rows, steps, features), and (rows, steps) which steps there are


class Known(nn.Module):
    """Which steps there are: a shorter series ends with steps of NaN."""

    def forward(self, x: Tensor) -> Series:
        """Return x, 0 in steps that are not there, and which are."""
        there = ~x.isnan().all(-1)
        return torch.where(there[..., None], x, torch.zeros_like(x)), there


class Outputs(nn.Module):
    """A recurrent layer that hands on the outputs of all steps."""

    def __init__(self, inputs: int):
        super().__init__()
        self.gru = nn.GRU(inputs, STATES, batch_first=True)

    def forward(self, series: Series) -> Series:
        """Return STATES features a step; none depends on later steps."""
        x, there = series
        return self.gru(x)[0], there


class LastStep(nn.Module):
    """The features of the last step that is there."""

    def forward(self, series: Series) -> Tensor:
        """Return (rows, features)."""
        x, there = series
        last = torch.arange(x.shape[1], device=x.device) == there.sum(1, keepdim=True) - 1
        return (x * last[..., None]).sum(1)


class MeanOfSteps(nn.Module):
    """The mean of all steps that are there."""

    def forward(self, series: Series) -> Tensor:
        """Return (rows, features)."""
        x, there = series
        return (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)


class EveryStep(nn.Module):
    """The features of each step."""

    def forward(self, series: Series) -> Tensor:
        """Return (rows, steps, features)."""
        return series[0]


class HeadOfSteps(nn.Linear):
    """A head for each step."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, classes, steps)."""
        return super().forward(x).transpose(1, 2)


class Embed(nn.Linear):
    """A linear layer for each step."""

    def forward(self, series: Series) -> Series:  # type: ignore[override]
        """Return STEP_FEATURES features a step."""
        return super().forward(series[0]), series[1]


class Positions(nn.Module):
    """Features of its own for every step, added to what the step has."""

    def __init__(self, steps: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, STEP_FEATURES))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw as usual for transformers."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, series: Series) -> Series:
        """Return STEP_FEATURES features a step."""
        return series[0] + self.weight, series[1]


class Encoder(nn.TransformerEncoderLayer):
    """An encoder layer in which no step attends to one that is not there."""

    def __init__(self) -> None:
        # `--dropout` falls before the head alone, as in all networks by name.
        super().__init__(STEP_FEATURES, HEADS, FEEDFORWARD, dropout=0.0, batch_first=True)

    def forward(self, series: Series) -> Series:  # type: ignore[override]
        """Return STEP_FEATURES features a step."""
        return super().forward(series[0], src_key_padding_mask=~series[1]), series[1]


def gru(
    shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0, at_places: bool = False
) -> Parts:
    """Return two GRU layers (Cho et al., 2014), whose last step is classified, or each."""
    _, features = steps_and_features("gru", shape, norm)
    layers = OrderedDict[str, nn.Module](known=Known(), gru1=Outputs(features), gru2=Outputs(STATES))
    return with_head(layers, {"last": LastStep()}, STATES, classes, dropout, at_places)


def transformer(
    shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0, at_places: bool = False
) -> Parts:
    """Return two encoder layers (Vaswani et al., 2017) on learned positions; their mean is classified, or each step."""
    steps, features = steps_and_features("transformer", shape, norm)
    layers = OrderedDict[str, nn.Module](
        known=Known(), embed=Embed(features, STEP_FEATURES), positions=Positions(steps)
    )
    for number in (1, 2):
        layers[f"encoder{number}"] = Encoder()
        setattr(layers[f"encoder{number}"], BUILD_AGAIN, Encoder)  # attention has no reset_parameters
    return with_head(layers, {"mean": MeanOfSteps()}, STEP_FEATURES, classes, dropout, at_places)


def with_head(
    layers: OrderedDict[str, nn.Module],
    end: dict[str, nn.Module],
    features: int,
    classes: int,
    dropout: float,
    at_places: bool,
) -> Parts:
    """Return the layers as the body, with dropout before a linear head of what they `end` with, or of every step."""
    layers.update({"steps": EveryStep()} if at_places else end)
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    head = (HeadOfSteps if at_places else nn.Linear)(features, classes)
    return Parts(nn.Sequential(OrderedDict(body=nn.Sequential(layers), head=head)))


def steps_and_features(name: str, shape: tuple[int, ...], norm: bool) -> tuple[int, int]:
    """Return the length of a series and the features of a step; refuse samples that are no series."""
    if norm:
        raise ConfigError(f"batch_norm applies to networks for images and tables; leave it out for model '{name}'")
    if len(shape) != 2:
        raise ConfigError(
            f"model '{name}' takes series, samples of (time steps, features), but the data's have the shape {shape}"
        )
    return shape[0], shape[1]
