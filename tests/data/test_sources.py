"""Data sets by name: what is loaded, from where, and that every byte ends up where it belongs."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from partwise.data import CATALOGUE, Source, load
from partwise.data.readers import cifar, hugging_face
from partwise.errors import ConfigError, DataError
from partwise.reporting import data


def real(name: str) -> Source:
    try:
        return load(name)
    except DataError as error:
        if "is missing" not in str(error):
            raise
        pytest.skip(f"the files of {name} are not on this machine")


def test_digits_are_scikit_learns() -> None:
    source, wanted = load("digits"), load_digits()
    assert source.x.dtype == torch.uint8
    assert source.x.shape == (1797, 1, 8, 8)
    assert np.array_equal(source.x[:, 0].numpy(), wanted.images)
    assert np.array_equal(source.y.numpy(), wanted.target)
    assert (source.train, source.classes, source.model) == (1437, 10, "cnn-digits")
    assert (source.centre, source.scale) == ((8.0,), (8.0,))  # values 0..16 become -1..1


def test_mnist5k_has_400_training_and_100_test_images_of_each_digit() -> None:
    source = load("mnist5k")
    assert source.x.shape == (5000, 1, 28, 28)
    assert source.y[:4000].bincount().tolist() == [400] * 10
    assert source.y[4000:].bincount().tolist() == [100] * 10
    assert source.y[:10].tolist() == list(range(10))
    assert len(source.x.flatten(1).unique(dim=0)) > 4990  # no image was taken twice
    assert (source.train, source.model, source.centre, source.scale) == (4000, "convnet-f", (127.5,), (127.5,))
    strokes = (source.x > 127).float().mean((1, 2, 3))
    assert strokes[source.y == 1].mean() < 0.6 * strokes[source.y == 0].mean()  # a one has less ink than a zero


def test_made_is_learnable_but_not_trivial_and_always_the_same() -> None:
    source = load("made")
    assert source.x.shape == (2500, 1, 8, 8)
    assert (source.train, source.classes, source.model) == (2000, 10, "cnn-digits")
    x, y = source.x.float().flatten(1), source.y
    means = torch.stack([x[:2000][y[:2000] == label].mean(0) for label in range(10)])
    right = (torch.cdist(x[2000:], means).argmin(1) == y[2000:]).float().mean()
    assert 0.8 < right < 0.97
    assert torch.equal(source.x, load("made").x)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("fashion-mnist", "FashionMNIST/raw")])
def test_idx_files(name: str, folder: str, compressed: bool, nowhere: Path, write_idx: Callable[..., None]) -> None:
    write_idx(nowhere / folder, brightness=100, compressed=compressed)
    source = load(name, nowhere)
    assert source.x.shape == (50, 1, 28, 28)
    assert source.x[:, 0, 27, 27].tolist() == [100 + i for i in (*range(30), *range(20))]
    assert source.y.tolist() == [i % 10 for i in (*range(30), *range(20))]
    assert (source.train, source.classes, source.model) == (30, 10, "convnet-f")
    assert (source.centre, source.scale) == ((127.5,), (127.5,))


def test_the_first_folder_of_the_order_wins(nowhere: Path, write_idx: Callable[..., None]) -> None:
    order = ["root", "environment", "data", "home/.cache/partwise", "system"]
    for number, place in reversed(list(enumerate(order))):
        write_idx(nowhere / place / "mnist", brightness=number)
        assert load("mnist", nowhere / "root").x[0, 0, 0, 0] == number


def test_a_folder_without_all_files_is_passed_over(nowhere: Path, write_idx: Callable[..., None]) -> None:
    write_idx(nowhere / "data" / "mnist", brightness=1)
    write_idx(nowhere / "system" / "mnist", brightness=2)
    (nowhere / "data" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert load("mnist").x[0, 0, 0, 0] == 2


def test_the_root_may_be_the_folder_itself_but_not_that_of_another_set(
    nowhere: Path, write_idx: Callable[..., None]
) -> None:
    write_idx(nowhere / "fashion-mnist", brightness=7)
    assert load("fashion-mnist", nowhere / "fashion-mnist").x[0, 0, 0, 0] == 7
    with pytest.raises(DataError, match="data set 'mnist' is missing"):
        load("mnist", nowhere / "fashion-mnist")  # its files are called the same


def test_the_root_itself_may_be_called_anything(nowhere: Path, write_idx: Callable[..., None]) -> None:
    write_idx(nowhere / "system" / "mnist", brightness=1)
    write_idx(nowhere / "files", brightness=9)
    assert load("mnist", nowhere / "files").x[0, 0, 0, 0] == 9
    (nowhere / "files" / "t10k-labels-idx1-ubyte").unlink()
    assert load("mnist", nowhere / "files").x[0, 0, 0, 0] == 1  # some files are not all
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        assert CATALOGUE["pacs"].find(nowhere / "files")[0] is None
        (nowhere / "files" / domain).mkdir()
    place, _ = CATALOGUE["pacs"].find(nowhere / "files")
    assert place is not None and place.path == nowhere / "files"
    assert CATALOGUE["pacs"].find(None)[0] is None


def test_a_file_of_ones_own_is_looked_for_in_the_root_too(nowhere: Path) -> None:
    (nowhere / "root").mkdir()
    (nowhere / "root" / "mine.csv").write_text("x,label\n1,0\n2,1\n")
    assert load("mine.csv", nowhere / "root").x.tolist() == [[1], [2]]
    (nowhere / "mine.csv").write_text("x,label\n3,0\n4,1\n")
    assert load("mine.csv", nowhere / "root").x.tolist() == [[3], [4]]


@pytest.mark.parametrize(("name", "folder", "label_bytes", "classes"), [
    ("cifar10", "cifar-10-batches-bin", 1, 10),
    ("cifar100", "cifar-100-binary", 2, 100),
])  # fmt: skip
def test_cifar_in_the_official_binary_layout(
    name: str, folder: str, label_bytes: int, classes: int, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "data" / folder).mkdir(parents=True)
    table, known, random = name.upper(), {}, np.random.default_rng(0)
    written = []
    for file in getattr(cifar, table):
        records = random.integers(0, 256, (classes, label_bytes + 3072), dtype=np.uint8)
        records[:, :label_bytes] = 19  # the coarse label, where there are two
        records[:, label_bytes - 1] = random.permutation(classes)
        (nowhere / "data" / folder / file).write_bytes(records.tobytes())
        known[file] = (classes, hashlib.md5(records.tobytes()).hexdigest())
        written.append(records)
    monkeypatch.setattr(cifar, table, known)
    source, records = load(name), np.concatenate(written)
    assert source.x.shape == (len(records), 3, 32, 32)
    assert source.x[3, 2, 5, 7] == records[3, label_bytes + 2 * 1024 + 5 * 32 + 7]  # planes: red, green, blue
    assert np.array_equal(source.x.flatten(1).numpy(), records[:, label_bytes:])
    assert source.y.tolist() == records[:, label_bytes - 1].tolist()
    assert (source.train, source.classes) == (len(records) - classes, classes)
    assert (source.model, source.centre, source.scale) == ("cnn-5x5", (127.5,) * 3, (127.5,) * 3)


@pytest.mark.parametrize(("name", "classes", "mean"), [("cifar10", 10, 0.4734), ("cifar100", 100, 0.4782)])
def test_the_real_cifar(name: str, classes: int, mean: float) -> None:
    source = real(name)
    assert (source.x.shape, source.train) == ((60_000, 3, 32, 32), 50_000)
    assert source.y[:50_000].bincount().tolist() == [50_000 // classes] * classes
    assert source.y[50_000:].bincount().tolist() == [10_000 // classes] * classes
    assert source.x[:50_000].flatten().float().mean().item() / 255 == pytest.approx(mean, abs=1e-4)


def test_the_real_fashion_mnist() -> None:
    source = real("fashion-mnist")
    assert (source.x.shape, source.train) == ((70_000, 1, 28, 28), 60_000)
    assert source.y[:60_000].bincount().tolist() == [6000] * 10
    assert source.x[:60_000].flatten().float().mean().item() / 255 == pytest.approx(0.2860, abs=1e-4)


def test_the_real_pacs() -> None:
    source = real("pacs")
    assert source.columns["domain"].code.bincount().tolist() == [2048, 2344, 1670, 3929]
    assert (len(source.y), source.train, source.classes) == (9991, 9991, 7)


def test_known_names() -> None:
    domains, images = ["pacs", "office-home", "domainnet"], ["mnist", "fashion-mnist", "cifar10", "cifar100"]
    assert {"digits", "mnist5k", *images, "tiny-imagenet", *domains, "made"} <= {*CATALOGUE}


def test_what_is_told_about_a_data_set_is_what_is_loaded(nowhere: Path) -> None:
    for name in [known.name for known in CATALOGUE.values() if known.package]:
        facts, source = data.data_facts(name), load(name)
        test = len(source.y) - source.train
        assert facts.samples == f"{source.train:,} + {test:,} for testing"
        assert (facts.classes, facts.shape) == (source.classes, list(source.x.shape[1:]))
        assert (facts.model, facts.partition) == (source.model, source.partition)
        assert facts.found.startswith("in the package ")
        assert json.loads(json.dumps(asdict(facts))) == asdict(facts)


def test_pages_say_where_a_data_set_is_or_how_to_get_it(nowhere: Path, write_idx: Callable[..., None]) -> None:
    page = data.data_page("mnist", nowhere / "root")
    for place in ("root", "environment", "data", "home/.cache/partwise", "system"):
        assert f"looked in    {nowhere / place / 'mnist'}\n" in page
    assert "or fetch it  partwise data mnist --download    (12 MB)" in page
    assert "60,000 + 10,000 for testing" in page
    assert "partwise run fedper --data mnist" in page
    lines = {line.split()[0]: line for line in data.data_overview().splitlines() if line.startswith("  ")}
    assert set(CATALOGUE) <= set(lines)
    assert lines["mnist"].endswith("missing")
    write_idx(nowhere / "root" / "mnist")
    assert f"found  {nowhere}/root/mnist" in data.data_page("mnist", nowhere / "root")
    lines = {
        line.split()[0]: line for line in data.data_overview(nowhere / "root").splitlines() if line.startswith("  ")
    }
    assert lines["mnist"].endswith(str(nowhere / "root" / "mnist"))
    assert all(
        kind in data.data_overview() for kind in (".csv", ".parquet", ".npz", ".zip", "domain/class/image", "hf:NAME")
    )
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        data.data_page("mnits")


def test_names_of_hugging_face_go_to_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "read_hugging_face", lambda name, reading: replace(load("made"), name=f"{name}!"))
    assert load("hf:someone/something").name == "someone/something!"
