"""FedRep: rounds by hand, and how many epochs each part gets."""

import pytest

from partwise.methods.fedrep import FedRep
from tests.support.plain import Followed


def test_three_rounds_by_hand():
    """The head first, then the body through the head that is new already."""
    Followed("fedrep", head_epochs=2).assert_that_clients_share("body", phases=("head", "body"))


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({"epochs": 5}, [("head", 4), ("body", 1)]),
        ({"epochs": 2}, [("head", 1), ("body", 1)]),
        ({"epochs": 1}, [("head", 1), ("body", 1)]),
        ({"epochs": 5, "head_epochs": 3, "body_epochs": 2}, [("head", 3), ("body", 2)]),
    ],
)
def test_epochs_of_head_and_body(settings, epochs):
    assert [(phase.moves[0].parts, phase.epochs) for phase in FedRep(**settings).phases()] == epochs
