"""Observers see all of a run's inside, change no bit of it, and may end it."""

import builtins
import json
import sys
from types import ModuleType

import pytest
import torch

import partwise
from partwise import methods
from partwise.rounds.batches import Drawing
from tests.support.runs import awkward_federation, network, simulate
from tests.support.seeds import concatenated, prepared
from tests.support.states import state

SETTINGS = {"participation": 0.5, "momentum": 0.5, "lr_decay": 0.9, "epochs": 1, "lr": 0.02}
FED3P2P = {"rounds_1": 2, "rounds_2": 1, "rounds": 3, "coordinators_a": 3, "coordinators_b": 3}
OWN = {"fed3p2p": FED3P2P, "scaffold": {"momentum": 0.0}}


class Curious(partwise.Observer):
    """Asks for everything, and keeps it."""

    def __init__(self):
        self.rounds, self.begun, self.ended = [], [], []

    def begin(self, simulation):
        self.begun.append(simulation)

    def round(self, seen):
        self.rounds.append(seen)
        for exchange in [*seen.exchanges, *seen.evaluations.values()]:
            for client in exchange.clients:
                exchange.received(client), exchange.received_extras(client), exchange.batches(client)
            for client in exchange.updates.clients:
                exchange.uploaded(client), exchange.uploaded_extras(client)

    def end(self, last):
        self.ended.append(last)


class StopAfter(partwise.Observer):
    def __init__(self, rounds):
        self.rounds = rounds

    def round(self, seen):
        return seen.record.round == self.rounds


def watched(method, net="cnn", observers=(), **settings):
    """A run, and the observer that watched it."""
    curious = Curious()
    return simulate(method, network(net), observers=[curious, *observers], **{**SETTINGS, **settings}), curious


def assert_same(one, other):
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert one.server.ledger.as_dict() == other.server.ledger.as_dict()


# Workers equal the loop bit for bit: that is a law of its own, and starting them takes longer than all the rest.
CASES = [(method, "loop") for method in methods.names()]
CASES += [(method, "vector") for method in ("fed3p2p", "fedfcd", "fedbabu")] + [("fedbabu", "workers")]


@pytest.mark.parametrize(("method", "engine"), CASES)
def test_an_observed_run_ends_bit_equal_to_one_that_is_not(method, engine):
    reference, net = "loop" if engine == "workers" else engine, "cnn+bn" if method == "fedbn" else "mlp of two layers"
    settings = {**SETTINGS, "rounds": 2, **OWN.get(method, {})}
    workers = 1 if engine == "workers" else None
    observed, curious = watched(method, net, engine=engine, workers=workers, **settings)
    assert_same(observed, simulate(method, network(net), engine=reference, **settings))
    assert [seen.record for seen in curious.rounds] == observed.history.rounds
    assert curious.begun == [observed] and curious.ended == curious.rounds[-1:]


def test_seeds_side_by_side_are_observed_one_by_one():
    settings = {"participation": 0.5, "finetune_epochs": 1}
    curious, runs = [Curious() for _ in range(3)], prepared("fedbabu", **settings)
    pairs = zip(runs, curious, strict=True)
    works = [lambda run=run, own=own: run.run(observers=[own]) for run, own in pairs]
    for observed, own, alone in zip(
        concatenated(runs, works), curious, concatenated(prepared("fedbabu", **settings)), strict=True
    ):
        assert_same(observed, alone)
        for seen in own.rounds:
            [exchange] = seen.exchanges
            assert exchange.clients == seen.cohort == seen.record.participants
            for client in exchange.clients:
                used = {int(k) for phase in exchange.batches(client) for step in phase for k in step.flatten()}
                assert used <= set(observed.federation.train[client].tolist())


def test_nothing_is_computed_for_an_observer_that_asks_for_nothing(monkeypatch):
    calls, drawn = [], Drawing.draw
    monkeypatch.setattr(Drawing, "draw", lambda *arguments: calls.append(1) or drawn(*arguments))
    simulate("fedper", network("mlp"), rounds=2)
    alone = len(calls)
    simulate("fedper", network("mlp"), rounds=2, observers=[partwise.Observer()])
    assert len(calls) == 2 * alone


# ------------------------------------------------------------------------------------------------ what is seen


def test_the_copies_after_a_round_are_the_mean_of_its_uploads_and_what_the_next_round_sends():
    run, curious = watched("fedper", rounds=3)
    samples, before = run.server.samples.double(), run.program.parts.tensors()
    for seen in curious.rounds:
        [exchange] = seen.exchanges
        assert exchange.clients == exchange.updates.clients == seen.cohort and len(seen.cohort) == 4
        weights = samples[seen.cohort] / samples[seen.cohort].sum()
        uploads = [exchange.uploaded(client) for client in seen.cohort]
        assert set(uploads[0]) == {name for name in before if name.startswith("body")}
        for name in uploads[0]:
            assert all(torch.equal(exchange.received(client)[name], before[name]) for client in seen.cohort)
            mean = sum(weight * upload[name] for weight, upload in zip(weights, uploads, strict=True))
            assert torch.allclose(seen.copies[name].values[0], mean, rtol=0, atol=1e-14)
        before = {name: copies.values[0] for name, copies in seen.copies.items()}


def test_mini_batches_hold_every_sample_of_a_client_once_an_epoch_and_no_padding():
    run, curious = watched("fedrep", rounds=1, batch=8, participation=1.0, head_epochs=2, body_epochs=1)
    [exchange] = curious.rounds[0].exchanges
    for client, own in enumerate(run.federation.train):
        phases = exchange.batches(client)
        for epochs, steps in zip((2, 1), phases, strict=True):
            seen = torch.cat([torch.from_numpy(step[0]) for step in steps])
            assert torch.equal(seen.sort().values, own.repeat(epochs).sort().values)
            assert [step.shape[1] for step in steps] == epochs * [len(part) for part in own.split(8)]


def test_in_a_relay_a_client_receives_what_the_one_before_it_uploaded():
    _, curious = watched("fed3p2p", **FED3P2P, participation=1.0)
    for seen in curious.rounds[:2]:
        hops = [exchange for exchange in seen.exchanges if exchange.job == "train"]
        held: dict = {}  # by group: what its last client uploaded
        assert sum(len(hop.clients) for hop in hops) == 8
        for hop in hops:
            for client in hop.clients:
                group, received = int(seen.groups[client]), hop.received(client)
                for name, value in held.get(group, {}).items():
                    assert torch.equal(received[name], value)
                held[group] = hop.uploaded(client)
        assert len(held) == 3 and len(hops) > 1


def test_predictions_are_those_behind_the_metrics():
    run, curious = watched("fedbabu", rounds=2)
    y, federation = run.federation.source.y, run.federation
    last = curious.rounds[-1]
    assert set(curious.rounds[0].predictions) == {"received", "trained"}
    assert set(last.predictions) == set(last.evaluations) | {"trained"} == {"received", "trained", "method_adapted"}
    for moment, logits in last.predictions.items():
        right = sum(int((z.argmax(1) == y[federation.test[k]]).sum()) for k, z in logits.items())
        assert last.record.at(moment).accuracy == right / sum(len(federation.test[k]) for k in logits)
    assert set(last.predictions["trained"]) == set(last.cohort)
    assert last.record.value("global", "accuracy") == float(
        (last.global_predictions.argmax(1) == y[federation.global_test]).double().mean()
    )
    assert [len(phase) for phase in last.evaluations["method_adapted"].batches(7)] == [
        5 * 3
    ]  # 20 samples in batches of 8


def test_what_a_method_asks_before_its_first_round_is_seen_in_that_round():
    _, curious = watched("fedfcd", rounds=2)
    first, second = ([exchange.job for exchange in seen.exchanges] for seen in curious.rounds)
    assert first == ["report", "train"] and second == ["train"]
    everyone, trained = curious.rounds[0].exchanges
    assert everyone.clients == list(range(8)) and trained.clients == curious.rounds[0].cohort


# --------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize("method", ["fedper", "fedbabu"])
def test_an_observer_ends_a_run_as_if_it_had_had_no_more_rounds(method):
    stopped, curious = watched(method, rounds=9, observers=[StopAfter(2)])
    short, _ = watched(method, rounds=2)
    assert_same(stopped, short)
    assert ("method_adapted" in stopped.history.rows[-1]) == (method == "fedbabu")
    [last] = curious.ended
    assert last.record is stopped.history.rounds[-1] and ("method_adapted" in last.predictions) == (method == "fedbabu")


def test_a_run_that_an_observer_ends_goes_back_to_its_best_round_where_patience_is_set():
    settings = {"federation": awkward_federation(tested=4, validated=4), "rounds": 12, "lr": 0.3}
    free, _ = watched("fedavg", **settings)
    values = [row["validation"]["acc_pooled"] for row in free.history.rows]
    worse = next(number for number in range(1, 12) if values[number] <= max(values[:number]))
    best = values.index(max(values[:worse]))
    stopped, _ = watched("fedavg", **settings, patience=50, observers=[StopAfter(worse + 1)])
    assert len(stopped.history.rows) == worse + 1
    assert stopped.history.rows[-1]["restored"] == best + 1
    assert stopped.history.rows[-1]["received"] == free.history.rows[best]["received"]


def test_a_stage_before_the_last_has_no_best_round_to_go_back_to():
    federation = awkward_federation(validated=4)
    stopped, _ = watched("fed3p2p", **FED3P2P, federation=federation, patience=5, observers=[StopAfter(1)])
    assert len(stopped.history.rows) == 1 and "restored" not in stopped.history.rows[0]


def test_the_folder_of_a_run_that_an_observer_ended_holds_its_last_evaluation(tmp_path):
    settings = {"data": "made", "clients": 4, "rounds": 5, "finetune_epochs": 1, "engine": "loop"}
    result = partwise.run("fedbabu", **settings, observers=[StopAfter(2)], out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == result.metrics and len(lines) == 2 and "method_adapted" in lines[1]
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["rounds"] == 2
    assert len(list((tmp_path / "models").iterdir())) == 4 + 1  # the global one


def test_an_observer_is_told_of_the_end_when_an_error_ends_the_run():
    curious = Curious()
    with pytest.raises(partwise.Diverged):
        simulate("fedavg", network("cnn"), lr=1e20, observers=[curious])
    assert curious.ended == [None]


@pytest.mark.parametrize("observers", [partwise.Observer(), [partwise.Observer], [print]])
def test_what_is_no_observer_is_refused(observers):
    with pytest.raises(partwise.ConfigError, match=r"observers must be a list of partwise\.Observer objects, got"):
        partwise.run("fedavg", observers=observers)


# ------------------------------------------------------------------------------------------------- in a notebook


class ZMQInteractiveShell:
    """What a kernel calls itself."""


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)


def lines_of(capsys, **settings):
    partwise.run("local", data="made", model="mlp-100", clients=3, rounds=2, engine="loop", **settings)
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_script_is_silent_unless_it_asks(capsys):
    assert lines_of(capsys) == lines_of(capsys, progress=False) == []
    first, second = lines_of(capsys, progress=True)
    assert first.startswith("local seed 0: round 1/2, LM received") and second.startswith("local seed 0: round 2/2")


def test_a_notebook_without_widgets_shows_lines(capsys, notebook, monkeypatch):
    monkeypatch.setattr("partwise.reporting.progress.find_spec", lambda name: None)
    assert len(lines_of(capsys)) == 2
    assert lines_of(capsys, progress=False) == []
    rows: list = []
    assert lines_of(capsys, progress=rows.append) == [] and len(rows) == 2


def test_a_notebook_with_widgets_shows_a_bar(capsys, notebook, monkeypatch):
    shown: list = []

    class Output:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def clear_output(self, wait):
            shown.clear()

    display, widgets = ModuleType("IPython.display"), ModuleType("ipywidgets")
    display.display, widgets.Output = shown.append, Output
    for module in (ModuleType("IPython"), display, widgets):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("partwise.reporting.progress.find_spec", lambda name: name == "ipywidgets")
    assert lines_of(capsys) == []
    assert any("2/2" in what.text for what in shown)
