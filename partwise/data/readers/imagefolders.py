"""A user's own images, in a folder or a zip archive: `class/image` or `domain/class/image`.

`train` and `test` (or `val`) folders above the classes are the data set's own split; where all three are there, `val`
belongs to the training set.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from partwise.data.readers import domains
from partwise.data.readers.files import Files, open_files
from partwise.data.readers.images import decode_images, image_names
from partwise.data.readers.lists import Image
from partwise.data.readers.places import absolute
from partwise.data.reading import Reading
from partwise.data.source import Source, image_source
from partwise.errors import DataError

EXPECTED_FOLDERS = "it must hold class/image or domain/class/image"


def read(path: Path, reading: Reading) -> Source:
    """Read folders of images; their depth says what folders mean, and folders around everything do not count."""
    files, called = open_files(path), absolute(path).name.removesuffix(".zip")
    names = image_names(files)
    if not names:
        raise DataError(f"{path}: no images in it; {EXPECTED_FOLDERS}")
    paths = [tuple(name.split("/")) for name in names]
    depth = len(paths[0])
    uneven = next((at for at, parts in enumerate(paths) if len(parts) != depth), None)
    if uneven is not None:
        raise DataError(f"{path}: {names[0]} and {names[uneven]} lie at different depths; {EXPECTED_FOLDERS}")
    around = 0
    while depth - around > 2 and len({parts[around] for parts in paths}) == 1:
        around += 1
    levels, tops = depth - around - 1, {parts[around] for parts in paths}
    if levels not in (1, 2):
        raise DataError(f"{path}: images lie {levels} folders deep, such as {names[0]}; {EXPECTED_FOLDERS}")
    split = levels == 2 and "train" in tops and len(tops) > 1 and tops <= {"train", "test", "val"}
    by_domain = levels == 2 and not split
    _check_folders(files, paths, around, levels, by_domain)
    if by_domain:
        images = [Image(parts[-3], parts[-2], name) for name, parts in zip(names, paths, strict=True)]
        return domains.read(called, files, images, reading.image_size)

    held_out = ("test" if "test" in tops else "val") if split else None
    order = sorted(range(len(names)), key=lambda at: paths[at][around] == held_out)  # stable: training images first
    train = sum(parts[around] != held_out for parts in paths)
    classes = tuple(sorted({parts[-2] for parts in paths}))
    label = {name: number for number, name in enumerate(classes)}
    x, y = decode_images(files, [names[at] for at in order], reading.image_size), [label[paths[at][-2]] for at in order]
    how = "original" if split else "merged"
    return image_source(called, x, torch.tensor(y), len(classes), train, split=how, class_names=classes)


def _check_folders(files: Files, paths: Sequence[tuple[str, ...]], around: int, levels: int, by_domain: bool) -> None:
    """Refuse a class without images. A domain may lack one that others have; other things may lie beside domains."""
    held = {parts[:depth] for parts in paths for depth in range(around + 1, len(parts))}
    classes = {parts[-2] for parts in paths}
    for folder in files.folders:
        parts = tuple(folder.split("/"))
        level = len(parts) - around
        if parts in held or level not in range(1, levels + 1) or parts[:around] != paths[0][:around]:
            continue
        if level < levels:
            allowed = any(name.startswith(f"{folder}/") for name in files.names)
        else:
            allowed = levels == 2 and (parts[:-1] not in held or (by_domain and parts[-1] in classes))
        if not allowed:
            raise DataError(f"{files.where(folder)}: contains no images")
