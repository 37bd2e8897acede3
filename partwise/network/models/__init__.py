"""Backbones with named parts and layers."""

from collections.abc import Callable

from partwise.errors import ConfigError, unknown
from partwise.network.models.convolutional import cnn_5x5, cnn_digits, convnet_c, convnet_f
from partwise.network.models.from_timm import from_timm
from partwise.network.models.multilayer import mlp_100, tabular
from partwise.network.models.projector import projector
from partwise.network.models.resnet import resnet18, resnet18_3x3
from partwise.network.models.weights import with_weights
from partwise.network.parts import Parts

__all__ = ["MODELS", "build", "projector", "usual", "with_weights"]

MODELS: dict[str, Callable[..., Parts]] = {
    "cnn-digits": cnn_digits,
    "mlp-100": mlp_100,
    "tabular": tabular,
    "cnn-5x5": cnn_5x5,
    "convnet-f": convnet_f,
    "convnet-c": convnet_c,
    "resnet18": resnet18,
    "resnet18-3x3": resnet18_3x3,
}
TIMM = "timm:"


def usual(shape: tuple[int, ...]) -> str:
    """The network for samples of a shape, where a data set names none."""
    if len(shape) != 3:
        return "tabular" if len(shape) == 1 else "mlp-100"
    return "cnn-digits" if min(shape[1:]) < 16 else "convnet-f" if min(shape[1:]) < 32 else "cnn-5x5"


def build(name: str, shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """A model by name, not yet drawn. `norm`: batch-norm after every convolution; `dropout`: before the head."""
    if name.startswith(TIMM):
        return from_timm(name.removeprefix(TIMM), shape, classes, norm, dropout)
    if name not in MODELS:
        raise ConfigError(unknown("model", name, ["auto", "cnn", *MODELS, "timm:NAME"]))
    return MODELS[name](shape, classes, norm=norm, dropout=dropout)
