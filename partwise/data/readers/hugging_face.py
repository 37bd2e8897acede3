"""Data sets of Hugging Face: from its hub, its cache or a folder, images or tables. Nothing in them is executed."""

import os
import zlib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from partwise.data.readers import tables
from partwise.data.readers.arrays import same_classes
from partwise.data.readers.files import Files
from partwise.data.readers.frames import DataTable
from partwise.data.readers.images import decode_images
from partwise.data.readers.row_splits import with_row_splits
from partwise.data.reading import Reading
from partwise.data.source import Source, image_source
from partwise.errors import ConfigError, DataError, needed, one_line, short

SECONDS = 10  # in which the hub must answer


def read_hugging_face(name: str, reading: Reading) -> Source:
    """Read Parquet, CSV, Arrow or image files or of `save_to_disk`, or a name on the hub or in the cache."""
    if not name.strip():
        raise ConfigError("hf: must be followed by a folder or a name on the hub, as in hf:OWNER/NAME")
    datasets = needed("datasets", "huggingface")
    places = Path(reading.root or "", name), Path(name)
    folder = next((str(place) for place in places if os.path.isdir(place)), None)
    try:
        if folder is None:
            return from_hugging_face(_from_hub(datasets, name, reading.download), reading, name)
        # The library copies files before it reads them; nothing of that is to stay.
        with _offline(datasets), TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            if any(Path(folder, file).is_file() for file in ("dataset_dict.json", "state.json")):
                return from_hugging_face(datasets.load_from_disk(folder), reading, name)
            return from_hugging_face(datasets.load_dataset(folder, cache_dir=cache), reading, name)
    except DataError:
        raise
    except Exception as error:  # a broken file may raise anything in datasets, and the cause says more
        raise DataError(f"hf:{name}: cannot be read: {one_line(error.__cause__ or error)}") from error


def from_hugging_face(data: Any, reading: Reading, name: str = "dataset") -> Source:
    """Read a Dataset, or the splits of a DatasetDict: `train`, and `test` or else `validation` as its test set.

    With a column of images these are the samples; without, the columns are a table's. The label column is the one of
    the name asked for, or the only one of declared classes.
    """
    datasets, where = needed("datasets", "huggingface"), f"data set '{name}'"
    splits = dict(data) if isinstance(data, dict) else {"train": data}
    if "train" not in splits and len(splits) != 1:
        raise DataError(f"{where}: it must have a split 'train', got {', '.join(splits) or 'none'}")
    train = splits.get("train", next(iter(splits.values())))
    test = [splits[split] for split in ("test", "validation") if split in splits and len(splits) > 1][:1]
    features = train.features
    declared = {column: tuple(kind.names) for column, kind in features.items() if isinstance(kind, datasets.ClassLabel)}
    pictures = [column for column, kind in features.items() if isinstance(kind, datasets.Image)]
    for split in test:
        _check_features(where, features, split.features)
    try:
        for split in (train, *test):
            split.data.validate(full=True)  # what is broken inside would crash Python, not raise
        whole = [split.with_format("arrow")[:] for split in (train, *test)]
        table = needed("pyarrow", "huggingface").concat_tables(whole)
        frame = table.drop_columns(pictures).to_pandas()
    except Exception as error:
        raise DataError(f"{where}: cannot be read: {one_line(error)}") from error
    label = next(iter(declared)) if reading.label not in features and len(declared) == 1 else reading.label
    for column in declared.keys() - {label}:
        frame[column] = frame[column].map(dict(enumerate(declared[column])))
    shown = [column for column in pictures if column not in reading.drop]
    reading = replace(reading, label=label, drop=tuple(column for column in reading.drop if column not in pictures))
    if len(shown) > 1:
        raise DataError(f"{where}: columns {', '.join(shown)} hold images; --drop all but one")
    if shown:
        source = _pictures(name, table.column(shown[0]), frame, reading)
    else:
        source = tables.from_frame(frame, reading, name)
    if label in declared:
        codes = torch.tensor(frame[label].to_numpy(np.int64))
        source = replace(source, y=codes, classes=len(declared[label]), class_names=declared[label])
    return replace(source, train=len(train))


class Pictures(Files):
    """The images of a Hugging Face column, by the numbers of their rows."""

    def __init__(self, name: str, column: Any) -> None:
        super().__init__(Path(name), [], [])
        self.column = column

    def read(self, name: str) -> bytes:
        """Return the bytes of the image in a row."""
        stored = self.column[int(name)].as_py() or {}
        if stored.get("bytes") is not None:
            return stored["bytes"]
        path = stored.get("path") or ""
        if not os.path.isfile(path):  # nor is anything fetched from an address that it names
            raise DataError(f"{self.where(name)}: {short(repr(path))} is not an image file in this folder")
        return Path(path).read_bytes()

    def stamp(self, name: str) -> Hashable:
        """Return the checksum of the image in a row."""
        return zlib.crc32(self.read(name))

    def where(self, name: str) -> str:
        """Return the name of a row in messages."""
        return f"data set '{self.path}', row {name}"


def _pictures(name: str, column: Any, frame: Any, reading: Reading) -> Source:
    """Read images with their labels and, if the frame has one, their client column; grey ones have one channel."""
    table = DataTable(frame, f"data set '{name}'")
    client = tables.client_column(table, reading)
    y, names = tables.class_labels(table, reading.label)
    x = decode_images(Pictures(name, column), [str(row) for row in range(len(y))], reading.image_size)
    if torch.equal(x[:, 0], x[:, 1]) and torch.equal(x[:, 0], x[:, 2]):
        x = x[:, :1].contiguous()
    source = image_source(name, x, y, len(names), len(y), class_names=names)
    return with_row_splits(tables.partitioned_by(source, table, client), table, reading)


def _check_features(where: str, train: Any, test: Any) -> None:
    """Refuse splits of different columns or classes."""
    for column in dict.fromkeys([*train, *test]):
        one, other = train.get(column), test.get(column)
        if hasattr(one, "names") and hasattr(other, "names"):
            same_classes(f"{where}, column {column!r}", {"the training set": one.names, "the test set": other.names})
        elif one != other:
            kinds = f"{short(str(one))} in the training set, but {short(str(other))} in the test set"
            raise DataError(f"{where}: column {column!r} is {kinds}")


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Keep the library off the network and without progress bars while entered."""
    config, bars = datasets.config, not datasets.are_progress_bars_disabled()
    was = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = was
        if bars:
            datasets.enable_progress_bars()


def _from_hub(datasets: Any, name: str, download: bool) -> Any:
    """Read from the hub if wanted and reachable (the library itself would retry for long), or from its cache."""
    why = "fetch it with --download"
    if download:
        session = needed("huggingface_hub.utils", "huggingface").get_session()
        try:
            session.head(datasets.config.HF_ENDPOINT, timeout=SECONDS)
        except Exception as error:
            why = f"the hub does not answer: {one_line(error)}"
        else:
            return datasets.load_dataset(name)
    with _offline(datasets):
        try:
            return datasets.load_dataset(name)
        except Exception as error:
            absent = f"hf:{name}: no folder here, and not in the cache of Hugging Face ({one_line(error)})"
            raise DataError(f"{absent}; {why}") from error
