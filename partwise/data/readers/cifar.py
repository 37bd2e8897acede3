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
from partwise.data.readers.entry import Entry
from partwise.data.readers.places import Place, contents
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import DataError

Batch = tuple[NDArray[np.uint8], NDArray[np.integer]]  # images as (records, 3, 32, 32), and their labels

CIFAR10 = {
    "data_batch_1.bin": (10_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    "data_batch_2.bin": (10_000, "5ea93a67294ea407fff1d09f752e9692"),
    "data_batch_3.bin": (10_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    "data_batch_4.bin": (10_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    "data_batch_5.bin": (10_000, "53f37980c15c3d472c316c40844f3f0d"),
    "test_batch.bin": (10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
}
CIFAR100 = {
    "train.bin": (50_000, "6172c7755cfe09b2fe270c85cebc1b15"),
    "test.bin": (10_000, "4499cfba6c016c1be1438163640a0898"),
}
CIFAR10_PYTHON = {
    "data_batch_1": (10_000, "c99cafc152244af753f735de768cd75f"),
    "data_batch_2": (10_000, "d4bba439e000b95fd0a9bffe97cbabec"),
    "data_batch_3": (10_000, "54ebc095f3ab1f0389bbae665268c751"),
    "data_batch_4": (10_000, "634d18415352ddfa80567beed471001a"),
    "data_batch_5": (10_000, "482c414d41f54cd18b22e5b47cb7c3cb"),
    "test_batch": (10_000, "40351d587109b95175f43aff81a1287e"),
}
CIFAR100_PYTHON = {
    "train": (50_000, "16019d7e3df5f24257cddd939b257f8d"),
    "test": (10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
}


def load(known: Entry, place: Place, _: Reading) -> Source:
    """The data set from whichever layout lies there; its last file is the test set. CIFAR-100 has its fine labels."""
    hundred, names = known.classes == 100, [path.name.removesuffix(".gz") for path in place.files]
    if names[0].endswith(".bin"):
        files = CIFAR100 if hundred else CIFAR10
        batches = [read(path, 1 + hundred, *files[name]) for path, name in zip(place.files, names, strict=True)]
    else:
        files, labels = (CIFAR100_PYTHON, b"fine_labels") if hundred else (CIFAR10_PYTHON, b"labels")
        batches = [read_python(path, labels, *files[name]) for path, name in zip(place.files, names, strict=True)]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return known.images(x, y, train=len(x) - len(batches[-1][1]))


def read(path: Path, label_bytes: int, records: int, md5: str) -> Batch:
    """A binary file. The last label byte counts: CIFAR-10's only one, CIFAR-100's fine one."""
    record = label_bytes + 3 * 32 * 32
    raw = contents(path, lambda _: records * record)
    _check_md5(path, raw, md5)
    table = np.frombuffer(raw, np.uint8).reshape(records, record)
    return table[:, label_bytes:].reshape(records, 3, 32, 32), table[:, label_bytes - 1]


def read_python(path: Path, labels: bytes, records: int, md5: str) -> Batch:
    """A python file: of its dictionary, `data` and these labels."""
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
