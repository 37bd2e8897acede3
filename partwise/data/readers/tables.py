"""Tables: CSV, Parquet and R files and pandas frames, with a column of labels and perhaps one that names the clients.

Numbers are features as they are. A text becomes one feature for each of its values, `sex=f` and `sex=m`; in a row where
it is empty, all of them are 0. What pandas takes for empty in a CSV file is empty: NA, NaN, null and their like too.
"""

import csv
import gzip
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from partwise.data.checks import lacking
from partwise.data.readers.frames import NUMBER_KINDS, TEXT_KINDS, DataTable, framed, pandas_kind
from partwise.data.readers.labels import as_classes, encode_labels
from partwise.data.readers.r_files import R_ENDINGS, read_frame
from partwise.data.readers.row_splits import with_row_splits
from partwise.data.readers.task_labels import of_table
from partwise.data.readers.texts import fit_text
from partwise.data.reading import Reading
from partwise.data.room import check_plain_file, check_room, room
from partwise.data.source import Column, Source
from partwise.data.transforms import TEXT, TableTransform, TextTransform
from partwise.errors import DataError, needed, one_line, unknown

CLIENT_COLUMN = "client"  # the column that divides a table among clients where nobody names one
TEXTS = 50  # more different texts are no feature,
CODED_TEXTS = 1000  # or where they become codes
SEPARATORS = (",", ";", "\t", "|")
TEXT_PIECE = 1 << 20  # bytes of a text that are looked at together
CELL = 64  # bytes that pandas may take for one cell of a text
NUMBER_BYTES = 8  # bytes of a number
PARQUET_ROWS = 4096  # of a Parquet file that are read together
LOOKED_AT = 20  # lines, to see which of them it is


def read(path: Path, reading: Reading) -> Source:
    """Read the table in a file with one of `TABLE_ENDINGS`."""
    return source_of(opened_table(path, reading), reading, path.name)


def opened_table(path: Path, reading: Reading) -> DataTable:
    """Open the table in a file as it is."""
    file, _ = file_and_frame(path)
    check_plain_file(file)
    try:
        opened = (opens for ending, opens in READERS.items() if file.name.lower().endswith(ending))
        return next(opened, _csv)(path, reading)
    except DataError:
        raise
    except Exception as error:  # a broken file may raise anything in pandas or pyarrow
        raise DataError(f"{path}: cannot be read: {one_line(error)}") from error


def file_and_frame(path: Path) -> tuple[Path, str]:
    """Return the file of a table, and the data frame that FILE.rda#NAME chooses in it; '' without a choice."""
    name, _, frame = path.name.rpartition("#")
    chosen = name.lower().endswith(R_ENDINGS) and not os.path.exists(path)
    return (path.with_name(name), frame) if chosen else (path, "")


def from_frame(frame: Any, reading: Reading, name: str = "table") -> Source:
    """Read a pandas DataFrame; its index is not a feature."""
    return source_of(framed(frame, f"table '{name}'"), reading, name)


def _csv(path: Path, reading: Reading) -> DataTable:
    pandas = needed("pandas", "tables")
    _check_text(path)
    separator = _separator(path)
    header = next(_records(path, separator), (1, []))[1]
    names = [name or f"Unnamed: {number}" for number, name in enumerate(header)]  # what pandas calls them
    _check_names(str(path), names)  # pandas would call a second 'age' 'age.1'
    for number, name in enumerate(names):
        if not header[number] and name not in reading.drop:
            raise DataError(f"{path}: column {number + 1} has no name; give it one, or leave it out: --drop '{name}'")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # of cells that it would leave out
        # Without low_memory=False a long column may be numbers in one stretch and texts in the next.
        frame = pandas.read_csv(path, sep=separator, index_col=False, skipinitialspace=True, low_memory=False)
    for column in frame:
        if pandas_kind(frame[column]) == "string":
            frame[column] = frame[column].str.strip()  # 'A' and 'A ' would be two clients that look alike

    def place(row: int) -> str:
        try:
            return f"line {next(islice(_records(path, separator), row + 1, None))[0]}"
        except (csv.Error, StopIteration):  # a record that only pandas can read
            return f"row {row}"

    return DataTable(frame, str(path), place)


def _check_text(path: Path) -> None:
    """Refuse a text of more cells than memory has room for, before any of it is kept."""
    most, size, ends, signs = room(), 0, 0, Counter[str]()
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        while piece := file.read(TEXT_PIECE):
            size, ends = size + len(piece), ends + piece.count(b"\n")
            signs.update({sign: piece.count(sign.encode()) for sign in SEPARATORS})
            if size + CELL * (ends + max(signs.values())) > most:
                raise DataError(
                    f"{path}: its cells need more than {most:,} bytes, the memory that one data set may use"
                )


def _separator(path: Path) -> str:
    """Return the separator of cells: the usual one of the ending, unless only another one fits the first lines."""
    usual = "\t" if ".tsv" in path.name.lower() else ","
    signs = [usual, *(sign for sign in SEPARATORS if sign != usual)]
    widths = {sign: _widths(path, sign) for sign in signs}
    for sign in signs:
        if widths[sign][:1] > [1] and len({*widths[sign]}) == 1:
            return sign
    if widths[usual][:1] == [1] and any(width > [1] for width in widths.values()):
        raise DataError(
            f"{path}: no separator gives its first lines the same number of columns; separate columns by commas"
        )
    return usual  # a line with too many cells is named where all are read


def _widths(path: Path, sign: str) -> list[int]:
    """Return the number of cells in each of the first lines."""
    with suppress(csv.Error):  # a cell that only pandas can read
        return [len(cells) for _, cells in islice(_records(path, sign), LOOKED_AT)]
    return []


def _records(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file and the line of each; a cell may span lines, and empty lines do not count."""
    open_text: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    with open_text(path, "rt", encoding="utf-8-sig", newline="") as file:
        begin, records = 1, csv.reader(file, delimiter=separator, skipinitialspace=True)
        for cells in records:
            if len(cells) > 1 or "".join(cells).strip():
                yield begin, cells
            begin = records.line_num + 1


def _parquet(path: Path, _: Reading) -> DataTable:
    needed("pandas", "tables")
    parquet = needed("pyarrow.parquet", "tables")
    with path.open("rb") as raw, parquet.ParquetFile(raw, page_checksum_verification=True) as file:
        known = file.metadata
        groups = [known.row_group(number).total_byte_size for number in range(known.num_row_groups)]
        check_room(path, max(sum(groups), NUMBER_BYTES * known.num_rows * known.num_columns))
        batches, size, most = [], 0, room()
        for batch in file.iter_batches(PARQUET_ROWS):  # one long text may stand in every row, and be written once
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                raise DataError(f"{path}: larger than {most:,} bytes, the memory that one data set may use")
        table = needed("pyarrow", "tables").Table.from_batches(batches, file.schema_arrow)
    table.validate(full=True)  # what is broken inside would crash Python, not raise
    return DataTable(table.to_pandas(), str(path))


def _r(path: Path, _: Reading) -> DataTable:
    table = read_frame(*file_and_frame(path))
    _check_names(table.where, list(table.frame.columns))
    return table


READERS: dict[str, Callable[[Path, Reading], DataTable]] = {
    ".csv": _csv,
    ".csv.gz": _csv,
    ".tsv": _csv,
    ".tsv.gz": _csv,
    ".parquet": _parquet,
    ".pq": _parquet,
    **dict.fromkeys(R_ENDINGS, _r),
}
TABLE_ENDINGS = tuple(READERS)


def source_of(table: DataTable, reading: Reading, name: str) -> Source:
    """Return a table as a source."""
    client = client_column(table, reading)
    names = list(table.frame.columns)
    labels = reading.label_columns(names)
    apart = {column: None for column in (*reading.no_features(names), client) if column is not None}
    if not len(table.frame):
        raise DataError(f"{table.where}: no rows")
    if reading.text and reading.categories == "codes":
        raise DataError(f"{table.where}: categories = codes has no network beside a text column; leave one of them out")
    problems: list[str] = []
    with noting_problems(problems):
        label = of_table(table, labels, reading.task)
    with noting_problems(problems):
        columns = [column for column in table.frame.columns if column not in (*apart, reading.text)]
        transform = fit_table(table, columns, reading)
    with noting_problems(problems):
        text = fit_text(table, reading)
    if problems:
        raise DataError(*problems)
    _check_names(table.where, transform.features)  # a column may be called 'sex=f'
    if not transform.features and text is None:
        raise DataError(f"{table.where}: no feature column is left; drop fewer columns")
    row = transform if transform.features else None
    text = text and replace(text, row=row)
    source = Source(
        name,
        (text or transform).apply(table),
        train=len(label.y),
        centre=(0.0,),
        scale=(1.0,),
        model=usual_network(text, transform),
        table=row,
        text=text,
        standardise=row is not None and bool(row.numbers or not row.codes),
        no_features=tuple(apart),
        **label.fields(),
    )
    return with_row_splits(partitioned_by(source, table, client), table, reading)


def usual_network(text: TextTransform | None, row: TableTransform) -> str:
    """Return the network for rows of a table; '' where a text stands beside other columns."""
    if text is not None:
        return "" if row.features else "gru"
    return "tabular-embedding" if row.codes else "tabular"


@contextmanager
def noting_problems(problems: list[str]) -> Iterator[None]:
    """Note what a column is refused for, so that all columns are looked at before the table is refused."""
    try:
        yield
    except DataError as error:
        problems += error.problems


def client_column(table: DataTable, reading: Reading) -> str | None:
    """Return the column that divides a table, if any; refuse columns that are named but missing."""
    columns: list[str] = list(table.frame.columns)
    _check_names(table.where, columns)
    labels = reading.label_columns(columns)
    missing = [label for label in labels if label not in columns]
    if missing:
        raise DataError(f"{table.where}: {one_line(lacking(missing, columns))}")
    for column in (*reading.no_features(columns), reading.column, reading.text):
        if column is not None and column not in columns:
            raise DataError(f"{table.where}: {one_line(unknown('column', column, columns))}")
    usual = CLIENT_COLUMN in columns and CLIENT_COLUMN not in (*labels, *reading.drop)
    return reading.column or (CLIENT_COLUMN if usual else None)


def partitioned_by(source: Source, table: DataTable, column: str | None) -> Source:
    """Return the source, which a column of its table partitions among clients."""
    if column is None:
        return source
    code, names = encode_labels(table.filled(column), table.column(column))
    return replace(source, partition=f"column:{column}", columns={column: Column(names, code)})


def class_labels(table: DataTable, column: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels in a column of a table, and the names of the classes."""
    return as_classes(table.filled(column), table.column(column), table.place)


def _check_names(where: str, names: Sequence[str]) -> None:
    """Refuse names that occur twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DataError(f"{where}: {times} columns are called {name!r}")


def fit_table(table: DataTable, columns: Iterable[str], reading: Reading) -> TableTransform:
    """Return the transform of a table's rows; refuse all columns that are neither numbers nor texts."""
    features: list[tuple[str, str]] = []  # and the column of each
    problems: list[str] = []
    for column in columns:
        with noting_problems(problems):
            features += [(feature, column) for feature in _features(table, column, reading)]
    if problems:
        raise DataError(*problems)
    coded = reading.categories == "codes"
    transform = TableTransform(tuple(own for own, _ in features), tuple(column for _, column in features), coded)
    if coded and not transform.code_sizes:
        raise DataError(f"{table.where}: categories = codes, but no feature is a text; leave it out")
    return transform


def _features(table: DataTable, column: str, reading: Reading) -> list[str]:
    """Return the features of a column: itself, or one for each of its texts."""
    kind = table.kind(column)
    if kind in NUMBER_KINDS:
        _check_numbers(table, column, reading)
        return [column]
    if kind in TEXT_KINDS:
        most = TEXTS if reading.categories == "columns" else CODED_TEXTS
        return [f"{column}{TEXT}{text}" for text in _texts(table, column, most)]
    raise DataError(
        f"{table.column(column)}: {kind}, neither numbers nor texts; leave the column out: --drop {column!r}"
    )


def _check_numbers(table: DataTable, column: str, reading: Reading) -> None:
    """Refuse empty cells and numbers that are not finite, where they are not allowed."""
    exact = table.numbers(column)
    with np.errstate(over="ignore"):
        values = exact.astype(np.float32)
    empty, infinite = np.flatnonzero(np.isnan(values)), np.flatnonzero(np.isinf(values))
    if len(empty) and reading.missing == "refuse" and not reading.allow_nonfinite:
        raise DataError(
            f"{table.cell(int(empty[0]), column)}: empty, {table.such_cells(empty)}; "
            "fill them with the column's mean by --missing mean, or keep them as NaN by --allow-nonfinite-data"
        )
    if len(infinite) and not reading.allow_nonfinite:
        row = int(infinite[0])
        raise DataError(
            f"{table.cell(row, column)}: {exact[row]} is not finite as float32, {table.such_cells(infinite)}; "
            "mend the data, or accept them with --allow-nonfinite-data"
        )


def _texts(table: DataTable, column: str, most: int) -> tuple[str, ...]:
    """Return the different texts of a column, sorted; refuse one that looks like numbers with a mistake among them."""
    pandas, values = needed("pandas", "tables"), table.frame[column]
    present = values.notna().to_numpy()
    odd = present & pandas.to_numeric(values.astype(object), errors="coerce").isna().to_numpy()
    odd &= table.kind(column) != "categorical"  # categories are texts whatever they look like
    if 0 < 2 * odd.sum() < present.sum():
        rows = np.flatnonzero(odd)
        raise DataError(
            f"{table.cell(int(rows[0]), column)}: {values.iloc[rows[0]]!r} is not a number, but most of this "
            f"column are; correct it, or leave the column out: --drop {column!r}{table.also(rows)}"
        )
    with_points = values.astype(object).where(~present, values.astype(str).str.replace(",", "."))
    if present.any() and pandas.to_numeric(with_points[present], errors="coerce").notna().all() and odd.any():
        rows = np.flatnonzero(odd)
        what = f"{values.iloc[rows[0]]!r} is a number with a comma; write a point{table.also(rows)}"
        raise DataError(f"{table.cell(int(rows[0]), column)}: {what}")
    _, names = encode_labels(values[present].drop_duplicates().to_numpy(), table.column(column))
    if len(names) > most:
        many = f"{len(names):,} different texts, more than {most:,}"
        raise DataError(
            f"{table.column(column)}: {many}; leave it out: --drop {column!r}, or read it: --text {column!r}"
        )
    return names
