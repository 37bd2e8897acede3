"""Split lists of domain folders: which files are for training, and which for testing.

`DOMAIN_train.pkl` and `DOMAIN_test.pkl` as FedBN publishes them for DomainNet, a pickled pair of paths and labels; or
DomainNet's own `DOMAIN_train.txt` and `DOMAIN_test.txt`, lines of `path label`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from partwise.data.readers import pickles
from partwise.data.readers.files import Files
from partwise.errors import DataError, short


class Image(NamedTuple):
    """An image of one class and domain."""

    domain: str
    label: str  # the name of its class
    name: str  # among the files


def split_by_lists(files: Files, images: Sequence[Image], selected: bool) -> tuple[list[Image], list[Image]] | None:
    """Return images split by the lists among the files, in their order; None if there is no list.

    Where `images` are those of selected classes, lists may name others: they are left out.
    """
    lists = {name.rpartition("/")[2]: name for name in reversed(files.names)}
    every = list(dict.fromkeys(image.domain for image in images))
    for ending in ("pkl", "txt"):
        wanted = [f"{domain}_{part}.{ending}" for part in ("train", "test") for domain in every]
        missing = [name for name in wanted if name not in lists]
        if not missing:
            taken = list(_taken(files, [lists[name] for name in wanted], images, selected))
            return [image for at, image in taken if at < len(every)], [image for at, image in taken if at >= len(every)]
        if len(missing) < len(wanted):
            raise DataError(f"{files.path}: either all domains need split lists or none; {missing[0]} is missing")
    return None


def _taken(files: Files, lists: list[str], images: Sequence[Image], selected: bool) -> Iterator[tuple[int, Image]]:
    """Yield the images that the lists name, each with the number of its list."""
    key = {"/".join(image.name.split("/")[-3:]): image for image in images}
    classes, seen = {image.label for image in images}, set()
    label_of: dict[str, str] = {}
    folder_of: dict[str, str] = {}
    for number, name in enumerate(lists):
        for path, label in _entries(files, name):
            tail = "/".join(path.replace("\\", "/").split("/")[-3:])
            folder = tail.split("/")[-2] if "/" in tail else ""
            if selected and folder not in classes:
                continue
            if tail not in key:
                raise DataError(f"{files.where(name)}: {path!r} is listed, but not there")
            if tail in seen:
                raise DataError(f"{files.where(name)}: {path!r} is listed twice")
            if folder_of.setdefault(label, folder) != folder or label_of.setdefault(folder, label) != label:
                raise DataError(
                    f"{files.where(name)}: {path!r} is labelled {label!r}, unlike the other files in its folder"
                )
            seen.add(tail)
            yield number, key[tail]


def _entries(files: Files, name: str) -> list[tuple[str, str]]:
    """Return the paths and labels of one list."""
    where, raw = files.where(name), files.read(name)
    if name.endswith(".pkl"):
        pair = _pair(pickles.load(raw, where))
        if pair is None or len(pair[0]) != len(pair[1]) or not all(isinstance(text, str) for text in pair[0] + pair[1]):
            raise DataError(f"{where}: must be a pair of two lists of equal length: paths and labels, all texts")
        return list(zip(*pair, strict=True))
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not a text file: {error}") from error
    entries = []
    for number, line in enumerate(lines, start=1):
        path, _, label = line.strip().rpartition(" ")
        if line.strip() and not (path and label.isdecimal()):
            raise DataError(
                f"{where}: line {number} must be a path and the number of its class, got {short(repr(line))}"
            )
        if path:
            entries.append((path, label))
    return entries


def _pair(value: Any) -> tuple[list[Any], list[Any]] | None:
    """Return two lists, from lists, tuples or arrays; None for anything else."""
    pair = value.values if isinstance(value, pickles.Array) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    first, second = (part.values if isinstance(part, pickles.Array) else part for part in pair)
    if not isinstance(first, list | tuple) or not isinstance(second, list | tuple):
        return None
    return list(first), list(second)
