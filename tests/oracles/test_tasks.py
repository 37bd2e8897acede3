"""FedAvg, FedPer and FedRep on numbers, labels and places, followed in plain PyTorch, with unknown labels."""

import pytest

from tests.support import oracle
from tests.support.plain import Followed

SHARING = {  # what clients share, and the part that each phase trains
    "fedavg": (("body", "head"), ("",)),
    "fedper": (("body",), ("",)),
    "fedrep": (("body",), ("head", "body")),
}


@pytest.mark.parametrize("task", oracle.OTHERS)
@pytest.mark.parametrize("method", SHARING)
def test_methods_that_share_parts_in_other_tasks(method, task):
    shared, phases = SHARING[method]
    settings = {"head_epochs": 2} if method == "fedrep" else {}
    Followed(method, task, **settings).assert_that_clients_share(*shared, phases=phases)
