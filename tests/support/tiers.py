"""The table of tiers, tests/tiers.toml: which tests are not in the first tier, and which of it are quick."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
Cases = str | list[str] | dict[str, list[str]]  # "all", some by their names, or all except some
SELECTIONS = {"check", "portable"}  # no tiers: what `make check` and `make test-portable` take of the first tier


class Collected(NamedTuple):
    """A collected test: its file below tests/, its function and the id of its case, which may be empty."""

    file: str
    function: str
    case: str


COLLECTED = pytest.StashKey[list[Collected]]()  # all tests of a session, before some of them are selected


class Entry(NamedTuple):
    """A line of the table; its file may hold `*`, its function is empty where it names a whole file."""

    tier: str
    file: str
    function: str
    cases: Cases

    def names(self, test: Collected) -> bool:
        """Return whether the entry puts a test into its tier."""
        if not matches(self.file, test.file) or self.function not in ("", test.function):
            return False
        name = test.case if self.function else test.function
        if isinstance(self.cases, dict):
            return not any(matches(pattern, name) for pattern in self.cases["except"])
        return self.cases == "all" or any(matches(pattern, name) for pattern in self.cases)

    def parts(self) -> Iterator["Entry"]:
        """Yield the entry itself, and one for each of its patterns: each has to name a test."""
        yield self
        if self.cases != "all":
            for pattern in self.cases["except"] if isinstance(self.cases, dict) else self.cases:
                yield self._replace(cases=[pattern])


def matches(pattern: str, text: str) -> bool:
    """Return whether a text is the pattern's, in which `*` stands for any text and nothing else is special."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def read(table: dict[str, dict[str, Any]]) -> list[Entry]:
    """Return the entries of a table."""
    return [
        Entry(tier, file, function, cases)
        for tier, files in table.items()
        for file, functions in files.items()
        for function, cases in (
            functions.items() if isinstance(functions, dict) and "except" not in functions else [("", functions)]
        )
    ]


ENTRIES = read(tomllib.loads((TESTS / "tiers.toml").read_text()))


@cache
def entries_of(file: str) -> list[Entry]:
    """Return the entries for a file below tests/."""
    return [entry for entry in ENTRIES if matches(entry.file, file)]


def markers_of(test: Collected) -> list[str]:
    """Return the markers of a test: its tier or, in the first tier, the selections that it belongs to."""
    named = [entry.tier for entry in entries_of(test.file) if entry.names(test)]
    return [tier for tier in named if tier not in SELECTIONS] or named


def stale(entries: Iterable[Entry], tests: Iterable[Collected]) -> list[Entry]:
    """Return the entries, and those made of their patterns, that name none of the tests."""
    tests = list(tests)
    return [part for entry in entries for part in entry.parts() if not any(map(part.names, tests))]
