"""LG-FedAvg: rounds by hand, before and after the bodies part."""

import pytest
import torch

from partwise.errors import ConfigError
from partwise.methods.lg_fedavg import LgFedAvg
from tests.support import oracle
from tests.support.plain import Followed, among, largest


def test_three_rounds_by_hand():
    run = Followed("lg_fedavg")
    run.assert_that_clients_share("head")
    assert run.rounds[-1].global_predictions is None and LgFedAvg.predict_global is None


def test_its_first_rounds_are_fedavg_on_request():
    """Bodies part from the global model, of which only the head travels from then on."""
    run, fedavg = Followed("lg_fedavg", warmup_rounds=1), Followed("fedavg")
    assert largest(fedavg.copies(0), run.copies(0)) == 0
    for client in run.rounds[1].cohort:
        w = run.copies(0)
        for x, y in run.batches(1, client):
            w = run.step(w, x, y, run.lr)
        assert torch.allclose(run.rounds[1].predictions["trained"][client], run.logits(client, w), rtol=0, atol=1e-12)
    head = oracle.size(among(run.start, ["head"]))
    assert [seen.record.bytes_up for seen in run.rounds] == [
        8 * 4 * each for each in (oracle.size(run.start), head, head)
    ]


def test_warmup_leaves_a_round():
    assert [stage.rounds for stage in LgFedAvg(rounds=5, warmup_rounds=2).stages()] == [2, 3]
    assert [stage.rounds for stage in LgFedAvg(rounds=5).stages()] == [5]
    with pytest.raises(ConfigError, match="warmup_rounds = 5 is not allowed: at most rounds - 1 = 4"):
        list(LgFedAvg(rounds=5, warmup_rounds=5).stages())
