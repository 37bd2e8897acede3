"""What users hold in memory or in files of their own: where each number goes, and what is refused."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from partwise.data import Federation, Source, check, load, partition
from partwise.data.own import as_data, from_clients
from partwise.data.readers.arrays import KEYS, from_arrays, from_dataset, read_npz
from partwise.data.readers.hugging_face import read_hugging_face
from partwise.data.reading import Reading
from partwise.errors import ConfigError, DataError
from tests.support.files import picture, read_tree, refusal, write_tree

ROWS, LABELS = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])


class Listed(Dataset):
    """A data set of pairs, and perhaps of declared classes."""

    def __init__(self, pairs: list[Any], classes: list[str] | None = None) -> None:
        self.pairs = pairs
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.pairs[index], Exception):
            raise self.pairs[index]
        return self.pairs[index]


def pairs(labels: list[Any], features: int = 2) -> list[Any]:
    return [(torch.full((features,), float(at)), label) for at, label in enumerate(labels)]


# arrays


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_images_of_every_layout(convert: Any) -> None:
    planes = np.arange(4 * 3 * 5 * 6, dtype=np.uint8).reshape(4, 3, 5, 6)
    last = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    y = np.array([0, 1, 0, 1])
    first = check(from_arrays(convert(planes), convert(y)))
    assert np.array_equal(first.x, planes)
    assert (first.centre, first.scale, first.train) == ((127.5,) * 3, (127.5,) * 3, 4)
    assert torch.equal(from_arrays(convert(last), convert(y)).x, first.x)
    grey = from_arrays(convert(planes[:, 0]), convert(y))
    assert np.array_equal(grey.x, planes[:, :1])
    assert grey.scale == (127.5,)
    assert from_arrays(convert(np.zeros((4, 3, 5, 3), np.uint8)), convert(y)).x.shape == (4, 3, 5, 3)  # either: first
    with pytest.raises(DataError, match=r"C 1, 3 or 4, got shape \(4, 5, 6, 7\)"):
        from_arrays(convert(np.zeros((4, 5, 6, 7), np.uint8)), convert(y))


@pytest.mark.parametrize("kind", ["float64", "float16", ">f4", "int32", "uint16", "bool"])
def test_other_numbers_are_taken_as_they_are(kind: str) -> None:
    x = np.array([[0, 1], [1, 0], [1, 1]]).astype(kind)
    x.flags.writeable = False
    source = check(from_arrays(x, [0, 1, 0]))
    assert source.x.dtype == (torch.int64 if np.dtype(kind).kind in "iu" else torch.float32)
    assert source.x.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert (source.centre, source.scale, source.standardise) == ((0.0,), (1.0,), False)
    assert from_arrays(np.zeros((3, 4, 5)), [0, 1, 0]).x.shape == (3, 4, 5)
    assert from_arrays(np.ones((3, 4), np.uint8), [0, 1, 0]).x.dtype == torch.float32  # rows, no images
    assert from_arrays([[1, 2], [3, 4]], ["a", "b"]).x.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("y", "names", "expected"), [
    ([3, 7, 3], ("3", "7"), [0, 1, 0]),
    (["no", "yes", "no"], ("no", "yes"), [0, 1, 0]),
    (np.array(["b", "a", "b"], dtype=object), ("a", "b"), [1, 0, 1]),
    (torch.tensor([1.0, 0.0, 1.0]), ("0", "1"), [1, 0, 1]),
    (np.array([[1], [0], [1]]), ("0", "1"), [1, 0, 1]),
    ([True, False, True], ("False", "True"), [1, 0, 1]),
])  # fmt: skip
def test_labels_in_order_are_the_classes(y: Any, names: tuple[str, ...], expected: list[int]) -> None:
    source = check(from_arrays(np.eye(3), y))
    assert (source.class_names, source.y.tolist(), source.classes) == (names, expected, len(names))


def test_declared_classes_may_be_absent() -> None:
    source = check(from_arrays(np.eye(3), [0, 2, 0], classes=4))
    assert (source.classes, source.y.tolist()) == (4, [0, 2, 0])
    source = check(from_arrays(np.eye(3), ["cat", "dog", "cat"], classes=["cow", "dog", "cat"]))
    assert (source.class_names, source.y.tolist()) == (("cow", "dog", "cat"), [2, 1, 2])
    line = refusal(DataError, lambda: from_arrays(np.eye(2), ["cat", "do"], classes=["dog", "cat"]))
    assert line == "data set 'arrays': unknown class 'do'; did you mean 'dog'? known: dog, cat"


def test_an_own_test_set_follows_the_training_set() -> None:
    source = check(from_arrays(ROWS, LABELS, test=(ROWS[:3] + 100, LABELS[:3])))
    assert (source.train, len(source.y)) == (6, 9)
    assert source.x[6:].tolist() == (ROWS[:3] + 100).tolist()
    federation = partition(source, "iid", 2, seed=0, split="original")
    assert federation.global_test.tolist() == [6, 7, 8]


def test_fault_11_training_and_test_set_do_not_fit_together() -> None:
    line = refusal(DataError, lambda: check(from_arrays(ROWS, LABELS, test=(ROWS[:2], [0, 1]))))
    assert line == "data set 'arrays': 3 classes in the training set, 2 in the test set; in one alone: 2"
    line = refusal(DataError, lambda: from_arrays(ROWS, LABELS, test=(np.eye(3), [0, 1, 2]), name="mine"))
    problem = "samples are float32 of shape (2,) in the training set, but float32 of shape (3,) in the test set"
    assert line == f"data set 'mine': {problem}"
    line = refusal(DataError, lambda: from_arrays(ROWS, LABELS, test=(ROWS, list("abcabc"))))
    assert line == "data set 'arrays': labels are texts in the test set, but numbers in the training set"
    assert "labels are not in 0..1: 2 (2 samples)" in refusal(
        DataError, lambda: check(from_arrays(ROWS, LABELS, classes=2))
    )


@pytest.mark.parametrize(("x", "y", "problem"), [
    (np.arange(3.0), [0, 1, 0], "x must be (samples, features) or images, got shape (3,)"),
    (np.zeros((3, 0)), [0, 1, 0], "x must be (samples, features) or images, got shape (3, 0)"),
    (np.eye(3), [0, 1], "3 samples need as many labels, got y of shape (2,)"),
    (np.eye(3), np.full((3, 2), "a"), "3 samples need as many labels, got y of shape (3, 2)"),
    (np.eye(3), [0, float("nan"), 1], "nan (sample 1) is not a whole number"),
    (np.eye(3), [0, 0, 0], "there must be at least two classes, got '0'"),
    (np.eye(3), [None, 0, 1], "y must be whole numbers or texts, got object"),
    (np.eye(3), [[0], [1, 2], [1]], "y: rows of different lengths"),
    (np.zeros((0, 2)), [], "there must be at least two classes, got none"),
    (np.eye(3) * 1j, [0, 1, 0], "x: complex128, not real numbers"),
    (torch.eye(3) * 1j, [0, 1, 0], "x: complex64, not real numbers"),
    ([["a"], ["b"], ["c"]], [0, 1, 0], "x: <U1, not real numbers"),
    ([[1], [2, 3], [4]], [0, 1, 0], "x: rows of different lengths"),
    (np.eye(1001), np.arange(1001), "1,001 different labels; classification allows at most 1,000 classes"),
])  # fmt: skip
def test_what_arrays_may_not_be(x: Any, y: Any, problem: str) -> None:
    line = refusal(DataError, lambda: from_arrays(x, y))
    assert line.startswith("data set 'arrays'")
    assert problem in line


def test_fault_13_what_is_not_finite_is_left_to_the_check() -> None:
    x = np.eye(3)
    x[1, 2] = 1e300  # more than a float32 holds
    source = from_arrays(x, [0, 1, 0])
    assert "sample 1, feature 2 is inf" in refusal(DataError, lambda: check(source))
    assert check(source, allow_nonfinite=True) is source


# torch data sets


@pytest.mark.parametrize("x", [
    torch.arange(6).view(1, 2, 3),
    torch.arange(6, dtype=torch.uint8).view(1, 2, 3),
    np.arange(6, dtype=np.uint8).reshape(2, 3),
    Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
])  # fmt: skip
def test_samples_of_every_kind(x: Any) -> None:
    source = check(from_dataset(Listed([(x, 0), (x, torch.tensor(1)), (x, np.array([1]))])))
    assert source.x.shape == (3, 1, 2, 3)
    assert source.x[1].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert source.y.tolist() == [0, 1, 1]


def test_a_colour_image_of_pil_and_a_row_of_numbers() -> None:
    image = Image.new("RGB", (5, 4), (1, 2, 3))
    source = from_dataset(Listed([(image, "a"), (image.quantize(2), "b")]))
    assert source.x.shape == (2, 3, 4, 5)
    assert source.x[:, :, 0, 0].tolist() == [[1, 2, 3]] * 2
    assert from_dataset(Listed([([1, 2], 0), ([3.5, 4], 1)])).x.tolist() == [[1, 2], [3.5, 4]]


def test_a_data_set_is_read_once_and_in_order() -> None:
    seen = []

    class Watched(Listed):
        def __getitem__(self, index: int) -> Any:
            seen.append(index)
            return super().__getitem__(index)

    source = from_dataset(Watched(pairs([0, 1, 0, 1])), test=Watched(pairs([1, 0])))
    assert seen == [0, 1, 2, 3, 0, 1]
    assert source.x[:, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert source.train == 4


def test_declared_classes_are_found_through_subsets() -> None:
    whole = Listed(pairs([0, 1, 2]), classes=["a", "b", "c"])
    source = from_dataset(Subset(Subset(whole, [2, 0]), [0, 1]))
    assert (source.class_names, source.y.tolist()) == (("a", "b", "c"), [2, 0])
    assert from_dataset(ConcatDataset([whole, whole])).class_names == ("0", "1", "2")


@pytest.mark.parametrize(("items", "problem"), [
    ([(torch.zeros(2), 0), ValueError("no\nsuch file")], "sample 1: cannot be read: ValueError: no such file"),
    ([(torch.zeros(2), 0), (torch.zeros(1), 1)], "sample 1: float32 of shape (1,), but sample 0 is float32 of"),
    ([(torch.zeros(2), 0), (torch.zeros(2).byte(), 1)], "sample 1: uint8 of shape (2,), but sample 0 is float32"),
    ([(torch.zeros(2), 0, 1)], "sample 0: must be a pair (x, y), got (tensor([0., 0.]), 0, 1)"),
    ([{"x": 1, "y": 2}], "sample 0: must be a pair (x, y), got {'x': 1, 'y': 2}"),
    ([(torch.zeros(2), [0, 1])], "sample 0: its label must be a number, a text or an array, got [0, 1]"),
    ([("a", 0)], "sample 0: <U1, not real numbers"),
    ([(1.0, 0), (2.0, 1)], "x must be (samples, features) or images, got shape (2,)"),
    ([], "no samples"),
])  # fmt: skip
def test_what_a_data_set_may_not_hold(items: list[Any], problem: str) -> None:
    assert problem in refusal(DataError, lambda: from_dataset(Listed(items)))


def test_a_data_set_without_length_is_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    assert "Stream has no length; read its samples into arrays" in refusal(DataError, lambda: from_dataset(Stream()))


# one data set for each client


def test_what_clients_hold_stays_theirs() -> None:
    a, b = (ROWS, LABELS), Listed(pairs([0, 2, 2, 0, 0]))
    federation = from_clients([a, b], ["A", "B"], test_share=0.4, validation=0.25, seed=3)
    assert federation.names == ("A", "B")
    x = federation.source.x
    for client, rows in enumerate([ROWS, np.arange(5.0)[:, None].repeat(2, axis=1)]):
        sets = (federation.train[client], federation.test[client], federation.validation[client])
        assert sorted(x[torch.cat(sets)].tolist()) == rows.tolist()
    assert [len(own) for own in federation.test] == [2, 2]
    assert [len(own) for own in federation.validation] == [1, 0]
    assert federation.source.y.tolist() == [*LABELS, 0, 2, 2, 0, 0]
    again = from_clients([a, b], seed=3, test_share=0.4)
    assert all(torch.equal(one, two) for one, two in zip(federation.test, again.test, strict=True))
    assert again.names == ("0", "1")
    assert max(map(len, from_clients([a, b], train_samples=2).train)) == 2


def test_a_share_is_drawn_as_a_partition_draws_it() -> None:
    source = from_arrays(ROWS, LABELS)
    reference = partition(source, "iid", 1, seed=5, test_share=0.5, validation=0.4)
    federation = from_clients([(ROWS, LABELS)], test_share=0.5, validation=0.4, seed=5)
    for kind in ("train", "test", "validation"):
        assert torch.equal(getattr(federation, kind)[0], getattr(reference, kind)[0])


def test_clients_may_bring_their_own_test_sets() -> None:
    two = ((ROWS, LABELS), (ROWS[:2] + 50, LABELS[:2]))
    federation = from_clients([two, (Listed(pairs([0, 1])), Listed(pairs([1])))])
    assert [own.tolist() for own in federation.train] == [[0, 1, 2, 3, 4, 5], [8, 9]]
    assert [own.tolist() for own in federation.test] == [[6, 7], [10]]
    assert federation.global_test.tolist() == [6, 7, 10]
    assert federation.source.x[6:8].tolist() == (ROWS[:2] + 50).tolist()


def test_fault_15_a_client_may_be_empty() -> None:
    federation = from_clients([(ROWS, LABELS), (np.zeros((0, 2)), [])])
    assert [len(own) for own in federation.train] == [4, 0]
    assert check(federation.source).classes == 3


def test_fault_19_clients_of_different_classes_or_shapes() -> None:
    three, four, other = (Listed(pairs([0, 1]), classes=list(names)) for names in ("abc", "abcd", "abx"))
    line = refusal(DataError, lambda: from_clients([three, three, four], ["A", "B", "C"]))
    assert line == "data set 'clients': client 'A' has 3 classes, but client 'C' has 4"
    line = refusal(DataError, lambda: from_clients([three, other]))
    assert line == "data set 'clients': class 2 is 'c' in client '0', but 'x' in client '1'"
    line = refusal(DataError, lambda: from_clients([(three, four)]))
    assert line == "data set 'clients': client '0' has 3 classes, but client '0' (test) has 4"
    line = refusal(DataError, lambda: from_dataset(three, test=four))
    assert line == "data set 'dataset': the training set has 3 classes, but the test set has 4"
    line = refusal(DataError, lambda: from_clients([three, Listed(pairs([0, 1], features=3))]))
    shapes = "samples are float32 of shape (2,) in client '0', but float32 of shape (3,) in client '1'"
    assert line == f"data set 'clients': {shapes}"
    assert from_clients([three, Listed(pairs([0, 1]))]).source.classes == 3  # who declares nothing agrees


@pytest.mark.parametrize(("clients", "settings", "problem"), [
    ([], {}, "0 clients with 0 different names"),
    ([(ROWS, LABELS)] * 2, {"names": ["A"]}, "2 clients with 1 different names"),
    ([(ROWS, LABELS)] * 2, {"names": ["A", "A"]}, "2 clients with 1 different names"),
    ([(ROWS, LABELS)], {"test_share": 1.0}, "test_share must lie between 0 and 1, got 1.0"),
    ([(ROWS, LABELS)], {"validation": -0.1}, "validation must be at least 0 and below 1, got -0.1"),
    ([ROWS], {}, "client '0' cannot be a ndarray: it must be a torch Dataset"),
    ([(ROWS, LABELS, 1)], {}, "client '0' cannot be a tuple: it must be a torch Dataset"),
])  # fmt: skip
def test_what_clients_may_not_be(clients: list[Any], settings: dict[str, Any], problem: str) -> None:
    assert problem in refusal(ConfigError, lambda: from_clients(clients, **settings))


# .npz files


@pytest.mark.parametrize("keys", KEYS)
def test_arrays_in_a_file(keys: tuple[str, ...], tmp_path: Path) -> None:
    arrays = (ROWS, LABELS[:, None], ROWS + 100, LABELS)
    np.savez_compressed(tmp_path / "with.npz", **dict(zip(keys, arrays, strict=True)), note=np.array("made by hand"))
    source = load(str(tmp_path / "with.npz"))
    assert (source.name, source.train, len(source.y)) == ("with.npz", 6, 12)
    assert source.x[6:].tolist() == (ROWS + 100).tolist()
    np.savez(tmp_path / "without.npz", **dict(zip(keys[:2], arrays[:2], strict=True)))
    assert read_npz(tmp_path / "without.npz").train == 6


def test_fault_10_npz_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=ROWS)
    assert "it must hold x and y, or x_train and y_train" in refusal(DataError, lambda: read_npz(path))
    np.savez(path, x=ROWS, y=LABELS, x_test=ROWS)
    assert refusal(DataError, lambda: read_npz(path)).endswith("got x, y, x_test")
    np.savez(path, x=ROWS, y=np.array([{"a": 1}] * 6, dtype=object))
    assert f"{path}: cannot be read: Object arrays cannot be loaded" in refusal(DataError, lambda: read_npz(path))
    with path.open("wb") as file:
        np.save(file, ROWS)
    assert "File is not a zip file" in refusal(DataError, lambda: read_npz(path))
    assert "No such file" in refusal(DataError, lambda: read_npz(tmp_path / "b.npz"))


# Hugging Face


def hugging_face(rows: int = 6, **columns: Any) -> datasets.Dataset:
    """A table with a number, a text that stands for itself, and classes by number."""
    features = {
        "age": datasets.Value("float32"),
        "sex": datasets.ClassLabel(names=["m", "f"]),
        "kind": datasets.ClassLabel(names=["z", "y", "x"]),
        "site": datasets.Value("string"),
    }
    content = {"age": list(range(rows)), "sex": [at % 2 for at in range(rows)], "kind": [at % 3 for at in range(rows)]}
    content["site"] = ["Bern" if at < 2 else "Basel" for at in range(rows)]
    return datasets.Dataset.from_dict({**content, **columns}, features=datasets.Features(features))


def pictures(mode: str = "RGB") -> datasets.Dataset:
    images = [{"bytes": picture(10 * at, mode=mode), "path": None} for at in range(4)]
    features = datasets.Features({
        "img": datasets.Image(),
        "label": datasets.ClassLabel(names=["dog", "cat"]),
        "client": datasets.Value("int64"),
    })  # fmt: skip
    content = {"img": images, "label": [0, 1, 0, 1], "client": [10, 9, 9, 9]}
    return datasets.Dataset.from_dict(content, features=features)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Hugging Face's library with an empty cache and without progress bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    yield tmp_path
    datasets.enable_progress_bars()


def written(form: str, path: Path, splits: dict[str, datasets.Dataset]) -> Path:
    if form == "saved":
        datasets.DatasetDict(splits).save_to_disk(path)
    for name, split in splits.items():
        path.mkdir(exist_ok=True)
        if form == "parquet":
            split.to_parquet(path / f"{name}.parquet")
        elif form == "csv":
            split.to_csv(path / f"{name}.csv")
    return path


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_a_hugging_face_table_in_a_folder(form: str, quiet: Path) -> None:
    folder = written(
        form, quiet / "table", {"train": hugging_face(), "test": hugging_face(3), "other": hugging_face(1)}
    )
    before = read_tree(folder)
    source = load(f"hf:{folder}", label="kind", column="site")
    assert (source.train, len(source.y), source.classes) == (6, 9, 3)
    assert source.class_names == ("z", "y", "x")  # declared: not sorted
    assert source.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert source.feature_names == ("age", "sex=f", "sex=m")  # a class is no number
    assert source.x[:3].tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 1]]
    assert source.columns["site"].names == ("Basel", "Bern")
    assert (source.model, source.standardise) == ("tabular", True)
    assert read_tree(folder) == before
    assert not (quiet / "cache").exists()  # nothing is left behind


def test_a_hugging_face_folder_of_csv_files_and_one_below_the_root(quiet: Path) -> None:
    written("csv", quiet / "table", {"train": hugging_face(), "validation": hugging_face(3)})
    source = read_hugging_face("table", Reading(root=quiet, label="kind"))
    assert (source.train, len(source.y), source.class_names) == (6, 9, ("0", "1", "2"))


def test_the_only_declared_classes_are_the_labels() -> None:
    data = hugging_face().remove_columns("sex")
    assert as_data(data, Reading()).class_names == ("z", "y", "x")
    line = refusal(DataError, lambda: as_data(hugging_face(), Reading()))
    assert "lacks 'label'; " in line


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_hugging_face_images(form: str, quiet: Path) -> None:
    folder = written(form, quiet / "images", {"train": pictures()})
    source = load(f"hf:{folder}", image_size=8)
    assert source.x.shape == (4, 1, 8, 8)  # grey, all of them
    assert source.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert (source.class_names, source.y.tolist()) == (("dog", "cat"), [0, 1, 0, 1])
    assert (source.partition, source.columns["client"].names) == ("column:client", ("9", "10"))
    assert read_hugging_face(str(folder), Reading()).x.shape == (4, 1, 3, 4)


def test_hugging_face_images_as_they_were_shuffled_and_formatted() -> None:
    data = pictures().select([3, 1, 0]).with_format("torch")
    source = as_data(data, Reading(column="client"))
    assert isinstance(source, Source)
    assert source.x[:, 0, 0, 0].tolist() == [30, 10, 0]
    assert source.columns["client"].code.tolist() == [0, 0, 1]


def test_hugging_face_reads_a_folder_of_image_files(quiet: Path) -> None:
    tree = {f"{split}/{kind}/{at}.png": picture(at) for split in ("train", "test") for kind in "ab" for at in (1, 2)}
    source = read_hugging_face(str(write_tree(quiet / "tree", tree)), Reading())
    assert (source.train, len(source.y), source.class_names) == (4, 8, ("a", "b"))
    assert source.x[:4, 0, 0, 0].tolist() == [1, 2, 1, 2]


def test_what_hugging_face_data_may_not_be(quiet: Path) -> None:
    def line(data: Any, **reading: Any) -> str:
        return refusal(DataError, lambda: as_data(data, Reading(**reading)))

    two = pictures().add_column("more", pictures()["client"]).cast_column("more", datasets.Value("string"))
    two = two.cast_column("more", datasets.Image())
    assert "columns img, more hold images; --drop all but one" in line(two)
    assert as_data(two, Reading(drop=("more",))).train == 4
    assert "row 0: '10' is not an image file in this folder" in line(two, drop=("img",))
    away = datasets.Dataset.from_dict({"img": ["http://127.0.0.1:9/a.png"] * 2, "label": [0, 1]})
    assert "'http://127.0.0.1:9/a.png' is not an image file in this folder" in line(
        away.cast_column("img", datasets.Image())
    )
    splits = {"train": hugging_face(), "test": hugging_face(3)}
    other = splits["test"].cast_column("kind", datasets.ClassLabel(names=["z", "y", "x", "w"]))
    line_ = line(datasets.DatasetDict({**splits, "test": other}), label="kind")
    assert line_.endswith("column 'kind': the training set has 3 classes, but the test set has 4")
    assert "column 'age' is Value('float32') in the training set, but None in the test set" in line(
        datasets.DatasetDict({**splits, "test": splits["test"].remove_columns("age")}), label="kind"
    )
    assert "it must have a split 'train', got a, b" in line(datasets.DatasetDict(a=splits["test"], b=splits["test"]))
    assert "it must have a split 'train', got none" in line(datasets.DatasetDict())
    assert "no rows" in line(hugging_face(0), label="kind")
    assert "there must be at least two classes, got none" in line(pictures().select([]))
    broken = datasets.Dataset.from_dict({"img": [b"no image"] * 2, "label": [0, 1]}).cast_column(
        "img", datasets.Image()
    )
    assert "row 0: 8 bytes in no known image format" in line(broken)


def test_fault_10_a_file_that_would_crash_python_is_refused(quiet: Path) -> None:
    hugging_face().save_to_disk(quiet / "table")
    path = quiet / "table" / "data-00000-of-00001.arrow"
    raw = path.read_bytes()
    offsets = np.array([0, 4, 8, 13], np.int32).tobytes()  # where Bern, Bern and Basel begin and end
    assert raw.count(offsets) == 1
    path.write_bytes(raw.replace(offsets, np.array([0, 4, 2**31 - 9, 13], np.int32).tobytes()))
    line = refusal(DataError, lambda: read_hugging_face(str(quiet / "table"), Reading(label="kind")))
    assert "Offset invariant failure" in line


@pytest.mark.parametrize("download", [False, True])
def test_fault_09_a_name_that_is_nowhere_is_refused_at_once(
    download: bool, quiet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)  # the library waits between its attempts
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    for name in ("nobody/nothing", "nothing", "a/b/c", "x" * 300):
        line = refusal(DataError, lambda name=name: read_hugging_face(name, Reading(download=download)))
        assert line.startswith(f"hf:{name}: no folder here, and not in the cache of Hugging Face")
        assert ("the hub does not answer" if download else "; fetch it with --download") in line
    assert refusal(ConfigError, lambda: read_hugging_face("", Reading())).startswith(
        "hf: must be followed by a folder or a name"
    )
    assert not waits
    assert not datasets.config.HF_HUB_OFFLINE


def test_fault_09_a_hub_that_is_silent_or_does_not_know_the_name(quiet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partwise.data.readers.hugging_face.SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        line = refusal(DataError, lambda: read_hugging_face("nobody/nothing", Reading(download=True)))
    assert "the hub does not answer: timed out" in line

    class Ignorant(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr("partwise.data.readers.hugging_face.SECONDS", 10)
    with ThreadingHTTPServer(("127.0.0.1", 0), Ignorant) as hub:
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        Thread(target=hub.serve_forever).start()
        try:
            line = refusal(DataError, lambda: read_hugging_face("nobody/nothing", Reading(download=True)))
        finally:
            hub.shutdown()
    assert line.startswith("hf:nobody/nothing: cannot be read: Dataset 'nobody/nothing' doesn't exist on the Hub")


def test_what_the_hub_once_gave_is_read_from_the_cache(quiet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written("parquet", quiet / "known", {"train": hugging_face()})
    datasets.load_dataset(str(folder))
    (quiet / "elsewhere").mkdir()
    monkeypatch.chdir(quiet / "elsewhere")
    assert read_hugging_face("known", Reading(label="kind")).class_names == ("z", "y", "x")


def test_the_library_is_left_as_it_was(quiet: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = written("csv", quiet / "table", {"train": hugging_face()})
    datasets.enable_progress_bars()
    read_hugging_face(str(folder), Reading(label="kind"))
    assert not datasets.are_progress_bars_disabled()
    assert capfd.readouterr().err == ""


def test_hugging_face_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    line = refusal(DataError, lambda: read_hugging_face("a/b", Reading()))
    assert line == "datasets is needed, but not installed: pip install 'partwise[huggingface]'"


# whatever is handed in


def test_everything_that_data_may_be() -> None:
    reading, tensors = Reading(label="y"), TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(LABELS))
    frame = pandas.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "y": LABELS})
    rows = torch.from_numpy(ROWS).float()
    forms = [tensors, (ROWS, LABELS), (tensors, tensors), ((ROWS, LABELS), (ROWS, LABELS)), frame]
    forms += [datasets.Dataset.from_pandas(frame)]
    for form in forms:
        named = isinstance(form, pandas.DataFrame | datasets.Dataset)  # what has a column to be called so
        source = as_data(form, reading if named else Reading())
        assert isinstance(source, Source)
        assert torch.equal(source.x[:6], rows)
        assert (source.train, source.y[:6].tolist()) == (6, LABELS.tolist())
        assert as_data(source, reading) is source
    for clients in ([tensors, (ROWS, LABELS)], {"A": tensors, "B": ((ROWS, LABELS), (ROWS, LABELS))}):
        federation = as_data(clients, Reading(), test_share=0.5, validation=0.4, train_samples=3, seed=1)
        assert isinstance(federation, Federation)
        assert federation.names == (("A", "B") if isinstance(clients, dict) else ("0", "1"))
        assert (len(federation.train[0]), len(federation.validation[0]), len(federation.test[0])) == (2, 1, 3)
        assert as_data(federation, reading) is federation


@pytest.mark.parametrize("data", [None, 3, ROWS, torch.zeros(3), iter([])])
def test_anything_else_is_refused_by_its_type(data: Any) -> None:
    line = refusal(ConfigError, lambda: as_data(data, Reading()))
    assert line.startswith(f"data cannot be a {type(data).__name__}: it must be ")


def test_nothing_is_imported_to_find_out_what_data_are() -> None:
    code = (
        "import sys; from partwise.data.own import as_data; from partwise.data.reading import Reading; import numpy\n"
        "assert as_data((numpy.eye(2), [0, 1]), Reading()).classes == 2\n"
        "assert not {'pandas', 'datasets', 'pyarrow', 'PIL'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_handed_in_stays_as_it_is() -> None:
    x: Tensor = torch.arange(48, dtype=torch.uint8).view(4, 4, 3, 1)
    before = x.clone()
    source = from_arrays(x, [0, 1, 0, 1])
    source.x.zero_()
    assert torch.equal(x, before)
