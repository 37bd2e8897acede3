"""A small U-Net (Ronneberger et al., 2015): a class for every pixel of an image of any size."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partwise.network.models.convolutional import convolution, image
from partwise.network.parts import Parts

FINE, MIDDLE, COARSE = 16, 32, 64  # channels at each resolution: the image's own, a half and a quarter of it
Levels = tuple[Tensor, ...]  # features of each resolution so far, the finest first


class Level(nn.Module):
    """Two 3x3 convolutions that keep the size of an image."""

    def __init__(self, inputs: int, outputs: int, norm: bool):
        super().__init__()
        pair = (convolution(n, outputs, 3, padding=1, pool=False, norm=norm) for n in (inputs, outputs))
        self.convolutions = nn.Sequential(*pair)


class Enter(Level):
    """Features at the image's own resolution."""

    def forward(self, x: Tensor) -> Levels:
        """Return the first features."""
        return (self.convolutions(x),)


class Down(Level):
    """Features at half the resolution of the last ones; an odd side is rounded up."""

    def forward(self, levels: Levels) -> Levels:
        """Return the features so far and the new ones."""
        return *levels, self.convolutions(F.max_pool2d(levels[-1], 2, ceil_mode=True))


class Up(Level):
    """The last two features, joined at the resolution of the finer one."""

    def forward(self, levels: Levels) -> Levels:
        """Return the features so far, the last two of them as one."""
        *before, fine, coarse = levels
        return *before, self.convolutions(torch.cat([fine, F.interpolate(coarse, size=fine.shape[2:])], 1))


class Leave(nn.Module):
    """The features at the image's own resolution."""

    def forward(self, levels: Levels) -> Tensor:
        """Return (rows, features, height, width)."""
        [features] = levels
        return features


def unet(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return a U-Net of three resolutions, whose head is a 1x1 convolution: (rows, classes, height, width)."""
    layers = OrderedDict[str, nn.Module](
        enter=Enter(image("unet", shape), FINE, norm),
        down1=Down(FINE, MIDDLE, norm),
        down2=Down(MIDDLE, COARSE, norm),
        up2=Up(MIDDLE + COARSE, MIDDLE, norm),
        up1=Up(FINE + MIDDLE, FINE, norm),
        leave=Leave(),
    )
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    return Parts(nn.Sequential(OrderedDict(body=nn.Sequential(layers), head=nn.Conv2d(FINE, classes, 1))))
