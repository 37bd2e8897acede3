"""Networks for series, samples of (time steps, features), and for tokens, samples of (time steps,) whole numbers.

Between layers go the features of all steps and which of the steps are real: token 0 is padding, as a step of NaN is.
"""

from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from partwise.errors import ConfigError
from partwise.network.parts import BUILD_AGAIN, Parts

STATES = 64  # of each layer of the GRU
STEP_FEATURES, HEADS, FEEDFORWARD = 32, 4, 64  # of the transformer; the last are the hidden features


class Steps(NamedTuple):
    """The features of all steps of a mini-batch."""

    x: Tensor  # (rows, steps, features)
    real: Tensor | None = None  # (rows, steps) bool; None: all of them


def as_steps(x: Tensor | Steps) -> Steps:
    """Return what a layer is given: a series is all real steps."""
    return x if isinstance(x, Steps) else Steps(x)


class Tokens(nn.Embedding):
    """Features of each token."""

    def reset_parameters(self) -> None:
        """Draw features whose vector has length 1 on average."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, x: Tensor) -> Steps:  # type: ignore[override]
        """Return the features of (rows, steps) tokens; those behind the last that is not 0 are padding."""
        return Steps(super().forward(x), x != 0)


class Known(nn.Module):
    """The steps of a series, of which a shorter one ends with steps of NaN."""

    def forward(self, x: Tensor) -> Steps:
        """Return the features of steps, 0 in those that are not there."""
        real = ~x.isnan().all(-1)
        return Steps(torch.where(real[..., None], x, torch.zeros_like(x)), real)


class Embed(nn.Linear):
    """A linear layer at every step."""

    def forward(self, steps: Steps) -> Steps:  # type: ignore[override]
        """Return the new features of all steps."""
        return steps._replace(x=super().forward(steps.x))


class Outputs(nn.Module):
    """A recurrent layer that hands on the outputs of all steps."""

    def __init__(self, inputs: int):
        super().__init__()
        self.gru = nn.GRU(inputs, STATES, batch_first=True)

    def forward(self, x: Tensor | Steps) -> Steps:
        """Return (rows, steps, STATES)."""
        steps = as_steps(x)
        return steps._replace(x=self.gru(steps.x)[0])


class LastStep(nn.Module):
    """The features of the last real step; of a sample without any, those of the first."""

    def forward(self, steps: Steps) -> Tensor:
        """Return (rows, features)."""
        if steps.real is None:
            return steps.x[:, -1]
        number = torch.arange(steps.x.shape[1], device=steps.x.device)
        last = (steps.real * number).amax(1)
        return torch.where((number == last[:, None])[..., None], steps.x, 0.0).sum(1)


class MeanOfSteps(nn.Module):
    """The mean of all real steps; zeros for a sample without any."""

    def forward(self, steps: Steps) -> Tensor:
        """Return (rows, features)."""
        if steps.real is None:
            return steps.x.mean(1)
        return torch.where(steps.real[..., None], steps.x, 0.0).sum(1) / steps.real.sum(1).clamp(min=1)[:, None]


class EveryStep(nn.Module):
    """The features of every step, for a prediction at each."""

    def forward(self, steps: Steps) -> Tensor:
        """Return (rows, steps, features)."""
        return steps.x


class HeadOfSteps(nn.Linear):
    """A linear head at every step."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, classes, steps), as torch's cross_entropy takes them."""
        return super().forward(x).transpose(1, 2)


class Positions(nn.Module):
    """Features of its own for every step, added to what the step has."""

    def __init__(self, steps: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, STEP_FEATURES))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw as usual for transformers."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor | Steps) -> Steps:
        """Return (rows, steps, STEP_FEATURES)."""
        steps = as_steps(x)
        return steps._replace(x=steps.x + self.weight)


class EncoderLayer(nn.TransformerEncoderLayer):
    """An encoder layer whose steps look at real steps alone; a causal one's not at later steps either."""

    def __init__(self, causal: bool):
        # `--dropout` falls before the head alone, as in all networks by name.
        super().__init__(STEP_FEATURES, HEADS, FEEDFORWARD, dropout=0.0, batch_first=True)
        self.causal = causal

    def forward(self, steps: Steps) -> Steps:  # type: ignore[override]
        """Return (rows, steps, STEP_FEATURES)."""
        x, hidden, later = steps.x, None, None
        number = torch.arange(x.shape[1], device=x.device)
        if steps.real is not None:
            hidden = ~steps.real & (number > 0)  # a step that may look at nothing would be NaN
        if self.causal:
            later = number[:, None] < number
        return steps._replace(x=super().forward(x, src_mask=later, src_key_padding_mask=hidden))


def gru(
    shape: tuple[int, ...],
    classes: int,
    norm: bool = False,
    dropout: float = 0.0,
    vocabulary: int | None = None,
    each_step: bool = False,
) -> Parts:
    """Return two GRU layers (Cho et al., 2014), whose last step is classified, or each of them."""
    check_series("gru", shape, norm, vocabulary)
    tokens = len(shape) == 1
    layers = OrderedDict[str, nn.Module]()
    layers |= {"embed": Tokens(vocabulary or 0, STEP_FEATURES)} if tokens else {"known": Known()}
    layers |= {"gru1": Outputs(STEP_FEATURES if tokens else shape[1]), "gru2": Outputs(STATES)}
    layers |= {"every": EveryStep()} if each_step else {"last": LastStep()}
    return with_head(layers, STATES, classes, dropout, each_step)


def transformer(
    shape: tuple[int, ...],
    classes: int,
    norm: bool = False,
    dropout: float = 0.0,
    vocabulary: int | None = None,
    each_step: bool = False,
) -> Parts:
    """Return two encoder layers (Vaswani et al., 2017) on steps with learned positions.

    The mean of the steps is classified. With `each_step` each of them is, and looks at earlier ones alone.
    """
    check_series("transformer", shape, norm, vocabulary)
    layers = OrderedDict[str, nn.Module]()
    if len(shape) == 1:
        layers |= {"embed": Tokens(vocabulary or 0, STEP_FEATURES)}
    else:
        layers |= {"known": Known(), "embed": Embed(shape[1], STEP_FEATURES)}
    layers["positions"] = Positions(shape[0])
    for number in (1, 2):
        layer = layers[f"encoder{number}"] = EncoderLayer(each_step)
        setattr(layer, BUILD_AGAIN, partial(EncoderLayer, each_step))  # attention has no reset_parameters
    layers |= {"every": EveryStep()} if each_step else {"mean": MeanOfSteps()}
    return with_head(layers, STEP_FEATURES, classes, dropout, each_step)


def with_head(
    layers: OrderedDict[str, nn.Module], features: int, classes: int, dropout: float, each_step: bool
) -> Parts:
    """Return the layers as the body, with dropout before a linear head."""
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    head = (HeadOfSteps if each_step else nn.Linear)(features, classes)
    return Parts(nn.Sequential(OrderedDict(body=nn.Sequential(layers), head=head)))


def check_series(name: str, shape: tuple[int, ...], norm: bool, vocabulary: int | None) -> None:
    """Refuse samples that are neither series nor tokens, and batch-norm."""
    if norm:
        raise ConfigError(f"batch_norm applies to networks for images and tables; leave it out for model '{name}'")
    if len(shape) != 2 and (len(shape) != 1 or vocabulary is None):
        raise ConfigError(
            f"model '{name}' takes series, samples of (time steps, features), or tokens, samples of whole numbers from "
            f"0 on, but the data's have the shape {shape}"
        )
