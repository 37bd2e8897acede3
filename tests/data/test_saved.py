"""Saved partitions: what is read is what was saved, and whatever happened to a file is noticed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.data import Column, Federation, Source, load, partition, saved
from partwise.errors import ConfigError, DataError
from tests.support.files import refusal

SETS = ("train", "validation", "test")


def labelled(*labels: int) -> Source:
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return Source("ours", images, torch.tensor(labels), 3, len(labels), (0.0,), (1.0,))


SMALL = Federation(
    labelled(0, 1, 2, 0, 1, 2),
    [torch.tensor([5, 0]), torch.arange(0)],
    [torch.tensor([1]), torch.tensor([3])],
    torch.tensor([1, 3, 4]),
    [torch.tensor([2]), torch.arange(0)],
    "dir:0.1",
    ("north", "süd"),
)


@st.composite
def federations(draw: st.DrawFn) -> Federation:
    """Any samples at any clients, in any order, some of them left out."""
    samples, clients = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    order, place = random.permutation(samples), random.integers(0, 3 * clients + 1, samples)
    train, validation, test = (
        [torch.from_numpy(order[place == 3 * client + number]) for client in range(clients)] for number in range(3)
    )
    names = draw(st.just(()) | st.lists(st.text(), min_size=clients, max_size=clients).map(tuple))
    source = labelled(*random.integers(0, 3, samples).tolist())
    return Federation(source, train, test, torch.cat(test), validation, draw(st.text()), names)


def same(one: Federation, other: Federation) -> bool:
    sets = [zip(getattr(one, name), getattr(other, name), strict=True) for name in SETS]
    pairs = [(one.global_test, other.global_test), *(pair for each in sets for pair in each)]
    told = (one.rule, one.names, one.source) == (other.rule, other.names, other.source)
    return told and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def edited(path: Path, federation: Federation, change: Callable[[dict[str, Any]], object]) -> Path:
    """A file whose content was changed by somebody who knows how to write its SHA-256."""
    saved.save(federation, path)
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps({**content, "sha256": saved.json_digest(content)}))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved") / "partition.json"


@settings(max_examples=80, deadline=None)
@given(federations())
def test_what_is_read_is_what_was_saved(path: Path, federation: Federation) -> None:
    saved.save(federation, path)
    assert same(saved.read_partition(path, federation.source), federation)


@pytest.mark.parametrize("rule", ["dir:0.5", "hsu:1", "pat:2", "quantity:5", "iid"])
def test_the_rule_file_repeats_a_partition_whatever_the_seed(path: Path, rule: str) -> None:
    federation = partition(load("digits"), rule, 5, seed=3, split="original", validation=0.2, train_samples=50)
    saved.save(federation, path)
    again = partition(federation.source, f"file:{path}", None, seed=4)
    assert same(again, federation)
    assert again.rule == rule == saved.saved_rule(path)
    assert same(partition(federation.source, f"file:{path}", 5, seed=0), federation)


def test_a_flipped_bit_in_any_byte_is_noticed_or_changes_nothing(path: Path) -> None:
    saved.save(SMALL, path)
    content = path.read_bytes()
    harmless = 0
    for place, byte in enumerate(content):
        path.write_bytes(content[:place] + bytes([byte ^ 1 << place % 8]) + content[place + 1 :])
        try:
            assert same(saved.read_partition(path, SMALL.source), SMALL)
            harmless += 1
        except DataError as error:
            assert f"'{path}'" in str(error)
    assert harmless <= 4  # such as the letters of an escape: \u00fc and \u00FC are the same


def test_a_flipped_digit_is_noticed(path: Path) -> None:
    saved.save(SMALL, path)
    path.write_text(path.read_text().replace('"train": [5, 0]', '"train": [4, 0]'))
    assert refusal(DataError, lambda: saved.read_partition(path, SMALL.source)) == (
        f"partition '{path}' is damaged or was edited: its content does not have the SHA-256 it states"
    )


def test_a_file_that_ends_early_is_refused(path: Path) -> None:
    saved.save(SMALL, path)
    content = path.read_bytes().rstrip()
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        line = refusal(DataError, lambda: saved.read_partition(path, SMALL.source))
        assert line.startswith(f"partition '{path}' is damaged or not JSON: ")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_content_is_a_partition_or_refused_in_one_line(path: Path, data: st.DataObject) -> None:
    def change(content: dict[str, Any]) -> None:
        place = data.draw(st.sampled_from([content, content["clients"][0]]))
        key = data.draw(st.sampled_from(sorted(place)))
        if data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = data.draw(values | st.lists(st.integers(-1, 6) | leaves, max_size=4))

    edited(path, SMALL, change)
    try:
        assert isinstance(saved.read_partition(path, SMALL.source), Federation)
    except DataError as error:
        assert f"'{path}'" in str(error)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "version": (lambda content: content.update(version=2), "is of version 2, and this partwise reads version 1"),
    "format": (lambda content: content.pop("format"), "is not a saved partition"),
    "outside": (
        lambda content: content["clients"][1]["test"].append(6),
        "test of client 1: 6 is not the index of a sample, 0 to 5",
    ),
    "negative": (
        lambda content: content["global_test"].append(-1),
        "global_test: -1 is not the index of a sample, 0 to 5",
    ),
    "fraction": (
        lambda content: content["clients"][0].update(train=[0.5]),
        "train of client 0: 0.5 is not the index of a sample, 0 to 5",
    ),
    "twice": (
        lambda content: content["clients"][1]["validation"].append(5),
        "sample 5 occurs twice in the clients' sets; a sample belongs to one place only",
    ),
    "twice in the test set": (
        lambda content: content["global_test"].append(4),
        "sample 4 occurs twice in global_test; a sample belongs to one place only",
    ),
    "untested": (lambda content: content["global_test"].remove(3), "client 1: a test sample is not in global_test"),
    "no clients": (lambda content: content.update(clients=[]), "at least one client"),
    "no names": (lambda content: content["clients"][0].pop("name"), "not laid out as a saved partition: 'name'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_fit_is_named(path: Path, name: str) -> None:
    change, problem = CHANGES[name]
    line = refusal(DataError, lambda: saved.read_partition(edited(path, SMALL, change), SMALL.source))
    assert f"'{path}'" in line
    assert problem in line


@pytest.mark.parametrize(("source", "problem"), [
    (replace(SMALL.source, name="theirs"), "another data set: data is 'ours' there and 'theirs' here"),
    (labelled(0, 1, 2, 0, 1), "another data set: samples is 6 there and 5 here"),
    (labelled(0, 1, 2, 0, 1, 1), "another data set: labels_sha256 is "),
])  # fmt: skip
def test_a_partition_of_another_data_set_is_refused(path: Path, source: Source, problem: str) -> None:
    saved.save(SMALL, path)
    assert problem in refusal(DataError, lambda: saved.read_partition(path, source))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"1" * 5000, b"{}", b"[]", b'"format"'])
def test_what_is_no_saved_partition_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert f"'{path}'" in refusal(DataError, lambda: saved.read_partition(path, SMALL.source))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    line = refusal(DataError, lambda: partition(SMALL.source, f"file:{missing}", None, seed=0))
    assert line == f"cannot read the partition '{missing}': No such file or directory"
    assert "directory" in refusal(DataError, lambda: saved.read_partition(tmp_path, SMALL.source))


@pytest.mark.parametrize("setting", [
    {"split": "merged"},
    {"min_samples": 0},
    {"test_share": 0.2},
    {"train_samples": 5},
    {"validation": 0.1},
    {"cap": True},
    {"balance": True},
])  # fmt: skip
def test_settings_that_a_saved_partition_would_ignore_are_refused(path: Path, setting: dict[str, Any]) -> None:
    saved.save(SMALL, path)
    line = refusal(ConfigError, lambda: partition(SMALL.source, f"file:{path}", None, 0, **setting))
    assert line.endswith(f"leave out {next(iter(setting))}")


def test_another_number_of_clients_is_refused(path: Path) -> None:
    saved.save(SMALL, path)
    line = refusal(ConfigError, lambda: partition(SMALL.source, f"file:{path}", 3, seed=0))
    assert line == f"clients = 3, but '{path}' holds a partition among 2 clients"


def test_a_division_that_gives_a_sample_out_twice_is_not_saved(tmp_path: Path) -> None:
    twice = replace(SMALL, train=[torch.tensor([5, 0]), torch.tensor([5])])
    assert "sample 5 occurs twice" in refusal(DataError, lambda: saved.save(twice, tmp_path / "new.json"))
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_refused_and_nothing_is_left_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    missing = tmp_path / "missing" / "new.json"
    assert refusal(ConfigError, lambda: saved.save(SMALL, missing)).startswith(f"cannot write '{missing}': No such")
    assert refusal(ConfigError, lambda: saved.save(SMALL, folder)).startswith(f"cannot write '{folder}': ")
    assert list(tmp_path.rglob("*")) == [folder]


def test_other_columns_are_other_data(path: Path) -> None:
    wards = [replace(SMALL.source, columns={"ward": Column(("a", "b"), torch.arange(6) % 2)}) for _ in range(2)]
    saved.save(replace(SMALL, source=wards[0]), path)
    assert saved.read_partition(path, wards[1]).names == SMALL.names
    moved = replace(wards[0], columns={"ward": Column(("a", "b"), torch.arange(6) // 3)})
    assert "it belongs to another data set: columns_sha256" in refusal(
        DataError, lambda: saved.read_partition(path, moved)
    )
