"""Images of a folder or a zip archive, decoded to one tensor of bytes."""

import io
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from partwise.data.readers.files import Files
from partwise.data.room import check_room
from partwise.data.transforms import ImageTransform
from partwise.errors import DataError, needed, one_line

IMAGE_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # no other decoder is run, whatever a file's name
LARGE = 1 << 22  # pixels; of images with more, only one is decoded at a time: each takes a multiple in memory
DECODED_TOGETHER = 256  # images that a thread decodes in a row

one_large = Lock()
_last: dict[Any, Tensor] = {}  # what was decoded last: the runs of a comparison read the same images


def image_names(files: Files) -> list[str]:
    """Return the files with names of images."""
    names = [name for name in files.names if name.lower().endswith(IMAGE_ENDINGS)]
    for name in names:
        if name.encode("utf-8", "ignore").decode().splitlines() != [name]:  # it could not stand in a report
            raise DataError(f"{files.path}: the name {name!a} contains a line break or control character; rename it")
    return names


def decode_images(files: Files, names: Sequence[str], size: int | None) -> Tensor:
    """Return (images, 3, height, width) uint8, grey ones in three equal channels; squares of `size` if it is given."""
    key = files.path.absolute(), size, tuple((name, files.stamp(name)) for name in names)
    if key not in _last:
        _last.clear()  # before the new tensor takes its room
        _last[key] = _decode(files, names, size)
    return _last[key]


def _decode(files: Files, names: Sequence[str], size: int | None) -> Tensor:
    with careful():
        with opened_image(files.read(names[0]), files.where(names[0])) as image:
            width, height = image.size if size is None else (size, size)
        check_room(files.path, len(names) * 3 * height * width, "; use a smaller --image-size")
        transform = ImageTransform((3, height, width))
        x = torch.empty(len(names), *transform.shape, dtype=torch.uint8)

        def fill(start: int) -> None:
            for at in range(start, min(start + DECODED_TOGETHER, len(names))):
                with opened_image(files.read(names[at]), files.where(names[at])) as image:
                    if size is None and image.size != (width, height):
                        raise DataError(
                            f"{files.where(names[at])}: {image.width}x{image.height} pixels, but {names[0]} has "
                            f"{width}x{height}; resize all with --image-size"
                        )
                    with one_large if image.width * image.height > LARGE else nullcontext():
                        x[at] = transform.apply(image)

        with ThreadPoolExecutor() as pool:
            # In order: the first image that is refused is named.
            list(pool.map(fill, range(0, len(names), DECODED_TOGETHER)))
    return x


@contextmanager
def careful() -> Iterator[None]:
    """Ignore odd metadata and refuse decompression bombs while images are decoded."""
    needed("PIL", "images")
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def opened_image(raw: bytes, where: str) -> Iterator[Any]:
    """Open an image and read only its header."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw), formats=IMAGE_FORMATS) as image:
            yield image
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError(f"{where}: {len(raw):,} bytes in no known image format") from None
    except Exception as error:  # a broken image goes wrong in every way
        raise DataError(f"{where}: cannot be decoded: {one_line(error)}") from error
