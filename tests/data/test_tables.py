"""Tables: what becomes of their columns, and lines that say where something is wrong."""

import gzip
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import partwise
from partwise.data import Source, check, load, partition
from partwise.data.readers.tables import from_frame, read
from partwise.data.reading import Reading
from partwise.data.standardise import standardised
from partwise.errors import DataError
from partwise.reporting.own import own_data_facts
from tests.support.files import refusal

MANY = "x,label\n" + "".join(f"1,c{row}\n" for row in range(1001))
QUANTITY = "x,label\n" + "".join(f"1,{row}\n" for row in range(101))
WORDY = "x,label\n" + "".join(f"a{row},{row % 2}\n" for row in range(51))
SMALL = "age,sex,label,smokes\n50,f,ill,True\n61,m,well,False\n72,m,ill,True\n"


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def hospitals(folder: Path, rows: int = 3000, seed: int = 0) -> Path:
    """Patients of five hospitals, about 1 % of them ill; the older ones and those with a high value more often."""
    random = np.random.default_rng(seed)
    age, value = random.uniform(20, 90, rows), random.normal(100, 15, rows)
    odds = np.exp(-9 + 0.05 * age + 0.01 * value)
    table = {
        "patient": np.arange(rows) + 10_000,
        "hospital": random.choice(["Bern", "Basel", "Chur", "Genf", "Zug"], rows, p=[0.4, 0.3, 0.15, 0.1, 0.05]),
        "age": age.round(1),
        "value": value.round(2),
        "sex": random.choice(["f", "m"], rows),
        "ill": (random.random(rows) < odds / (1 + odds)).astype(int),
    }
    path = folder / "hospitals.csv"
    pandas.DataFrame(table).to_csv(path, index=False)
    return path


def test_a_table_by_hand(tmp_path: Path) -> None:
    source = check(read(written(tmp_path, SMALL), Reading()))
    assert source.feature_names == ("age", "sex=f", "sex=m", "smokes")
    assert source.x.tolist() == [[50, 1, 0, 1], [61, 0, 1, 0], [72, 0, 1, 1]]
    assert source.class_names == ("ill", "well")
    assert source.y.tolist() == [0, 1, 0]
    assert (source.name, source.classes, source.train, source.model) == ("table.csv", 2, 3, "tabular")
    assert (source.standardise, source.centre, source.scale) == (True, (0.0,), (1.0,))
    assert (source.partition, source.columns) == ("dir:0.1", {})


def same(one: Source, two: Source) -> bool:
    return torch.equal(one.x, two.x) and torch.equal(one.y, two.y) and one.feature_names == two.feature_names


def test_every_kind_of_file_holds_the_same_table(tmp_path: Path) -> None:
    frame = pandas.read_csv(written(tmp_path, SMALL))
    paths = [
        written(tmp_path, SMALL, "a.CSV"),
        written(tmp_path, SMALL, "a.csv.gz"),
        written(tmp_path, SMALL.replace(",", "\t"), "a.tsv"),
        written(tmp_path, SMALL.replace(",", "\t"), "tabs.csv"),
        written(tmp_path, SMALL.replace(",", ";"), "semicolons.csv"),
        written(tmp_path, SMALL.replace(",", "|"), "bars.csv.gz"),
        written(tmp_path, SMALL.replace(",", ", ").replace("\n", "\r\n"), "b.csv"),  # from Windows, with spaces
        written(tmp_path, "\ufeff" + SMALL.replace("61", '"61"') + "\n\n", "c.csv"),
        tmp_path / "a.parquet",
        tmp_path / "a.pq",
    ]
    frame.to_parquet(paths[-2])
    frame.set_index(pandas.Index([7, 8, 9], name="number")).to_parquet(paths[-1])  # an index is no feature
    reference = from_frame(frame, Reading())
    for path in paths:
        assert same(read(path, Reading()), reference), path
        assert same(load(str(path)), reference), path


@pytest.mark.parametrize(("text", "names"), [
    ("a;b,label\n1,0\n2,1\n", ("a;b",)),  # the usual sign makes a table, so others are letters of names
    ("a, of b;label\n1;0\n2;1\n", ("a, of b",)),
    ("a,b\tlabel\n1\t0\n2\t1\n", ("a,b",)),
])  # fmt: skip
def test_the_sign_between_cells_is_the_one_that_makes_a_table(
    text: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    source = read(written(tmp_path, text), Reading())
    assert source.feature_names == names and source.x.tolist() == [[1], [2]] and source.y.tolist() == [0, 1]


def test_a_hundred_numbers_may_be_classes_and_more_texts(tmp_path: Path) -> None:
    hundred = QUANTITY.rpartition("1,100")[0]
    assert read(written(tmp_path, hundred), Reading()).classes == 100
    assert read(written(tmp_path, MANY.rpartition("1,c1000")[0]), Reading()).classes == 1000


def test_more_than_a_hundred_numbers_are_a_quantity(tmp_path: Path) -> None:
    source = read(written(tmp_path, QUANTITY), Reading())
    assert (source.task.kind, source.task.names, source.y.tolist()) == (
        "numbers",
        ("label",),
        [[n] for n in range(101)],
    )
    assert read(written(tmp_path, QUANTITY), Reading(task="classes")).classes == 101


def test_numbers_of_every_kind() -> None:
    frame = pandas.DataFrame({
        "label": [1, 2, 1],
        "whole": pandas.array([1, None, 3], dtype="Int64"),
        "yes": pandas.array([True, None, False], dtype="boolean"),
        "maybe": [True, None, False],
        "decimal": [Decimal("1.5"), None, Decimal(2)],
        "arrow": pandas.array([1.5, None, 2], dtype="double[pyarrow]"),
        "nothing": [None, None, None],
        7: [1, 2.5, 3],
    })  # fmt: skip
    source = from_frame(frame, Reading(missing="mean"))
    nan = float("nan")
    expected = torch.tensor([[1, 1, 1, 1.5, 1.5, nan, 1], [*[nan] * 6, 2.5], [3, 0, 0, 2, 2, nan, 3]])
    assert torch.equal(source.x.nan_to_num(-1), expected.nan_to_num(-1))
    assert source.feature_names == ("whole", "yes", "maybe", "decimal", "arrow", "nothing", "7")
    assert list(frame.columns)[-1] == 7  # what was handed in stays as it is


def test_texts_and_categories_become_a_feature_for_each_value_and_empty_ones_none() -> None:
    frame = pandas.DataFrame({
        "label": ["a", "b", "a", "b"],
        "stage": pandas.Categorical([10, 2, None, 2], categories=[10, 2, 99]),
        "town": ["Zug", None, "Bern", "Zug"],
    })  # fmt: skip
    source = from_frame(frame, Reading())
    assert source.feature_names == ("stage=2", "stage=10", "town=Bern", "town=Zug")
    assert source.x.tolist() == [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize(("labels", "names"), [
    ([10, 9, 100], ("9", "10", "100")),  # numbers in the order of numbers,
    (["10", "9", "100"], ("10", "100", "9")),  # texts in the order of texts
    ([1.0, 0.0, 2.0], ("0", "1", "2")),
    ([True, False, True], ("False", "True")),
    (pandas.Categorical(["b", "a", "b"], categories=["b", "c", "a"]), ("a", "b")),
])  # fmt: skip
def test_labels_are_sorted(labels: Any, names: tuple[str, ...]) -> None:
    source = from_frame(pandas.DataFrame({"x": [1, 2, 3], "label": labels}), Reading())
    assert source.class_names == names
    assert [names[label] for label in source.y] == [str(label).removesuffix(".0") for label in labels]


def test_the_client_column(tmp_path: Path) -> None:
    text = "hospital,client,x,label\nb,10,1,0\na,9,2,1\nb,9,3,0\n"
    path = written(tmp_path, text)
    source = read(path, Reading())
    assert (source.partition, source.feature_names) == ("column:client", ("hospital=a", "hospital=b", "x"))
    assert source.columns["client"].names == ("9", "10")
    assert source.columns["client"].code.tolist() == [1, 0, 0]
    source = read(path, Reading(column="hospital"))
    assert (source.partition, source.feature_names) == ("column:hospital", ("client", "x"))
    assert source.columns["hospital"].names == ("a", "b")
    source = read(path, Reading(drop=("client", "hospital")))
    assert (source.partition, source.columns, source.feature_names) == ("dir:0.1", {}, ("x",))


def test_one_client_for_each_hospital(tmp_path: Path) -> None:
    reading = {"label": "ill", "drop": ("patient",), "column": "hospital"}
    source = load(str(hospitals(tmp_path)), **reading)
    assert 0.005 < (source.y == 1).float().mean() < 0.02
    assert source.feature_names == ("age", "value", "sex=f", "sex=m")
    assert source.columns["hospital"].names == ("Basel", "Bern", "Chur", "Genf", "Zug")
    federation = standardised(partition(source, "column:hospital", None, seed=0))
    assert federation.names == source.columns["hospital"].names
    for number, own in enumerate(zip(federation.train, federation.test, strict=True)):
        assert (source.columns["hospital"].code[torch.cat(own)] == number).all()
    rows = source.x[torch.cat(federation.train)].double()
    assert federation.source.centre == pytest.approx(rows.mean(0).tolist(), rel=1e-12)


@pytest.mark.parametrize(("text", "reading", "problem"), [
    ("", {}, ": cannot be read: No columns to parse from file"),
    ("x,label\n", {}, ": no rows"),
    ("x,labels\n1,0\n", {}, ": lacks 'label'; did you mean 'labels'? it has 'x', 'labels'"),
    (SMALL, {"label": "ag"}, ": lacks 'ag'; did you mean 'age'? it has 'age', 'sex', 'label', 'smokes'"),
    (SMALL, {"drop": ("Sex",)}, ": unknown column 'Sex'; did you mean 'sex'?"),
    (SMALL, {"column": "ward"}, ": unknown column 'ward'; known: age, sex, label, smokes"),
    (SMALL, {"drop": ("age", "sex", "smokes")}, ": no feature column is left; drop fewer columns"),
    ("x,x,label\n1,2,0\n", {}, ": 2 columns are called 'x'"),
    ("sex,sex=f,label\nf,1,0\nm,1,1\n", {}, ": 2 columns are called 'sex=f'"),
    (",x,label\n0,2,0\n1,2,1\n", {}, ": column 1 has no name; give it one, or leave it out: --drop 'Unnamed: 0'"),
    ("x,label\n1,0\n2,0\n", {}, ": column 'label': there must be at least two classes, got '0'"),
    ("x,label\n1,0\n\n2,\n", {}, ", line 4, column 'label': empty; fill in the cell, or remove the row"),
    ("x,label\n1,0\n2,0.5\n", {"task": "classes"}, ": column 'label': 0.5 (line 3) is not a whole number;"),
    (MANY, {}, ": column 'label': 1,001 different labels; classification allows at most 1,000 classes"),
    ("x;label\n1;0;1\n", {}, ": no separator gives its first lines the same number of columns; separate columns"),
    ("dose;label\n1,5;0\n2,5;1\n", {}, ", line 2, column 'dose': '1,5' is a number with a comma; write a point"),
    ('x,site,label\n1,"a\nb",0\n1,,1\n', {"column": "site"}, ", line 4, column 'site': empty; fill in the cell"),
    ("x,label\n1,2,0\n", {}, ": cannot be read: Length of header or names does not match length of data"),
    ("x,label\n1,0\n1,2,1\n", {}, "C error: Expected 2 fields in line 3, saw 3"),
    ("x,label\n1,0\n" + '"', {}, ": cannot be read: Error tokenizing data. C error: EOF inside string"),
    (WORDY, {}, ": column 'x': 51 different texts, more than 50; leave it out: --drop 'x'"),
    ('x,label\n1.5,0\n"1,5",1\n2,1\n', {}, ", line 3, column 'x': '1,5' is not a number, but most of this column are; "
     "correct it, or leave the column out: --drop 'x'"),
    (f"x,label\n{'9' * 400},0\n1,1\n2,1\n", {}, ": column 'x': a number is too large; leave it out: --drop 'x'"),
])  # fmt: skip
def test_what_a_table_may_not_be(text: str, reading: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    line = refusal(DataError, lambda: read(path, Reading(**reading)))
    assert line.startswith(str(path))
    assert problem in line
    assert path.read_text() == text


def test_fault_13_an_empty_cell_is_named_by_its_line_and_may_be_filled_or_let_through(tmp_path: Path) -> None:
    path = written(tmp_path, "\n x,z,label\n1,1,0\n2,NA,1\n\n3,,1\n4,n/a,0\n")
    line = refusal(DataError, lambda: read(path, Reading()))
    assert line == (
        f"{path}, line 4, column 'z': empty, one of 3 such cells in this column (also line 6, line 7); "
        "fill them with the column's mean by --missing mean, or keep them as NaN by --allow-nonfinite-data"
    )
    for reading in (Reading(missing="mean"), Reading(allow_nonfinite=True)):
        assert read(path, reading).x.isnan().tolist() == [[False, False], *[[False, True]] * 3]


@pytest.mark.parametrize(("cell", "value"), [("inf", "inf"), ("-inf", "-inf"), ("1e300", "1e+300")])
def test_fault_13_infinity_is_named_by_its_line(cell: str, value: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"x,label\n1,0\n{cell},1\n")
    problem = f"{path}, line 3, column 'x': {value} is not finite as float32, one of 1 such cells in this column;"
    for reading in (Reading(), Reading(missing="mean")):  # no mean can mend it
        assert refusal(DataError, lambda reading=reading: read(path, reading)).startswith(problem)
    assert read(path, Reading(allow_nonfinite=True)).x.isinf().sum() == 1


@pytest.mark.parametrize(("values", "kind"), [
    (pandas.to_datetime(["2020-01-01", "2020-01-02"]), "datetime64"),
    ([[1, 2], [3]], "mixed"),
    ([1, "a"], "mixed-integer"),
    ([b"a", b"b"], "bytes"),
    ([1 + 2j, 3j], "complex"),
])  # fmt: skip
def test_what_a_feature_may_not_be(values: Any, kind: str) -> None:
    frame = pandas.DataFrame({"label": [0, 1], "day": values})
    line = refusal(DataError, lambda: from_frame(frame, Reading(), "visits"))
    assert (
        line == f"table 'visits': column 'day': {kind}, neither numbers nor texts; leave the column out: --drop 'day'"
    )


def test_a_column_of_lists_is_neither_a_label_nor_described(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pandas.DataFrame({"x": [1.0, 2.0], "a": [[1, 2], [3]]}).to_parquet(path)
    start = f"{path}: column 'a': mixed, neither numbers nor texts; leave the column out: --drop 'a'"
    for read_it in (lambda: read(path, Reading(label="a")), lambda: own_data_facts(str(path))):
        assert refusal(DataError, read_it).startswith(start)
    assert refusal(DataError, lambda: read(path, Reading(label="x"))) == start


def test_rows_of_a_frame_are_counted_from_0_and_labels_are_of_one_kind() -> None:
    frame = pandas.DataFrame({"x": [1, None], "label": [0, 1]}, index=[5, 6])
    assert refusal(DataError, lambda: from_frame(frame, Reading())).startswith(
        "table 'table', row 1, column 'x': empty"
    )
    frame = pandas.DataFrame({"x": [1, 2], "label": [0, "a"]})
    assert "column 'label': labels of several types" in refusal(DataError, lambda: from_frame(frame, Reading()))


def test_names_with_line_breaks_leave_a_refusal_on_one_line() -> None:
    frame = pandas.DataFrame({"a\nb": [["x"], ["y"]], "label": [0, 1]})
    refusal(DataError, lambda: from_frame(frame, Reading()))
    refusal(DataError, lambda: from_frame(frame, Reading(label="c\nd")))


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_a_package_that_is_not_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    line = refusal(DataError, lambda: read(tmp_path / name, Reading()))
    assert line.endswith("is needed, but not installed: pip install 'partwise[tables]'")


def test_a_file_that_is_not_there_or_is_something_else(tmp_path: Path) -> None:
    for name in ("table.csv", "table.csv.gz", "table.parquet"):
        line = refusal(DataError, lambda name=name: read(tmp_path / name, Reading()))
        assert line.startswith(f"{tmp_path / name}: cannot be read: ")
        assert "No such file" in line
    (tmp_path / "latin.csv").write_bytes("größe,label\n1,0\n2,1\n".encode("latin-1"))
    assert "codec can't decode" in refusal(DataError, lambda: read(tmp_path / "latin.csv", Reading()))
    (tmp_path / "folder.csv").mkdir()
    assert "Is a directory" in refusal(DataError, lambda: read(tmp_path / "folder.csv", Reading()))


def test_blanks_around_a_text_do_not_make_it_another(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("ward,age,label\nA,1,pos \nA ,2,neg\n B,3, pos\n")
    source = read(path, Reading(column="ward"))
    assert source.columns["ward"].names == ("A", "B") and source.class_names == ("neg", "pos")


def test_numbers_with_a_comma_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('dose,label\n"1,5",0\n"2,25",1\n')
    line = refusal(DataError, lambda: read(path, Reading()))
    assert line == f"{path}, line 2, column 'dose': '1,5' is a number with a comma; write a point (also line 3)"


def test_the_column_domain_of_a_table_is_what_domain_means(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("domain,age,label\n" + "".join(f"{'ab'[row % 2]},{row},{row % 3 % 2}\n" for row in range(24)))
    result = partwise.run("fedavg", data=path, partition="domain", rounds=1)
    assert result.federation.names == ("a", "b") and result.federation.source.feature_names == ("age",)


def test_all_columns_of_a_table_are_refused_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, 'age,dose,weight,label\n1,"1,5",70,0\n,2,inf,1\n3,"2,5",60,1\n,4,50,\n')
    with pytest.raises(DataError) as caught:
        read(path, Reading())
    places = [problem.partition(":")[0].removeprefix(f"{path}, ") for problem in caught.value.problems]
    columns = [f"line {line}, column '{name}'" for line, name in ((5, "label"), (3, "age"), (2, "dose"), (3, "weight"))]
    assert places == columns
    assert "one of 2 such cells in this column (also line 5)" in caught.value.problems[1]
