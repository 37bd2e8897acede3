"""The table of tiers names tests that exist, and each of them once."""

import pytest

from tests.support import tiers
from tests.support.tiers import COLLECTED, ENTRIES, SELECTIONS, TESTS, Collected, markers_of, matches, read, stale

LAW = [Collected("a.py", "test_law", case) for case in ("few-loop", "few-vector", "many-loop")]


@pytest.mark.parametrize(
    ("cases", "named"),
    [
        ("all", [True, True, True]),
        (["few-loop"], [True, False, False]),
        (["*-loop"], [True, False, True]),
        ({"except": ["few-*"]}, [False, False, True]),
    ],
)
def test_an_entry_names_its_cases(cases, named):
    [entry] = read({"slow": {"a.py": {"test_law": cases}}})
    assert [entry.names(test) for test in LAW] == named
    assert not entry.names(Collected("a.py", "test_another", "few-loop"))
    assert not entry.names(Collected("b.py", "test_law", "few-loop"))


def test_an_entry_for_a_file_leaves_out_tests_by_their_names():
    [entry] = read({"check": {"*.py": {"except": ["test_law"]}}})
    assert not entry.names(LAW[0]) and entry.names(Collected("a.py", "test_another", "few-loop"))
    assert [part.cases for part in stale([entry], [Collected("a.py", "test_another", "")])] == [["test_law"]]


def test_a_selection_takes_nothing_from_another_tier(monkeypatch):
    selections = {"check": {"a.py": "all"}, "portable": {"a.py": {"test_law": ["*-loop"]}}}
    entries = read({**selections, "slow": {"a.py": {"test_law": ["many-*"]}}})
    monkeypatch.setattr(tiers, "entries_of", lambda file: entries)
    assert [markers_of(test) for test in LAW] == [["check", "portable"], ["check"], ["slow"]]


def test_an_entry_that_names_no_test_is_found():
    files = {"a.py": {"test_law": ["few-*", "gone"], "test_gone": "all"}, "gone/*.py": "all", "a.*": "all"}
    found = stale(read({"slow": files}), LAW)
    assert [(entry.file, entry.function, entry.cases) for entry in found] == [
        ("a.py", "test_law", ["gone"]),
        ("a.py", "test_gone", "all"),
        ("gone/*.py", "", "all"),
    ]


def test_files_of_the_table_exist():
    assert [entry.file for entry in ENTRIES if not list(TESTS.glob(entry.file))] == []


def test_every_entry_names_a_test_and_no_test_has_two_tiers(pytestconfig):
    tests = pytestconfig.stash[COLLECTED]
    files = {test.file for test in tests}
    if not all(any(matches(entry.file, file) for file in files) for entry in ENTRIES):
        pytest.skip("the table is compared where all tests are collected, as by `make test`")
    assert stale(ENTRIES, tests) == []
    assert [test for test in tests if len(markers := markers_of(test)) > 1 and not SELECTIONS.issuperset(markers)] == []
