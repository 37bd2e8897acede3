"""Samples that are one tensor, or several by name: an image and a row of a table, tokens and their mask.

Samples come first in every tensor.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.errors import ConfigError

Samples: TypeAlias = Tensor | dict[str, Tensor]
Shape: TypeAlias = tuple[int, ...] | dict[str, tuple[int, ...]]


def tensors_of(x: Samples) -> list[Tensor]:
    """Return the tensors of samples, in the order of their names."""
    return [x[name] for name in sorted(x)] if isinstance(x, dict) else [x]


def chosen(x: Samples, index: Tensor | slice) -> Samples:
    """Return some of the samples."""
    return tree_map(lambda tensor: tensor[index], x)


def in_pieces(x: Samples, size: int, device: torch.device) -> Iterator[Samples]:
    """Yield `size` samples after another, on a device."""
    for start in range(0, len(tensors_of(x)[0]), size):
        yield tree_map(lambda tensor: tensor.to(device), chosen(x, slice(start, start + size)))


def joined(pieces: Sequence[Samples]) -> Samples:
    """Return samples one after the other."""
    return tree_map(lambda *tensors: torch.cat(tensors), *pieces)


def sample_shape(x: Samples) -> Shape:
    """Return the shape of a sample, by name where it has several tensors."""
    if isinstance(x, dict):
        return {name: tuple(x[name].shape[1:]) for name in sorted(x)}
    return tuple(x.shape[1:])


def shape_text(shape: Shape) -> str:
    """Return a shape as people read it: `3x32x32`, or `image 3x32x32, row 7`."""
    if isinstance(shape, dict):
        return ", ".join(f"{name} {shape_text(own)}" for name, own in shape.items())
    return "x".join(map(str, shape))


def one_tensor(x: Samples, what: str) -> Tensor:
    """Return samples that are one tensor; refuse others, which `what` does not take."""
    if isinstance(x, dict):
        raise ConfigError(f"{what} takes samples of one tensor, but these have several: {', '.join(sorted(x))}")
    return x


def beyond_end(series: Tensor) -> Tensor:
    """Return (samples, steps) true for the steps of NaN with which a series (steps, features) ends; never its first."""
    empty = series.isnan().flatten(2).all(2)
    empty[:, 0] = False
    return empty.flip(1).cumprod(1).flip(1).bool()


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor holds whole numbers that may stand for something, as tokens do; pixels are none."""
    return not tensor.is_floating_point() and tensor.dtype not in (torch.uint8, torch.bool)
