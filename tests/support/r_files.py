"""Files of R, written byte by byte as its serialisation says, so that tests need no R."""

import bz2
import lzma
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

LIST, CHAR, LOGICAL, INTEGER, REAL, TEXT, VECTOR, ALTREP, NOTHING = 2, 9, 10, 13, 14, 16, 19, 238, 254  # R's types
IS_OBJECT, HAS_ATTRIBUTES, HAS_TAG, UTF8 = 1 << 8, 1 << 9, 1 << 10, 1 << 15
NA = -(2**31)  # among integers, logicals and a factor's codes
NA_REAL = struct.unpack(">d", bytes.fromhex("7ff00000000007a2"))[0]


def whole(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def char(text: str | None) -> bytes:
    raw = (text or "").encode()
    return whole(CHAR, -1) if text is None else whole(CHAR | UTF8, len(raw)) + raw


def pairlist(values: Mapping[str, bytes]) -> bytes:
    each = (whole(LIST | HAS_TAG, 1) + char(name) + value for name, value in values.items())
    return b"".join(each) + whole(NOTHING)


def thing(kind: int, length: int, content: bytes, attributes: Mapping[str, bytes]) -> bytes:
    flags = HAS_ATTRIBUTES * bool(attributes) | IS_OBJECT * ("class" in attributes)
    return whole(kind | flags, length) + content + (pairlist(attributes) if attributes else b"")


def integers(*values: int, kind: int = INTEGER, **attributes: bytes) -> bytes:
    return thing(kind, len(values), whole(*values), attributes)


def reals(*values: float, **attributes: bytes) -> bytes:
    return thing(REAL, len(values), struct.pack(f">{len(values)}d", *values), attributes)


def texts(*values: str | None, **attributes: bytes) -> bytes:
    return thing(TEXT, len(values), b"".join(map(char, values)), attributes)


def vector(values: Sequence[bytes], **attributes: bytes) -> bytes:
    return thing(VECTOR, len(values), b"".join(values), attributes)


def factor(codes: Sequence[int], levels: Sequence[str]) -> bytes:
    return integers(*codes, levels=texts(*levels), **{"class": texts("factor")})


def frame(columns: Mapping[str, bytes], rows: int, names: Sequence[str] = ()) -> bytes:
    own = {"class": texts("tbl", "data.frame"), "row.names": integers(NA, -rows)}
    return vector(list(columns.values()), names=texts(*(names or columns)), **own)


def sequence(numbers: float) -> bytes:
    """1, 2, 3, ... as R writes them: only how many there are."""
    kind = whole(LIST, 1) + char("compact_intseq") + whole(LIST, 1) + char("base") + whole(NOTHING)
    return whole(ALTREP) + kind + reals(numbers, 1.0, 1.0) + whole(NOTHING)


def rds(value: bytes) -> bytes:
    """What saveRDS writes, uncompressed."""
    return b"X\n" + whole(3, 0x40000, 0x30500, 5) + b"UTF-8" + value


def rda(values: Mapping[str, bytes]) -> bytes:
    """What save writes, uncompressed."""
    return b"RDX3\n" + rds(pairlist(values))


def xz(raw: bytes) -> bytes:
    return b"Z" + lzma.compress(raw, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])


PACKED = {
    "zlib": zlib.compress,
    "xz": xz,
    "bzip2": lambda raw: b"2" + bz2.compress(raw),
    "plain": lambda raw: b"0" + raw,
}


def write_package(folder: Path, frames: Mapping[str, bytes], packed: str = "zlib") -> Path:
    """Write frames as R's packages hold them, Rdata.rdb and its index Rdata.rdx, and return the index."""
    folder.mkdir(parents=True, exist_ok=True)
    content, places = b"", {}
    for name, value in frames.items():
        raw = rds(value)
        entry = len(raw).to_bytes(4, "big") + PACKED[packed](raw)
        places[name] = integers(len(content), len(entry))
        content += entry
    book = {"variables": vector(list(places.values()), names=texts(*places)), "compressed": integers(1, kind=LOGICAL)}
    (folder / "Rdata.rdb").write_bytes(content)
    index = folder / "Rdata.rdx"
    index.write_bytes(rds(vector(list(book.values()), names=texts(*book))))
    return index
