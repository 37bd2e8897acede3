"""The IDX files of MNIST and of the data sets made after it."""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.places import DataPlace, contents
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import DataError


def load(known: DataEntry, place: DataPlace, _: Reading) -> Source:
    """Read a data set of four such files: images and labels for training, images and labels for testing."""
    train_images, train_labels, test_images, test_labels = place.files
    (x, y), (test_x, test_y) = read_pair(train_images, train_labels), read_pair(test_images, test_labels)
    return known.images(np.concatenate([x, test_x]), np.concatenate([y, test_y]), train=len(x))


def read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in an IDX file: two zeros, type 8, number of dimensions, sizes, values."""
    header = 4 + 4 * dimensions

    def shape(raw: bytearray) -> tuple[int, ...]:
        return tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, header, 4))

    def announced(raw: bytearray) -> int:
        magic = bytes([0, 0, 8, dimensions])
        if raw[:4] != magic[: len(raw)]:
            raise DataError(f"{path}: an IDX file must start with {magic.hex()}, got {raw[:4].hex()}")
        return header + prod(shape(raw)) if len(raw) >= header else header

    raw = contents(path, announced)
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape(raw))


def read_pair(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images of 28x28 as (samples, 1, 28, 28) and their labels."""
    x, y = read(images, 3), read(labels, 1)
    if x.shape[1:] != (28, 28):
        raise DataError(f"{images}: expected images of 28x28, got {x.shape[1]}x{x.shape[2]}")
    if len(x) != len(y):
        raise DataError(f"{images} holds {len(x):,} images, but {labels} {len(y):,} labels")
    return x[:, None], y
