"""Pickles: arrays and plain values are read as Python reads them, and nothing in a file is ever executed."""

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partwise.data import load
from partwise.data.readers import cifar, pickles
from partwise.errors import DataError
from tests.support.files import refusal

PLAIN = {"text": "é", b"bytes": b"\xff", 3: [1, -2, 2**40, 1.5, None, True], "nested": {"a": ((), ("b",), [[]])}}


@pytest.mark.parametrize("protocol", range(5))
def test_plain_values_are_read_as_python_reads_them(protocol: int) -> None:
    assert pickles.load(pickle.dumps(PLAIN, protocol), "x") == PLAIN


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("array", [
    np.arange(12, dtype=np.uint8).reshape(3, 4),
    np.arange(12, dtype=">i4").reshape(3, 4),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.array([True, False]),
])  # fmt: skip
def test_arrays_are_read_as_numpy_reads_them(protocol: int, array: np.ndarray) -> None:
    read = pickles.load(pickle.dumps([array, array], protocol), "x")
    assert all(np.array_equal(each.values, array) and each.values.dtype == array.dtype for each in read)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("array", [np.array(["a", "bcé"]), np.array([b"a", b"bc"]), np.array([["a"], ["b"]], object)])
def test_arrays_of_texts_and_objects_are_read_as_lists(protocol: int, array: np.ndarray) -> None:
    read = pickles.load(pickle.dumps(array, protocol), "x").values
    assert read == (array.ravel() if array.dtype == object else array).tolist()


def test_pickles_of_python_2_under_numpys_old_name() -> None:
    raw = (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03"
           b"(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87Rq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xff"
           b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x02\x03\x04tb.")  # fmt: skip
    assert pickles.load(raw, "x").values.tolist() == [[1, 2], [3, 4]]


class Call:
    """An object that is pickled as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def payloads(sentinel: Path) -> dict[str, Any]:
    """By the name that must be refused: objects that leave a sentinel file where they are unpickled."""
    attack, code = Call(os.system, f"touch {sentinel}"), f"open({str(sentinel)!r}, 'w')"
    objects = np.empty(2, object)
    objects[:] = [1, attack]
    return {
        "posix.system": attack,
        "builtins.eval": Call(eval, code),
        "builtins.exec": Call(exec, code),
        "io.open": [{"data": (1, Call(open, str(sentinel), "w"))}],
        "system": objects,
        "numpy.fromfile": Call(np.fromfile, str(sentinel)),
        "pathlib.PosixPath": sentinel,
    }


@pytest.mark.parametrize("protocol", range(5))
def test_a_payload_is_refused_by_name_and_never_executed(protocol: int, tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    for name, payload in payloads(sentinel).items():
        raw = pickle.dumps(payload, protocol)
        line = refusal(DataError, lambda raw=raw: pickles.load(raw, "a file"))
        assert line.startswith("a file: refused to load ")
        assert line.endswith(name.rpartition(".")[2])
    assert not sentinel.exists()
    pickle.loads(pickle.dumps(Call(os.system, f"touch {sentinel}"), protocol))
    assert sentinel.exists()  # the payload is real: Python itself runs it


@pytest.mark.parametrize(("raw", "problem"), [
    (b"cos\nsystem\n(S'true'\ntR.", "refused to load os.system"),  # as it is written by hand
    (b"c__builtin__\neval\n.", "refused to load __builtin__.eval"),
    (b"(S'true'\nios\nsystem\n.", "refused to load os.system"),
    (b"\x80\x04\x8c\x05numpy\x8c\x07dtype.x\x93.", "refused to load numpy.dtype.x"),
    (b"cnumpy.core.multiarray\nscalar\n.", "refused to load numpy.core.multiarray.scalar"),
    (b"\x80\x02\x82\x01.", "cannot be unpickled"),  # an object of the extension registry
    (b"Psomewhere\n.", "refused to load an object from outside the file"),
    (b"Nr\xff\xff\xff\x7f.", "refused to make room for 2,147,483,647 values where 1 are kept"),
    (b"Np99999999\n.", "refused to make room for 99,999,999 values where 1 are kept"),
    (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00ab.", "cannot be unpickled: ValueError"),  # announces 2**56 bytes
    (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00ab.", "cannot be unpickled: ValueError"),
    (b"S'\\d'\n.", "cannot be unpickled: DeprecationWarning"),
    (b"c_codecs\nencode\n}S'x'\nI1\nsb.", "cannot be unpickled"),  # state for a function
    (b"cnumpy\nndarray\n}S'values'\nI1\nsb.", "cannot be unpickled"),  # state for a class
    (b"", "cannot be unpickled"),
])  # fmt: skip
def test_a_pickle_that_is_refused(raw: bytes, problem: str) -> None:
    assert problem in refusal(DataError, lambda: pickles.load(raw, "a file"))
    assert pickles.Array.values is None


def test_an_array_cannot_claim_more_than_its_bytes() -> None:
    raw = pickle.dumps(np.arange(4, dtype=np.uint8), 2)
    for old, new in ((b"u1", b"u8"), (b"K\x04", b"K\x05"), (b"u1", b"V1"), (b"u1", b"O8")):
        assert old in raw
        assert "cannot be unpickled" in refusal(DataError, lambda o=old, n=new: pickles.load(raw.replace(o, n), "x"))


def python_cifar(
    folder: Path, table: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[Any, Any]], Any] = lambda d: d
) -> list[dict[Any, Any]]:
    """Writes a CIFAR of one image a class in the python layout, the checksums of which are as they should be."""
    folder.mkdir(parents=True)
    classes, random = 100 if "100" in table else 10, np.random.default_rng(0)
    known, written = {}, []
    for file in getattr(cifar, table):
        entry = {
            b"batch_label": b"batch",
            b"data": random.integers(0, 256, (classes, 3072), dtype=np.uint8),
            b"fine_labels" if classes == 100 else b"labels": random.permutation(classes).tolist(),
            b"coarse_labels": [0] * classes,
            b"filenames": [b"name.png"] * classes,
        }
        raw = pickle.dumps(change(entry), 2)
        (folder / file).write_bytes(raw)
        known[file] = (classes, hashlib.md5(raw).hexdigest())
        written.append(entry)
    monkeypatch.setattr(cifar, table, known)
    return written


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
def test_cifar_in_the_official_python_layout(
    name: str, folder: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = python_cifar(nowhere / "data" / folder, f"{name.upper()}_PYTHON", monkeypatch)
    source, labels = load(name), b"fine_labels" if name == "cifar100" else b"labels"
    assert np.array_equal(source.x.flatten(1).numpy(), np.concatenate([entry[b"data"] for entry in written]))
    assert source.y.tolist() == [label for entry in written for label in entry[labels]]
    classes = len(written[0][labels])
    assert (source.x.shape[1:], source.train, source.classes) == ((3, 32, 32), len(source.y) - classes, classes)
    assert (source.model, source.centre, source.scale) == ("cnn-5x5", (127.5,) * 3, (127.5,) * 3)


@pytest.mark.parametrize(("change", "problem"), [
    (lambda d: [d], "data must be uint8 of shape (10, 3072), got NoneType"),
    (lambda d: d | {b"data": d[b"data"][:9]}, "data must be uint8 of shape (10, 3072), got uint8 of shape (9, 3072)"),
    (lambda d: d | {b"data": d[b"data"].astype(np.int16)}, "got int16 of shape (10, 3072)"),
    (lambda d: d | {b"data": d[b"data"].tobytes()}, "got bytes"),
    (lambda d: d | {b"labels": d[b"labels"][:9]}, "labels must be a list of 10 whole numbers from 0 to 255"),
    (lambda d: d | {b"labels": [*d[b"labels"][:9], True]}, "labels must be a list of 10 whole numbers"),
    (lambda d: d | {b"labels": [*d[b"labels"][:9], 2**70]}, "labels must be a list of 10 whole numbers"),
    (lambda d: d | {b"labels": [*d[b"labels"][:9], 10]}, "labels are not in 0..9: 10 (6 samples)"),
    (lambda d: d | {b"labels": Call(os.system, "true")}, "refused to load posix.system"),
])  # fmt: skip
def test_fault_10_python_files_that_do_not_fit(
    change: Callable[[Any], Any], problem: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_cifar(nowhere / "data" / "cifar-10-batches-py", "CIFAR10_PYTHON", monkeypatch, change)
    assert problem in refusal(DataError, lambda: load("cifar10"))


def test_fault_10_a_python_file_of_another_checksum_is_not_even_unpickled(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = nowhere / "data" / "cifar-10-batches-py"
    python_cifar(folder, "CIFAR10_PYTHON", monkeypatch)
    monkeypatch.setattr(pickles, "load", None)
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n.")
    line = refusal(DataError, lambda: load("cifar10"))
    assert line.startswith(f"{folder / 'data_batch_1'}: expected md5 {cifar.CIFAR10_PYTHON['data_batch_1'][1]}, got ")


def test_the_layout_in_the_first_place_wins(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_cifar(nowhere / "data" / "cifar-10-batches-py", "CIFAR10_PYTHON", monkeypatch)
    (nowhere / "system" / "cifar-10-batches-bin").mkdir(parents=True)
    for file in cifar.CIFAR10:
        (nowhere / "system" / "cifar-10-batches-bin" / file).write_bytes(b"")
    assert len(load("cifar10").y) == 60
    assert "expected 30,730,000 bytes, got 0" in refusal(DataError, lambda: load("cifar10", nowhere / "system"))
