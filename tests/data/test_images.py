"""Images from folders and archives: every pixel and label where it belongs, and what is refused."""

import os
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from partwise.data import CATALOGUE, Source, load, partition
from partwise.data.readers import files, tinyimagenet
from partwise.data.readers.published import DOMAINNET, OFFICE_HOME, PACS
from partwise.errors import ConfigError, DataError
from tests.support.files import picture, read_tree, refusal, write_tree
from tests.support.images import CLASSES, DOMAINS, Tree, domainnet, lists, tiny


def greys(source: Source) -> list[int]:
    """The one value of all pixels of each image."""
    values = source.x.flatten(1)
    assert (values == values[:, :1]).all()
    return values[:, 0].tolist()


@pytest.mark.parametrize("name", ["mine", "mine.zip"])
def test_a_folder_or_archive_of_classes(name: str, tmp_path: Path) -> None:
    source = load(str(write_tree(tmp_path / name, CLASSES)))
    assert (source.name, source.x.shape, source.x.dtype) == ("mine", (3, 3, 3, 4), torch.uint8)  # 4 wide, 3 high
    assert (greys(source), source.y.tolist(), source.class_names) == ([30, 10, 20], [0, 1, 1], ("cat", "dog"))
    assert (source.train, source.classes, source.split, source.model) == (3, 2, "merged", "")
    assert (source.centre, source.scale) == ((127.5,) * 3, (127.5,) * 3)


@pytest.mark.parametrize("name", ["mine", "mine.zip"])
def test_a_domain_folder(name: str, tmp_path: Path) -> None:
    source = load(str(write_tree(tmp_path / name, DOMAINS)))
    assert (greys(source), source.y.tolist(), source.class_names) == ([2, 1, 3, 4], [0, 1, 1, 1], ("cat", "dog"))
    assert source.columns["domain"].names == ("photo", "sketch")
    assert source.columns["domain"].code.tolist() == [0, 0, 1, 1]  # the sketches lack a class, and may
    assert (source.train, source.partition, source.split, source.test_share) == (4, "domain", "merged", 0.2)
    assert (source.model, source.centre, source.scale) == ("resnet18", (0.0,) * 3, (255.0,) * 3)
    federation = partition(source, "auto", None, seed=0)
    assert federation.names == ("photo", "sketch")


@pytest.mark.parametrize("tree", [CLASSES, DOMAINS])
def test_folders_around_everything_and_files_of_desktops_do_not_count(tree: Tree, tmp_path: Path) -> None:
    more = {f"outer/inner/{name}": content for name, content in tree.items()}
    for name in list(more):
        folder, _, file = name.rpartition("/")
        more |= {f"{folder}/.{file}": b"", f"{folder}/Thumbs.db": b"", f"__MACOSX/{folder}/._{file}": b""}
    plain = load(str(write_tree(tmp_path / "mine", tree)))
    for name in ("deep", "deep.zip"):
        source = load(str(write_tree(tmp_path / name, more)))
        assert torch.equal(source.x, plain.x)
        assert torch.equal(source.y, plain.y)
        assert source.class_names == plain.class_names


def test_a_split_of_its_own(tmp_path: Path) -> None:
    tree = {f"{part}/{label}/1.png": picture(10 * at + number) for number, label in enumerate("ab")
            for at, part in enumerate(("train", "test", "val"))}  # fmt: skip
    pair = {name: content for name, content in tree.items() if not name.startswith("val")}
    source = load(str(write_tree(tmp_path / "pair", pair)))
    assert (greys(source), source.y.tolist(), source.train) == ([0, 1, 10, 11], [0, 1, 0, 1], 2)
    assert source.split == "original"
    three = load(str(write_tree(tmp_path / "three", tree)))  # what is set aside for validation is no test
    assert (greys(three), three.train) == ([0, 1, 20, 21, 10, 11], 4)
    validated = {name: content for name, content in tree.items() if not name.startswith("test")}
    assert greys(load(str(write_tree(tmp_path / "validated", validated)))) == [0, 1, 20, 21]
    del pair["test/b/1.png"]
    line = refusal(DataError, lambda: load(str(write_tree(tmp_path / "less", pair))))
    assert line.endswith("2 classes in the training set, 1 in the test set; in one alone: b")


@pytest.mark.parametrize(("mode", "kind", "colour", "seen"), [
    ("L", "PNG", 77, (77, 77, 77)),
    ("1", "PNG", 1, (255, 255, 255)),
    ("P", "GIF", 0, (0, 0, 0)),
    ("RGBA", "PNG", (10, 20, 30, 40), (10, 20, 30)),
    ("RGB", "BMP", (10, 20, 30), (10, 20, 30)),
    ("RGB", "PPM", (10, 20, 30), (10, 20, 30)),
    ("RGB", "TIFF", (10, 20, 30), (10, 20, 30)),
])  # fmt: skip
def test_every_kind_of_image_becomes_three_channels(
    mode: str, kind: str, colour: int | tuple[int, ...], seen: tuple[int, ...], tmp_path: Path
) -> None:
    image = picture(colour, kind=kind, mode=mode)
    source = load(str(write_tree(tmp_path / "mine", {f"a/1.{kind}": image, "b/1.png": picture(0)})))
    assert source.x[0, :, 1, 2].tolist() == list(seen)


def test_images_of_many_sizes_are_brought_to_one(tmp_path: Path) -> None:
    half = Image.new("RGB", (8, 8))
    half.paste((200, 200, 200), (4, 0, 8, 8))  # its right half
    half.save(tmp_path / "half.png")
    tree = {"a/1.png": picture(50, (3, 7)), "b/1.png": (tmp_path / "half.png").read_bytes()}
    path = write_tree(tmp_path / "mine", tree)
    source = load(str(path), image_size=2)
    assert source.x.shape == (2, 3, 2, 2)
    assert (source.x[0] == 50).all()
    # Each pixel is a weighted mean over 8 columns: a tent that falls off over 4 columns on either side of column 1.5.
    weights = [1 - abs(column - 1.5) / 4 for column in range(6)]
    right = 200 * sum(weights[4:]) / sum(weights)
    assert source.x[1, 0, 0].tolist() == [round(right), 200 - round(right)]
    line = refusal(DataError, lambda: load(str(path)))
    assert line == f"{path}/b/1.png: 8x8 pixels, but a/1.png has 3x7; resize all with --image-size"


def test_image_size_holds_for_every_data_set_of_images(tmp_path: Path) -> None:
    small, whole = load("digits", image_size=4), load("digits")
    assert small.x.shape == (1797, 1, 4, 4)
    assert small.x.dtype == torch.uint8
    assert (small.x.float().mean((2, 3)) - whole.x.float().mean((2, 3))).abs().max() < 2
    (tmp_path / "mine.csv").write_text("a,label\n1,x\n2,y\n3,x\n4,y\n")
    assert "holds no images" in refusal(ConfigError, lambda: load(str(tmp_path / "mine.csv"), image_size=4))


def test_images_are_decoded_once_and_again_when_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tree(tmp_path / "mine", CLASSES)
    first = load(str(path))
    with monkeypatch.context() as patched:
        patched.setattr(Image, "open", None)
        assert load(str(path)).x is first.x
    changed = path / "dog" / "2.png"
    status = changed.stat()
    changed.write_bytes(picture(99))
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert greys(load(str(path))) == [30, 10, 99]


@pytest.mark.parametrize(("tree", "problem"), [
    ({}, ": no images in it; it must hold class/image or domain/class/image"),
    ({"a/notes.txt": b"x"}, ": no images in it; it must"),
    ({"1.png": picture()}, ": images lie 0 folders deep, such as 1.png; it must"),
    ({"a/1.png": picture(), "a/b/2.png": picture()}, ": a/1.png and a/b/2.png lie at different depths; it must"),
    ({f"{top}/{at}/{at}/{at}/1.png": picture() for at in "ab" for top in "xy"}, ": images lie 4 folders deep, such as"),
    ({**CLASSES, "bird/": b""}, "/bird: contains no images"),
    ({**CLASSES, "bird/1.dcm": b"x"}, "/bird: contains no images"),
    ({**DOMAINS, "photo/bird/": b""}, "/photo/bird: contains no images"),
    ({**DOMAINS, "paint/": b""}, "/paint: contains no images"),
    ({**CLASSES, "dog/3.png": b""}, "/dog/3.png: 0 bytes in no known image format"),
    ({**CLASSES, "dog/3.png": picture()[:45]}, "/dog/3.png: cannot be decoded: "),
    ({**CLASSES, "dog/3.png": b"%!PS-Adobe-3.0 EPSF-3.0\n"}, "/dog/3.png: 24 bytes in no known image format"),
])  # fmt: skip
def test_fault_10_folders_and_archives_that_do_not_fit(tree: Tree, problem: str, tmp_path: Path) -> None:
    for name in ("mine", "mine.zip"):
        path = write_tree(tmp_path / name, tree)
        before = read_tree(path)
        assert refusal(DataError, lambda path=path: load(str(path))).startswith(f"{path}{problem}")
        assert read_tree(path) == before


def test_hidden_folders_are_not_looked_into_and_names_must_be_lines(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "mine", {**CLASSES, f".git/{'x/' * 20}1.png": b"", "dog/.cache/1.png": b""})
    assert len(load(str(path)).y) == 3
    write_tree(path, {"dog/a\nb.png": picture()})
    assert refusal(DataError, lambda: load(str(path))).endswith(
        "the name 'dog/a\\nb.png' contains a line break or control character; rename it"
    )


def test_other_things_beside_domains_and_classes_that_a_domain_lacks(tmp_path: Path) -> None:
    tree = {**DOMAINS, "sketch/cat/": b"", "about/notes.txt": b"x", "licence.txt": b"x"}
    assert len(load(str(write_tree(tmp_path / "mine", tree))).y) == 4


def test_images_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tree(tmp_path / "mine", {"a/1.png": picture(size=(6, 6)), "b/1.png": picture(size=(6, 6))})
    for limit in (30, 10):  # pillow warns above it and refuses above twice as much
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        line = refusal(DataError, lambda: load(str(path)))
        assert line.startswith(f"{path}/a/1.png: cannot be decoded: Image size (36 pixels) exceeds limit")


def test_fault_10_an_archive_that_announces_too_much_or_is_cut(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "mine.zip", CLASSES)
    whole = path.read_bytes()
    entry = whole.index(b"PK\x01\x02")  # the first entry of the directory; its unpacked size is at byte 24
    path.write_bytes(whole[: entry + 24] + struct.pack("<I", 1 << 30) + whole[entry + 28 :])
    line = refusal(DataError, lambda: load(str(path)))
    assert line == f"{path}/dog/2.png: 1,073,741,824 bytes when decompressed; at most {files.LARGEST_FILE:,} are read"
    path.write_bytes(whole[:-1])
    line = refusal(DataError, lambda: load(str(path)))
    assert line.startswith(f"{path}: {len(whole) - 1:,} bytes that cannot be read as a zip archive: ")


def test_links_in_a_circle_and_pipes_are_refused(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "mine", CLASSES)
    os.mkfifo(path / "dog" / "3.png")
    assert refusal(DataError, lambda: load(str(path))) == f"{path}/dog/3.png: not a regular file"
    (path / "dog" / "3.png").unlink()
    (path / "dog" / "again").symlink_to(path)
    assert "folders nested more than 8 deep" in refusal(DataError, lambda: load(str(path)))


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tree(tmp_path / "mine", {"a/1.png": picture(1), "b/1.png": picture(2)})
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert refusal(DataError, lambda: load(str(path))).endswith("not installed: pip install 'partwise[images]'")


def pacs(change: Tree | None = None, without: str = "nothing") -> Tree:
    names = [(domain, label) for domain in PACS.domains for label in PACS.classes]
    tree = {f"PACS/{domain}/{label}/1.png": picture(at) for at, (domain, label) in enumerate(names)}
    return {name: content for name, content in {**tree, **(change or {})}.items() if without not in name}


@pytest.mark.parametrize("name", ["data/pacs", "home/.cache/partwise/PACS", "environment/pacs-96.zip"])
def test_pacs_is_found_as_folder_or_archive(name: str, nowhere: Path) -> None:
    write_tree(nowhere / name, pacs({"PACS/notes/readme/1.png": b"no image", "PACS/photo/cat/1.png": b"no class"}))
    source = load("pacs")
    assert (source.name, greys(source), source.class_names) == ("pacs", list(range(28)), PACS.classes)
    assert source.columns["domain"].names == ("art_painting", "cartoon", "photo", "sketch")
    assert load("pacs", nowhere / name).x is source.x  # its own place is a root as well


@pytest.mark.parametrize(("tree", "problem"), [
    (pacs(without="sketch"), "data set 'pacs' lacks the domain 'sketch'"),
    (pacs(without="photo/h"), "data set 'pacs' lacks photo/horse, house"),
    (pacs({"more/photo/dog/1.png": picture()}), "the domain 'photo' occurs twice"),
])  # fmt: skip
def test_a_published_set_is_refused_by_what_it_lacks(tree: Tree, problem: str, nowhere: Path) -> None:
    write_tree(nowhere / "data" / "pacs.zip", tree)
    assert problem in refusal(DataError, lambda: load("pacs"))


def test_office_home_is_brought_to_its_usual_size(nowhere: Path) -> None:
    assert len(OFFICE_HOME.classes) == 65
    folders = ("Art", "Clipart", "Product", "Real World")
    small, large = picture(1, (2, 2)), picture(2, (3, 2))
    tree = {f"{folder}/{label}/{at}.png": (small, large)[at] for at in (0, 1) for folder in folders
            for label in OFFICE_HOME.classes}  # fmt: skip
    write_tree(nowhere / "data" / "OfficeHomeDataset_10072016", tree)
    assert load("office-home", image_size=2).x.shape == (520, 3, 2, 2)
    assert load("office-home", image_size=2).columns["domain"].names == ("Art", "Clipart", "Product", "Real")
    assert CATALOGUE["office-home"].image_size == 224


@pytest.mark.parametrize("kind", ["lists.pkl", "arrays.pkl", "txt"])
def test_domainnet_with_its_split_lists(kind: str, nowhere: Path) -> None:
    for name in ("data/domainnet", "data/DomainNet.zip"):
        path = write_tree(nowhere / name, {**domainnet(), **lists(kind)})
        source = load("domainnet", path, image_size=1)
        assert (len(source.y), source.train, source.split) == (120, 60, "original")
        domain, label, at = source.x[:, :, 0, 0].T
        assert at.tolist() == [0] * 60 + [1] * 60
        assert torch.equal(domain.long(), source.columns["domain"].code)
        assert torch.equal(label.long(), source.y)
        assert source.y[:11].tolist() == [*range(9, -1, -1), 9]  # in the lists' order
        assert source.class_names == DOMAINNET.classes


def test_domainnet_without_lists_and_by_its_path(nowhere: Path) -> None:
    path = write_tree(nowhere / "data" / "domainnet", domainnet())
    source = load("domainnet", image_size=1)
    assert (len(source.y), source.train, source.split, source.test_share) == (120, 120, "merged", 0.2)
    assert load(str(path)).class_names == (*DOMAINNET.classes, "zigzag")  # a path is taken as it is
    write_tree(path, lists("txt"))
    own = load(str(path))
    assert (len(own.y), own.train, own.split, own.classes) == (132, 66, "original", 11)


@pytest.mark.parametrize(("change", "problem"), [
    ({"split/real_test.pkl": None}, "either all domains need split lists or none; real_test.pkl is missing"),
    ({"real/bird/real_0.png": None}, "real_train.pkl: 'DomainNet/real/bird/real_0.png' is listed, but not there"),
    ({"split/real_test.pkl": lists("lists.pkl")["split/real_train.pkl"]}, "real_0.png' is listed twice"),
    ({"split/real_test.pkl": b"\x80\x04]."}, "real_test.pkl: must be a pair of two lists of equal length"),
    ({"split/real_test.pkl": b"cos\nsystem\n."}, "real_test.pkl: refused to load os.system"),
])  # fmt: skip
def test_lists_that_do_not_fit(change: dict[str, bytes | None], problem: str, nowhere: Path) -> None:
    tree = {**domainnet(), **lists("lists.pkl"), **change}
    path = write_tree(nowhere / "domainnet", {name: content for name, content in tree.items() if content is not None})
    assert problem in refusal(DataError, lambda: load("domainnet", path))


@pytest.mark.parametrize(("line", "problem"), [
    (b"real/bird/real_0.png x\n", "real_train.txt: line 1 must be a path and the number of its class, got 'real/bird"),
    (b"\n\nreal/bird/real_0.png\n", "real_train.txt: line 3 must be a path"),
    (b"real/bird/real_0.png 4\n", "'real/bird/real_0.png' is labelled '4', unlike the other files in its folder"),
    (b"\xff\n", "real_train.txt: not a text file"),
])  # fmt: skip
def test_lines_that_do_not_fit(line: bytes, problem: str, nowhere: Path) -> None:
    path = write_tree(nowhere / "domainnet", {**domainnet(), **lists("txt"), "split/real_train.txt": line})
    assert problem in refusal(DataError, lambda: load("domainnet", path))


@pytest.fixture
def smaller(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nowhere, with a Tiny-ImageNet of three classes."""
    monkeypatch.setattr(tinyimagenet, "IMAGE_COUNTS", {"train": 6, "val": 3})
    monkeypatch.setitem(CATALOGUE, "tiny-imagenet", replace(CATALOGUE["tiny-imagenet"], classes=3))
    return nowhere


@pytest.mark.parametrize("name", ["tiny-imagenet-200.zip", "tiny-imagenet-200"])
def test_tiny_imagenet_in_its_official_layout(name: str, smaller: Path) -> None:
    path = write_tree(smaller / "data" / name, tiny())
    before = read_tree(path)
    source = load("tiny-imagenet")
    assert (greys(source), source.train) == ([50, 60, 100, 110, 0, 10, 20, 70, 120], 6)
    assert (source.y.tolist(), source.class_names) == ([0, 0, 1, 1, 2, 2, 2, 0, 1], ("n01", "n02", "n03"))
    assert (source.model, source.split, source.centre) == ("cnn-5x5", "merged", (127.5,) * 3)
    assert read_tree(path) == before


@pytest.mark.parametrize(("change", "problem"), [
    ({"wnids.txt": None}, "wnids.txt, the list of classes, is missing"),
    ({"wnids.txt": b"n01\nn02\n"}, "wnids.txt: expected 3 classes, got 2"),
    ({"wnids.txt": b"n01\nn02\nn04\n"}, "n03_0.JPEG: its class 'n03' is not in wnids.txt"),
    ({"train/n01/images/n01_0.JPEG": None}, "/train: expected 6 images, got 5"),
    ({"val/images/val_9.JPEG": b""}, "val_9.JPEG: val_annotations.txt does not say its class"),
    ({"val/val_annotations.txt": None}, "val_annotations.txt: is missing"),
    ({"val/val_annotations.txt": b"val_0.JPEG\n"}, "val_annotations.txt: row 1 has fewer than 2 columns"),
    ({"val/val_annotations.txt": b"\xff"}, "val_annotations.txt: not a text file"),
])  # fmt: skip
def test_fault_10_tiny_imagenet_that_is_incomplete(
    change: dict[str, bytes | None], problem: str, smaller: Path
) -> None:
    tree = tiny() | {f"tiny-imagenet-200/{name}": content for name, content in change.items()}
    path = smaller / "data" / "tiny-imagenet-200.zip"
    write_tree(path, {name: content for name, content in tree.items() if content is not None})
    line = refusal(DataError, lambda: load("tiny-imagenet"))
    assert line.startswith(str(path))
    assert line.endswith(problem) or f"{problem}:" in line


@pytest.mark.parametrize(("kind", "name"), [("uint16", "png"), ("float32", "tiff"), ("int32", "tiff")])
def test_images_of_more_than_eight_bits_are_refused_not_cut_off(tmp_path: Path, kind: str, name: str) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        Image.fromarray(np.full((4, 4), 3000, kind)).save(tmp_path / label / f"0.{name}")
    line = refusal(DataError, lambda: load(str(tmp_path)))
    assert f"a/0.{name}: cannot be decoded: more than 8 bits per channel" in line
