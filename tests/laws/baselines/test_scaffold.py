"""SCAFFOLD: Algorithm 1 with option II in dicts of tensors, and what follows from it."""

import pytest
import torch

from partwise.errors import ConfigError
from partwise.methods.scaffold import Scaffold
from tests.support.plain import Followed, largest, mean, moved, zeros
from tests.support.runs import network, simulate


def test_three_rounds_are_those_of_algorithm_1():
    """Half of the clients a round, two passes, a decaying rate, and a server that goes 0.7 of the way."""
    run = Followed("scaffold", server_learning_rate=0.7, lr_decay=0.8)
    w, c = run.start, zeros(run.start)
    own = dict.fromkeys(range(8), c)
    for number, seen in enumerate(run.rounds):
        rate, ends, total = run.lr * 0.8**number, [], zeros(w)
        for client in seen.cohort:
            mine, batches = w, run.batches(number, client)
            for x, y in batches:
                slope = run.gradient(lambda v, x=x, y=y: run.loss(v, x, y), mine)
                mine = moved(mine, {name: slope[name] + c[name] - own[client][name] for name in w}, rate)  # line 10
            way = len(batches) * rate
            new = {name: own[client][name] - c[name] + (w[name] - mine[name]) / way for name in w}  # line 12
            total = {name: total[name] + new[name] - own[client][name] for name in w}
            own[client], ends = new, [*ends, mine]
        w = moved(w, {name: w[name] - value for name, value in mean(ends).items()}, 0.7)  # line 16
        c = {name: c[name] + total[name] / 8 for name in c}  # line 17: of all clients, not of the participants
        assert largest(w, run.copies(number)) < 1e-12
    assert largest(c, run.run.server.memory["c"]) < 1e-11
    for client in range(8):
        kept = run.run.engine.store.remembered([client])
        assert largest(own[client], {name: value[0] for name, value in kept.items()}) < 1e-11


def test_the_first_round_is_fedavg_with_equal_weights():
    """All variates are zero."""
    first = simulate("scaffold", network("cnn+bn"), rounds=1)
    second = simulate("fedavg", network("cnn+bn"), rounds=1, aggregation="uniform")
    for name, copies in second.server.copies.items():
        assert torch.equal(copies.values, first.server.copies[name].values)


def test_the_servers_variate_is_the_mean_of_the_clients_and_stays_zero_where_nobody_can_step():
    """Client 0 has one sample, from which batch-norm cannot learn; at a rate of 0 no slope can be read off."""
    run = simulate("scaffold", network("cnn+bn"), participation=0.5, rounds=3)
    kept = run.engine.store.remembered(list(range(8)))
    for name, value in run.server.memory["c"].items():
        assert torch.allclose(value, kept[name].mean(0), rtol=0, atol=1e-12)
        assert not kept[name][0].any() and value.isfinite().all()
    still = simulate("scaffold", network("mlp"), lr=0.0, rounds=2)
    assert not any(value.any() for value in still.server.memory["c"].values())


def test_layers_that_a_schedule_freezes_have_no_variate_until_they_wake():
    run = simulate("vanilla", network("mlp of two layers"), host="scaffold", unfreeze=(0, 9), rounds=2)
    moves = {name: bool(value.any()) for name, value in run.server.memory["c"].items()}
    assert {name for name, moved in moves.items() if not moved} == {n for n in moves if n.startswith("body.fc2")}


@pytest.mark.parametrize("settings", [{"momentum": 0.5}, {"optimizer": "adamw"}])
def test_only_plain_sgd_is_taken(settings):
    with pytest.raises(ConfigError, match="plain SGD: set optimizer = sgd and momentum = 0"):
        Scaffold(**settings)


def test_its_local_model_is_the_global_one_after_a_local_round():
    assert Scaffold(epochs=2).adapt() == Scaffold(epochs=2).phases()
