"""Damaged files of every layout: what comes back is a data set that holds together, or one line; no file changes."""

import gzip
import hashlib
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.data import CATALOGUE, Source, check, load
from partwise.data.readers import cifar, pickles, tinyimagenet
from partwise.data.readers.published import IDX
from partwise.errors import DataError
from tests.support.files import picture, read_tree, write_tree
from tests.support.images import CLASSES, DOMAINS, domainnet, lists, tiny

Tree = dict[str, bytes]
Damage = Callable[[Tree], Tree]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Cuts, flips, empties, exchanges, moves or leaves out files of a tree."""
    steps = draw(st.lists(st.tuples(st.sampled_from(KINDS), *[st.integers(0, 2**24)] * 3), min_size=1, max_size=3))

    def damage(tree: Tree) -> Tree:
        tree = dict(tree)
        for kind, which, at, other in steps:
            names = list(tree)
            if names:
                kind(tree, names[which % len(names)], at, names[other % len(names)])
        return tree

    return damage


def cut(tree: Tree, name: str, at: int, _: str) -> None:
    tree[name] = tree[name][: at % (len(tree[name]) + 1)]


def flip(tree: Tree, name: str, at: int, _: str) -> None:
    content = bytearray(tree[name] or b"\0")
    content[at // 8 % len(content)] ^= 1 << at % 8
    tree[name] = bytes(content)


def flip_beginning(tree: Tree, name: str, at: int, _: str) -> None:
    flip(tree, name, at % 512, name)  # headers are short


def empty(tree: Tree, name: str, _: int, __: str) -> None:
    tree[name] = b""


def exchange(tree: Tree, name: str, _: int, other: str) -> None:
    tree[name], tree[other] = tree[other], tree[name]


def move(tree: Tree, name: str, at: int, other: str) -> None:
    folder = (other, *(other.rpartition("/")[0], "", "x/y/z"))[1 + at % 3]
    target = f"{folder}/{name.rpartition('/')[2]}".lstrip("/")
    if not any(target.startswith(f"{each}/") or each.startswith(f"{target}/") for each in tree):
        tree[target] = tree.pop(name)


def leave_out(tree: Tree, name: str, _: int, __: str) -> None:
    del tree[name]


KINDS = (cut, flip, flip_beginning, empty, exchange, move, leave_out)


def survives(path: Path, *arguments: Any, **reading: Any) -> Source | None:
    """The source, checked again; None where it was refused in one line. Either way no file has changed."""
    before = read_tree(path)
    try:
        source = check(load(*arguments, **reading))
    except DataError as error:
        assert len(str(error).splitlines()) == 1
        source = None
    assert read_tree(path) == before
    return source


def idx_tree(compressed: bool) -> Tree:
    arrays = [np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 10] * 2
    tree = {}
    for name, array in zip(IDX, arrays, strict=True):
        raw = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()
        tree[f"mnist/{name}.gz" if compressed else f"mnist/{name}"] = gzip.compress(raw) if compressed else raw
    return tree


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("examples", [20, 60])
def test_fuzz_idx(compressed: bool, examples: int) -> None:
    tree = idx_tree(compressed)

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(damages())
    def fuzz(damage: Damage) -> None:
        with TemporaryDirectory() as folder:
            path = write_tree(Path(folder) / "root", damage(tree))
            survives(path, "mnist", path)

    fuzz()


def cifar_tree(python: bool) -> Tree:
    x, y = np.zeros((10, 3072), np.uint8), np.arange(10, dtype=np.uint8)
    if not python:
        record = np.concatenate([y[:, None], x], axis=1).tobytes()
        return {f"cifar-10-batches-bin/{file}": record for file in cifar.CIFAR10}
    entry = {b"data": x, b"labels": y.tolist(), b"filenames": [b"x"] * 10}
    return {f"cifar-10-batches-py/{file}": pickle.dumps(entry, 2) for file in cifar.CIFAR10_PYTHON}


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("examples", [25, 80])
def test_fuzz_cifar(python: bool, examples: int) -> None:
    """Under checksums that fit the damaged files: the formats must be safe without them."""
    tree, table = cifar_tree(python), "CIFAR10_PYTHON" if python else "CIFAR10"

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(damages())
    def fuzz(damage: Damage) -> None:
        damaged = damage(tree)
        sums = {name.rpartition("/")[2]: (10, hashlib.md5(content).hexdigest()) for name, content in damaged.items()}
        known = {file: sums.get(file, (10, "")) for file in getattr(cifar, table)}
        with TemporaryDirectory() as folder, patch.object(cifar, table, known):
            path = write_tree(Path(folder) / "root", damaged)
            survives(path, "cifar10", path)

    fuzz()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(range(5)), damages(), st.binary(max_size=20))
def test_fuzz_pickles(protocol: int, damage: Damage, tail: bytes) -> None:
    whole = pickle.dumps([{"a": (1, 2.5, "text")}, np.arange(5), np.array(["a", "bc"]), b"\xff"], protocol)
    for raw in (damage({"a": whole, "b": tail}).get("a", tail), tail, whole[:-1] + tail + b"."):
        try:
            pickles.load(raw, "a file")
        except DataError as error:
            assert len(str(error).splitlines()) == 1


SMALL_LISTS = {kind: {**domainnet(), **lists(kind)} for kind in ("lists.pkl", "arrays.pkl", "txt")}
MORE_CLASSES = {**CLASSES, "cat/b.gif": picture(5, kind="GIF"), "cat/c.webp": picture(6, kind="WEBP"),
                "dog/d.tif": picture(7, kind="TIFF"), "dog/e.bmp": picture(8, kind="BMP")}  # fmt: skip
SPLIT = {f"{part}/{name}": content for part in ("train", "test") for name, content in CLASSES.items()}


@pytest.mark.parametrize("tree", [MORE_CLASSES, SPLIT, DOMAINS], ids=["classes", "split", "domains"])
@pytest.mark.parametrize("name", ["mine", "mine.zip"])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("examples", [15, 40])
def test_fuzz_image_folders(tree: Tree, name: str, size: int | None, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(damages())
    def fuzz(damage: Damage) -> None:
        with TemporaryDirectory() as folder:
            path = write_tree(Path(folder) / name, damage(tree))
            survives(path, str(path), image_size=size)

    fuzz()


@pytest.mark.parametrize("tree", [MORE_CLASSES, DOMAINS], ids=["classes", "domains"])
@pytest.mark.parametrize("examples", [40, 150])
def test_fuzz_archives(tree: Tree, examples: int) -> None:
    with TemporaryDirectory() as folder:
        whole = write_tree(Path(folder) / "mine.zip", tree).read_bytes()

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(damages())
    def fuzz(damage: Damage) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "mine.zip"
            path.write_bytes(damage({"mine.zip": whole}).get("mine.zip", b""))
            survives(path, str(path))

    fuzz()


@pytest.mark.parametrize("kind", SMALL_LISTS)
@pytest.mark.parametrize("examples", [8, 25])
def test_fuzz_split_lists(kind: str, examples: int) -> None:
    tree = SMALL_LISTS[kind]
    only = {name: content for name, content in tree.items() if name.startswith("split")}
    images = {name: content for name, content in tree.items() if name not in only}

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(damages())
    def fuzz(damage: Damage) -> None:
        with TemporaryDirectory() as folder:
            path = write_tree(Path(folder) / "domainnet.zip", {**images, **damage(only)})
            survives(path, "domainnet", path, image_size=1)

    fuzz()


@pytest.mark.parametrize("name", ["tiny-imagenet-200", "tiny-imagenet-200.zip"])
@pytest.mark.parametrize("examples", [25, 80])
def test_fuzz_tiny_imagenet(name: str, examples: int) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.object(tinyimagenet, "IMAGE_COUNTS", {"train": 6, "val": 3}))
        fewer = replace(CATALOGUE["tiny-imagenet"], classes=3)
        stack.enter_context(patch.dict(CATALOGUE, {"tiny-imagenet": fewer}))

        @settings(max_examples=examples, deadline=None, derandomize=True)
        @given(damages())
        def fuzz(damage: Damage) -> None:
            with TemporaryDirectory() as folder:
                path = write_tree(Path(folder) / name, damage(tiny()))
                survives(path, "tiny-imagenet", path)

        fuzz()


def test_undamaged_files_are_read(tmp_path: Path) -> None:
    """What the damage above is done to is good before."""
    path = write_tree(tmp_path / "root", {**idx_tree(True), **SMALL_LISTS["txt"]})
    source = survives(path, "mnist", path)
    assert source is not None
    assert len(source.y) == 40
    for at, tree in enumerate((MORE_CLASSES, SPLIT, DOMAINS)):
        own = write_tree(tmp_path / f"own{at}.zip", tree)
        assert survives(own, str(own)) is not None
