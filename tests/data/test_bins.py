"""What labels count as where data are divided and clients grouped: edges that a run states, and patterns of labels."""

import math

import pytest
import torch

from partwise.data.source import Federation, Source
from partwise.data.standardise import with_standardised_labels
from partwise.errors import ConfigError, DataError
from partwise.runs.config import make_config
from partwise.runs.partitioning import partitioned
from partwise.tasks import Classes, Labels, Numbers

NAN = math.nan
STAYS = torch.tensor([[1.0], [2.0], [3.0], [9.0], [NAN], [4.0]], dtype=torch.float64)


def federation(y: torch.Tensor, *train: list[int]) -> Federation:
    task = Numbers.of(y, ("stay",))
    source = Source("stays", torch.zeros(len(y), 2), y, task.bins, len(y), (0.0,), (1.0,), own_task=task)
    none = torch.arange(0)
    return Federation(source, [torch.tensor(own) for own in train], [none] * len(train), none)


def test_edges_that_a_run_states_are_those_of_its_bins() -> None:
    config = make_config("fedavg", {"task": "numbers", "bins": "2,5,9"})
    found = partitioned(config, federation(STAYS, [0, 1, 2], [3, 4, 5]))
    assert found.source.bins.tolist() == [0, 1, 1, 3, 0, 1]  # an edge is in the bin above; unknown is in the first
    assert found.class_counts().tolist() == [[1, 2, 0, 0], [1, 1, 0, 1]]
    assert found.source.labels == ("below 2", "2 to 5", "5 to 9", "from 9")
    moved = with_standardised_labels(found).source
    assert torch.equal(moved.bins, found.source.bins)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("5,2", "bins = 5,2 must rise from edge to edge"),
        ("a", "bins takes numbers separated by commas"),
        ("2,2", "rise"),
    ],
)
def test_edges_that_are_none_are_refused(given: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        make_config("fedavg", {"bins": given})


def test_edges_are_for_numbers_alone() -> None:
    with pytest.raises(ConfigError, match="bins are edges between numbers, but the task is classes; leave out bins"):
        partitioned(make_config("fedavg", {"data": "digits", "bins": [2.5]}))


def test_all_patterns_of_few_labels_are_bins_whatever_the_data_are() -> None:
    y = torch.tensor([[1, 0], [0, 0], [NAN, 1]], dtype=torch.float64)
    task = Labels.of(y, ("sick", "tired"))
    assert task == Labels.of_names(("sick", "tired"))
    assert task.bin_names == ("none", "tired", "sick", "sick + tired", "others")
    assert task.binned(y).tolist() == [2, 0, 4]
    assert not task.bins_wanted


def test_of_many_labels_the_data_choose_and_without_data_nobody() -> None:
    y = torch.eye(6, dtype=torch.float64)
    names = tuple("abcdef")
    assert Labels.of(y, names).bins == 7
    with pytest.raises(
        ConfigError, match=r"b\.bins needs bins of the labels: patterns of 6 labels are chosen by the data"
    ):
        Labels.of_names(names).require_bins("b.bins")
    with pytest.raises(ConfigError, match=r"state their edges, as bins = \[2, 5, 9\]"):
        Numbers.of_names(("stay",)).require_bins("b.bins")
    Classes.numbered(2).require_bins("b.bins")


def test_labels_of_a_client_with_few_known_ones_do_not_standardise() -> None:
    task = with_standardised_labels(federation(STAYS, [0, 1, 2], [3, 4, 5]), few=3).source.task
    assert task.centre == (2,) and task.scale == pytest.approx([(2 / 3) ** 0.5])  # 1, 2 and 3
    with pytest.raises(DataError, match="no client has 4 training samples with label 'stay'; leave it out"):
        with_standardised_labels(federation(STAYS, [0, 1, 2], [3, 4, 5]), few=4)


def test_enough_is_known_of_each_label_or_nothing() -> None:
    task = Labels.of_names(("a", "b"))
    full, empty = torch.ones(3, dtype=torch.float64), torch.full((3,), NAN, dtype=torch.float64)
    one = torch.tensor([1, NAN, NAN], dtype=torch.float64)
    pairs = {"both": (full, full), "one of them": (full, empty), "few of one": (full, one), "none": (empty, empty)}
    enough = {name: task.enough_known(torch.stack(pair, 1), 3) for name, pair in pairs.items()}
    assert enough == {"both": True, "one of them": True, "few of one": False, "none": False}
