"""Clients and networks that other libraries trip over; the numbers are those of the cases of faults and bad input."""

import dataclasses
import re

import pytest
import torch
from torch import nn

import partwise
from partwise import ALL, LOCAL, ConfigError, Diverged, Method, Parts, PartwiseError, Relay, Stage
from partwise.engines.workers import Workers
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.result import Result
from tests.support.engines import InThisProcess, short_of_memory
from tests.support.runs import ONE_CLASS, awkward_federation, network, simulate
from tests.support.states import distance

ENGINES = pytest.mark.parametrize("engine", ["loop", "vector"])
LOOP = pytest.mark.parametrize("engine", ["loop", "vector"])  # where the engines have nothing of their own


def without_training_samples(client):
    federation = awkward_federation()
    train = [torch.arange(0) if number == client else index for number, index in enumerate(federation.train)]
    return dataclasses.replace(federation, train=train)


def test_fault_12_images_that_do_not_fit_the_network_are_refused_with_both_shapes():
    with pytest.raises(
        ConfigError, match=r"'cnn-5x5' does not take samples of shape \(1, 8, 8\).*\(1, 16, 16\) or larger"
    ):
        partwise.run("fedavg", data="made", model="cnn-5x5", rounds=1)
    colours = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), nn.Linear(144, 10))
    with pytest.raises(ConfigError, match=r"shape \(1, 8, 8\).*expected input\[2, 1, 8, 8\] to have 3 channels"):
        partwise.run("fedavg", data="made", model=Parts(colours, body="0", head="1"), rounds=1)
    with pytest.raises(ConfigError, match="takes images"):
        partwise.network.models.build("cnn-5x5", (30,), 2)


@LOOP
def test_fault_15_a_client_without_training_samples_is_never_sampled_and_has_no_accuracy(engine):
    simulation = simulate("fedper", network("cnn+bn"), without_training_samples(4), engine, rounds=3, participation=0.9)
    assert all(4 not in row["participants"] for row in simulation.history.rows)
    assert "never sampled: 4" in simulation.notes[1]
    rows = Result(simulation).clients
    assert rows[4]["received"] is None and rows[4]["train_samples"] == 0 and rows[4]["rounds"] == 0
    assert all(row["received"] is not None for row in rows if row["client"] != 4)
    with pytest.raises(KeyError, match="no model"):
        Result(simulation).models[4]


@ENGINES
def test_fault_16_a_batch_of_one_is_skipped_where_there_is_batch_norm(engine):
    federation = awkward_federation()  # client 0 has one sample, client 3 has 17: with batch 8 a last batch of one
    for net, steps in (("cnn+bn", {0: 0, 3: 2}), ("cnn", {0: 1, 3: 3})):
        simulation = simulate("fedavg", network(net), federation, engine, rounds=1)
        before = {name: copies.values[0].clone() for name, copies in simulation.server.copies.items()}
        updates = simulation.engine.run(simulation.server.request("train", [0, 3]))
        assert dict(zip(updates.clients, updates.steps.tolist(), strict=True)) == steps
        unchanged = all(torch.equal(value[0], before[name]) for name, value in updates.parts.items())
        assert unchanged == (net == "cnn+bn")
        assert updates.samples.tolist() == [1, 17]  # its weight counts as always


@LOOP
def test_fault_17_a_client_with_less_than_a_batch_trains(engine):
    for drop_last in (False, True):
        simulation = simulate("local", network("cnn"), engine=engine, rounds=1, batch=64, drop_last=drop_last)
        initial = network("cnn").tensors()
        for client in range(8):
            own = simulation.engine.store.own(client, simulation.server.plan.own)
            assert all(not torch.equal(value, initial[name]) for name, value in own.items()), client


@LOOP
def test_fault_18_one_class_at_home_and_another_in_the_test_set(engine):
    federation = awkward_federation()
    others = torch.cat(federation.test[4:])
    test = [others if client == ONE_CLASS else index for client, index in enumerate(federation.test)]
    federation = dataclasses.replace(federation, test=test)
    simulation = simulate("fedrep", network("cnn+bn"), federation, engine, rounds=3)
    row = Result(simulation).clients[ONE_CLASS]
    assert row["classes"] == 1 and 0 <= row["received"] <= 1
    for name, value in simulation.engine.store.own(ONE_CLASS, simulation.server.plan.own).items():
        assert torch.isfinite(value).all(), name


def test_batch_norm_with_batches_of_one_is_refused():
    with pytest.raises(ConfigError, match="batch = 1"):
        simulate("fedavg", network("cnn+bn"), batch=1)


@ENGINES
def test_updates_that_are_not_finite_stop_the_run_with_the_round_named(engine):
    with pytest.raises(Diverged, match=r"diverged at round \d+: \d of 8 updates can be used") as caught:
        simulate("fedavg", network("cnn"), engine=engine, rounds=5, lr=1e30)
    assert caught.value.exit_code == 4


class Centred(nn.Module):
    """Subtracts the mean of the mini-batch: a row changes what becomes of the others."""

    def forward(self, x):
        return x - x.mean(0)


def test_a_network_that_mixes_rows_runs_one_client_at_a_time_and_says_so_or_is_refused(monkeypatch):
    monkeypatch.setattr(Workers, "executor", InThisProcess)
    mixing = nn.Sequential(nn.Sequential(nn.Flatten(), Centred(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 4))
    parts = Parts(mixing.double(), body="0", head="1")
    why = "a row of a mini-batch changes the others in 'body.1' (Centred)"
    assert simulate("fedper", parts, engine="auto", rounds=1).notes[0] == f"engine: loop, because {why} on cpu"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'engine = vector cannot run this: {why}')}"):
        simulate("fedper", parts, engine="vector", rounds=1)
    assert simulate("fedper", parts, engine="workers", workers=1, rounds=1).notes[0] == "engine: workers on cpu"


def test_what_the_rule_for_engines_chooses():
    chosen = {}
    for net in ("mlp", "cnn"):
        values = {"device": "cpu", "clients": 8, "dtype": "float64"}
        chosen[net] = prepare(make_config("fedavg", values), awkward_federation(), network(net)).notes[0]
    assert chosen == {"mlp": "engine: vector on cpu", "cnn": "engine: loop on cpu"}


def test_fault_21_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="torch sees 0 CUDA devices"):
        partwise.run("fedavg", data="made", device="cuda")
    with pytest.raises(ConfigError, match="unknown device 'meta'"):
        partwise.run("fedavg", data="made", device="meta")


@pytest.mark.parametrize("method", ["fedper", "fedbabu"])
def test_fault_21_out_of_memory_halves_the_block_and_the_result_is_unchanged(method, monkeypatch, caplog):
    whole = simulate(method, network("cnn+bn"), engine="vector", momentum=0.5, rounds=2)
    tried = short_of_memory(monkeypatch, 3)
    pieces = simulate(method, network("cnn+bn"), engine="vector", momentum=0.5, rounds=2)
    monkeypatch.undo()
    assert distance(whole, pieces) < 1e-10
    assert tried[:6] == [8, 4, 2, 2, 2, 2], "half, and half again"
    assert max(tried[2:]) == 2, "and no later block is wider"
    assert [record.args[1] for record in caplog.records] == [4, 2]


def test_fault_21_a_client_that_does_not_fit_alone_is_named(monkeypatch):
    short_of_memory(monkeypatch, 0)
    with pytest.raises(PartwiseError, match="alone needs more memory than cpu has: lower batch"):
        simulate("fedavg", network("mlp"), engine="vector")


def test_a_warm_up_that_leaves_no_round_is_refused():
    with pytest.raises(ConfigError, match="warmup_rounds = 5 is not allowed: at most rounds - 1 = 4"):
        partwise.run("lg_fedavg", data="made", rounds=5, warmup_rounds=5)


def test_switches_of_torch_are_set_for_the_run_alone():
    def switches():
        return torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()

    before, during = switches(), []
    settings = {"rounds": 1, "clients": 2, "deterministic": True, "threads": before[1] + 1}
    settings |= {"model": "mlp-100", "train_samples": 10}  # little that threads could wait for
    partwise.run("local", data="made", progress=lambda row: during.append(switches()), **settings)
    assert during == [(True, before[1] + 1)] and switches() == before


class Poisoned(Method):
    """The client with 17 samples, number 3, computes nothing but nan."""

    share = {"body": ALL, "head": LOCAL}

    def loss(self, net, b, me):
        return b.ce(net(b.x)) * torch.where(me.samples == 17, torch.nan, 1.0)


class PoisonedRelay(Poisoned):
    def stages(self):
        yield Stage(self.phases(), self.share, self.rounds, cohort=Relay(lambda server: [0, 1] * 4))


@ENGINES
@pytest.mark.parametrize("method", [Poisoned, PoisonedRelay])
def test_an_update_that_is_not_finite_is_left_out_and_its_client_keeps_what_it_had(method, engine):
    simulation = simulate(method, network("cnn+bn"), engine=engine, rounds=2)
    assert [row["refused"] for row in simulation.history.rows] == [[3], [3]]
    assert simulation.server.events[0].detail == "holds numbers that are not finite"
    assert all(torch.isfinite(copies.values).all() for copies in simulation.server.copies.values())
    initial = network("cnn+bn").tensors()
    for client in (3, 4):
        own = simulation.engine.store.own(client, ["head.weight"])["head.weight"]
        assert torch.equal(own, initial["head.weight"]) == (client == 3)


class ReservedName(Method):
    share = {"*": ALL}

    def build(self, parts, sizes):
        return parts.copy("head", name="mask")


class StartsNowhere(Method):
    def start(self, net, me):
        return {"head.wight": net["head"]["weight"]}


def test_names_that_mean_something_else_or_nothing_are_refused():
    with pytest.raises(ConfigError, match="a part cannot be called 'mask'"):
        simulate(ReservedName, network("mlp"), rounds=1)
    with pytest.raises(ConfigError, match=r"unknown tensor 'head.wight'; did you mean 'head.weight'\?"):
        simulate(StartsNowhere, network("mlp"), rounds=1)


class LaterOnAll(Method):
    """Client 3 diverges in the second round, all others in the third."""

    def finish(self, net, me):
        gone = (me.got.round == 1) & (me.samples == 17) | (me.got.round > 1)
        return me.keep, {"drift": torch.where(gone, torch.nan, 1.0)}

    def down(self, server):
        return {"round": torch.tensor(server.round)}


def test_58_the_client_that_diverged_first_is_named():
    line = r"^diverged at round 3: 0 of 8 updates can be used, 8 refused, client 3 first, in round 2: holds numbers"
    with pytest.raises(Diverged, match=line):
        simulate(LaterOnAll, network("mlp"))
