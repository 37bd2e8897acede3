"""How rows, images and arrays become samples: fitted as a data set is read, kept with its models, applied to new ones.

A table's reader fits its transform: the columns of numbers, and the texts of each other column. Images and arrays need
only the form of a sample. Nothing is standardised here: networks do that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.readers.frames import DataTable
from partwise.data.tokens import COUNTED, FIRST, TOKENISERS, UNKNOWN_TOKEN, made_tokenizer, shift_of
from partwise.errors import DataError
from partwise.trees import Samples, is_whole

TEXT = "="  # in the name of a feature that stands for one value of a text, `sex=f`
PIL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # PIL's mode for each number of channels
BYTE = 255.0  # the brightest value of an image file
TOKENS, BESIDE = "tokens", "row"  # the tensors of a sample that is a text with other columns beside it
CODES = "codes"  # and of one whose texts are codes, beside its row of numbers


@dataclass(frozen=True)
class TableTransform:
    """Rows of a table: a number is one feature, a text is one for each of its values.

    With `codes`, samples have two tensors: a row of numbers, and for each column of texts the number of its text.
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

    def coded(self, table: DataTable) -> Samples:
        """Return codes (rows, columns) int64, and a row (rows, numbers) float32 where there are numbers."""
        codes = np.zeros((len(table.frame), len(self.code_sizes)), np.int64)
        for place, column in enumerate(self.code_sizes):
            known = {text: code for code, text in enumerate(self.texts(column), 1)}
            for text, rows in table.texts(column).items():
                codes[rows, place] = known.get(text, 0)
        numbers = replace(self, features=self.numbers, columns=self.numbers, codes=False)
        x: Samples = {CODES: torch.from_numpy(codes)}
        return with_rows(x, row_tensor(numbers.apply(table))) if self.numbers else x


@dataclass(frozen=True)
class VocabularyLimits:
    """Which tokens get a number of their own."""

    largest: int  # tokens of a vocabulary
    least: int  # training samples that have a token, or it is unknown


@dataclass(frozen=True)
class TextTransform:
    """Texts in a column of a table as numbers of tokens, and the row of its other columns beside them."""

    column: str
    tokens: str  # words, characters, ascii, or the content of a tokenizer's file
    vocabulary: tuple[str, ...]  # the tokens that have a number, from FIRST on; a tokenizer has its own
    length: int  # of a text: what is longer is cut, what is shorter is padded
    row: TableTransform | None = None
    limits: VocabularyLimits | None = None  # of the vocabulary that is fitted once the clients are known

    @property
    def counted(self) -> bool:
        """Return whether the vocabulary comes from texts."""
        return self.tokens in COUNTED

    @property
    def size(self) -> int:
        """Return how many different numbers a text may hold."""
        if self.tokens in TOKENISERS:
            return FIRST + len(self.vocabulary)
        return int(made_tokenizer(self.tokens).get_vocab_size()) + shift_of(self.tokens)

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of each text's tokens, not yet cut."""
        if self.tokens not in TOKENISERS:
            encoded, shift = made_tokenizer(self.tokens).encode_batch(list(texts)), shift_of(self.tokens)
            return [[number + shift for number in each.ids] for each in encoded]
        split, known = TOKENISERS[self.tokens], {token: FIRST + n for n, token in enumerate(self.vocabulary)}
        return [[known.get(token, UNKNOWN_TOKEN) for token in split(text)] for text in texts]

    def padded(self, texts: Sequence[str]) -> Tensor:
        """Return (texts, length) int64, padded with 0."""
        x = np.zeros((len(texts), self.length), np.int64)
        for row, numbers in enumerate(self.numbers(texts)):
            x[row, : len(numbers)] = numbers[: self.length]
        return torch.from_numpy(x)

    def apply(self, table: DataTable) -> Samples:
        """Return (rows, length) tokens; where other columns are features too, a dict of tokens and row."""
        tokens = self.padded(table.strings(self.column))
        return tokens if self.row is None else {TOKENS: tokens, BESIDE: row_tensor(self.row.apply(table))}


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


Transform = TableTransform | TextTransform | ImageTransform | ArrayTransform | NamedTransform


def row_tensor(x: Samples) -> Tensor:
    """Return what is standardised of samples: rows beside a text, or all of them."""
    return x[BESIDE] if isinstance(x, dict) else x


def with_rows(x: Samples, rows: Tensor) -> Samples:
    """Return samples with other rows; a text beside them stays."""
    return {**x, BESIDE: rows} if isinstance(x, dict) else rows


def tokens_of(x: Samples) -> Tensor:
    """Return the tokens of texts, with or without rows beside them."""
    return x[TOKENS] if isinstance(x, dict) else x


def with_tokens(x: Samples, tokens: Tensor) -> Samples:
    """Return texts in other tokens; rows beside them stay."""
    return {**x, TOKENS: tokens} if isinstance(x, dict) else tokens


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
