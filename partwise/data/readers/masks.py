"""A user's own images with masks: `images/NAME` and `masks/NAME.png`, or both in a folder for each client.

A pixel of a mask is the number of its class, and 255 that of none. `train` and `test` (or `val`) folders above them are
the data set's own split.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partwise.data.readers.files import Files, open_files
from partwise.data.readers.images import careful, decode_images, image_names, opened_image
from partwise.data.readers.places import absolute
from partwise.data.readers.tables import CLIENT_COLUMN
from partwise.data.reading import Reading
from partwise.data.room import check_room
from partwise.data.source import Column, Source, image_source
from partwise.errors import DataError
from partwise.tasks import Places
from partwise.tasks.places import NONE

IMAGES, MASKS = "images", "masks"
NO_CLASS = 255  # the pixel of a mask that has no class
MASK_MODES = ("1", "L", "P")  # of PIL: one number of at most 8 bits a pixel; of a palette, its number
EXPECTED_MASKS = "it must hold images/NAME and masks/NAME.png, or CLIENT/images/NAME and CLIENT/masks/NAME.png"
LABEL_BYTES = 8
BIT_DEPTH = 24  # where in a PNG file the bits of a number stand
FEW_BITS = {2: 85, 4: 17}


def has_masks(path: Path) -> bool:
    """Return whether the images of a folder or archive lie in folders `images` and `masks` alone."""
    names = image_names(open_files(path))
    return {folder_and_stem(name)[1] for name in names} == {IMAGES, MASKS}


def folder_and_stem(name: str) -> tuple[str, str, str]:
    """Return the folder around `images` and `masks`, which of the two it is, and the file's name without its ending."""
    folder, _, file = name.rpartition("/")
    above, _, kind = folder.rpartition("/")
    return above, kind, file.rpartition(".")[0]


def read(path: Path, reading: Reading) -> Source:
    """Read every image and its mask."""
    files, called = open_files(path), absolute(path).name.removesuffix(".zip")
    pairs = paired_files(files)
    folders = [folder_and_stem(image)[0] for image, _ in pairs]
    owners = [folder.rpartition("/")[2] for folder in folders]
    tops = {*owners}
    if len({folder.count("/") for folder in folders}) > 1 or len({*folders}) > len(tops) or {""} < tops:
        raise DataError(f"{path}: folders lie at different depths, or two have the same name; {EXPECTED_MASKS}")
    split = "train" in tops and len(tops) > 1 and tops <= {"train", "test", "val"}
    held_out = ("test" if "test" in tops else "val") if split else None
    order = sorted(range(len(pairs)), key=lambda at: owners[at] == held_out)  # stable: training images first
    pairs, owners = [pairs[at] for at in order], [owners[at] for at in order]
    x = decode_images(files, [image for image, _ in pairs], reading.image_size)
    y, classes = decode_masks(files, pairs, (x.shape[2], x.shape[3]), reading.image_size is not None)
    task, train = Places(tuple(map(str, range(classes)))), sum(owner != held_out for owner in owners)
    source = image_source(called, x, y, classes, train, split="original" if split else "merged", own_task=task)
    if split or len(tops) == 1:
        return source
    names = tuple(sorted(tops))
    code = torch.tensor([names.index(owner) for owner in owners])
    return replace(source, partition=f"column:{CLIENT_COLUMN}", columns={CLIENT_COLUMN: Column(names, code)})


def paired_files(files: Files) -> list[tuple[str, str]]:
    """Return each image and its mask, which has its name; refuse one without the other."""
    found: dict[str, dict[tuple[str, str], str]] = {IMAGES: {}, MASKS: {}}
    for name in image_names(files):
        above, kind, stem = folder_and_stem(name)
        if (above, stem) in found[kind]:
            raise DataError(f"{files.where(name)}: {found[kind][above, stem]} has the same name; rename one of them")
        found[kind][above, stem] = name
    for kind, other in ((IMAGES, MASKS), (MASKS, IMAGES)):
        alone = [key for key in found[kind] if key not in found[other]]
        if alone:
            above, stem = alone[0]
            wanted = f"{above}/{other}/{stem}".removeprefix("/")
            lacks = "mask" if other == MASKS else "image"
            raise DataError(
                f"{files.where(found[kind][alone[0]])}: no {lacks} {wanted}.*, one of {len(alone):,} without; "
                "add the file, or remove this one"
            )
    return [(image, found[MASKS][key]) for key, image in found[IMAGES].items()]


def decode_masks(
    files: Files, pairs: Sequence[tuple[str, str]], size: tuple[int, int], resize: bool
) -> tuple[Tensor, int]:
    """Return (images, height, width) int64 the class of each pixel, -1 for none, and the number of classes."""
    check_room(files.path, LABEL_BYTES * len(pairs) * size[0] * size[1], "; use a smaller --image-size")
    y = torch.empty(len(pairs), *size, dtype=torch.int64)

    def fill(at: int) -> None:
        y[at] = torch.from_numpy(mask_classes(files, *pairs[at], size, resize))

    with careful(), ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(len(pairs))))  # in order: the first mask that is refused is named
    y[y == NO_CLASS] = NONE
    if int(y.max()) < 1:
        raise DataError(
            f"{files.path}: its masks hold {'class 0 alone' if (y == 0).any() else 'no class'}; a pixel is the number "
            f"of its class, from 0, and {NO_CLASS} means no class: write 1 for the second class"
        )
    return y, int(y.max()) + 1


def mask_classes(files: Files, image: str, mask: str, size: tuple[int, int], resize: bool) -> np.ndarray:
    """Return (height, width) the pixels of a mask; each is the nearest one where the image is resized."""
    from PIL import Image

    raw = files.read(mask)
    with opened_image(raw, files.where(mask)) as opened:
        if opened.format != "PNG" or opened.mode not in MASK_MODES:
            raise DataError(
                f"{files.where(mask)}: {opened.format} of mode {opened.mode}; a mask must be a PNG file of one number "
                f"a pixel (grey or palette), at most {NO_CLASS} classes: 0 to {NO_CLASS - 1}, and {NO_CLASS} for none"
            )
        height, width = size
        if resize:
            with opened_image(files.read(image), files.where(image)) as original:
                width, height = original.size
        if opened.size != (width, height):
            raise DataError(
                f"{files.where(mask)}: {opened.width}x{opened.height} pixels, but its image has {width}x{height}"
            )
        pixels = np.asarray(opened.resize(size[::-1], Image.Resampling.NEAREST), dtype=np.int64)
        # Pillow spreads greys of 2 and 4 bits over 0 to 255; a palette's numbers and single bits it leaves.
        return pixels // FEW_BITS.get(raw[BIT_DEPTH], 1) if opened.mode == "L" else pixels
