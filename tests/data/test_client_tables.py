"""A table for each client: files of a folder, or frames; together they are one table with a column of clients."""

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import partwise
from partwise.data import load
from partwise.data.own import as_data
from partwise.data.reading import Reading
from partwise.errors import ConfigError, DataError
from tests.support.files import refusal

CLINICS = {
    "Graz": "age,sex,died\n" + "".join(f"{30 + i},{'fm'[i % 2]},{i % 3 % 2}\n" for i in range(12)),
    "Linz": "died;sex;age\n" + "".join(f"{i % 2};{'mf'[i % 2]};{40 + i}\n" for i in range(8)),  # another order and sign
    "Wien": "age,sex,died\n" + "".join(f"{50 + i},,{i % 2}\n" for i in range(10)),  # no text in this column
}


def written(folder: Path, clinics: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in clinics.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "README.txt").write_text("where they come from")
    return folder


def frames(clinics: dict[str, str], folder: Path) -> dict[str, Any]:
    return {name: pandas.read_csv(folder / f"{name}.csv", sep=None, engine="python") for name in clinics}


def test_a_folder_and_a_dict_of_frames_are_one_table_with_a_column_of_clients(tmp_path: Path) -> None:
    folder = written(tmp_path / "clinics", CLINICS)
    source = load(str(folder), label="died")
    assert source.columns["client"].names == ("Graz", "Linz", "Wien") and source.partition == "column:client"
    assert torch.bincount(source.columns["client"].code).tolist() == [12, 8, 10]
    assert source.feature_names == ("age", "sex=f", "sex=m")
    assert source.x[12].tolist() == [40, 0, 1] and source.x[-1].tolist() == [59, 0, 0]
    same = as_data(frames(CLINICS, folder), Reading(label="died"))
    assert torch.equal(same.x, source.x) and torch.equal(same.y, source.y)
    assert same.columns["client"].names == source.columns["client"].names
    numbered = as_data(list(frames(CLINICS, folder).values()), Reading(label="died"))
    assert numbered.columns["client"].names == ("0", "1", "2") and torch.equal(numbered.x, source.x)


def test_a_run_has_the_files_names_as_clients(tmp_path: Path) -> None:
    folder = written(tmp_path / "clinics", CLINICS)
    results = [
        partwise.run("fedper", data=data, label="died", rounds=1, engine="loop")
        for data in (folder, frames(CLINICS, folder))
    ]
    for result in results:
        assert result.federation.names == ("Graz", "Linz", "Wien")
        assert [len(own) for own in result.federation.train] == [9, 6, 8]
    assert results[0].metrics[-1]["received"] == results[1].metrics[-1]["received"]


@pytest.mark.parametrize(("clinic", "text", "problem"), [
    ("Wien", "age,died\n1,0\n", "Wien.csv: lacks 'sex'; all clients need the columns that most have"),
    ("Graz", "age,sex,died,dose\n1,f,0,2\n", "Graz.csv: has 'dose' besides; all clients need"),
    ("Linz", "years,sex,died\n1,f,0\n", "Linz.csv: lacks 'age' and has 'years' besides; all clients need"),
    ("Linz", "age,sex,died\nold,f,0\n", "Linz.csv: column 'age': texts, but numbers in the tables of most clients"),
    ("Linz", "age,sex,died\n1,f,0\n\n,m,1\n", ", Linz.csv, line 4, column 'age': empty, one of 1 such cells"),
    ("Linz", "age,sex,died\n", "Linz.csv: no rows"),
    ("Linz", "age,sex,died,client\n1,f,0,a\n", "Linz.csv: the table of one client must not have a column 'client'"),
])  # fmt: skip
def test_the_odd_one_is_named(clinic: str, text: str, problem: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "clinics", {**CLINICS, clinic: text})
    assert problem in refusal(DataError, lambda: load(str(folder), label="died"))


def test_what_a_folder_of_tables_may_not_be(tmp_path: Path) -> None:
    folder = written(tmp_path / "clinics", CLINICS)
    line = refusal(DataError, lambda: load(str(folder), label="died", column="sex"))
    assert line == f"{folder}: the folder has one table per client, so it is already divided; leave out column:sex"
    (folder / "Graz.tsv").write_text("age\tsex\tdied\n1\tf\t0\n")
    line = refusal(DataError, lambda: load(str(folder), label="died"))
    assert line == f"{folder}: two files belong to client 'Graz'; rename one"
    (folder / "deeper").mkdir()  # folders in it: images, and none is there
    assert "no images in it" in refusal(DataError, lambda: load(str(folder)))
    with pytest.raises(ConfigError, match="applies only to tables"):
        as_data({"a": pandas.DataFrame(), "b": (torch.ones(2, 1), [0, 1])}, Reading(label="died"))
