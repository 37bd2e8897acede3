"""Data sets by name or by path: `load("digits")`, `load("patients.csv")`, `load("my/images")`."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from partwise.data.checks import check
from partwise.data.kinds import OWN_KINDS
from partwise.data.own import as_data
from partwise.data.readers import arrays, client_arrays, client_tables, hugging_face, imagefolders, masks, tables
from partwise.data.readers.catalogue import CATALOGUE, data_names, published_data
from partwise.data.readers.entry import DataEntry
from partwise.data.readers.places import Root
from partwise.data.reading import Reading
from partwise.data.source import Federation, Source, resized
from partwise.errors import ConfigError, DataError, PartwiseError, one_line, unknown
from partwise.published import Published


def load(name: str, root: Root = None, **reading: Any) -> Source:
    """Return the data set of this name or path, checked; `reading` holds the fields of `Reading`.

    Of a published data set that is already divided among clients, return the samples of all clients.
    """
    wanted = Reading(root, **reading)
    if known := published_data(name):
        found = as_data(call_published(known), wanted)
        source = found.source if isinstance(found, Federation) else found
    else:
        source = _named(CATALOGUE[name], wanted) if name in CATALOGUE else _own(name, wanted)
    return check(resized(source, wanted.image_size), wanted.allow_nonfinite, wanted.missing)


def call_published(known: Published) -> Any:
    """Return the data that a published data set's function returns; refuse a path."""
    function = known.imported()
    if not callable(function):
        raise ConfigError(f"{known} must be a function that returns data: {known.entry.value}")
    try:
        data = function()
    except PartwiseError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"{known} cannot be read: {type(error).__name__}: {one_line(error)}") from error
    if isinstance(data, str | Path):
        raise ConfigError(f"{known} returns a path: it must return data, such as partwise.load(path)")
    return data


def _named(known: DataEntry, wanted: Reading) -> Source:
    if known.columns is None:
        wanted.refuse_what_is_for_tables(f"data set '{known.name}'")
    place, looked_in = known.find(wanted.root)
    if place is None and wanted.download and known.downloads:
        from partwise.data.readers.download import download

        download(known.name, wanted.root)
        place, looked_in = known.find(wanted.root)
    if place is None:
        raise known.missing(looked_in)
    return known.read(place, wanted)


def _own(name: str, wanted: Reading) -> Source:
    """Read a user's own data, by the ending of their name."""
    if name.startswith("hf:"):
        return hugging_face.read_hugging_face(name.removeprefix("hf:"), wanted)
    path = own_path(name, wanted.root)
    ending = path.suffix.lower()
    if is_table(path):
        return (client_tables if path.is_dir() else tables).read(path, wanted)
    wanted.refuse_what_is_for_tables(f"'{name}'")
    if ending == ".npz":
        return arrays.read_npz(path, wanted.task)
    if client_arrays.array_files(path):
        return client_arrays.read(path)
    if path.is_dir() or ending == ".zip":
        if masks.has_masks(path):
            return masks.read(path, wanted)
        return imagefolders.read(path, wanted)
    raise ConfigError(f"'{name}' cannot be read; your own data may be {', '.join(OWN_KINDS)}")


def is_table(path: Path) -> bool:
    """Return whether a path is that of a table, or of a folder with a table for each client."""
    file, _ = tables.file_and_frame(path)
    return file.name.lower().endswith(tables.TABLE_ENDINGS) or (path.is_dir() and bool(client_tables.table_files(path)))


def own_path(name: str, root: Root = None) -> Path:
    """Return the path of a user's own data, as it is or below the root; refuse a missing one with similar names."""
    paths = [Path(os.path.expanduser(place)) for place in (name, *([os.path.join(root, name)] if root else []))]
    found = [
        path for path in paths if name and os.path.exists(tables.file_and_frame(path)[0])
    ]  # unlike pathlib's, it raises nothing
    if not found:
        raise ConfigError(unknown("data set", name, [*_near(paths[0]), *data_names()]))
    return found[0]


def _near(path: Path) -> list[str]:
    """Return files beside a path with similar names."""
    try:
        beside = os.listdir(path.parent)
    except OSError:
        return []
    return [str(path.parent / name) for name in get_close_matches(path.name, beside)]
