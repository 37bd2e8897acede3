"""Images for a model: arrays, images of PIL's, files, folders and archives."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.data.readers.files import open_files
from partwise.data.readers.images import IMAGE_ENDINGS, careful, image_names, opened_image
from partwise.data.readers.tables import TABLE_ENDINGS
from partwise.data.room import check_plain_file
from partwise.data.transforms import PIL_MODES
from partwise.errors import DataError
from partwise.inference.given import GivenSamples, without_names
from partwise.records.manifest import ImageInput
from partwise.trees import joined


@dataclass(frozen=True)
class Images:
    """Reads images: arrays as the data set holds them, PIL images, files of images, or folders of those."""

    input: ImageInput

    def __call__(self, samples: Any) -> GivenSamples:
        """Return one image, or all of a collection, a folder or an archive."""
        if isinstance(samples, str | Path):
            return self.files(Path(os.path.expanduser(samples)))
        if is_image(samples):
            samples = [samples]
        if isinstance(samples, Tensor | np.ndarray):
            return self.array(samples)
        if isinstance(samples, Iterable):
            each = [self(one) if isinstance(one, str | Path) else self.image(one) for one in samples]
            x = joined([given.x for given in each]) if each else torch.zeros(0)
            return GivenSamples(x, [name for given in each for name in given.names])
        raise DataError(f"this model takes images: an array, PIL images or paths, not a {type(samples).__name__}")

    def files(self, path: Path) -> GivenSamples:
        """Return the images of a folder or an archive, or one image."""
        if not os.path.exists(path):
            raise DataError(f"there is no '{path}'")
        if path.name.lower().endswith(TABLE_ENDINGS):
            raise DataError(f"'{path}' is a table; this model takes images: a file, or a folder or .zip of them")
        if path.suffix.lower() in IMAGE_ENDINGS and not path.is_dir():
            check_plain_file(path)
            return GivenSamples(self.decoded(path.read_bytes(), str(path))[None], [path.name])
        files = open_files(path)
        names = image_names(files)
        if not names:
            raise DataError(f"{path}: no images in it")
        return GivenSamples(torch.stack([self.decoded(files.read(name), files.where(name)) for name in names]), names)

    def decoded(self, raw: bytes, where: str) -> Tensor:
        """Return (channels, height, width) the image in the bytes of a file."""
        with careful(), opened_image(raw, where) as image:
            return self.scaled(image, where)

    def image(self, image: Any) -> GivenSamples:
        """Return one PIL image."""
        if not is_image(image):
            raise DataError(f"an image is an array, a PIL image or a path, not a {type(image).__name__}")
        return without_names(self.scaled(image, "an image")[None])

    def scaled(self, image: Any, where: str) -> Tensor:
        """Return an image as the data set would hold it."""
        channels, height, width = self.input.shape
        if image.size != (width, height) and not self.input.resize:
            raise DataError(
                f"{where}: {image.width}x{image.height} pixels, but the model takes {width}x{height}; resize it as the "
                "training images were"
            )
        if channels not in PIL_MODES:
            raise DataError(f"the model takes images of {channels} channels: hand in arrays")
        return self.input.transform.apply(image)

    def array(self, samples: Any) -> GivenSamples:
        """Return (N, C, H, W), (N, H, W, C) or (N, H, W), in the units of the data set."""
        x = samples.detach().cpu() if isinstance(samples, Tensor) else torch.from_numpy(np.ascontiguousarray(samples))
        shape, white = tuple(self.input.shape), self.input.white
        channels, height, width = shape
        if channels == 1 and x.shape[1:] == (height, width):
            x = x[:, None]
        elif x.shape[1:] == (height, width, channels) and x.shape[1:] != shape:
            x = x.movedim(3, 1)
        if tuple(x.shape[1:]) != shape or x.is_complex():
            raise DataError(f"images must be (samples, {', '.join(map(str, shape))}), got {tuple(x.shape)}")
        low, high = (float(x.min()), float(x.max())) if len(x) else (0.0, 0.0)
        if not 0 <= low <= high <= white:  # NaN too
            raise DataError(f"images must have values from 0 to {white:g}, got {low:g} to {high:g}")
        if x.is_floating_point() and 0 < high <= 1 < white:
            raise DataError(f"images must have values from 0 to {white:g}, got 0 to {high:g}: multiply them")
        return without_names(x if x.dtype == torch.uint8 else x.float())


def is_image(value: Any) -> bool:
    """Return whether a value is an image of PIL's."""
    return type(value).__module__.startswith("PIL.")
