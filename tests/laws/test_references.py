"""The reference `central`: one model from everybody's samples, tested at every client."""

import torch

from partwise import Federation
from partwise.runs.result import Result
from tests.support.runs import awkward_federation, network, simulate

CHANGE = {"momentum": 0.5, "lr_decay": 0.9, "epochs": 2, "rounds": 3, "augment": "flip,crop:1"}


def test_central_is_one_client_that_holds_everything():
    federation = awkward_federation()
    alone = Federation(
        federation.source, [torch.cat(federation.train)], [torch.cat(federation.test)], federation.global_test
    )
    for net in ("mlp", "cnn+bn"):
        central = simulate("central", network(net), federation, **CHANGE)
        single = simulate("fedavg", network(net), alone, **CHANGE)
        for name, copies in central.server.copies.items():
            assert torch.equal(copies.values, single.server.copies[name].values), name
        one, other = (run.history.rows[-1] for run in (central, single))
        assert one["train_loss"] == other["train_loss"]
        assert one["received"]["acc_pooled"] == other["received"]["acc_pooled"] == one["global"]["g_test"]
        assert one["received"]["clients"] == federation.clients


def test_how_samples_are_divided_makes_no_difference_to_the_central_model():
    federation = awkward_federation()
    sets = [federation.train, federation.test]
    apart, together = (
        simulate("central", network("cnn"), each, **CHANGE)
        for each in (
            federation,
            Federation(
                federation.source,
                *[[torch.cat(index[:3]), *index[3:]] for index in sets],  # the first three clients are one
                federation.global_test,
            ),
        )
    )
    for name, copies in apart.server.copies.items():
        assert torch.equal(copies.values, together.server.copies[name].values), name


def test_nothing_but_the_samples_travels_and_every_client_gets_the_model():
    federation = awkward_federation()
    run = simulate("central", network("cnn+bn"), federation, "vector", **CHANGE, participation=0.25)
    samples = sum(map(len, federation.train))
    ledger = run.server.ledger.as_dict()
    assert ledger["total"] == {"down": {}, "up": {}}
    assert ledger["once"] == {"down": {}, "up": {"samples": samples * (8 * 8 + 4)}}
    models = Result(run).models
    assert list(models) == list(range(federation.clients))
    one, other = models[0].tensors, models[5].tensors
    assert all(torch.equal(one[name], other[name]) for name in one), "running values of batch-norm too"


def test_central_may_stand_beside_methods_with_few_participants():
    run = simulate("central", network("mlp"), clients_per_round=4, eval_clients=3, rounds=1)
    assert run.history.rows[-1]["participants"] == [0]
    assert run.history.rows[-1]["received"]["clients"] == 3
