"""Augment training images: changes are drawn outside the step from the client's own stream and applied on the device.

A change is a shift by whole pixels, a mirror and an angle. Pixels are sampled by nearest neighbour, and black where
they come from outside the image. So flips and crops are exact, and an image keeps the type of its pixels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from partwise.errors import ConfigError, unknown
from partwise.trees import Shape

UNCHANGED = (1.0, 1.0, 0.0, 0.0, 0.0)  # mirror (1 or -1), cosine, sine, pixels down, pixels right


@dataclass(frozen=True)
class Augmentation:
    """The augmentations of a training image."""

    flip: bool = False  # left and right change sides, every second time
    degrees: float = 0.0  # it turns by at most this much, either way
    pixels: int = 0  # it moves by at most this much, up or down and left or right

    def draw(self, random: np.random.Generator, samples: int) -> np.ndarray:
        """Draw a change for each image: (samples, 5), as in UNCHANGED."""
        mirror = 1.0 - 2.0 * (random.random(samples) < 0.5) * self.flip
        angle = np.radians(self.degrees) * random.uniform(-1, 1, samples)
        moves = random.integers(-self.pixels, self.pixels, (2, samples), endpoint=True)
        return np.stack([mirror, np.cos(angle), np.sin(angle), *moves.astype(np.float64)], axis=1)


def parse_augmentation(text: str) -> Augmentation:
    """Read an augmentation, as in `flip,rotate:30,crop:4`."""
    settings: dict[str, float | int | bool] = {}
    for word in text.split(","):
        kind, _, value = word.strip().partition(":")
        if kind not in ("flip", "rotate", "crop"):
            raise ConfigError(unknown("augmentation", kind, ["flip", "rotate:DEGREES", "crop:PIXELS"]))
        name = {"flip": "flip", "rotate": "degrees", "crop": "pixels"}[kind]
        if name in settings:
            raise ConfigError(f"augment = '{text}' is not allowed: it names {kind} twice")
        settings[name] = _amount(text, kind, value)
    return Augmentation(**settings)  # type: ignore[arg-type]


def _amount(text: str, kind: str, value: str) -> float | int | bool:
    try:
        if kind == "flip" and not value:
            return True
        if kind == "rotate" and 0 < float(value) <= 180:
            return float(value)
        if kind == "crop" and int(value) > 0:
            return int(value)
    except ValueError:
        pass  # no number: refused like one that is out of range
    words = "flip, rotate:DEGREES (above 0, at most 180) and crop:PIXELS (at least 1), such as flip,rotate:30,crop:4"
    raise ConfigError(f"augment = '{text}' is not allowed: it takes {words}")


def augmented(x: Tensor, change: Tensor) -> Tensor:
    """Return images (rows, channels, height, width), each moved, mirrored, then turned."""
    height, width = x.shape[-2:]
    mirror, cosine, sine, down, right = change[:, :, None, None].unbind(1)
    # Where a pixel comes from is computed in double precision on every device: the nearest pixel is a hard decision.
    rows = torch.arange(height, device=x.device, dtype=torch.float64)[:, None] - (height - 1) / 2
    columns = torch.arange(width, device=x.device, dtype=torch.float64) - (width - 1) / 2
    row = (cosine * rows - sine * columns - down + (height - 1) / 2).round().long()
    column = (mirror * (cosine * columns + sine * rows) - right + (width - 1) / 2).round().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1)
    pixels = x.flatten(2).gather(2, place[:, None].expand(-1, x.shape[1], -1)).view(x.shape)
    return torch.where(inside[:, None], pixels, torch.zeros_like(pixels))


def check_shape(shape: Shape, augmentation: Augmentation | None) -> None:
    """Refuse augmentation of samples that are not images, and shifts larger than the image."""
    if augmentation is None:
        return
    if len(shape) != 3 or isinstance(shape, dict):
        raise ConfigError(f"augment applies to images only, but a sample has the shape {shape}; leave it out")
    if augmentation.pixels >= min(shape[1:]):
        raise ConfigError(
            f"crop:{augmentation.pixels} is too large for images of {shape[1]}x{shape[2]} pixels; crop by fewer"
        )
