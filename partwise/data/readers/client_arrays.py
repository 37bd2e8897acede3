"""The arrays of each client in files of its own, as PFLlib has them: train/0.npz, train/1.npz ..., test/0.npz ..."""

import io
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partwise.data.readers import pickles
from partwise.data.readers.arrays import joined_samples, read_samples
from partwise.data.readers.places import absolute
from partwise.data.readers.tables import CLIENT_COLUMN
from partwise.data.room import check_plain_file, check_room
from partwise.data.source import Column, Source
from partwise.errors import DataError, one_line

EXPECTED_ARRAYS = "it must hold arrays x and y, or both in a dict called data"


def array_files(path: Path, part: str = "train") -> list[Path]:
    """Return the clients' files in a folder, 2 before 10; there may be none."""
    return sorted((path / part).glob("[!.]*.npz"), key=lambda file: (len(file.stem), file.stem))


def read(path: Path) -> Source:
    """Read the samples of all clients and their owners; without a folder test, clients test on a share of their own."""
    train, test = array_files(path), array_files(path, "test")
    clients = [file.stem for file in train]
    alone = {*clients} ^ {file.stem for file in test}
    if test and alone:
        raise DataError(f"{path}: {min(alone)}.npz is not in both train and test; each client needs a file in both")
    sets = {str(file): read_samples(arrays_in(file), str(file)) for file in [*train, *test]}
    sizes = torch.tensor([len(samples.labels) for samples in sets.values()])
    source = joined_samples(absolute(path).name, sets, train=int(sizes[: len(train)].sum()))
    owners = torch.arange(len(clients)).repeat(2 if test else 1).repeat_interleave(sizes)
    return replace(
        source,
        partition=f"column:{CLIENT_COLUMN}",
        split="original" if test else "merged",
        columns={CLIENT_COLUMN: Column(tuple(clients), owners)},
    )


def arrays_in(path: Path) -> tuple[Any, Any]:
    """Return x and y of a file. PFLlib keeps them in a pickle, whose code is never called."""
    check_plain_file(path)
    try:
        with warnings.catch_warnings(), path.open("rb") as raw:
            warnings.simplefilter("ignore")  # of files that Python 2 wrote
            with np.lib.npyio.NpzFile(raw, allow_pickle=False) as file:
                assert file.zip is not None
                check_room(path, sum(member.file_size for member in file.zip.infolist()))
                held = unpickled(file.zip.read("data.npy"), path) if "data" in file else dict(file)
    except DataError:
        raise
    except Exception as error:  # a broken file may raise anything in numpy
        raise DataError(f"{path}: cannot be read: {one_line(error)}") from error
    if not isinstance(held, dict) or not {"x", "y"} <= {*held}:
        raise DataError(f"{path}: {EXPECTED_ARRAYS}")
    x, y = (held[key].values if isinstance(held[key], pickles.Array) else held[key] for key in ("x", "y"))
    return x, y


def unpickled(raw: bytes, path: Path) -> Any:
    """Return the one object in an array of objects."""
    file = io.BytesIO(raw)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    _, _, kind = header[np.lib.format.read_magic(file)](file)
    array = pickles.load(file.read(), path) if kind.hasobject else None
    return array.values[0] if isinstance(array, pickles.Array) and isinstance(array.values, list) else None
