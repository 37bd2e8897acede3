"""FedPer: rounds by hand."""

from tests.support.plain import Followed


def test_three_rounds_by_hand():
    Followed("fedper").assert_that_clients_share("body")
