"""Groups by filtered label counts beside those by exact ones."""

import pytest
import torch

from partwise.data.source import Federation, Source
from partwise.studies.grouping_fidelity import TellAgreement
from tests.support.runs import CLASSES, network, simulate
from tests.support.states import state

SETTINGS = {"coordinators_a": 3, "coordinators_b": 2, "rounds_1": 2, "rounds_2": 1}


def two_kinds():
    """Eight clients of twelve samples: half of them have the first two classes, half the others."""
    random = torch.Generator().manual_seed(0)
    y = torch.cat([torch.arange(15) % 2 + 2 * (client % 2) for client in range(8)])
    x = torch.randint(0, 256, (len(y), 1, 8, 8), generator=random, dtype=torch.uint8)
    source = Source("two kinds", x, y, CLASSES, len(y), (127.5,), (127.5,), "cnn-digits")
    rows = torch.arange(len(y)).view(8, 15)
    test = list(rows[:, 12:])
    return Federation(source, list(rows[:, :12]), test, torch.cat(test), [rows[0, :0]] * 8)


def run_of(federation=None, watched=True, **settings):
    observers = [TellAgreement()] if watched else []
    return simulate("fed3p2p", network("mlp of two layers"), federation, observers=observers, **settings)


def told(run):
    return [note.split("index ")[1].split()[0] for note in run.notes if "adjusted Rand index" in note]


@pytest.mark.parametrize(("way", "index"), [("presence", "1.000"), ("bits:16", "1.000")])
def test_what_tells_the_kinds_apart_groups_them_as_before(way, index):
    run = run_of(two_kinds(), histograms=way, type_a=False, coordinators_b=2)
    assert told(run) == [index]


def test_noise_that_hides_the_labels_hides_the_groups():
    """Six tellings are drawn: on average the index of groups that know nothing of the labels is 0."""
    found = []
    for seed in range(6):
        settings = {"histograms": "laplace:0.01", "type_a": False, "coordinators_b": 2, "rounds": 2, "seed": seed}
        [index] = told(run_of(two_kinds(), **settings))
        found.append(float(index))
    assert abs(sum(found) / len(found)) < 0.5


def test_looking_changes_nothing():
    settings = {**SETTINGS, "histograms": "laplace:1", "participation_mode": "regroup", "participation": 0.75}
    watched = run_of(**settings)
    assert len(told(watched)) == 2  # of both stages
    alone = run_of(watched=False, **settings)
    assert not told(alone)
    one, two = state(watched), state(alone)
    assert one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())
    assert watched.server.ledger.as_dict() == alone.server.ledger.as_dict()


def test_nothing_is_said_where_counts_are_exact():
    assert told(run_of(**SETTINGS)) == []
