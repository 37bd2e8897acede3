"""Data frames of R: in `.rda` and `.rds` files, and in the `.rdb` files in which R's packages hold their data.

Nothing but the data frame that is asked for is converted, and no code in a file is executed.
"""

import bz2
import gzip
import lzma
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partwise.data.readers.frames import DataTable
from partwise.data.room import check_plain_file, check_room, room
from partwise.errors import DataError, needed, one_line, short, unknown

R_ENDINGS = (".rda", ".rdata", ".rds")
R_FORMATS = (b"RDX", b"RDA", b"RDB", b"X\n", b"A\n", b"B\n")  # how the files of save and saveRDS begin
COMPRESSED: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
PIECE = 1 << 20  # bytes that are decompressed together
XZ_OF_PACKAGES = ({"id": lzma.FILTER_LZMA2, "preset": 6},)  # theirs has no header of its own
TEXT_MARK, TEXT_BYTES = b"\t", 800  # in front of each text, and the memory that it may take while it is read
STEP_BYTES = 64  # of each number of a sequence of which a file holds only the ends


def read_frame(path: Path, name: str = "") -> DataTable:
    """Read a data frame of a file of R's; `name` chooses among several."""
    root, encoding = parsed(unpacked(path), path)
    frames = {"": root} if is_frame(root) else {key: value for key, value in pairs(root) if is_frame(value)}
    if not frames:
        raise DataError(f"{path}: it holds no data frame")
    if name and name not in frames:
        raise DataError(f"{path}: {unknown('data frame', name, filter(None, frames))}")
    first = next(iter(frames))
    if not name and len(frames) > 1:
        listed = short(", ".join(frames))
        raise DataError(f"{path}: it holds {len(frames)} data frames: {listed}; choose one, as {path}#{first}")
    return table_of_frame(frames[name or first], encoding, f"{path}#{name}" if name else str(path))


def read_package_frame(index: Path, name: str) -> DataTable:
    """Read a data frame of an R package, whose index, Rdata.rdx, says where in Rdata.rdb its bytes lie."""
    data = index.with_suffix(".rdb")
    check_plain_file(data)
    try:
        root, encoding = parsed(unpacked(index), index)
        entries = {str(key): value for key, value in python_values(root, encoding)["variables"].items()}
        if name not in entries:
            raise DataError(f"{index}: {unknown('data frame', name, entries)}")
        begin, size = map(int, entries[name])
        with data.open("rb") as file:
            file.seek(begin)
            root, encoding = parsed(unpacked_entry(file.read(size), data), data)
    except DataError:
        raise
    except Exception as error:  # a broken file may raise anything in rdata
        raise DataError(f"{data}: cannot be read: {one_line(error)}") from error
    return table_of_frame(root, encoding, f"{data}#{name}")


def unpacked(path: Path) -> bytes:
    """Return the content of a file, decompressed; refuse more than memory has room for."""
    content, most = bytearray(), room()
    check_plain_file(path)
    with path.open("rb") as raw:
        begin = raw.peek()
        opened = next((opens for magic, opens in COMPRESSED.items() if begin.startswith(magic)), None)
        file = opened(raw) if opened else raw
        while piece := file.read(PIECE):
            content += piece
            if len(content) > most:
                raise DataError(f"{path}: larger than {most:,} bytes, the memory that one data set may use")
    return bytes(content)


def unpacked_entry(packed: bytes, where: Path) -> bytes:
    """Return an entry of an .rdb file, decompressed: its length, how it is compressed unless by zlib, and its bytes."""
    length, kind = int.from_bytes(packed[:4], "big"), packed[4:5]
    check_room(where, length)
    if kind == b"0":
        content = packed[5:]
    elif kind == b"2":
        content = bz2.BZ2Decompressor().decompress(packed[5:], length)
    elif kind == b"Z":
        content = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=XZ_OF_PACKAGES).decompress(packed[5:], length)
    else:
        content = zlib.decompressobj().decompress(packed[4:], length)
    if len(content) != length:
        raise DataError(f"{where}: expected {length:,} bytes, got {len(content):,}")
    return content


def parsed(content: bytes, where: Path) -> tuple[Any, str | None]:
    """Return the R object that bytes describe, as rdata has it, and the encoding of its texts."""
    if not content.startswith(R_FORMATS):
        raise DataError(f"{where}: not a file that R's save or saveRDS wrote")
    parser = needed("rdata", "r").parser
    check_room(where, len(content) + TEXT_BYTES * content.count(TEXT_MARK))

    def limited(expand: Callable[[Any], Any], size: Callable[[Any], int]) -> Callable[[Any], Any]:
        def expanded(state: Any) -> Any:
            check_room(where, size(state))
            return expand(state)

        return expanded

    sizes: dict[bytes, Callable[[Any], int]] = {
        b"compact_intseq": lambda state: STEP_BYTES * int(state.value[0]),
        b"compact_realseq": lambda state: STEP_BYTES * int(state.value[0]),
        b"deferred_string": lambda state: TEXT_BYTES * len(state.value[0].value),
    }
    known = dict(parser.DEFAULT_ALTREP_MAP)
    known |= {kind: limited(known[kind], size) for kind, size in sizes.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that bytes without the name of a file are taken for an .rds file
            whole = parser.parse_data(content, altrep_constructor_dict=known)
    except DataError:
        raise
    except Exception as error:  # a broken file may raise anything in rdata
        raise DataError(f"{where}: damaged, or of a kind that rdata does not read: {one_line(error)}") from error
    return whole.object, whole.extra.encoding


def pairs(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of one of R's pairlists: the objects of an .rda file, the attributes of an object."""
    while node is not None and isinstance(node.value, tuple):
        symbol = node.tag and (node.tag.referenced_object or node.tag)
        yield symbol.value.value.decode(errors="replace") if symbol else "", node.value[0]
        node = node.value[1]


def is_frame(thing: Any) -> bool:
    """Return whether an R object is a data frame."""
    classes = dict(pairs(thing.attributes)).get("class")
    return (
        isinstance(thing.value, list)
        and classes is not None
        and b"data.frame" in [each.value for each in classes.value]
    )


def table_of_frame(frame: Any, encoding: str | None, where: str) -> DataTable:
    """Return one of R's data frames as a table: factors are categories, which are texts, and NA is empty."""
    pandas = needed("pandas", "tables")
    try:
        names = python_values(dict(pairs(frame.attributes))["names"], encoding)
        columns = [cells(python_values(column, encoding)) for column in frame.value]
        rows = max((len(column) for column in columns if column is not None), default=0)
        # A column that is a matrix or a list is left for the refusal of what is neither numbers nor texts.
        filled: list[Any] = [[[]] * rows if column is None else column for column in columns]
        return DataTable(pandas.DataFrame(dict(enumerate(filled))).set_axis(list(map(str, names)), axis=1), where)
    except Exception as error:  # as above
        raise DataError(f"{where}: cannot be read as a data frame: {one_line(error)}") from error


def cells(values: Any) -> Any:
    """Return the values of a column as pandas has them, None or NaN for NA; None where they are no vector."""
    if hasattr(values, "categories"):
        return values
    if hasattr(values, "to_numpy"):  # a vector with names, or dates
        values = values.to_numpy()
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        return None
    if isinstance(values, np.ma.MaskedArray):
        plain = values.data.astype(object)
        plain[np.ma.getmaskarray(values)] = None
        return plain
    return values.astype(object) if values.dtype.kind in "US" else values


def python_values(thing: Any, encoding: str | None) -> Any:
    """Return an R object in Python's types."""
    pandas, conversion = needed("pandas", "tables"), needed("rdata", "r").conversion

    def moments(unit: str) -> Callable[[Any, Any], Any]:
        return lambda numbers, _: pandas.to_datetime(np.ma.filled(np.ma.asarray(numbers, float), np.nan), unit=unit)

    def factor(codes: Any, attributes: Mapping[str, Any]) -> Any:
        numbers = np.nan_to_num(np.ma.filled(codes, 0)).astype(int)
        if (numbers < 0).any():
            raise DataError(f"a factor has no level {numbers.min()}")
        return pandas.Categorical(np.array([None, *attributes["levels"]], dtype=object)[numbers])

    classes = {
        "factor": factor,
        "ordered": factor,
        "integer64": lambda values, _: np.ma.masked_equal(values.view(np.int64), np.iinfo(np.int64).min),
        "Date": moments("D"),
        "POSIXct": moments("s"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that change nothing about the values
        return conversion.convert(thing, classes, default_encoding=encoding or "utf-8")
