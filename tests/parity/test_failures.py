"""Every method goes on where clients drop out, are late or nobody answers, and the engines agree on it."""

from functools import partial

import pytest
import torch

from partwise import Method, Relay, Stage, methods
from partwise.engines.workers import Workers
from tests.support.engines import InThisProcess
from tests.support.parity import CALMER, CALMEST, DEEPER, SETTINGS
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import apart, state

FAILING = {"client_dropout": 0.3, "stragglers": 0.2}
every_method = pytest.mark.parametrize("method", methods.names())


def run_of(method, engine="loop", factor=1.0, **settings):
    net = "cnn+bn" if method == "fedbn" else "mlp of two layers" if method in DEEPER else "mlp"
    options = {**SETTINGS, "participation": 1.0, "augment": None, **CALMER.get(method, {}), **settings}
    options |= CALMEST.get((method, net), {})
    return simulate(method, network(net, factor), awkward_federation(), engine, **options)


@every_method
def test_the_engines_agree_where_clients_fail(method):
    loop, vector = run_of(method, **FAILING), run_of(method, engine="vector", block=3, **FAILING)
    assert loop.server.events == vector.server.events
    assert apart(state(loop), state(vector)) < 1e-10
    if method != "central":  # where no client can fail
        happened = {event.what for event in loop.server.events}
        assert {"dropped", "late"} <= happened and "refused" not in happened


@every_method
def test_a_run_in_which_nobody_answers_ends_as_it_began(method):
    run = run_of(method, client_dropout=1.0)
    skipped = [event.round for event in run.server.events if event.what == "skipped"]
    rounds = run.total
    assert skipped == ([] if method == "central" else list(range(rounds)))
    assert len(run.history.rows) == rounds
    if method != "central":
        assert not run.server.times.any() and all(row["train_loss"] is None for row in run.history.rows)


@every_method
def test_a_method_goes_on_after_a_first_round_in_which_nobody_answered(method, tmp_path):
    trace = tmp_path / "trace.csv"
    away = [f"1,{client},drop\n2,{client},back\n" for client in range(8)]
    trace.write_text("round,client,what\n" + "".join(away))
    run = run_of(method, failure_trace=str(trace))
    happened = [event.what for event in run.server.events]
    if method != "central":
        assert happened == ["dropped"] * 8 + ["skipped"] + ["back"] * 8
        assert run.server.times.min() == run.total - 1


def test_workers_agree_bit_for_bit_where_clients_fail(monkeypatch):
    monkeypatch.setattr(Workers, "executor", staticmethod(InThisProcess))
    loop, workers = (
        run_of("fedper", engine, **FAILING, **more) for engine, more in (("loop", {}), ("workers", {"workers": 2}))
    )
    assert loop.server.events == workers.server.events
    assert apart(state(loop), state(workers)) == 0


class InTurn(Method):
    """Two chains through all clients."""

    def stages(self):
        yield Stage(self.phases(), self.share, self.rounds, cohort=Relay(lambda server: [0, 1] * 4))


ROBUST = ["median", "trimmed:0.3", "krum", "krum:1", "clip", "clip:0.05"]
CASES = [("fedavg", "krum"), (InTurn, "clip"), ("cfl", "trimmed")]


@pytest.mark.parametrize(
    ("method", "robust"),
    [
        *CASES,
        *(("fedavg", each) for each in ROBUST),
        *(("fed3p2p", each) for each in ROBUST),
    ],
)
def test_the_engines_agree_on_robust_means(method, robust):
    settings = {"robust": robust, "server_momentum": 0.5, **FAILING}
    loop, vector = run_of(method, **settings), run_of(method, engine="vector", **settings)
    assert apart(state(loop), state(vector)) < 1e-10


def test_robust_means_go_for_running_values_too():
    run = partial(simulate, "fedavg", network("cnn+bn"), bn_buffers="average", rounds=2, lr=0.01)
    plain, robust = run(), run(robust="median")
    name = next(name for name in plain.server.parts.buffers if "mean" in name)
    assert not torch.equal(plain.server.copies[name].values, robust.server.copies[name].values)
    assert apart(state(robust), state(run(robust="median", engine="vector"))) < 1e-10
