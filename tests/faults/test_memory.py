"""Fault 55: files that are small on the disk and large in memory are refused before they are there."""

import gzip
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from partwise.data import CATALOGUE, load, room, saved, transforms
from partwise.data.readers import images
from partwise.errors import DataError
from tests.support.commands import TINY, refuse
from tests.support.files import picture, refusal, write_tree
from tests.support.runs import awkward_federation

pytest.importorskip("pandas")  # before its own memory is counted

FREE = 8 << 20  # bytes, of which half may be used
LARGE = 3 * FREE


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr(room, "free_here", lambda: FREE)


def refused(path, call=None):
    """The line of the refusal, during which next to nothing was allocated."""
    tracemalloc.start()
    try:
        line = refusal(DataError, call or (lambda: load(str(path))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert line.startswith(f"{path}: ") and f"{FREE // 2:,}" in line
    assert peak < FREE + (2 << 20)
    return line


def test_fault_55_a_compressed_table(tmp_path):
    for name, content in {"a": b"x,label\n" + b"1,1\n" * (LARGE // 4), "b": b"0" * LARGE}.items():
        path = tmp_path / f"{name}.csv.gz"
        path.write_bytes(gzip.compress(content, 1))
        assert path.stat().st_size < LARGE / 50
        assert "its cells need more than" in refused(path)
    path.write_bytes(gzip.compress(b"x,label\n" + b"1,1\n2,2\n" * 1000))
    assert len(load(str(path)).y) == 2000


def test_fault_55_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((LARGE // 8, 2), np.float32), y=np.zeros(LARGE // 8, np.int8))
    assert f"needs {LARGE + LARGE // 8 + 256:,} bytes of memory" in refused(path)


@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_fault_55_a_column_that_is_written_once(kind, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    if kind == "numbers":
        column = pyarrow.array(np.zeros(LARGE // 8))
    else:  # one long text in every row
        column = pyarrow.DictionaryArray.from_arrays(np.zeros(2000, np.int32), ["long" * 5000]).cast("string")
    parquet.write_table(pyarrow.table({"x": column, "label": column}), path)
    assert path.stat().st_size < 100_000
    assert ("needs" if kind == "numbers" else "larger than") in refused(path)


def test_fault_55_images(tmp_path, monkeypatch):
    path = write_tree(tmp_path / "a", {f"{name}/0.png": picture(0, (1200, 1200)) for name in ("a", "b")})
    size = 2 * 3 * 1200**2
    line = refused(path)
    assert line.endswith("; use a smaller --image-size") and f"needs {size:,} bytes of memory" in line
    assert "needs 600,000,000 bytes" in refused(path, lambda: load(str(path), image_size=10_000))
    # Large ones are decoded one at a time.
    decoding, together = [], []
    pixels = transforms.image_pixels

    def noted(image, size, mode):
        decoding.append(image)
        together.append(len(decoding))
        result = pixels(image, size, mode)
        decoding.remove(image)
        return result

    monkeypatch.setattr(images, "LARGE", 1000)
    monkeypatch.setattr(images, "DECODED_TOGETHER", 1)
    monkeypatch.setattr(transforms, "image_pixels", noted)
    path = write_tree(tmp_path / "b", {f"{name}/{n}.png": picture(0, (400, 400)) for name in "ab" for n in range(8)})
    assert load(str(path), image_size=8).x.shape == (16, 3, 8, 8)
    assert together == [1] * 16


def test_fault_55_a_file_of_a_known_data_set(tmp_path):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for file in CATALOGUE["fashion-mnist"].layouts[0].files:
        (folder / f"{file}.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + b"\xff" * LARGE, 1))
    first = folder / f"{CATALOGUE['fashion-mnist'].layouts[0].files[0]}.gz"
    assert "larger than" in refused(first, lambda: load("fashion-mnist", root=tmp_path))


def test_fault_55_larger_images_than_there_is_room_for(capsys):
    line = refuse(capsys, "run", "fedavg", *TINY, "--image-size", "100000", code=3)
    assert "data set 'made': needs " in line and "use a smaller --image-size" in line


def test_fault_55_a_partition(tmp_path):
    federation, path = awkward_federation(), tmp_path / "a.json"
    saved.save(federation, path)
    assert saved.read_partition(path, federation.source).clients == federation.clients
    path.write_text("[" + "0," * FREE + "0]")
    line = refusal(DataError, lambda: saved.read_partition(path, federation.source))
    assert line.startswith(f"partition '{path}': needs")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without an end")
def test_fault_55_files_without_an_end(capsys, tmp_path):
    zero = "/dev/zero"
    command = ("run", "fedavg", *TINY, "--quiet")
    assert refuse(capsys, *command, "--partition", f"file:{zero}", code=3) == f"error: {zero}: not a regular file"
    for ending in ("csv", "csv.gz", "npz", "parquet"):
        path = tmp_path / f"a.{ending}"
        path.symlink_to(zero)
        assert refuse(capsys, *command, "--data", path, code=3) == f"error: {path}: not a regular file"
    os.mkfifo(tmp_path / "b.csv")
    assert "not a regular file" in refuse(capsys, *command, "--data", tmp_path / "b.csv", code=3)
    (tmp_path / "a.pt").symlink_to(zero)
    assert "there is no file of weights" in refuse(capsys, *command, "--weights", tmp_path / "a.pt", code=3)
    assert "the file is longer than" in refuse(capsys, *command, "--config", zero)


def test_what_is_free_is_what_the_system_says(tmp_path, monkeypatch):
    monkeypatch.undo()
    free = room.free_here()
    monkeypatch.setattr(room, "free_here", lambda: free)  # other processes take memory between two readings
    assert 0 < room.room() <= free / 2
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert room.free_in_group(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert room.free_in_group(tmp_path) > 1 << 60
