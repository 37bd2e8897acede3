"""What benchmarks.house counts, on a package of two rooms whose numbers can be counted by hand."""

import ast
from collections import Counter

import pytest

from benchmarks import house

RUNS = '''"""A module."""
from partwise import errors
from partwise.records.codec import decode

LIMIT = 3
Row = dict[str, Any]


class Large:
    def one(self, row: dict[str, Any], kind: Literal["train"]) -> "Mapping[str, Any]":
        """Return a row."""
        row["round"] = row["first"] + row.get("round", 0)
        return row[0] + row[name]

    async def two(self):
        """What stands there."""
        mine: dict["Row", int] = {}
        def inside(): ...

    def _three(self): ...


class Small(Large):
    """A class."""

    def one(self): ...
'''
RECORDS = '''
LIMIT: int = 4
log = 1
kinds = Literal["train"]


def decode(rows: list[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Yield, one after another, rows."""
    del rows[0]["name"]
    rows[1].pop("kind"), rows.setdefault("kind", {})["x"], rows.append("kind")


def main(): ...
'''


@pytest.fixture
def package(tmp_path):
    for name, text in {"runs/choose.py": RUNS, "records/codec.py": RECORDS, "__init__.py": "log = 2\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_stands_in_the_files(package):
    modules = house.parsed(package)
    assert set(modules) == {"", "runs.choose", "records.codec"}
    assert house.repeated_names(modules) == {"LIMIT": ["records.codec", "runs.choose"]}
    assert house.methods(modules) == {"runs.choose.Large": 3, "runs.choose.Small": 1}
    assert +house.of_anything(modules, "dict") == {"runs": 2, "records": 1}
    assert +house.of_anything(modules, "Mapping") == {"records": 1}
    assert +house.string_keys(modules, house.subscript) == {"runs": 2, "records": 2}
    assert +house.string_keys(modules, house.call) == {"runs": 1, "records": 2}
    assert house.imports(modules)["runs"] == ["errors", "records"]
    assert house.lines(package) == {"runs/choose.py": 26, "records/codec.py": 13, "__init__.py": 1}


def test_public_functions_and_classes(package):
    modules = house.parsed(package)
    names = {room: [node.name for node in house.public(modules[room])] for room in ("runs.choose", "records.codec")}
    assert names == {"runs.choose": ["Large", "one", "two", "Small", "one"], "records.codec": ["decode", "main"]}


@pytest.mark.parametrize(
    ("docstring", "verb"),
    [
        ("Return rows.", True),
        ("Yield, one by one, rows.", True),
        ("What stands there.", False),
        ("(rows,) of it", False),
    ],
)
def test_what_begins_with_a_verb(docstring, verb):
    assert house.begins_with_verb(docstring) is verb


def test_lines_that_are_printed(package):
    printed = house.counted(package)
    rooms = "in the rooms between rounds and people"
    assert "public functions without docstring: 2, of which 2 " + rooms + ": records 1, runs 1" in printed
    assert "docstrings of public functions that begin with no verb: 1, of which 1 " + rooms + ": runs 1" in printed
    assert "public classes without docstring: 1, of which 1 " + rooms + ": runs 1" in printed
    assert "files: 3, of which 2 " + rooms + ": __init__ 1, records 1, runs 1" in printed
    assert "lines: 40; longest files: runs/choose.py 26, records/codec.py 13, __init__.py 1" in printed


def test_the_key_of_an_expression():
    [subscript] = ast.parse('row["round"]').body
    assert ast.unparse(house.subscript(subscript.value)) == "'round'"
    assert (
        house.by_room("keys", Counter(data=2)) == "keys: 2, of which 0 in the rooms between rounds and people: data 2"
    )
