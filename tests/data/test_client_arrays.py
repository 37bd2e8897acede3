"""A folder with the arrays of each client, as PFLlib writes them: who trains and tests on what stays as it is there."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partwise
from partwise.data import Federation, load, partition
from partwise.errors import DataError
from tests.support.files import refusal

SIZES = {"train": [3, 2, 4], "test": [1, 2, 1]}  # of clients 0, 2 and 10


def samples(part: str, client: int, size: int) -> dict[str, np.ndarray]:
    """Each image is filled with a number of its own, so that it can be told whose it is."""
    first = 100 * client + (50 if part == "test" else 0)
    x = np.arange(first, first + size, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 4, 4), np.float32)
    return {"x": x, "y": np.arange(size) % 2}


def write(path: Path, held: dict[str, Any], pickled: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **({"data": held} if pickled else held))


@pytest.fixture(params=[True, False], ids=["pickled", "plain"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for part, sizes in SIZES.items():
        for client, size in zip([0, 2, 10], sizes, strict=True):
            write(tmp_path / "Digits" / part / f"{client}.npz", samples(part, client, size), request.param)
    return tmp_path / "Digits"


def numbers(federation: Federation, part: str) -> list[list[float]]:
    return [federation.source.x[index][:, 0, 0, 0].tolist() for index in getattr(federation, part)]


def test_clients_keep_their_samples(folder: Path) -> None:
    (folder / "config.json").write_text("{}")  # PFLlib's own
    source = load(str(folder))
    assert (source.name, source.train, source.classes, source.x.shape[1:]) == ("Digits", 9, 2, (1, 4, 4))
    federation = partition(source, source.partition, None, seed=0)
    assert federation.names == ("0", "2", "10")
    assert numbers(federation, "train") == [[0, 1, 2], [200, 201], [1000, 1001, 1002, 1003]]
    assert numbers(federation, "test") == [[50], [250, 251], [1050]]
    assert source.y[federation.train[2]].tolist() == [0, 1, 0, 1]


def test_without_test_files_a_share_of_each_clients_samples_is_taken(folder: Path) -> None:
    for file in (folder / "test").iterdir():
        file.unlink()
    federation = partition(load(str(folder)), "column:client", None, seed=0, test_share=0.5)
    assert [len(own) for own in federation.test] == [2, 1, 2]
    assert sorted(numbers(federation, "train")[1] + numbers(federation, "test")[1]) == [200, 201]


def test_a_run_takes_the_folder_as_it_is(folder: Path) -> None:
    result = partwise.run("fedper", data=str(folder), model="mlp-100", rounds=1)
    assert [row["name"] for row in result.clients] == ["0", "2", "10"]
    assert [row["test_samples"] for row in result.clients] == SIZES["test"]


def test_fault_10_a_clients_file_that_is_missing_or_no_such_file(folder: Path) -> None:
    path = folder / "train" / "2.npz"
    whole = path.read_bytes()
    for held, problem in [
        ({"x": np.ones((2, 3)), "y": [0, 1]}, "float32 of shape (3,)"),
        ({"x": np.ones((2, 1, 4, 4)), "y": [0]}, "2 samples need as many labels"),
        ({"images": np.ones(2)}, "it must hold arrays x and y"),
    ]:
        write(path, held)
        assert problem in refusal(DataError, lambda: load(str(folder)))
    write(path, {"data": np.arange(3)}, pickled=False)
    assert "it must hold arrays x and y" in refusal(DataError, lambda: load(str(folder)))
    for end in range(0, len(whole), 16):
        path.write_bytes(whole[:end])
        assert str(path) in refusal(DataError, lambda: load(str(folder)))
    path.unlink()
    assert "2.npz is not in both train and test" in refusal(DataError, lambda: load(str(folder)))


class Call:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_fault_10_nothing_in_a_clients_file_is_executed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(folder / "train" / "2.npz", {"x": Call(), "y": np.arange(2)})
    assert "refused to load posix.mkdir" in refusal(DataError, lambda: load(str(folder)))
    assert not (tmp_path / "executed").exists()


def test_a_run_says_that_it_divides_them_again(folder):
    settings = {"data": str(folder), "model": "mlp-100", "rounds": 1, "min_samples": 0}
    divided = partwise.run("local", partition="iid", clients=2, **settings)
    [again] = [note for note in divided.notes if "again" in note]
    assert again.startswith("the data came divided by client; partition = iid divides them again, leave it out")
    for rule in ("auto", "column:client"):
        assert not [note for note in partwise.run("local", partition=rule, **settings).notes if "again" in note]
