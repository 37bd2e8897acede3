"""Every test that the pages on federation, privacy and security name is there, in the file that they name."""

import ast
import re
from pathlib import Path

import pytest

from partwise import Method
from partwise.runs.config import known_fields
from tests.support.pages import TABLE, cells

ROOT = Path(__file__).parents[2]
PAGES = ("docs/federation.md", "docs/privacy.md", "docs/security.md")


def functions() -> dict[str, set[str]]:
    """Return the test functions of every file below tests/."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
        found[str(path.relative_to(ROOT))] = names
    return found


def missing(text: str, known: dict[str, set[str]]) -> list[str]:
    """Return the tests that a text names and that are not there; test_fault_62 stands for all that begin with it."""
    every = set().union(*known.values())
    wrong = []
    for file in re.findall(r"`(tests/[\w/]+\.py)`", text):
        wrong += [] if file in known else [file]
    for test in sorted({*re.findall(r"`(test_\w+)`", text)} - known_fields(Method).keys()):  # test_share is a setting
        group = re.fullmatch(r"test_fault_\d+", test)
        there = any(name.startswith(f"{test}_") for name in every) if group else test in every
        wrong += [] if there else [test]
    for test, file in re.findall(r"`(test_\w+)` in `(tests/[\w/]+\.py)`", text):
        wrong += [] if any(name.startswith(test) for name in known.get(file, ())) else [f"{test} in {file}"]
    return wrong


@pytest.mark.parametrize("page", [*PAGES, "docs/how-results-are-checked.md"])
def test_every_test_that_a_page_names_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "`test_" in text and not missing(text, functions())


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_in_a_table_names_its_test(page):
    """In tables with a column `test`, which come with every page."""
    tables = [
        each for each in TABLE.finditer((ROOT / page).read_text(encoding="utf-8")) if "test" in cells(each["head"])
    ]
    rows = [cells(row) for table in tables for row in table["rows"].splitlines()]
    assert len(rows) > 10
    assert not [row for row in rows if not re.search(r"`(test_\w+|tests/[\w/]+\.py)`", row[-1])]


def test_a_test_that_is_not_there_is_found():
    known = {"tests/a/test_b.py": {"test_fault_62_nothing", "test_c"}, "tests/a/test_d.py": {"test_e"}}
    assert not missing("`tests/a/test_b.py`, `test_c` and `test_fault_62`, `test_e` in `tests/a/test_d.py`", known)
    assert missing("`tests/a/test_x.py`", known) == ["tests/a/test_x.py"]
    assert missing("`test_fault_6`, `test_nothing`", known) == ["test_fault_6", "test_nothing"]
    assert missing("`test_c` in `tests/a/test_d.py`", known) == ["test_c in tests/a/test_d.py"]
