"""Tiny-ImageNet-200 in its official layout, a folder or the zip archive as it is.

The labelled validation images are the test set; the test images, whose labels are secret, are not read.
"""

import torch

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.files import Files, open_files
from partwise.data.readers.images import decode_images, image_names
from partwise.data.readers.places import DataPlace
from partwise.data.reading import Reading
from partwise.data.source import Source, image_source
from partwise.errors import DataError

IMAGE_COUNTS = {"train": 100_000, "val": 10_000}


def load(known: DataEntry, place: DataPlace, reading: Reading) -> Source:
    """Read `train/CLASS/images/*.JPEG`, and `val/images/*.JPEG` with the classes in `val/val_annotations.txt`."""
    files = open_files(place.path)
    top = next((name.removesuffix("wnids.txt") for name in files.names if name.split("/")[-1] == "wnids.txt"), None)
    if top is None:
        raise DataError(f"{place.path}: wnids.txt, the list of classes, is missing")
    classes = tuple(sorted({line[0] for line in _listed_columns(files, f"{top}wnids.txt")}))
    if len(classes) != known.classes:
        raise DataError(f"{files.where(f'{top}wnids.txt')}: expected {known.classes} classes, got {len(classes)}")
    annotated = {
        f"{top}val/images/{row[0]}": row[-1] for row in _listed_columns(files, f"{top}val/val_annotations.txt", 2)
    }
    labels: dict[str, dict[str, str]] = {"train": {}, "val": {}}
    for name in image_names(files):
        parts = name.removeprefix(top).split("/")
        if parts[0] == "train":
            labels["train"][name] = parts[1]
        elif parts[0] == "val":
            if name not in annotated:
                raise DataError(f"{files.where(name)}: val_annotations.txt does not say its class")
            labels["val"][name] = annotated[name]
    for part, expected in IMAGE_COUNTS.items():
        if len(labels[part]) != expected:
            raise DataError(f"{files.where(top + part)}: expected {expected:,} images, got {len(labels[part]):,}")
    label = {name: number for number, name in enumerate(classes)}
    samples = {**labels["train"], **labels["val"]}
    stray = next((name for name, wnid in samples.items() if wnid not in label), None)
    if stray is not None:
        raise DataError(f"{files.where(stray)}: its class '{samples[stray]}' is not in wnids.txt")
    x = decode_images(files, list(samples), reading.image_size)
    y = torch.tensor([label[wnid] for wnid in samples.values()])
    train = len(labels["train"])
    return image_source(known.name, x, y, len(classes), train, model=known.model, class_names=classes)


def _listed_columns(files: Files, name: str, columns: int = 1) -> list[list[str]]:
    """Return the first columns of a text file's lines."""
    if name not in files.names:
        raise DataError(f"{files.where(name)}: is missing")
    try:
        rows = [line.split()[:columns] for line in files.read(name).decode("ascii").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{files.where(name)}: not a text file: {error}") from error
    short = next((number for number, row in enumerate(rows, start=1) if len(row) < columns), None)
    if short is not None:
        raise DataError(f"{files.where(name)}: row {short} has fewer than {columns} columns")
    return rows
