"""Fed3+2p: both heads at once, the rounds of its phases, and what it refuses."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from partwise.errors import ConfigError
from partwise.method import ALL, FROZEN, GROUP, LOCAL
from partwise.methods.fed3p2p import Fed3p2p
from tests.support.plain import batch_of, largest, net_of
from tests.support.runs import network, simulate


def test_without_phases_both_heads_learn_and_only_the_global_one_teaches():
    net, b = net_of(Fed3p2p().build(network("mlp of two layers"), None)), batch_of(0)
    features = net.filter(net.body(b.x))
    value = cross_entropy(net.head(features), b.y) + cross_entropy(net.p_head(features), b.y)
    plain = net.grad(lambda net, b, me: b.ce(net.head(net.filter(net.body(b.x)))), b, None)
    for detached in (True, False):
        method = Fed3p2p(two_phase=False, detach_p_head=detached)
        assert torch.allclose(method.both(net, b, None), value, rtol=1e-12)
        slopes = net.grad(method.both, b, None)
        taught = {name: slopes[name] for name in plain if name.startswith(("body", "filter"))}
        assert (largest(taught, plain) < 1e-15) == detached
        assert all(slopes[f"p_head.{name}"].any() for name in ("weight", "bias"))
    [stage] = Fed3p2p(two_phase=False, rounds=3).stages()
    assert stage.rounds == 3 and stage.share == {"body": ALL, "filter": ALL, "head": ALL, "p_head": LOCAL}
    assert [(move.parts, move.loss) for move in stage.phases.moves] == [("*", "both")]


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"rounds": 7}, (4, 3)),  # the larger half first
        ({"rounds": 7, "rounds_1": 2}, (2, 5)),
        ({"rounds": 7, "rounds_2": 2}, (5, 2)),
        ({"rounds_1": 3, "rounds_2": 1}, (3, 1)),
        ({"rounds": 2}, (1, 1)),
    ],
)
def test_rounds_of_both_phases(settings, rounds):
    method = Fed3p2p(**settings)
    assert method.phase_rounds == rounds == tuple(stage.rounds for stage in method.stages())
    assert method.rounds == sum(rounds)


def test_phases_are_stages():
    first, second = Fed3p2p(rounds=2).stages()
    assert first.share == {"body": ALL, "filter": ALL, "head": ALL, "p_head": LOCAL}
    assert second.share == {"body": FROZEN, "filter": GROUP, "head": FROZEN, "p_head": LOCAL}
    assert (first.cohort.sample, first.fresh, first.snapshot) == ("groups", "p_head", "global")
    assert (second.cohort.sample, second.fresh, second.restart_lr) == ("within", "filter p_head", True)
    shares = {"local": (LOCAL, "filter p_head"), "frozen_global": (FROZEN, "p_head")}
    for mode, (share, fresh) in shares.items():
        _, second = Fed3p2p(rounds=2, filter_mode=mode, reset_lr=False).stages()
        assert (second.share["filter"], second.fresh, second.cohort, second.restart_lr) == (share, fresh, None, False)
    assert next(iter(Fed3p2p(rounds=2, type_a=False).stages())).cohort is None


def test_there_are_no_more_coordinators_than_clients():
    """Where there are any; five of each type are the default."""
    for settings in ({"coordinators_a": 9}, {"coordinators_b": 9}):
        with pytest.raises(ConfigError, match=f"{next(iter(settings))} = 9 is more than the 8 clients"):
            Fed3p2p(**settings).check(8)
        Fed3p2p(**settings).check(9)
    Fed3p2p(two_phase=False).check(4)
    Fed3p2p(type_a=False, coordinators_b=4).check(4)
    Fed3p2p(filter_mode="local", coordinators_a=4).check(4)


def test_groups_are_made_anew_of_those_that_take_part():
    settings = {"participation": 0.5, "participation_mode": "regroup", "coordinators_a": 3, "coordinators_b": 2}
    run = simulate("fed3p2p", network("mlp of two layers"), rounds_1=1, rounds_2=1, **settings)
    method, server = run.config.method, run.server
    server.cohort = [1, 3, 4, 6]
    groups = method.coordinate_a(server)
    assert sorted(set(groups[server.cohort].tolist())) == [0, 1, 2]  # all three, without the others
    server.cohort = [1, 3]
    assert sorted(method.coordinate_a(server)[server.cohort].tolist()) == [0, 1]  # fewer than coordinators
    labels = torch.stack([torch.bincount(run.federation.source.y[own], minlength=4) for own in run.federation.train])
    assert torch.equal(server.memory["labels"].long(), labels)
