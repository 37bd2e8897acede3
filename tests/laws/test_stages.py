"""Stages: handover, fresh draws, snapshots, restarts of the learning rate, groups, partial participation."""

import pytest
import torch

from partwise import ALL, FROZEN, GROUP, LOCAL, MIXED_GUIDE, ConfigError, Method, Relay, Stage, WithinGroups, train
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.runs import awkward_federation, network, simulate

HALVES = [0, 0, 0, 0, 1, 1, 1, 1]


def begin(method, **settings):
    """A run before its first round, so that it can be watched round by round."""
    federation = awkward_federation()
    values = {"dtype": "float64", "device": "cpu", "clients": 8, "batch": 8, "engine": "loop", "lr": 0.05, **settings}
    simulation = prepare(make_config(method, values), federation, network("cnn"))
    simulation.server.begin()
    return simulation


def own(simulation, client):
    return simulation.engine.store.own(client, simulation.server.plan.own)


def test_handover_starts_from_the_last_server_copy_even_for_clients_that_come_later():
    simulation = begin("lg_fedavg", warmup_rounds=2, rounds=4, participation=0.25)
    for _ in range(2):
        simulation.server.step()
    warm = {name: copies.values[0].clone() for name, copies in simulation.server.copies.items()}
    simulation.server.step()
    strangers = [client for client in range(8) if client not in simulation.server.cohort]
    for client in strangers:
        assert all(torch.equal(value, warm[name]) for name, value in own(simulation, client).items())
    changed = [client for client in simulation.server.cohort if client != 0]
    assert any(not torch.equal(value, warm[name]) for name, value in own(simulation, changed[0]).items())


class Fresh(Method):
    kind = ALL

    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=1)
        yield Stage(train("head"), {"body": FROZEN, "head": self.kind}, rounds=1, fresh="head", cohort=self.cohort())

    def cohort(self):
        return WithinGroups(lambda server: HALVES)


class FreshForAll(Fresh):
    kind = ALL


class FreshByGroup(Fresh):
    kind = GROUP


class FreshByClient(Fresh):
    kind = LOCAL


@pytest.mark.parametrize(("method", "draws"), [(FreshForAll, 1), (FreshByGroup, 2), (FreshByClient, 8)])
def test_fresh_draws_once_for_every_copy_that_exists(method, draws):
    simulation = begin(method, rounds=2, lr=0.0)
    initial = simulation.server.copies["head.weight"].values[0].clone()
    simulation.server.step()
    simulation.server.step()
    if draws == 8:
        heads = [own(simulation, client)["head.weight"] for client in range(8)]
    else:
        heads = list(simulation.server.copies["head.weight"].of(range(8)))
    different = torch.unique(torch.stack(heads).flatten(1), dim=0)
    assert len(different) == draws
    assert not any(torch.equal(head, initial) for head in heads)
    bound = 64**-0.5  # nn.Linear draws uniformly within 1/sqrt(inputs)
    assert all(head.abs().max() <= bound and head.std() == pytest.approx(bound / 3**0.5, rel=0.2) for head in heads)


class Snapshot(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=2, snapshot="global")
        yield Stage(train(), {"*": ALL}, rounds=2)


def test_the_global_model_is_the_snapshot_from_its_stage_on():
    simulation = simulate(Snapshot, network("cnn+bn"), rounds=4)
    rows = [row["global"] for row in simulation.history.rows]
    assert rows[1] == rows[2] == rows[3]
    plain = simulate("fedavg", network("cnn+bn"), rounds=4)
    assert rows[1] == plain.history.rows[1]["global"]
    received = [row["received"] for row in simulation.history.rows]
    assert received == [row["received"] for row in plain.history.rows]  # only what is called global stands still


class Restart(Method):
    restarted = False

    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=2)
        yield Stage(train(), {"*": ALL}, rounds=2, restart_lr=self.restarted)


class Restarted(Restart):
    restarted = True


def test_stages_whose_rounds_do_not_add_up_are_refused():
    with pytest.raises(
        ConfigError, match=r"^the stages of Restart have 2 \+ 2 rounds, but rounds = 5: make the stages' rounds add up "
    ):
        begin(Restart, rounds=5)


def test_the_decay_counts_from_the_last_restart():
    rates = {}
    for method in (Restart, Restarted):
        simulation = begin(method, rounds=4, lr_decay=0.5)
        rates[method] = []
        for _ in range(4):
            simulation.server.step()
            rates[method].append(simulation.server.request("predict", [1]).rate)  # that of the round just finished
    assert rates == {Restart: [1, 0.5, 0.25, 0.125], Restarted: [1, 0.5, 1, 0.5]}


class Grouped(Method):
    share = {"body": GROUP, "head": ALL}

    def groups(self, server):
        return HALVES


def test_groups_are_means_of_their_own_participants_and_a_group_without_any_keeps_its_copy():
    simulation = begin(Grouped, participation=0.125)
    before = {name: copies.values.clone() for name, copies in simulation.server.copies.items()}
    simulation.server.step()
    (client,) = simulation.server.cohort
    for name, copies in simulation.server.copies.items():
        if name.startswith("body"):
            assert torch.equal(copies.values[1 - HALVES[client]], before[name][1 - HALVES[client]])
            assert not torch.equal(copies.values[HALVES[client]], before[name][HALVES[client]])
        else:
            assert len(copies.values) == 1


def test_within_groups_draws_at_least_one_of_every_group():
    for share, expected in ((0.01, [1, 1]), (0.5, [2, 2]), (1.0, [4, 4])):
        simulation = begin(FreshByGroup, rounds=2, participation=share)
        simulation.server.step()
        simulation.server.step()
        assert [sum(HALVES[client] == group for client in simulation.server.cohort) for group in (0, 1)] == expected


def test_personal_state_survives_rounds_without_the_client():
    simulation = begin("fedper", participation=0.25)
    seen: dict[int, dict] = {}
    for _ in range(6):
        simulation.server.step()
        for client, state in seen.items():
            if client not in simulation.server.cohort:
                assert all(torch.equal(value, state[name]) for name, value in own(simulation, client).items())
        seen.update({client: own(simulation, client) for client in simulation.server.cohort})
    row = simulation.engine.store.row
    assert {client for client in range(len(row)) if row[client] >= 0} == set(
        seen
    )  # none before the first participation


class Mixed(Method):
    share = {"*": MIXED_GUIDE}

    def mix(self, server, updates):
        return torch.full((server.clients, len(updates.clients)), 0.5)


def test_a_mixing_matrix_must_have_rows_that_sum_to_one():
    with pytest.raises(ConfigError, match="rows that sum to"):
        simulate(Mixed, network("mlp"), rounds=1)


class NotGrouped(Method):
    share = {"*": GROUP}


class BadGroups(NotGrouped):
    def groups(self, server):
        return [0, 2] * 4


def test_groups_are_asked_for_and_checked():
    with pytest.raises(ConfigError, match="must define groups"):
        simulate(NotGrouped, network("mlp"), rounds=1)
    with pytest.raises(ConfigError, match="without gaps"):
        simulate(BadGroups, network("mlp"), rounds=1)


class ReportingRelay(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=1, cohort=Relay(lambda server: HALVES))

    def report(self, net, b, me):
        return {"samples": b.mask.sum()}


def test_a_relay_that_reports_is_refused_before_the_first_round():
    with pytest.raises(ConfigError, match="relay"):
        begin(ReportingRelay)
