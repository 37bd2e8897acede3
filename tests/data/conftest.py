"""A machine without data sets, and small files in the official layouts."""

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from partwise.data.readers import places
from partwise.data.readers.published import IDX


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder; home, system folder and $PARTWISE_DATA lie in it and do not exist yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PARTWISE_DATA", str(tmp_path / "environment"))
    monkeypatch.setattr(places, "SYSTEM", str(tmp_path / "system"))
    return tmp_path


@pytest.fixture
def write_idx() -> Callable[..., None]:
    """Writes a set of 30 training and 20 test images into a folder: every pixel of image i is `brightness` + i."""

    def write(
        folder: Path, brightness: int = 0, compressed: bool = False, labels: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for part, samples in (("train", 30), ("t10k", 20)):
            images = np.broadcast_to(np.arange(samples, dtype=np.uint8)[:, None, None] + brightness, (samples, 28, 28))
            classes = np.arange(samples, dtype=np.uint8) % 10
            for index, label in labels.items():
                classes[index] = label
            for kind, array in (("images", images), ("labels", classes)):
                header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
                raw, name = header + array.tobytes(), f"{part}-{kind}-idx{array.ndim}-ubyte"
                assert name in IDX
                (folder / (f"{name}.gz" if compressed else name)).write_bytes(gzip.compress(raw) if compressed else raw)

    return write
