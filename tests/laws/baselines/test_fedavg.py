"""FedAvg: rounds by hand, and the local model of tables."""

from partwise.methods.fedavg import FedAvg
from tests.support.plain import Followed


def test_three_rounds_by_hand():
    Followed("fedavg").assert_that_clients_share("body", "head")


def test_its_local_model_is_the_global_one_after_a_local_round():
    assert FedAvg(epochs=2).adapt() == FedAvg(epochs=2).phases()
