"""What made the house hard to inherit stays away: `python -m benchmarks.house` counts it, and no count may rise."""

from pathlib import Path

import partwise
from benchmarks import house

PACKAGE = Path(partwise.__file__).parent
MODULES = house.parsed(PACKAGE)
# Commands and what they call; readers of data sets, which are named by strings
NATURAL = {"compare", "load", "main", "make_keys", "read", "run"}


def in_records(found):
    return sum(number for room, number in found.items() if room in house.RECORDS)


def test_a_name_has_one_meaning():
    assert set(house.repeated_names(MODULES)) <= NATURAL


def test_records_have_types_and_fields():
    assert house.of_anything(MODULES, "dict").total() + house.of_anything(MODULES, "Mapping").total() <= 20
    keys = (house.string_keys(MODULES, key_of) for key_of in (house.subscript, house.call))
    assert sum(map(in_records, keys)) <= 100


def test_classes_read_like_their_docstrings():
    methods = house.methods(MODULES)
    assert methods["rounds.server.Server"] <= 18 and methods["engines.engine.Engine"] <= 18
    assert max(methods.values()) <= 28


def test_runs_is_a_room_not_a_storehouse():
    assert sum(path.parent.name == "runs" for path in PACKAGE.rglob("*.py")) <= 20
