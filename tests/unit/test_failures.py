"""Clients that fail: who does, what the server makes of it, and what of it is counted."""

import json

import pytest
import torch

import partwise
from partwise import ALL, LOCAL, ConfigError, DataError, Method, Relay, Stage
from partwise.network.view import PerClient
from partwise.rounds.events import Event, events_in_words
from partwise.rounds.failures import PlayedFailures, read_trace
from partwise.rounds.safeguards import Safeguards
from tests.support.runs import awkward_federation, network, simulate


def traced(tmp_path, *lines):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["round,client,what", *lines]) + "\n")
    return str(path)


def events(run):
    return [(event.round, event.client, event.what) for event in run.server.events]


# ------------------------------------------------------------------------------------------------------- who fails


def test_a_share_of_the_participants_fails_each_drawn_for_itself():
    failures, everyone = PlayedFailures(dropout=0.2, stragglers=0.3), range(200)
    drawn = {round: failures.of(0, round, everyone) for round in range(20)}
    kinds = [what for own in drawn.values() for what in own.values()]
    dropped, late = kinds.count("dropped") / 4000, kinds.count("late") / 4000
    assert dropped == pytest.approx(0.2, abs=0.03) and late == pytest.approx(0.8 * 0.3, abs=0.03)  # 4 deviations
    assert drawn[3] == failures.of(0, 3, everyone) != drawn[4]
    some = failures.of(0, 3, [7, 50, 120])
    assert some == {client: what for client, what in drawn[3].items() if client in (7, 50, 120)}
    assert PlayedFailures().of(0, 0, everyone) == {}


def test_a_trace_says_who_is_away_until_when(tmp_path):
    failures = PlayedFailures(trace=read_trace(traced(tmp_path, "2,1,drop", "4,1,back", "1,0,late", "", "3,2,drop"), 3))
    found = [failures.of(0, round, range(3)) for round in range(5)]
    assert found == [{0: "late"}, {1: "dropped"}, {1: "dropped", 2: "dropped"}, {2: "dropped"}, {2: "dropped"}]
    assert [failures.returning(round) for round in range(5)] == [[], [], [], [1], []]


@pytest.mark.parametrize("line", ["0,1,drop", "1,3,drop", "1,-1,drop", "1,1,gone", "1,1", "one,1,drop", "1,1,drop,x"])
def test_a_trace_with_a_wrong_line_is_refused_with_its_number(tmp_path, line):
    with pytest.raises(DataError, match=r"trace.csv' line 3: .* is not a round from 1, a client from 0 to 2, and"):
        read_trace(traced(tmp_path, "1,0,late", line), 3)


def test_a_trace_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match="line 3: client 0 occurs twice in round 1"):
        read_trace(traced(tmp_path, "1,0,late", "1,0,drop"), 3)
    with pytest.raises(DataError, match=r"cannot read the trace of failures '.*nix.csv': No such file"):
        read_trace(str(tmp_path / "nix.csv"), 3)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="line 1: a trace of failures must begin with the line round,client,what"):
        simulate("fedavg", network("mlp"), failure_trace=str(tmp_path / "other.csv"))


# ------------------------------------------------------------------------------------- what the server makes of it


class Personal(Method):
    share = {"body": ALL, "head": LOCAL}


def heads(run):
    return torch.stack([run.engine.store.own(client, ["head.bias"])["head.bias"] for client in range(8)])


def test_who_drops_out_keeps_what_it_had_and_who_is_late_has_trained_but_is_not_mixed(tmp_path):
    trace = traced(tmp_path, "1,3,drop", "1,5,late")
    run, whole = (simulate(Personal, network("mlp"), rounds=1, failure_trace=each) for each in (trace, None))
    assert events(run) == [(0, 3, "dropped"), (0, 5, "late")]
    same = (heads(run) == heads(whole)).all(1).tolist()
    assert same == [True, True, True, False, True, True, True, True]
    assert torch.equal(heads(run)[3], network("mlp").tensors()["head.bias"])
    assert run.server.times.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    [(request, updates)] = run.server.asked
    assert request.clients == [0, 1, 2, 4, 5, 6, 7] and updates.clients == [0, 1, 2, 4, 6, 7]
    [(_, uploaded)] = whole.server.asked
    weights = uploaded.samples[updates.clients] / uploaded.samples[updates.clients].sum()
    for name, value in uploaded.parts.items():
        mean = torch.einsum("k,k...->...", weights, value[updates.clients])
        assert torch.allclose(run.server.copies[name].values[0], mean, rtol=0, atol=1e-14)


def test_what_was_sent_is_counted_and_what_never_came_is_not(tmp_path):
    trace = traced(tmp_path, "1,3,drop", "1,5,late")
    run, whole = (simulate(Personal, network("mlp"), rounds=1, failure_trace=each) for each in (trace, None))
    some, every = run.history.rows[0], whole.history.rows[0]
    assert some["bytes_down"] == every["bytes_down"]
    assert some["bytes_up"] * 8 == every["bytes_up"] * 7  # what is late came all the same
    assert run.server.ledger.flops < whole.server.ledger.flops  # who drops out trains nothing


class Ranked(Method):
    """Everybody receives its own number."""

    def down(self, server):
        return {"number": PerClient(torch.tensor(server.receivers, dtype=torch.float64))}

    def finish(self, net, me):
        return me.keep, {"echo": me.got.number}


def test_what_is_for_one_client_alone_reaches_it_where_others_fail(tmp_path):
    run = simulate(Ranked, network("mlp"), rounds=1, failure_trace=traced(tmp_path, "1,0,drop", "1,4,drop", "1,6,late"))
    [(_, updates)] = run.server.asked
    assert updates.extras["echo"].tolist() == updates.clients == [1, 2, 3, 5, 7]


class InTurn(Method):
    """One chain through all clients."""

    def stages(self):
        yield Stage(self.phases(), self.share, self.rounds, cohort=Relay(lambda server: [0] * server.clients))


def test_a_relay_skips_who_fails(tmp_path):
    run = simulate(InTurn, network("mlp"), rounds=1, failure_trace=traced(tmp_path, "1,2,drop", "1,4,late"))
    hops = [request.clients[0] for request, _ in run.server.asked]
    assert sorted(hops) == [0, 1, 3, 4, 5, 6, 7]
    for (_, before), (request, _) in zip(run.server.asked, run.server.asked[1:], strict=False):
        if before.clients:  # what the client before it made is what it received
            assert torch.equal(request.copies["head.bias"].of(request.clients)[0], before.parts["head.bias"][0])
    assert run.server.times.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]


def test_with_fewer_than_min_clients_a_round_is_skipped_and_the_run_goes_on(tmp_path):
    trace = traced(tmp_path, *(f"2,{client},drop\n3,{client},back" for client in range(6)))
    run = simulate("fedavg", network("mlp"), rounds=3, failure_trace=trace, min_clients=3)
    first = simulate("fedavg", network("mlp"), rounds=1)
    skipped = [event for event in run.server.events if event.what == "skipped"]
    assert skipped == [Event(1, None, "skipped", "2 of 8 updates can be used, min_clients = 3")]
    assert len(run.history.rows) == 3 and run.history.rows[1]["global"] == first.history.rows[0]["global"]
    assert run.server.times.tolist() == [2] * 6 + [3] * 2
    assert not torch.equal(run.server.copies["head.bias"].values, first.server.copies["head.bias"].values)
    with pytest.raises(ConfigError, match="min_clients = 5 is more than the 4 participants of a round"):
        simulate("fedavg", network("mlp"), min_clients=5, participation=0.5)


def test_drop_outs_are_no_divergence(tmp_path):
    trace = traced(tmp_path, *(f"1,{client},drop" for client in range(7)))
    run = simulate("fedavg", network("mlp"), rounds=2, failure_trace=trace)
    assert run.server.times.tolist() == [0] * 7 + [2]  # one of eight is enough


def test_the_moment_after_training_needs_everybody():
    with pytest.raises(ConfigError, match="let all clients take part"):
        simulate("fedavg", network("mlp"), moment="trained", client_dropout=0.1)


# ---------------------------------------------------------------------------------------------------------- events


def test_a_round_is_told_in_a_line(caplog):
    refused = [Event(2, client, "refused", "is not finite") for client in range(5)]
    line = events_in_words([*refused, Event(2, 9, "late"), Event(2, None, "skipped", "1 of 7")])
    assert line == "5 refused (clients 0, 1, 2, ...): is not finite; 1 late (client 9); round skipped: 1 of 7"
    outliers = [Event(2, 1, "outlier", "9 times the median"), Event(2, 10, "outlier", "8 times the median")]
    assert events_in_words(outliers) == "2 outliers (clients 1, 10), client 1 first: 9 times the median"
    with caplog.at_level("INFO"):
        run = simulate("fedavg", network("mlp"), rounds=4, client_dropout=0.4)
    rounds = sorted({event.round for event in run.server.events})
    lines = [record for record in caplog.records if record.name == "partwise.rounds.events"]
    assert [record.getMessage()[:8] for record in lines] == [f"round {round + 1}:" for round in rounds]
    assert {record.levelname for record in lines} == {"INFO"}


def test_events_are_written_as_the_run_goes_and_equal_runs_give_equal_bytes(tmp_path):
    settings = {"data": awkward_federation(), "model": "mlp-100", "rounds": 3, "client_dropout": 0.3, "stragglers": 0.3}
    written = []
    for name in ("a", "b"):
        partwise.run("fedavg", **settings, out=tmp_path / name)
        written.append((tmp_path / name / "events.jsonl").read_bytes())
    assert written[0] == written[1] != b""
    rows = [json.loads(line) for line in written[0].splitlines()]
    assert all(list(row) == ["round", "client", "what", "detail"] for row in rows)
    assert {row["what"] for row in rows} == {"dropped", "late"} and {row["round"] for row in rows} <= {1, 2, 3}


def test_with_fewer_than_min_clients_a_group_keeps_its_copy_and_the_others_are_averaged():
    """Clients 2, 5 and 7 took part: two of group 0 with 1 and 3 samples, one of group 1."""
    mean = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
    emptied, [line] = Safeguards(min_clients=2).emptied(mean, [2, 5, 7])
    assert emptied.tolist() == [[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]
    assert line == "group 1 keeps its copy: 1 of 3 updates can be used for it, min_clients = 2"
    silos = ["a", "a", "b", "b", "b", "b", "b", "c"]  # both of group 0 are of one silo, too
    emptied, lines = Safeguards(min_silos=2, silos=silos).emptied(mean, [2, 5, 7])
    assert not emptied.any() and len(lines) == 2
