"""Faults 20 and 33 to 39: clients that diverge, fail, or send what must not be mixed."""

import json
import math
from dataclasses import replace

import pytest
import torch

import partwise
from partwise import ALL, LOCAL, Method, Relay, Stage
from partwise.rounds.acceptance import check_update
from tests.support.attacks import attacking, ten_times_backwards
from tests.support.commands import TINY, refuse
from tests.support.runs import SIZES, awkward_federation, network, simulate

ENGINES = pytest.mark.parametrize("engine", ["loop", "vector"])

# ----------------------------------------------------------------------------------------------- 20: divergence


def test_fault_20_a_learning_rate_of_a_million_ends_the_run_with_the_round_named(capsys, tmp_path):
    settings = ["--rounds", "9", "--lr", "1e6", "--batch", "5000", "--quiet", "--out", tmp_path]  # a step a round
    line = refuse(capsys, "run", "fedavg", *TINY[:-2], *settings, code=4)
    rounds = (tmp_path / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(row) for row in (tmp_path / "events.jsonl").read_text().splitlines()]
    failed = len(rounds) + 1
    assert 1 < failed <= 9, "some rounds are good"
    assert line.startswith(f"error: diverged at round {failed}: 0 of 4 updates can be used, 4 refused, client 0 first")
    refused = {"round": failed, "what": "refused", "detail": "holds numbers that are not finite"}
    assert events == [{"round": failed, "client": client} | refused for client in range(4)]
    assert not (tmp_path / "summary.json").exists()


class LossAlone(Method):
    """The client with 17 samples, number 3, has a loss of inf whose gradient is a good one."""

    share = {"body": ALL, "head": LOCAL}

    def loss(self, net, b, me):
        return b.ce(net(b.x)) + torch.where(me.samples == 17, torch.inf, 0.0)


class LossInTurn(LossAlone):
    def stages(self):
        yield Stage(self.phases(), self.share, self.rounds, cohort=Relay(lambda server: [0, 1] * 4))


@ENGINES
@pytest.mark.parametrize("method", [LossAlone, LossInTurn])
def test_fault_20_a_loss_that_is_not_finite_counts_although_the_parameters_are(method, engine):
    run = simulate(method, network("mlp"), engine=engine, rounds=2)
    assert [(event.client, event.what, event.detail) for event in run.server.events] == [
        (3, "refused", "its training loss is not finite")
    ] * 2
    head = run.engine.store.own(3, ["head.weight"])["head.weight"]
    assert torch.equal(head, network("mlp").tensors()["head.weight"]), "what it made is not kept either"


# ------------------------------------------------------------------------------- 33, 34: clients that do not answer


@ENGINES
def test_fault_33_a_round_ends_with_the_others_and_with_too_few_it_is_not_averaged(engine, tmp_path):
    (tmp_path / "trace.csv").write_text("round,client,what\n1,0,drop\n2,1,drop\n2,2,drop\n2,3,drop\n2,4,drop\n")
    trace = str(tmp_path / "trace.csv")
    run = simulate("fedavg", network("mlp"), engine=engine, rounds=2, failure_trace=trace, min_clients=4)
    one = simulate("fedavg", network("mlp"), engine=engine, rounds=1, failure_trace=trace, min_clients=4)
    assert [event.what for event in run.server.events] == [*["dropped"] * 6, "skipped"]
    for name, copies in run.server.copies.items():
        assert torch.equal(copies.values, one.server.copies[name].values)


@ENGINES
def test_fault_34_a_late_answer_is_dropped_and_counted(engine, tmp_path):
    (tmp_path / "trace.csv").write_text("round,client,what\n1,5,late\n")
    run = simulate("fedavg", network("mlp"), engine=engine, rounds=1, failure_trace=str(tmp_path / "trace.csv"))
    assert [(event.client, event.what) for event in run.server.events] == [(5, "late")]
    assert 5 not in run.server.asked[0][1].clients


# ------------------------------------------------------------------------- 36 to 38: one client's update, as it came

EXPECTED = {
    "body.weight": torch.zeros(2, 3),
    "head.bias": torch.zeros(3),
    "body.seen": torch.zeros(1, dtype=torch.long),
}


def check(samples=5.0, extras=None, **changed):
    sent = {name: value.clone() for name, value in EXPECTED.items()} | changed
    sent = {name: value for name, value in sent.items() if value is not None}
    return check_update(sent, extras or {}, samples, EXPECTED, 10)


def test_an_update_with_which_nothing_is_wrong_passes():
    assert check() == check(extras={"trust": torch.tensor(1.0)}) == ""


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_fault_36_numbers_that_are_not_finite(wrong):
    assert check(**{"head.bias": torch.tensor([0.0, wrong, 0.0])}) == "holds numbers that are not finite"
    assert check(extras={"trust": {"deep": torch.tensor(wrong)}}) == "holds numbers that are not finite"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("head.bias", torch.zeros(1), "'head.bias' is (1,) torch.float32, not (3,) torch.float32"),  # would broadcast
        ("head.bias", torch.tensor(0.0), "'head.bias' is () torch.float32, not (3,) torch.float32"),
        ("body.weight", torch.zeros(3), "'body.weight' is (3,) torch.float32, not (2, 3) torch.float32"),
        ("head.bias", torch.zeros(3).double(), "'head.bias' is (3,) torch.float64, not (3,) torch.float32"),
        ("body.seen", torch.zeros(1), "'body.seen' is (1,) torch.float32, not (1,) torch.int64"),
        ("head.bias", None, "missing or unexpected tensors: head.bias"),
        ("head.bais", torch.zeros(3), "missing or unexpected tensors: head.bais"),
    ],
)
def test_fault_37_wrong_shapes_types_and_names(name, value, reason):
    assert check(**{name: value}) == reason


@pytest.mark.parametrize("samples", [0, -1, math.nan, math.inf, 1e12, 11])
def test_fault_38_false_sample_counts(samples):
    assert check(samples) == f"counts {samples:g} samples, registered 10"


def test_fault_38_a_count_may_change_from_round_to_round_below_what_was_registered():
    assert check(10) == check(3) == check(9) == ""


# ------------------------------------------------------------------------------------- what clients do to a whole run


def lying(samples):
    def attack(updates, request, rows):
        counts = updates.samples.clone()
        counts[rows] = samples
        return replace(updates, samples=counts)

    return attack


@ENGINES
def test_fault_38_a_liar_is_left_out_and_the_others_are_averaged(engine, monkeypatch):
    attacking(monkeypatch, [4], lying(1e12))
    run = simulate("fedavg", network("mlp"), engine=engine, rounds=2)
    assert [event.detail for event in run.server.events] == ["counts 1e+12 samples, registered 16"] * 2
    assert run.server.times.tolist() == [2, 2, 2, 2, 0, 2, 2, 2]


@pytest.mark.parametrize("outliers", ["log", "leave-out", "clip"])
def test_fault_36_an_update_far_too_long_is_said_left_out_or_clipped(outliers, monkeypatch):
    attacking(monkeypatch, [5], ten_times_backwards)
    run = simulate("fedavg", network("mlp"), rounds=1, outliers=outliers)
    [event] = run.server.events
    [(_, updates)] = run.server.asked
    assert (event.round, event.client, event.what) == (0, 5, "outlier")
    assert event.detail.endswith(
        {"log": "the round's median", "leave-out": "median, left out", "clip": "median, clipped"}[outliers]
    )
    assert (5 in updates.clients) == (outliers != "leave-out")
    if outliers == "clip":  # the median of eight, of which the attacker's is the longest before
        away = [value - network("mlp").tensors()[name].detach() for name, value in updates.parts.items()]
        norms = sum(each.flatten(1).square().sum(1) for each in away).sqrt()
        honest = norms[[0, 1, 2, 3, 4, 6, 7]].sort().values
        assert float(norms[5] / honest[3:5].mean()) == pytest.approx(7, abs=1e-9)


def test_fewer_than_four_updates_are_not_compared(monkeypatch):
    attacking(monkeypatch, [1], ten_times_backwards)
    for clients, alarms in ((4, 1), (3, 0)):
        federation = awkward_federation(SIZES[2 : 2 + clients])
        run = simulate("fedavg", network("mlp"), federation, rounds=1, outlier_factor=3)
        assert [event.client for event in run.server.events] == [1] * alarms


# ------------------------------------------------------------------------------- 39: an attacker among twenty clients

DIGITS = {"data": "digits", "clients": 20, "partition": "iid", "rounds": 20, "lr": 0.1, "model": "mlp-100"}
DIGITS |= {"threads": 1, "batch": 10, "eval_every": 20, "engine": "vector"}


def accuracy(result):
    return result.metrics[-1]["global"]["g_test"]


def test_fault_39_robust_means_withstand_an_attacker_and_the_plain_mean_raises_an_alarm(monkeypatch):
    clean = accuracy(partwise.run("fedavg", **DIGITS))
    attacking(monkeypatch, [7], ten_times_backwards)
    for robust in ("median", "trimmed", "krum", "clip"):
        assert accuracy(partwise.run("fedavg", **DIGITS, robust=robust)) > clean - 0.02, robust
    plain = partwise.run("fedavg", **DIGITS)
    alarms = [event for event in plain.simulation.server.events if event.what == "outlier"]
    assert {event.client for event in alarms} == {7} and alarms[0].round == 0
