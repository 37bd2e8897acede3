"""ResNet-18 (He et al., 2016) in the usual naming, with the stem of ImageNet (7x7) or of CIFAR (3x3)."""

from collections import OrderedDict

from torch import Tensor, nn

from partwise.network.models.convolutional import image
from partwise.network.parts import Parts


class Convolution(nn.Conv2d):
    """A convolution without bias, drawn as in He et al.: normal, by the number of outgoing connections."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1, self.bn1 = Convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = Convolution(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(Convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def resnet18(
    shape: tuple[int, ...], classes: int, norm: bool = True, dropout: float = 0.0, stem: int = 7, width: int = 64
) -> Parts:
    """Return ResNet-18, always with batch-norm; `width` is the number of channels of its first stage."""
    channels = image("resnet18", shape)
    layers: dict[str, nn.Module] = OrderedDict(
        conv1=Convolution(channels, width, stem, 2 if stem == 7 else 1), bn1=nn.BatchNorm2d(width), relu=nn.ReLU()
    )
    if stem == 7:
        layers["maxpool"] = nn.MaxPool2d(3, 2, padding=1)
    inputs = width
    for number in range(4):
        outputs = width * 2**number
        layers[f"layer{number + 1}"] = nn.Sequential(
            BasicBlock(inputs, outputs, 1 if number == 0 else 2), BasicBlock(outputs, outputs)
        )
        inputs = outputs
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    return Parts(nn.Sequential(OrderedDict(body=nn.Sequential(OrderedDict(layers)), head=nn.Linear(inputs, classes))))


def resnet18_3x3(shape: tuple[int, ...], classes: int, norm: bool = True, dropout: float = 0.0) -> Parts:
    """Return ResNet-18 for small images."""
    return resnet18(shape, classes, norm, dropout, stem=3)
