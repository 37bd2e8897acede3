"""CIFAR-10 and CIFAR-100 in their official binary layout: a record is one or two label bytes and 3x32x32 pixels."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partwise.data.folders import contents
from partwise.errors import DataError

# The format has no header and no check sum of its own, so a file is known by its number of records and its md5.
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


def read(path: Path, label_bytes: int, records: int, md5: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images as (records, 3, 32, 32), and of each the last label byte: CIFAR-10's only one, CIFAR-100's fine one."""
    record = label_bytes + 3 * 32 * 32
    raw = contents(path, lambda _: records * record)
    got = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if got != md5:
        raise DataError(f"{path}: expected md5 {md5}, got {got}")
    table = np.frombuffer(raw, np.uint8).reshape(records, record)
    return table[:, label_bytes:].reshape(records, 3, 32, 32), table[:, label_bytes - 1]
