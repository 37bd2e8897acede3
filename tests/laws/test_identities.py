"""Methods that must coincide, and runs that can be followed by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from partwise import ALL, FROZEN, LOCAL, Method, Move, Phase, Relay, Stage, option
from partwise.data import partition
from partwise.data.sources import load
from partwise.network import models
from partwise.streams import stream
from tests.support.by_hand import by_hand
from tests.support.runs import CLASSES, awkward_federation, network, simulate
from tests.support.states import distance, state

SETTINGS = {"momentum": 0.5, "weight_decay": 1e-3, "lr_decay": 0.9, "epochs": 1, "rounds": 2}


class EverythingShared(Method):
    share = {"body": ALL, "head": ALL}

    def adapt(self):
        return self.phases()


class EverythingLocal(Method):
    share = {"body": LOCAL, "head": LOCAL}
    predict_global = None


@pytest.mark.parametrize(
    ("one", "two", "settings"),
    [
        ("fedprox", "fedavg", {"proximal_weight": 0.0}),
        (EverythingShared, "fedavg", {}),
        (EverythingLocal, "local", {}),
    ],
)
def test_two_methods_coincide(one, two, settings):
    first = simulate(one, network("cnn+bn", dropout=0.25), **SETTINGS, **settings)
    second = simulate(two, network("cnn+bn", dropout=0.25), **SETTINGS)
    assert distance(first, second) == 0


class NearReceived(Method):
    def received(self, b, me):
        return me.got.body(b.x)

    def loss(self, net, b, me):
        return b.ce(net(b.x)) + b.mean((net.body(b.x) - self.received(b, me)).square().sum(1))


class NearDetached(NearReceived):
    def received(self, b, me):
        return super().received(b, me).detach()


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_what_was_received_takes_no_gradient(engine):
    first, second = (simulate(each, network("mlp"), engine=engine, **SETTINGS) for each in (NearReceived, NearDetached))
    assert distance(first, second) == 0


def test_one_client_is_centralised_sgd():
    federation = awkward_federation((27,))
    simulation = simulate("fedavg", network("cnn"), federation, **SETTINGS)
    for name, value in by_hand(simulation, lambda number: [0], network("cnn")).items():
        assert torch.allclose(simulation.server.copies[name].values[0], value, rtol=0, atol=1e-13), name


class Chain(EverythingShared):
    groups_number: int = 1

    def stages(self):
        groups = [client % self.groups_number for client in range(8)]
        yield Stage(self.phases(), self.share, self.rounds, cohort=Relay(lambda server: groups))


class SingleChain(Chain):
    groups_number = 1


class ChainOfEveryClient(Chain):
    groups_number = 8


def test_a_relay_through_one_group_is_sequential_sgd():
    simulation = simulate(SingleChain, network("cnn"), **SETTINGS)
    order = lambda number: stream(0, "relay", number, 0).permutation(8)  # noqa: E731
    for name, value in by_hand(simulation, lambda number: order(number).tolist(), network("cnn")).items():
        assert torch.allclose(simulation.server.copies[name].values[0], value, rtol=0, atol=1e-12), name


def test_a_relay_with_a_group_for_every_client_is_fedavg():
    relay = simulate(ChainOfEveryClient, network("cnn+bn"), **SETTINGS)
    fedavg = simulate(EverythingShared, network("cnn+bn"), **SETTINGS)
    assert distance(relay, fedavg) < 1e-14


def test_fedbabu_never_changes_the_head_and_trains_the_body_as_a_frozen_head_does():
    parts = network("cnn")
    simulation = simulate("fedbabu", parts, **SETTINGS)
    for name, value in parts.tensors().items():
        if name.startswith("head"):
            assert torch.equal(simulation.server.copies[name].values[0], value)
        else:
            assert not torch.equal(simulation.server.copies[name].values[0], value)


def test_pooled_accuracy_of_the_global_model_is_its_accuracy_on_the_global_test_set():
    federation = partition(load("made"), "dir:3", 6, 0, split="original")
    simulation = simulate("fedavg", network_for(federation), federation, rounds=3, lr=0.05, batch=16)
    for row in simulation.history.rows:
        assert row["global"]["g_test"] == pytest.approx(row["global"]["p_test"]["acc_pooled"], abs=1e-12)
    assert simulation.history.rows[-1]["global"]["g_test"] > 0.15  # it learned more than one class


def network_for(federation):
    return models.build("cnn-digits", (1, 8, 8), federation.source.classes).initialise(0)


def full_batches(federation, method="fedavg", parts=None):
    """With every client's data in one batch, the order of its samples does not matter."""
    return simulate(method, parts or network("mlp"), federation, batch=100, rounds=3, lr=0.1)


def test_permuting_clients_permutes_the_outcome():
    federation = awkward_federation()
    order = np.random.default_rng(1).permutation(federation.clients).tolist()
    moved = dataclasses.replace(
        federation,
        train=[federation.train[client] for client in order],
        test=[federation.test[client] for client in order],
        validation=[federation.validation[client] for client in order],
    )
    one, two = full_batches(federation, "fedper"), full_batches(moved, "fedper")
    for name in one.server.plan.own:
        for place, client in enumerate(order):
            first, second = one.engine.store.own(client, [name]), two.engine.store.own(place, [name])
            assert torch.allclose(first[name], second[name], rtol=0, atol=1e-13)


def test_duplicating_every_client_leaves_fedavg_unchanged():
    federation = awkward_federation()
    doubled = {name: getattr(federation, name) * 2 for name in ("train", "test", "validation")}
    twice = dataclasses.replace(federation, **doubled, names=())
    one, two = full_batches(federation), full_batches(twice)
    for name, copies in one.server.copies.items():
        assert torch.allclose(copies.values, two.server.copies[name].values, rtol=0, atol=1e-13)


def test_relabelling_classes_permutes_the_rows_of_the_head():
    federation = awkward_federation()
    new = torch.tensor([2, 0, 3, 1])  # the new label of every class
    relabelled = dataclasses.replace(
        federation, source=dataclasses.replace(federation.source, y=new[federation.source.y])
    )
    parts = network("mlp")
    with torch.no_grad():
        for tensor in parts.modules["head"].parameters():
            tensor[new] = tensor.clone()[torch.arange(CLASSES)]
    one, two = full_batches(federation), full_batches(relabelled, parts=parts)
    for name, copies in one.server.copies.items():
        expected = two.server.copies[name].values[0]
        expected = expected[new] if name.startswith("head") else expected
        assert torch.allclose(copies.values[0], expected, rtol=0, atol=1e-13), name


def test_the_same_run_twice_is_the_same_to_the_bit_and_another_seed_is_not():
    one, two, other = (
        simulate("fedper", network("cnn+bn"), **SETTINGS, participation=0.5, seed=seed) for seed in (3, 3, 4)
    )
    first, second = state(one), state(two)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.server.cohort != other.server.cohort or distance(one, other) > 1e-6


def test_a_clients_stream_depends_on_nobody_else():
    """Local training of client 3 is the same whether seven others run beside it or nobody does."""
    federation = awkward_federation()
    everyone = simulate("local", network("cnn"), federation, **SETTINGS)
    keep = torch.arange(0)
    alone = dataclasses.replace(
        federation, train=[index if client == 3 else keep for client, index in enumerate(federation.train)]
    )
    hermit = simulate("local", network("cnn"), alone, **SETTINGS)
    for name, value in everyone.engine.store.own(3, everyone.server.plan.own).items():
        assert torch.equal(value, hermit.engine.store.own(3, [name])[name])


class FrozenBody(Method):
    share = {"body": FROZEN, "head": ALL}


def test_frozen_parts_get_no_gradient_whatever_a_move_names():
    parts = network("cnn")
    simulation = simulate(FrozenBody, parts, **SETTINGS)
    for name, value in parts.tensors().items():
        assert torch.equal(simulation.server.copies[name].values[0], value) == name.startswith("body")


class StepByStep(Method):
    restart: bool = option(True, "Start the optimiser anew before every step.")

    def phases(self):
        return [Phase(Move(), steps=1, restart_optimizer=self.restart)] * 3


def test_an_optimiser_that_restarts_before_every_step_has_no_momentum():
    plain = simulate(StepByStep, network("cnn"), **{**SETTINGS, "momentum": 0.0})
    assert distance(simulate(StepByStep, network("cnn"), **SETTINGS), plain) == 0
    assert distance(simulate(StepByStep, network("cnn"), **SETTINGS, restart=False), plain) > 1e-6
