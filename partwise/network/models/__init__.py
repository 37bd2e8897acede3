"""Backbones with named parts and layers."""

from importlib import import_module
from typing import TYPE_CHECKING

from partwise.errors import ConfigError, unknown
from partwise.lazy import lazy

if TYPE_CHECKING:  # as in the package itself: the names of networks are known without torch
    from partwise.network.models.multilayer import projector
    from partwise.network.models.weights import with_weights
    from partwise.network.parts import Parts
    from partwise.trees import Shape
else:
    __getattr__, __dir__ = lazy(__name__, {"multilayer": "projector", "weights": "with_weights"})

__all__ = ["NETWORKS", "build", "projector", "usual", "with_weights"]

# Every network, and the file in this folder whose function, called as the network is, builds it.
NETWORKS = {
    "cnn-digits": "convolutional",
    "mlp-100": "multilayer",
    "tabular": "multilayer",
    "tabular-embedding": "multilayer",
    "cnn-5x5": "convolutional",
    "convnet-f": "convolutional",
    "convnet-c": "convolutional",
    "resnet18": "resnet",
    "resnet18-3x3": "resnet",
    "gru": "sequences",
    "transformer": "sequences",
    "unet": "unet",
}
TIMM = "timm:"


def usual(shape: "Shape", each_step: bool = False) -> str:
    """Return the network for samples of a shape, perhaps with a class at each place, where a data set names none."""
    if isinstance(shape, dict):
        raise several(shape)
    if each_step:
        return "unet" if len(shape) == 3 else "gru"
    if len(shape) != 3:
        return "tabular" if len(shape) == 1 else "mlp-100"
    return "cnn-digits" if min(shape[1:]) < 16 else "convnet-f" if min(shape[1:]) < 32 else "cnn-5x5"


def several(shape: dict[str, tuple[int, ...]]) -> ConfigError:
    """Return the error of samples that no built-in network takes."""
    from partwise.trees import shape_text

    return ConfigError(
        f"samples have several tensors ({shape_text(shape)}), which no built-in network takes: pass your own model, "
        "whose forward takes a dict of them"
    )


def build(
    name: str,
    shape: "Shape",
    classes: int,
    norm: bool = False,
    dropout: float = 0.0,
    vocabulary: int | None = None,
    each_step: bool = False,
    code_sizes: tuple[int, ...] = (),
) -> "Parts":
    """Return a model by name, not yet drawn.

    `norm`: batch-norm after every convolution; `dropout`: before the head; `vocabulary`: the number of different tokens
    that samples of whole numbers hold; `each_step`: every step is classified; `code_sizes`: how many codes each column
    of a table's texts has.
    """
    if name == "tabular-embedding":
        from partwise.network.models.multilayer import tabular_embedding

        return tabular_embedding(shape, classes, code_sizes, norm, dropout)
    if isinstance(shape, dict):
        raise several(shape)
    if name.startswith(TIMM):
        from partwise.network.models.from_timm import from_timm

        return from_timm(name.removeprefix(TIMM), shape, classes, norm, dropout)
    if name not in NETWORKS:
        raise ConfigError(unknown("model", name, ["auto", "cnn", *NETWORKS, "timm:NAME", "FILE.py:NAME"]))
    function = getattr(import_module(f"{__name__}.{NETWORKS[name]}"), name.replace("-", "_"))
    of_series = {"vocabulary": vocabulary, "each_step": each_step} if NETWORKS[name] == "sequences" else {}
    return function(shape, classes, norm=norm, dropout=dropout, **of_series)
