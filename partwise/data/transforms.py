"""How rows, images and arrays become samples: fitted as a data set is read, kept with its models, applied to new ones.

A table's reader fits its transform: the columns of numbers, and the texts of each other column. Images and arrays need
only the form of a sample. Nothing is standardised here: networks do that.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.readers.frames import DataTable
from partwise.errors import DataError
from partwise.trees import Samples, is_whole, one_tensor

TEXT = "="  # in the name of a feature that stands for one value of a text, `sex=f`
PIL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # PIL's mode for each number of channels
BYTE = 255.0  # the brightest value of an image file


@dataclass(frozen=True)
class TableTransform:
    """Rows of a table: a number is one feature, a text is one for each of its values.

    With `codes`, samples have several tensors: `numbers`, and for each column of texts the number of its text.
    """

    features: tuple[str, ...]  # in the order of a sample
    columns: tuple[str, ...]  # of each feature: the column itself, or that of the text `column=text`
    codes: bool = False

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the columns that are features as they are."""
        return tuple(own for own, column in zip(self.features, self.columns, strict=True) if own == column)

    @property
    def code_sizes(self) -> dict[str, int]:
        """Return how many codes each column of texts has: its texts, from 1, and 0 for no or another text."""
        number = Counter(column for own, column in zip(self.features, self.columns, strict=True) if own != column)
        return {column: texts + 1 for column, texts in number.items()}

    def is_number(self, column: str) -> bool:
        """Return whether a column is a feature as it is."""
        return (column, column) in zip(self.features, self.columns, strict=True)

    def texts(self, column: str) -> list[str]:
        """Return the texts of a column that have a feature."""
        own = zip(self.features, self.columns, strict=True)
        return [feature.removeprefix(f"{column}{TEXT}") for feature, of in own if of == column]

    def apply(self, table: DataTable) -> Samples:
        """Return (rows, features) float32: NaN for an empty number, zeros for a text that is empty or unknown."""
        if self.codes:
            return self.coded(table)
        x = np.zeros((len(table.frame), len(self.features)), np.float32)
        place = {feature: number for number, feature in enumerate(self.features)}
        for column in dict.fromkeys(self.columns):
            if self.is_number(column):
                with np.errstate(over="ignore"):
                    x[:, place[column]] = table.numbers(column)
                continue
            known = {text: place[f"{column}{TEXT}{text}"] for text in self.texts(column)}
            for text, rows in table.texts(column).items():
                if text in known:
                    x[rows, known[text]] = 1
        return torch.from_numpy(x)

    def coded(self, table: DataTable) -> dict[str, Tensor]:
        """Return `numbers` (rows, numbers) float32, if there are some, and `categories` (rows, columns) int64."""
        codes = np.zeros((len(table.frame), len(self.code_sizes)), np.int64)
        for place, column in enumerate(self.code_sizes):
            known = {text: code for code, text in enumerate(self.texts(column), 1)}
            for text, rows in table.texts(column).items():
                codes[rows, place] = known.get(text, 0)
        numbers = replace(self, features=self.numbers, columns=self.numbers, codes=False)
        own = {"numbers": one_tensor(numbers.apply(table), "a table")} if self.numbers else {}
        return {"categories": torch.from_numpy(codes), **own}


@dataclass(frozen=True)
class ImageTransform:
    """Images of one form: others are resized and converted, with values from 0 to `white`."""

    shape: tuple[int, ...]  # channels, height, width
    white: float = BYTE  # the brightest value

    def apply(self, image: Any) -> Tensor:
        """Return (channels, height, width) an image of PIL's, uint8 where `white` is that of bytes, else float32."""
        channels, height, width = self.shape
        values = torch.from_numpy(np.array(image_pixels(image, (width, height), PIL_MODES[channels])))
        return values if self.white == BYTE else values * (self.white / BYTE)


@dataclass(frozen=True)
class ArrayTransform:
    """Numbers of one form, as they are."""

    shape: tuple[int, ...]  # of a sample
    whole: bool = False  # the run's own are whole numbers

    def apply(self, values: Any) -> Tensor:
        """Return (samples, ...) float32, or int64 where the run's own are."""
        x = as_numbers(values, "samples")
        return x.long() if self.whole else x.float()


@dataclass(frozen=True)
class NamedTransform:
    """Several arrays by name, of one form each."""

    shapes: dict[str, tuple[int, ...]]  # of a sample
    types: dict[str, str]  # of torch

    def apply(self, values: Any) -> dict[str, Tensor]:
        """Return (samples, ...) each array in its type; refuse other names."""
        if not isinstance(values, dict) or values.keys() != self.shapes.keys():
            raise DataError(f"samples must be a dict of arrays by name: {', '.join(self.shapes)}")
        return {name: as_numbers(own, name).to(getattr(torch, self.types[name])) for name, own in values.items()}


Transform = TableTransform | ImageTransform | ArrayTransform | NamedTransform


def image_pixels(image: Any, size: tuple[int, int], mode: str = "RGB") -> NDArray[np.uint8]:
    """Return (channels, height, width) pixels of an image in a mode of PIL, resized to `size`."""
    from PIL import Image

    if image.mode[0] in "IF":  # pillow would cut off all that is above 255
        raise ValueError(f"more than 8 bits per channel (mode {image.mode}); convert it to 8 bits, or pass arrays")
    colours = image.convert(mode)
    if size != colours.size:
        colours = colours.resize(size, Image.Resampling.BILINEAR)  # antialiased where it shrinks
    return np.atleast_3d(np.asarray(colours)).transpose(2, 0, 1)


def as_numbers(values: Any, where: str) -> Tensor:
    """Return an array, a tensor, a PIL image or rows of numbers as a tensor.

    uint8 stays as it is, other whole numbers become int64, others float32.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().to_dense()
        if not values.is_complex():
            return values if values.dtype == torch.uint8 else values.long() if is_whole(values) else values.float()
    if type(values).__module__.startswith("PIL."):
        kept = values.mode in ("L", "RGB", "RGBA") or values.mode[0] in "IF"  # more than 8 bits a pixel: as numbers
        values = np.atleast_3d(values if kept else values.convert("RGB"))
        values = values.transpose(2, 0, 1)  # channels first
    array = as_array(values, where)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: {array.dtype}, not real numbers")
    if array.dtype != np.uint8:
        with np.errstate(over="ignore"):
            array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def as_array(values: Any, where: str) -> NDArray[Any]:
    """Return rows of one length as an array."""
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(f"{where}: rows of different lengths") from None
