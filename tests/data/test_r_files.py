"""R's files and packages: what becomes of their columns, and one line for all that cannot be read."""

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
import rdata
import torch

from partwise.data import CATALOGUE, Source, load, partition
from partwise.data.readers import r_files
from partwise.data.readers.r_files import read_package_frame
from partwise.data.readers.tables import opened_table, read
from partwise.data.reading import Reading
from partwise.errors import ConfigError, DataError
from partwise.federation.protocol.silo import read_silo
from partwise.reporting.own import own_data_facts
from tests.support.files import refusal
from tests.support.r_files import (
    LIST,
    LOGICAL,
    NA,
    NA_REAL,
    NOTHING,
    PACKED,
    factor,
    frame,
    integers,
    rda,
    rds,
    reals,
    sequence,
    texts,
    whole,
    write_package,
)

SMALL = {
    "age": integers(50, 61, 72),
    "sex": factor([1, 2, 2], ["f", "m"]),
    "label": texts("ill", "well", "ill"),
}
FIRST, SECOND = frame(SMALL, 3), frame({"age": reals(1.5, 2.5), "label": integers(1, 2)}, 2)


def written(folder: Path, content: bytes, name: str = "table.rds") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def whole_table(path: Path) -> pandas.DataFrame:
    return opened_table(path, Reading()).frame


def test_every_kind_of_column_by_hand(tmp_path: Path) -> None:
    columns = {
        "integer": integers(1, NA, 3),
        "real": reals(0.5, NA_REAL, float("nan")),
        "logical": integers(1, 0, NA, kind=LOGICAL),
        "text": texts("é", None, "b"),
        "factor": factor([2, NA, 1], ["3+", "0"]),
        "date": reals(0.0, 18262.0, NA_REAL, **{"class": texts("Date")}),
        "moment": reals(0.0, 1.5, NA_REAL, **{"class": texts("POSIXct", "POSIXt")}),
        "large": reals(*np.array([2**60 + 1, -1, np.iinfo(np.int64).min]).view(float), **{"class": texts("integer64")}),
        "named": reals(1.0, 2.0, 3.0, names=texts("a", "b", "c")),
        "sequence": sequence(3),
    }
    read = whole_table(written(tmp_path, rds(frame(columns, 3))))
    cells = {name: [None if pandas.isna(cell) else cell for cell in read[name]] for name in read}
    assert cells["integer"] == [1, None, 3] and cells["large"] == [2**60 + 1, -1, None]
    assert cells["real"] == [0.5, None, None]
    assert cells["logical"] == [True, False, None]
    assert cells["text"] == ["é", None, "b"] and cells["factor"] == ["0", None, "3+"]
    days = [pandas.Timestamp(0), pandas.Timestamp("2020-01-01"), None]
    assert cells["date"] == days and cells["moment"] == [days[0], pandas.Timestamp("1970-01-01 00:00:01.5"), None]
    assert cells["named"] == [1, 2, 3] and cells["sequence"] == [1, 2, 3]


@pytest.mark.parametrize("packed", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(("name", "content"), [
    ("table.rds", rds(FIRST)),
    ("table.rda", rda({"first": FIRST})),
    ("table.RData", rda({"note": texts("no table"), "first": FIRST})),
])  # fmt: skip
def test_every_file_holds_the_table_of_a_csv_file(
    tmp_path: Path, name: str, content: bytes, packed: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "table.csv").write_text("age,sex,label\n50,f,ill\n61,m,well\n72,m,ill\n")
    one, other = (read(path, Reading()) for path in (tmp_path / "table.csv", written(tmp_path, packed(content), name)))
    assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert (one.feature_names, one.class_names) == (other.feature_names, other.class_names)


def test_files_that_another_program_wrote(tmp_path: Path) -> None:
    wanted = pandas.DataFrame({"age": [50, 61], "sex": pandas.Categorical(["f", "m"]), "ill": [True, False]})
    rdata.write_rda(tmp_path / "table.rda", {"table": wanted})
    rdata.write_rds(tmp_path / "table.rds", wanted, file_format="ascii", compression="xz")
    for name in ("table.rda", "table.rds"):
        assert whole_table(tmp_path / name).astype(object).equals(wanted.astype(object))


def test_one_of_several_data_frames_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, rda({"first": FIRST, "number": reals(1.0), "second": SECOND}), "two.rda")
    line = refusal(DataError, lambda: load(str(path)))
    assert line == f"{path}: it holds 2 data frames: first, second; choose one, as {path}#first"
    assert load(f"{path}#first").x.tolist() == [[50, 1, 0], [61, 0, 1], [72, 0, 1]]
    assert load("two.rda#second", tmp_path).x.tolist() == [[1.5], [2.5]]
    assert own_data_facts(f"{path}#second").samples == 2
    assert "unknown data frame 'secnd'; did you mean 'second'?" in refusal(DataError, lambda: load(f"{path}#secnd"))
    assert "unknown data set" in refusal(ConfigError, lambda: load(f"{tmp_path}/one.rda#first"))
    assert "unknown data set" in refusal(ConfigError, lambda: load(f"{written(tmp_path, b'x,label', 'a.csv')}#first"))


def test_a_silos_file_names_a_data_frame_beside_it(tmp_path: Path) -> None:
    written(tmp_path, rda({"first": FIRST, "second": SECOND}), "two.rda")
    silo = tmp_path / "graz.toml"
    silo.write_text('name = "Graz"\n[data]\ndata = "two.rda#second"\n')
    assert load(read_silo(silo).data["data"]).x.tolist() == [[1.5], [2.5]]


def test_a_folder_may_hold_a_file_of_r_for_each_client(tmp_path: Path) -> None:
    for client in ("Graz", "Wien"):
        written(tmp_path, rds(FIRST), f"{client}.rds")
    source = load(str(tmp_path))
    assert source.columns["client"].names == ("Graz", "Wien") and len(source.y) == 6


def test_a_factors_levels_are_texts_whatever_they_look_like(tmp_path: Path) -> None:
    def children(column: bytes) -> Path:
        return written(tmp_path, rds(frame({"children": column, "label": integers(0, 1, 1)}, 3)))

    source = read(children(factor([1, 2, 3], ["0", "1", "2+"])), Reading())
    assert source.feature_names == ("children=0", "children=1", "children=2+")
    assert "'2+' is not a number" in refusal(DataError, lambda: read(children(texts("0", "1", "2+")), Reading()))


def test_columns_that_are_no_vectors_are_named(tmp_path: Path) -> None:
    matrix = reals(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, dim=integers(3, 2))
    path = written(tmp_path, rds(frame({**SMALL, "scores": matrix}, 3)))
    assert "'scores': mixed, neither numbers nor texts; leave" in refusal(DataError, lambda: read(path, Reading()))
    assert read(path, Reading(drop=("scores",))).x.shape == (3, 3)
    path = written(tmp_path, rds(frame(SMALL, 3, names=["age", "age", "label"])))
    assert "2 columns are called 'age'" in refusal(DataError, lambda: read(path, Reading()))


NESTED = whole(LIST) * 5000 + whole(NOTHING) * 5001
BROKEN = {
    "not R's": (b"age,label\n1,2\n", "not a file that R's save or saveRDS wrote"),
    "compressed twice": (gzip.compress(gzip.compress(rds(FIRST))), "not a file that R's save or saveRDS wrote"),
    "cut": (rds(FIRST)[:-40], "damaged, or of a kind that rdata does not read"),
    "cut in its compression": (gzip.compress(rds(FIRST))[:-20], "cannot be read"),
    "more than it says": (rds(FIRST) + b"more", "damaged, or of a kind that rdata does not read"),
    "no data frame": (rds(reals(1.0)), "it holds no data frame"),
    "nested deeply": (rds(NESTED), "damaged, or of a kind that rdata does not read"),
    "a long sequence": (rds(frame({**SMALL, "many": sequence(1e15)}, 3)), "of memory, but only"),
    "another length": (rds(frame({**SMALL, "more": integers(1, 2)}, 3)), "cannot be read as a data frame"),
    "no such level": (rds(frame({**SMALL, "sex": factor([-1, 1, 1], ["f"])}, 3)), "a factor has no level -1"),
    "no names": (rds(frame(SMALL, 3)).replace(b"names", b"namen"), "cannot be read as a data frame"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "line"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = written(tmp_path, content)
    assert line in refusal(DataError, lambda: load(str(path)))


def test_a_file_that_grows_beyond_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, gzip.compress(rds(frame({"zeros": integers(*[0] * 10**6)}, 10**6))))
    monkeypatch.setattr(r_files, "room", lambda: 10**6)
    assert path.stat().st_size < 10**4
    assert "larger than 1,000,000 bytes" in refusal(DataError, lambda: load(str(path)))


def test_without_rdata_the_line_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdata", None)
    path = written(tmp_path, rds(FIRST))
    assert "pip install 'partwise[r]'" in refusal(DataError, lambda: load(str(path)))


# ---- packages


@pytest.mark.parametrize("packed", PACKED)
def test_a_package_holds_its_frames_however_they_are_packed(tmp_path: Path, packed: str) -> None:
    index = write_package(tmp_path, {"first": FIRST, "second": SECOND}, packed)
    assert read_package_frame(index, "second").frame["age"].tolist() == [1.5, 2.5]
    assert "unknown data frame 'third'" in refusal(DataError, lambda: read_package_frame(index, "third"))
    data = tmp_path / "Rdata.rdb"
    data.write_bytes(data.read_bytes()[:-30])
    assert str(data) in refusal(DataError, lambda: read_package_frame(index, "second"))
    data.unlink()
    assert str(data) in refusal(DataError, lambda: read_package_frame(index, "first"))


RATINGS = frame(
    {
        "s": factor([1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 4, 4], ["11", "12", "13", "14"]),
        "d": factor([*range(1, 13)], [str(number) for number in range(1, 13)]),
        "studage": factor([1, 2] * 6, ["2", "4"]),
        "dept": factor([1] * 6 + [2] * 6, ["9", "10"]),
        "y": integers(*[1, 5, 2] * 4),
    },
    12,
)


@pytest.mark.parametrize("place", ["lme4/data/Rdata.rdx", "InstEval.rda"])
def test_a_named_federation_of_a_package(nowhere: Path, place: str) -> None:
    known = CATALOGUE["insteval"]
    line = refusal(DataError, lambda: load("insteval", nowhere / "root"))
    assert str(nowhere / "root" / place) in line and "Debian's package r-cran-lme4" in line and "InstEval.rda" in line
    (nowhere / "root").mkdir()
    if place.endswith(".rdx"):
        write_package((nowhere / "root" / place).parent, {"InstEval": RATINGS})
    else:
        written(nowhere / "root", rda({"InstEval": RATINGS}), place)
    source = load("insteval", nowhere / "root")
    assert source.feature_names == ("studage=2", "studage=4") and source.class_names == ("1", "2", "5")
    assert source.no_features == ("y", "d", "s", "dept")
    federation = partition(source, known.partition, None, seed=0)
    assert federation.names == ("10", "9")
    assert source.groups is not None and source.groups.tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 3, 3]
    assert [len(own) for own in federation.test] == [2, 2]  # both ratings of one student in each department
    wanted = load("insteval", nowhere / "root", label="studage", split_by="d", drop=("s",))
    assert wanted.class_names == ("2", "4") and wanted.no_features == ("studage", "d", "s", "dept")


def test_rows_without_a_client_are_left_out_and_said(nowhere: Path) -> None:
    columns = {
        "inst": integers(3, 1, NA, 1, 3, 3, 1, NA),
        "time": reals(*[306.5, 455, 1010, 210, 883, 1022, 310, 361]),
        "status": integers(*[2, 1] * 4),
        "age": integers(74, 68, 56, NA, 60, 74, 68, 71),
    }
    (nowhere / "root").mkdir()
    written(nowhere / "root", rda({"lung": frame(columns, 8)}), "lung.rda")
    source = load("lung", nowhere / "root", missing="mean")
    assert source.task.kind == "numbers" and source.y[:, 0].tolist() == [306.5, 455, 210, 883, 1022, 310]
    assert source.feature_names == ("age",) and source.columns["inst"].names == ("1", "3")
    status, lacking = source.notes[1:]
    assert "status is left out" in status and lacking.startswith("2 of 8 rows name no client ('inst' is empty)")
    assert "age" in refusal(DataError, lambda: load("lung", nowhere / "root"))  # a cell is empty
    other = load("lung", nowhere / "root", label="status", drop=("time",), missing="mean")
    assert other.class_names == ("1", "2") and not any("status is left out" in note for note in other.notes)


def real(name: str) -> Source:
    try:
        return load(name)
    except DataError as error:
        if "is missing" not in str(error):
            raise
        pytest.skip(f"R's package with {name} is not on this machine")


@pytest.mark.parametrize(("name", "classes", "smallest"), [
    ("chem97", [3688, 3627, 4619, 5739, 6668, 6681], 10),
    ("contraception", [1175, 759], 2),
    ("insteval", [10186, 12951, 17609, 16921, 15754], 2520),
])  # fmt: skip
def test_the_real_federations(name: str, classes: list[int], smallest: int) -> None:
    source, known = real(name), CATALOGUE[name]
    assert source.y.bincount().tolist() == classes
    assert (f"{len(source.y):,}", source.classes, source.x.shape[1:]) == (known.samples, known.classes, known.shape)
    assert (source.model, source.partition) == (known.model, known.partition)
    clients = source.columns[known.partition.removeprefix("column:")]
    assert f"{len(clients.names)} of them" in known.summary
    assert int(clients.code.bincount().min()) == smallest


@pytest.mark.parametrize(("name", "smallest", "groups"), [("hsb82", 14, None), ("rhdnase", 7, 647), ("lung", 2, None)])
def test_the_real_federations_of_numbers(name: str, smallest: int, groups: int | None) -> None:
    try:
        source = load(name, missing="mean")
    except DataError as error:
        if "is missing" not in str(error):
            raise
        pytest.skip(f"R's package with {name} is not on this machine")
    known = CATALOGUE[name]
    assert source.task.kind == "numbers" and source.y.shape == (len(source.x), 1)
    assert (f"{len(source.y):,}", source.x.shape[1:], source.model) == (known.samples, known.shape, known.model)
    clients = source.columns[known.partition.removeprefix("column:")]
    assert f"{len(clients.names)} of them" in known.summary
    assert int(clients.code.bincount().min()) == smallest
    assert groups == (None if source.groups is None else len(source.groups.unique()))
