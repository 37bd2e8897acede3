"""Images with masks from folders, archives, arrays and data sets: each class at its pixel, and what is refused."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import partwise
from partwise.data import load, partition
from partwise.errors import ConfigError, DataError
from tests.support.files import picture, refusal, write_tree

PIXELS = [[0, 1, 255, 2], [2, 2, 0, 0], [1, 0, 255, 255]]  # 4 wide, 3 high, as `picture` is
CLASSES = [[0, 1, -1, 2], [2, 2, 0, 0], [1, 0, -1, -1]]


def mask(pixels=PIXELS, mode: str = "L", kind: str = "PNG") -> bytes:
    image, file = Image.fromarray(np.array(pixels, np.uint8)), io.BytesIO()
    if mode == "P":
        image.putpalette([value // 3 for value in range(768)])  # its colours say nothing
    (image if mode == "P" else image.convert(mode)).save(file, kind)
    return file.getvalue()


TREE = {
    "images/b.jpg": picture(20, kind="JPEG"),
    "images/a.png": picture(10),
    "masks/a.png": mask(),
    "masks/b.png": mask(np.zeros((3, 4)), mode="P"),
}
CLIENTS = {f"{client}/{name}": content for client in ("Graz", "Wien") for name, content in TREE.items()}


@pytest.mark.parametrize("name", ["mine", "mine.zip"])
def test_a_folder_or_archive(name: str, tmp_path: Path) -> None:
    source = load(str(write_tree(tmp_path / name, TREE)))
    assert (source.name, source.x.shape, source.train, source.split) == ("mine", (2, 3, 3, 4), 2, "merged")
    assert source.x[:, 0, 0, 0].tolist() == [10, 20]
    assert source.task.kind == "places" and source.task.names == ("0", "1", "2")
    assert source.y.tolist() == [CLASSES, [[0] * 4] * 3]


def test_a_palettes_numbers_are_the_classes(tmp_path: Path) -> None:
    source = load(str(write_tree(tmp_path / "mine", {**TREE, "masks/a.png": mask(mode="P")})))
    assert source.y[0].tolist() == CLASSES


@pytest.mark.parametrize(("bits", "rows"), [(1, [0b10100000] * 3), (2, [0b01001011] * 3), (4, [0x01, 0x23] * 3)])
def test_greys_of_few_bits_are_numbers_too(bits: int, rows: list[int], tmp_path: Path) -> None:
    """A PNG of 1, 2 or 4 bits a pixel, 4x3 pixels, written byte by byte."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    width = 4 * bits // 8 or 1
    lines = b"".join(b"\0" + bytes(rows[at : at + width]) for at in range(0, 3 * width, width))
    header = struct.pack(">IIBBBBB", 4, 3, bits, 0, 0, 0, 0)
    raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    source = load(str(write_tree(tmp_path / "mine", {**TREE, "masks/a.png": raw})))
    assert source.y[0].tolist() == [{1: [1, 0, 1, 0], 2: [1, 0, 2, 3], 4: [0, 1, 2, 3]}[bits]] * 3


def test_a_folder_for_each_client(tmp_path: Path) -> None:
    source = load(str(write_tree(tmp_path / "deep", {f"around/{name}": own for name, own in CLIENTS.items()})))
    federation = partition(source, "auto", None, seed=0)
    assert federation.names == ("Graz", "Wien")
    assert [sorted(torch.cat([*own]).tolist()) for own in zip(federation.train, federation.test, strict=True)] == [
        [0, 1],
        [2, 3],
    ]


def test_folders_train_and_test_are_the_split(tmp_path: Path) -> None:
    tree = {f"{part}/{name}": own for part in ("test", "train") for name, own in TREE.items()}
    tree |= {"test/images/c.png": picture(30), "test/masks/c.png": mask()}
    source = load(str(write_tree(tmp_path / "mine", tree)))
    assert (source.train, source.split, source.columns) == (2, "original", {})
    assert source.x[:, 0, 0, 0].tolist() == [10, 20, 10, 20, 30]


def test_masks_are_resized_to_their_nearest_pixels(tmp_path: Path) -> None:
    """Each side of 2 becomes 4, so each class is there four times; another image may have another size."""
    two = {"images/a.png": picture(10, (2, 2)), "masks/a.png": mask([[0, 1], [2, 255]])}
    four = {"images/b.png": picture(20, (4, 4)), "masks/b.png": mask(np.arange(16).reshape(4, 4) % 3)}
    source = load(str(write_tree(tmp_path / "mine", {**two, **four})), image_size=4)
    assert source.y[0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, -1, -1], [2, 2, -1, -1]]
    assert source.y[1].tolist() == (np.arange(16).reshape(4, 4) % 3).tolist()
    arrays = partwise.from_arrays(np.zeros((1, 2, 2), np.uint8), np.array([[[0, 1], [2, -1]]]))
    resized = partwise.data.source.resized(arrays, 4)
    assert (resized.x.shape, resized.y.tolist()) == ((1, 1, 4, 4), source.y[:1].tolist())


@pytest.mark.parametrize(("change", "line"), [
    ({"masks/b.png": None}, "images/b.jpg: no mask masks/b.*, one of 1 without; add the file, or remove this one"),
    ({"images/b.jpg": None}, "masks/b.png: no image images/b.*"),
    ({"masks/b.png": mask([[0, 1]])}, "masks/b.png: 2x1 pixels, but its image has 4x3"),
    ({"masks/b.png": picture(1)}, "masks/b.png: PNG of mode RGB; a mask must be a PNG file of one number a pixel"),
    ({"masks/b.png": picture(300, mode="I;16")}, "mode I;16; a mask must be"),
    ({"masks/b.png": None, "masks/b.jpg": mask(kind="JPEG")}, "masks/b.jpg: JPEG of mode L; a mask must be a PNG"),
    ({"masks/a.png": mask(np.full((3, 4), 255))}, "its masks hold class 0 alone; a pixel is the number of its class"),
    ({"images/b.png": picture(3)}, "images/b.jpg has the same name; rename one of them"),
    ({"masks/b.png": b"no image"}, "masks/b.png: 8 bytes in no known image format"),
    ({"more/images/c.png": picture(1), "more/masks/c.png": mask()}, "folders lie at different depths"),
])  # fmt: skip
def test_bad_masks_are_refused(change: dict[str, bytes | None], line: str, tmp_path: Path) -> None:
    tree = {name: own for name, own in {**TREE, **change}.items() if own is not None}
    path = str(write_tree(tmp_path / "mine", tree))
    assert line in refusal(DataError, lambda: load(path))


def test_a_data_set_and_arrays_of_masks_are_the_same_run() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (40, 6, 5), dtype=np.uint8)
    y = np.where(x > 200, -1, x // 100).astype(np.int64)
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    settings = {"clients": 3, "partition": "iid", "rounds": 1, "engine": "loop", "seed": 1}
    one, two, three = (
        partwise.run("fedavg", data=data, **settings) for data in ((x, y), (torch.tensor(x), torch.tensor(y)), tensors)
    )
    assert one.federation.source.task.kind == "places" and torch.equal(one.federation.source.y, torch.from_numpy(y))
    assert one.summary.value == two.summary.value == three.summary.value is not None


def test_augmentation_is_refused_where_pixels_have_classes() -> None:
    x = np.zeros((40, 6, 5), np.uint8)
    with pytest.raises(ConfigError, match=r"^augment moves pixels, but not the classes of places; leave it out"):
        partwise.run("fedavg", data=(x, np.tile([0, 1, 0, 1, 1], (40, 6, 1))), augment="flip", clients=3, rounds=1)
