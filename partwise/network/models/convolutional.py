"""The small convolutional networks of the papers (spec of each: layers named, counts in the tests)."""

from collections import OrderedDict

import torch
from torch import nn

from partwise.errors import ConfigError
from partwise.network.parts import Parts

CHANNELS = (1, 3, 4)  # of images: grey, colour, colour with transparency


def convolution(
    inputs: int, outputs: int, kernel: int, padding: int = 0, pool: bool = True, norm: bool = False
) -> nn.Module:
    """Return a convolution, (batch-norm,) ReLU, (2x2 max-pool)."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, padding=padding)]
    layers += [nn.BatchNorm2d(outputs)] * norm
    layers += [nn.ReLU()]
    layers += [nn.MaxPool2d(2)] * pool
    return nn.Sequential(*layers)


def assemble(
    name: str, shape: tuple[int, ...], classes: int, hidden: int, dropout: float, **layers: nn.Module
) -> Parts:
    """Return a model of convolutions, a hidden layer on what they leave, and the head; refuse too small images."""
    convolutions = nn.Sequential(OrderedDict(layers)).eval()
    size = count_outputs(convolutions, shape)
    if size is None:
        side = next(side for side in range(1, 1000) if count_outputs(convolutions, (shape[0], side, side)))
        raise ConfigError(
            f"model '{name}' does not take samples of shape {shape}: it needs {(shape[0], side, side)} or larger images"
        )
    dense: list[nn.Module] = [nn.Flatten(), nn.Linear(size, hidden), nn.ReLU()]
    dense += [nn.Dropout(dropout)] * (dropout > 0)
    body = nn.Sequential(OrderedDict([*layers.items(), ("fc1", nn.Sequential(*dense))]))
    return Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(hidden, classes))))


def count_outputs(convolutions: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Return how many numbers convolutions make of an image; None where it is too small for them."""
    try:
        with torch.no_grad():
            return convolutions(torch.zeros(1, *shape)).numel() or None
    except RuntimeError:
        return None


def image(name: str, shape: tuple[int, ...]) -> int:
    """Return the number of channels of an image; refuse other samples."""
    if len(shape) != 3:
        raise ConfigError(f"model '{name}' takes images (channels, height, width), not samples of shape {shape}")
    if shape[0] not in CHANNELS and shape[2] in CHANNELS:
        raise ConfigError(
            f"model '{name}' takes images (channels, height, width); {shape} seems to have channels last: permute it"
        )
    return shape[0]


def cnn_digits(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return two 3x3 convolutions and 64 features, for 8x8 digits."""
    channels = image("cnn-digits", shape)
    conv1 = convolution(channels, 16, 3, padding=1, pool=False, norm=norm)
    conv2 = convolution(16, 32, 3, padding=1, norm=norm)
    return assemble("cnn-digits", shape, classes, 64, dropout, conv1=conv1, conv2=conv2)


def cnn_5x5(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return two 5x5 convolutions without padding and 512 features (FedTC, FedFCD, layer scheduling)."""
    channels = image("cnn-5x5", shape)
    conv1, conv2 = convolution(channels, 32, 5, norm=norm), convolution(32, 64, 5, norm=norm)
    return assemble("cnn-5x5", shape, classes, 512, dropout, conv1=conv1, conv2=conv2)


def convnet_f(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return two 5x5 convolutions and 50 features (Fed3+2p on Fashion-MNIST)."""
    channels = image("convnet-f", shape)
    conv1, conv2 = convolution(channels, 32, 5, norm=norm), convolution(32, 64, 5, norm=norm)
    return assemble("convnet-f", shape, classes, 50, dropout, conv1=conv1, conv2=conv2)


def convnet_c(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return three 3x3 convolutions and 64 features (Fed3+2p on CIFAR)."""
    channels = image("convnet-c", shape)
    conv1, conv2 = convolution(channels, 32, 3, norm=norm), convolution(32, 64, 3, norm=norm)
    conv3 = convolution(64, 64, 3, pool=False, norm=norm)
    return assemble("convnet-c", shape, classes, 64, dropout, conv1=conv1, conv2=conv2, conv3=conv3)
