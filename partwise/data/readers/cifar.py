"""CIFAR-10 and CIFAR-100 in their official layouts.

In the binary one a record is one or two label bytes and 3x32x32 pixels; in the python one a file is a pickle of a
dictionary with the same pixels as an array. Neither says how much it should hold, so a file is known by its md5.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.data.readers import pickles
from partwise.data.readers.entry import DataEntry
from partwise.data.readers.places import DataPlace, contents
from partwise.data.readers.published import CIFAR10, CIFAR10_PYTHON, CIFAR100, CIFAR100_PYTHON
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import DataError

CifarBatch = tuple[NDArray[np.uint8], NDArray[np.integer]]  # images as (records, 3, 32, 32), and their labels


def load(known: DataEntry, place: DataPlace, _: Reading) -> Source:
    """Read the data set from either layout; its last file is the test set. CIFAR-100 has its fine labels."""
    hundred, names = known.classes == 100, [path.name.removesuffix(".gz") for path in place.files]
    if names[0].endswith(".bin"):
        files = CIFAR100 if hundred else CIFAR10
        batches = [read(path, 1 + hundred, *files[name]) for path, name in zip(place.files, names, strict=True)]
    else:
        files, labels = (CIFAR100_PYTHON, b"fine_labels") if hundred else (CIFAR10_PYTHON, b"labels")
        batches = [read_python(path, labels, *files[name]) for path, name in zip(place.files, names, strict=True)]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return known.images(x, y, train=len(x) - len(batches[-1][1]))


def read(path: Path, label_bytes: int, records: int, md5: str) -> CifarBatch:
    """Read a binary file. The last label byte counts: CIFAR-10's only one, CIFAR-100's fine one."""
    record = label_bytes + 3 * 32 * 32
    raw = contents(path, lambda _: records * record)
    _check_md5(path, raw, md5)
    table = np.frombuffer(raw, np.uint8).reshape(records, record)
    return table[:, label_bytes:].reshape(records, 3, 32, 32), table[:, label_bytes - 1]


def read_python(path: Path, labels: bytes, records: int, md5: str) -> CifarBatch:
    """Read a python file: of its dictionary, `data` and these labels."""
    raw = contents(path, len)
    _check_md5(path, raw, md5)
    entries = pickles.load(raw, path)
    x, y = (entries.get(key) if isinstance(entries, dict) else None for key in (b"data", labels))
    pixels: Any = x.values if isinstance(x, pickles.Array) else None
    if not isinstance(pixels, np.ndarray) or (pixels.dtype, pixels.shape) != (np.uint8, (records, 3 * 32 * 32)):
        got = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(x).__name__
        raise DataError(f"{path}: data must be uint8 of shape {(records, 3 * 32 * 32)}, got {got}")
    if not isinstance(y, list) or len(y) != records or not all(type(label) is int and 0 <= label < 256 for label in y):
        raise DataError(f"{path}: {labels.decode()} must be a list of {records:,} whole numbers from 0 to 255")
    return pixels.reshape(records, 3, 32, 32), np.array(y)


def _check_md5(path: Path, raw: bytearray, md5: str) -> None:
    got = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if got != md5:
        raise DataError(f"{path}: expected md5 {md5}, got {got}")
