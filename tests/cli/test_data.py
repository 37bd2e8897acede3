"""`partwise data`: what is there, where it was looked for, and how to get it."""

import json

import numpy as np

from partwise.data import CATALOGUE
from tests.support.commands import refuse, succeed


def test_the_list_names_every_data_set(capsys):
    listed = [line.split()[:1] for line in succeed(capsys, "data").splitlines()]
    assert all([name] in listed for name in CATALOGUE)


def test_a_page_says_where_it_was_looked_for(capsys, tmp_path):
    page = succeed(capsys, "data", "tiny-imagenet", "--data-root", tmp_path)
    assert str(tmp_path) in page and "missing" in page


def test_json(capsys, tmp_path):
    every = json.loads(succeed(capsys, "data", "--json"))
    assert [about["name"] for about in every] == list(CATALOGUE)
    [one] = json.loads(succeed(capsys, "data", "tiny-imagenet", "--json", "--data-root", tmp_path))
    assert one["name"] == "tiny-imagenet" and one["found"] is None
    assert any(str(tmp_path) in place for place in one["looked_in"])


def test_a_file_of_ones_own_is_described(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{30 + i / 4};{'fm'[i % 2]};{'ABC'[i % 3]};{i % 5 % 2};{'' if i else 1}" for i in range(200)]
    (tmp_path / "patients.csv").write_text("\n".join(["age;sex;hospital;died;note", *rows]))
    [about] = json.loads(succeed(capsys, "data", "patients.csv", "--json"))
    assert (about["samples"], about["empty"]) == (200, 199)
    assert {each["name"]: (each["kind"], each["different"], each["could_be"]) for each in about["columns"]} == {
        "age": ("numbers", 200, ["label"]),
        "sex": ("texts", 2, ["label", "clients"]),
        "hospital": ("texts", 3, ["label", "clients"]),
        "died": ("numbers", 2, ["label", "clients"]),
        "note": ("numbers", 1, []),
    }
    tasks = {each["name"]: each["task"] for each in about["columns"]}
    assert tasks == {"age": "numbers", "sex": "classes", "hospital": "classes", "died": "classes", "note": ""}
    assert about["example"] == "partwise run fedper --data patients.csv --label died --partition column:hospital"
    page = succeed(capsys, "data", "patients.csv")
    for line in ("  samples      200", "  empty cells  199", f"  {about['example']}"):
        assert line in page.splitlines()
    assert "  hospital  texts    3 different    0 empty    could be label (classes) or clients" in page.splitlines()


def test_folders_and_arrays_of_ones_own_are_described(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinics").mkdir()
    for clinic in ("Graz", "Wien"):
        (tmp_path / "clinics" / f"{clinic}.csv").write_text("age,died\n" + "1,0\n2,1\n" * 3)
    [about] = json.loads(succeed(capsys, "data", "clinics", "--json"))
    assert [each["could_be"] for each in about["columns"]] == [["label"], ["label"], ["clients"]]
    assert about["example"] == "partwise run fedper --data clinics --label died"
    np.savez("arrays.npz", x=np.zeros((6, 5), np.float32), y=["cat", "dog"] * 3)
    lines = succeed(capsys, "data", "arrays.npz").splitlines()
    assert "  samples  6" in lines and "  shape    5" in lines and "  classes  2: cat, dog" in lines


def test_what_auto_takes_of_each_label_and_how_many_cells_are_unknown(capsys, tmp_path):
    rows = [f"{i / 8},{'' if i % 4 else i + 0.5},{'' if i < 3 else i % 2},{i},{'x' if i else ''}" for i in range(120)]
    (tmp_path / "table.csv").write_text("\n".join(["age,stay,sick,number,note", *rows]))
    lines = succeed(capsys, "data", tmp_path / "table.csv").splitlines()
    told = {line.split()[0]: line.partition("could be ")[2] for line in lines if " empty" in line}
    told.pop("empty")
    assert told == {
        "age": "label (numbers)",
        "stay": "label (numbers, 90 unknown)",
        "sick": "one of several labels (3 unknown)",
        "number": "label (numbers)",  # whole, but more than 100 different ones
        "note": "",
    }
    np.savez(tmp_path / "stays.npz", x=np.zeros((6, 5), np.float32), y=np.array([0.5, 1.5, np.nan, 2, 3, 4]))
    lines = succeed(capsys, "data", tmp_path / "stays.npz").splitlines()
    assert "  task            numbers" in lines and "  unknown labels  1" in lines
    labels = np.array([[0, 1, -1, 2]] * 6)
    np.savez(tmp_path / "series.npz", x=np.zeros((6, 1, 4), np.float32), y=labels)
    lines = succeed(capsys, "data", tmp_path / "series.npz").splitlines()
    assert "  task            places" in lines and "  unknown labels  6" in lines
    assert "  classes         3: 0, 1, 2" in lines


def test_download_of_what_is_there_already(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("partwise.data.readers.download.download", lambda *arguments: asked.append(arguments))
    page = succeed(capsys, "data", "digits", "--download", "--data-root", "somewhere")
    assert asked == [("digits", "somewhere")] and page == succeed(capsys, "data", "digits", "--data-root", "somewhere")


def test_refusals(capsys):
    assert "unknown data set 'cfar10'; did you mean 'cifar10'?" in refuse(capsys, "data", "cfar10")
    assert (
        refuse(capsys, "data", "--download") == "error: --download fetches one data set: partwise data NAME --download"
    )
    assert "unknown option '--jsn'; did you mean '--json'?" in refuse(capsys, "data", "--jsn")
