"""Faults 48, 50, 51, 57 and 58: what used to end as an ordinary run, or too late, is refused and named."""

import dataclasses
import json

import pytest
import torch

import partwise
from partwise import LOCAL, ConfigError, DataError, Diverged, Method, Move, Phase
from partwise.data import saved
from partwise.reporting.tables import leaderboard, one_run
from partwise.runs.result import Models, Result
from partwise.studies.leaderboard import standings
from tests.support.commands import TINY, read_json, refuse
from tests.support.runs import SIZES, awkward_federation, network, simulate

ENGINES = pytest.mark.parametrize("engine", ["loop", "vector"])
BY_HAND = {"batch": 8, "lr": 0.05, "device": "cpu"}


# ------------------------------------------------------------------------------------- 48: divergence in silence


@ENGINES
def test_fault_48_training_that_diverges_is_noticed_where_nothing_is_uploaded(engine):
    """The clients with 1, 6 and 7 samples make one step, which only throws them far away; the second one is fatal."""
    with pytest.raises(Diverged, match=r"diverged at round 1: 3 of 8 updates can be used, 5 refused, client 3 first"):
        simulate("local", network("cnn"), engine=engine, rounds=4, lr=1e200)


def test_fault_48_a_run_that_diverges_ends_with_exit_code_4_and_without_models(capsys, tmp_path):
    line = refuse(capsys, "run", "local", *TINY, "--lr", "1e20", "--quiet", "--out", tmp_path / "a", code=4)
    assert "of 4 updates can be used, 4 refused, client 0 first: holds numbers that are not finite" in line
    line = refuse(capsys, "run", "fedbabu", *TINY, "--finetune-lr", "1e20", "--quiet", "--out", tmp_path / "b", code=4)
    assert line == (
        "error: adaptation diverged after round 2: 0 of 4 clients' models can be used, "
        "client 0 first: holds numbers that are not finite"
    )
    for folder in ("a", "b"):
        assert not (tmp_path / folder / "models").exists() and not (tmp_path / folder / "summary.json").exists()


class Alone(Method):
    """Nothing is shared. The client with 17 samples, number 3, computes nothing but nan."""

    share = {"*": LOCAL}

    def loss(self, net, b, me):
        return b.ce(net(b.x)) * torch.where(me.samples == 17, torch.nan, 1.0)


@ENGINES
def test_fault_48_a_client_that_diverges_alone_is_counted_and_keeps_what_it_had(engine):
    run = simulate(Alone, network("mlp"), engine=engine, rounds=2)
    assert [row["refused"] for row in run.history.rows] == [[3], [3]]
    assert [row["trained"]["clients"] for row in run.history.rows] == [7, 7]
    start = network("mlp").tensors()
    for client in (3, 4):
        own = run.engine.store.own(client, ["head.weight"])["head.weight"]
        assert torch.equal(own, start["head.weight"]) == (client == 3)


class AdaptsBadly(Method):
    """FedAvg; in adaptation client 3 computes nothing but nan."""

    def adapt(self):
        return Phase(Move("*", Alone.loss.__get__(self)), epochs=1)


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_fault_48_a_copy_that_diverges_in_adaptation_is_no_model(engine, tmp_path):
    data = awkward_federation()
    result = partwise.run(AdaptsBadly, data=data, rounds=2, engine=engine, out=tmp_path / "x", **BY_HAND)
    adapted = result.metrics[-1]["method_adapted"]
    assert (adapted["diverged"], adapted["nonfinite"], adapted["clients"]) == ([3], len(data.test[3]), 8)
    assert result.metrics[-1]["received"]["nonfinite"] == 0
    assert result.clients[3]["method_adapted"] == 0  # wrong in every way, and said to be
    written = sorted(path.stem for path in (tmp_path / "x" / "models").iterdir())
    assert written == [*(f"client-{client:03}" for client in range(8) if client != 3), "global"]
    with pytest.raises(KeyError, match="client 3 has no model: its adaptation diverged"):
        result.models[3]
    assert read_json(tmp_path / "x" / "summary.json")["accuracy"]["method_adapted"]["last"]["diverged"] == [3]
    line = "LM method_adapted: 3 answers were not finite and count as wrong; clients 3 diverged"
    assert line in one_run(result.summary).notes


class Overflowing(Method):
    """A sound model, whose answers overflow for client 3."""

    def predict(self, net, x, me):
        return net(x) / torch.where(me.samples == 17, 0.0, 1.0)


@ENGINES
def test_fault_48_answers_that_are_not_finite_are_counted_and_shown(engine):
    run = simulate(Overflowing, network("mlp"), engine=engine, rounds=1)
    row = run.history.rows[0]
    assert row["received"]["nonfinite"] == row["trained"]["nonfinite"] == 3 and row["global"]["g_nonfinite"] == 0
    assert torch.isfinite(Models(run)[3].tensors["head.weight"]).all()
    summary = Result(run).summary
    assert "LM received: 3 answers were not finite and count as wrong" in one_run(summary).notes
    line = "overflowing, after the last round: 3 answers were not finite and count as wrong"
    assert line in leaderboard(standings([summary]), summary).notes
    usual = Result(simulate("fedavg", network("mlp"), engine=engine, rounds=1)).summary
    assert "not finite" not in " ".join([*one_run(usual).notes, *leaderboard(standings([usual]), usual).notes])


# ------------------------------------------------------------------------------------- 50: nothing to learn or measure


def test_fault_50_a_federation_without_test_samples_is_refused():
    with pytest.raises(DataError, match="no client has both training and test samples") as caught:
        simulate("fedavg", network("mlp"), awkward_federation(tested=0))
    assert caught.value.exit_code == 3
    federation = awkward_federation((0, 0, 4, 4))  # those that are tested have nothing to learn from
    nobody = [index[:0] if client > 1 else index for client, index in enumerate(federation.test)]
    with pytest.raises(DataError, match="no client has both"):
        simulate("fedavg", network("mlp"), dataclasses.replace(federation, test=nobody))


def test_fault_50_a_federation_in_which_nobody_can_make_a_step_is_refused():
    ones = awkward_federation((1, 1, 1))
    line = (
        r"no client can make a step: it needs 2 training samples \(batch-norm cannot learn from one sample\), "
        "and the largest client has 1"
    )
    with pytest.raises(DataError, match=line):
        simulate("fedavg", network("cnn+bn"), ones, rounds=1)
    assert simulate("fedavg", network("cnn"), ones, rounds=1).history.rows[0]["received"]["clients"] == 3
    assert simulate("fedavg", network("cnn+bn"), awkward_federation((1, 1, 2)), rounds=1).engine.store.steps.sum() == 1
    assert SIZES[0] == 1  # and every other test has a client that makes none


class Pairs(Method):
    def phases(self):
        return Phase(Move("*", "both", batches=2))

    def both(self, net, b, me):
        return b[0].ce(net(b[0].x)) + b[1].ce(net(b[1].x))


def test_fault_50_two_mini_batches_a_step_need_two_samples():
    with pytest.raises(DataError, match="it needs 2 training samples, and the largest client has 1"):
        simulate(Pairs, network("mlp"), awkward_federation((1, 1)), rounds=1)


class Idle(Method):
    def phases(self):
        return Phase(Move("*"), epochs=0)


def test_fault_50_a_method_that_trains_nothing_is_none_of_it():
    assert simulate(Idle, network("cnn+bn"), awkward_federation((1, 1)), rounds=1).engine.store.steps.sum() == 0


# ---------------------------------------------------------------------------------------- 51: refused in good time

FED3P2P = ("fed3p2p", "--data", "made", "--clients", "6", "--rounds", "2", "--quiet")


@pytest.mark.parametrize("option", ["--coordinators-a", "--coordinators-b"])
@pytest.mark.parametrize("dry", [True, False])
def test_fault_51_what_a_method_refuses_is_refused_before_the_folder_is_begun(option, dry, capsys, tmp_path):
    more = ("--dry-run",) if dry else ()
    line = refuse(capsys, "run", *FED3P2P, option, "9", "--out", tmp_path / "x", *more)
    assert line == f"error: {option[2:].replace('-', '_')} = 9 is more than the 6 clients"
    assert not (tmp_path / "x").exists()


class Choosy(Method):
    """Takes clients in pairs."""

    def check(self, clients):
        if clients % 2:
            raise ConfigError(f"{clients} clients cannot be paired")


def test_fault_51_a_method_of_ones_own_may_refuse_too(tmp_path):
    with pytest.raises(ConfigError, match="7 clients cannot be paired"):
        partwise.run(Choosy, data=awkward_federation(SIZES[:7]), rounds=1, out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


# ----------------------------------------------------------------------------- 57: training samples among the test data


def leaking(number):
    """A federation in whose global test set so many training samples stand; every client's own is sound."""
    federation = awkward_federation()
    return {"global_test": torch.cat([federation.global_test, torch.cat(federation.train)[:number]])}


def test_fault_57_training_samples_in_the_global_test_set_are_refused_and_counted():
    with pytest.raises(DataError, match="global_test holds 5 samples that clients train or validate on") as caught:
        dataclasses.replace(awkward_federation(), **leaking(5))
    assert caught.value.exit_code == 3
    federation = awkward_federation(validated=1)
    everything = torch.cat([federation.global_test, federation.validation[2]])
    with pytest.raises(DataError, match="global_test holds 1 samples"):
        dataclasses.replace(federation, global_test=everything)


def test_fault_57_a_neighbours_test_sample_is_no_training_sample():
    """Each client's own sets are disjoint, and `central` would learn from what it is tested on."""
    federation = awkward_federation()
    train = [torch.cat([federation.train[0], federation.test[1][:2]]), *federation.train[1:]]
    with pytest.raises(DataError, match="global_test holds 2 samples"):
        dataclasses.replace(federation, train=train)


def test_fault_57_a_saved_partition_with_training_samples_in_its_test_set_is_refused(tmp_path):
    federation, path = awkward_federation(), tmp_path / "partition.json"
    saved.save(federation, path)
    content = json.loads(path.read_text())
    content.pop("sha256")
    content["global_test"] = leaking(4)["global_test"].tolist()
    path.write_text(json.dumps({**content, "sha256": saved.json_digest(content)}))
    with pytest.raises(
        DataError, match=r"partition '.*partition.json': global_test holds 4 samples that clients train"
    ):
        saved.read_partition(path, federation.source)


# ------------------------------------------------------------------------------------ 58: what it was, and who


def odd_federation(change):
    """The usual clients, with their samples as numbers that are not checked."""
    federation = awkward_federation()
    x = federation.source.x.float()
    change(x)
    return dataclasses.replace(federation, source=dataclasses.replace(federation.source, x=x))


def nan_in_the_last_row(x):
    x[-1] = torch.nan


def enormous(x):
    x *= 1e25


def one_enormous(x):
    x[-1] *= 1e30


@pytest.mark.parametrize("engine", ["loop", "vector"])
@pytest.mark.parametrize("change", [nan_in_the_last_row, enormous, one_enormous])
@pytest.mark.parametrize(("method", "net"), [("fedavg", "mlp"), ("fedproto", "cnn+bn")])
def test_fault_58_odd_numbers_are_not_taken_for_a_mistake_of_the_method(method, net, change, engine):
    """They may cost clients, or the run; neither padded rows nor random numbers are to blame."""
    parts = network(net)
    for module in parts.modules.values():
        module.float()
    settings = {"rounds": 2, "allow_nonfinite_data": True, "dtype": "float32"}
    try:
        run = simulate(method, parts, odd_federation(change), engine, trials=True, **settings)
    except Diverged as error:
        assert change is not nan_in_the_last_row and "holds numbers that are not finite" in str(error)
    else:
        refused = {client for row in run.history.rows for client in row["refused"]}
        assert refused == {7} if change is nan_in_the_last_row else refused <= set(range(8))


class OneAfterAnother(Method):
    """Client 4, with 16 samples, computes nan from the first round on, and all others from the second."""

    def down(self, server):
        return {"round": torch.tensor(float(server.round))}

    def loss(self, net, b, me):
        lost = (me.samples == 16) | (me.got["round"] > 0)
        return b.ce(net(b.x)) * torch.where(lost, torch.nan, 1.0)


@ENGINES
def test_fault_58_the_client_that_is_named_diverged_first(engine):
    line = r"diverged at round 2: 0 of 8 updates can be used, 8 refused, client 4 first, in round 1: holds numbers"
    with pytest.raises(Diverged, match=line):
        simulate(OneAfterAnother, network("mlp"), engine=engine, rounds=3)
