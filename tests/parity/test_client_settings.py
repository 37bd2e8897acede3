"""Clients with epochs and batches of their own: the same in every engine, on nodes, and after a checkpoint."""

import pytest
import torch

from partwise import Method, Move, Phase
from partwise.engines.workers import Workers
from partwise.errors import ConfigError
from partwise.federation.protocol.node import Node
from partwise.reporting.network import flops, memory
from partwise.runs.choose import steps_in_all
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.engines import InThisProcess
from tests.support.interrupted import assert_resumes
from tests.support.node_parity import HOSTED, SETTINGS, distance
from tests.support.nodes import InProcess, in_process, members, silos
from tests.support.parity import BLOCKS, TRACED, run_of
from tests.support.runs import SIZES, awkward_federation, network, simulate
from tests.support.states import apart

OWN = {"1": {"epochs": 3}, "2": {"batch": 4}, "3": {"epochs": 1, "batch": 3}, "6": {"batch": 2}, "7": {"batch": 12}}
ALL_USUAL = {str(client): {"epochs": 2, "batch": 8} for client in range(len(SIZES))}


@pytest.mark.parametrize("method", ["fedper", "scaffold", "fedproto"])
@pytest.mark.parametrize("net", ["mlp", "cnn+bn"])
def test_the_engines_agree(method, net, monkeypatch):
    monkeypatch.setattr(Workers, "executor", InThisProcess)
    settings = {"per_client": OWN, "participation": 1.0, **({"momentum": 0.0} if method == "scaffold" else {})}
    loop = run_of(method, net, **settings)
    assert apart(loop, run_of(method, net, **BLOCKS, **settings)) < 1e-10
    assert apart(loop, run_of(method, net, **TRACED, **settings)) < 1e-10
    assert apart(loop, run_of(method, net, engine="workers", **settings)) == 0
    assert apart(loop, run_of(method, net, **{**settings, "per_client": None})) > 1e-4


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_the_runs_own_numbers_change_no_bit(engine):
    runs = [run_of("fedper", "mlp", engine=engine, per_client=given) for given in (ALL_USUAL, None)]
    assert apart(*runs) == 0


def test_one_client_trains_as_a_run_of_its_numbers():
    """Client 3 alone takes part: its numbers could as well be the run's."""
    federation = awkward_federation()
    federation = federation.without([client for client in range(8) if client != 3])
    own = simulate("fedavg", network("mlp"), federation, per_client={"3": {"epochs": 4, "batch": 3}})
    run = simulate("fedavg", network("mlp"), federation, epochs=4, batch=3)
    assert distance(own, run) == 0


class Phases(Method):
    def phases(self):
        return [Phase(Move("body")), Phase(Move("head"), epochs=2), Phase(Move("*"), steps=3)]


def test_phases_with_their_own_epochs_or_steps_keep_them():
    """Client 3 has 17 samples: 3 mini-batches of 8 an epoch, and 6 of 3."""
    config = make_config(Phases, {"batch": 8, "per_client": {"3": {"epochs": 5, "batch": 3}}})
    simulation = prepare(config, awkward_federation(), network("mlp"))
    request = simulation.server.request("train", [3, 4])
    drawn = [simulation.engine.drawing.draw(request, client).phases for client in (3, 4)]
    assert [[phase.steps for phase in own] for own in drawn] == [[30, 12, 3], [2, 4, 3]]
    assert {phase.samples.shape[-1] for own in drawn for phase in own} == {8}


def test_estimates_follow_them():
    """Client 4 has 16 samples: 8 times as many operations in 8 epochs."""
    every, largest = {}, {}
    for name, own in (("usual", None), ("own", {"4": {"epochs": 8, "batch": 16}})):
        simulation = prepare(
            make_config("local", {"batch": 8, "per_client": own, "engine": "loop"}),
            awkward_federation(),
            network("mlp"),
        )
        plans, federation = simulation.server.plans, simulation.federation
        per_sample, all_of_them = flops(simulation, plans[0])
        every[name] = all_of_them / per_sample[0], steps_in_all(federation, simulation.config.method, plans)
        largest[name] = next(value for title, value in memory(simulation).rows if title.startswith("activations"))
    assert every["usual"] == pytest.approx((sum(SIZES), 100 * sum(SIZES) / 8))
    assert every["own"] == pytest.approx((sum(SIZES) + 7 * 16, 100 * (sum(SIZES) / 8 - 2 + 8)))
    assert int(largest["own"].replace(",", "")) == 2 * int(largest["usual"].replace(",", ""))


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    assert_resumes(tmp_path, "fedper", per_client=OWN)


def test_nodes_equal_the_simulation(tmp_path):
    federation = awkward_federation()
    config = make_config("fedper", {**SETTINGS, "per_client": OWN})
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, HOSTED).run()
    assert distance(here, there) < 1e-10
    assert here.server.ledger.as_dict()["rounds"] == there.server.ledger.as_dict()["rounds"]


def test_a_silo_refuses_a_batch_that_is_too_small_for_it(tmp_path):
    config = make_config("fedper", {**SETTINGS, "per_client": {"6": {"batch": 2}}})
    with pytest.raises(ConfigError, match="n1 wants a batch of at least 4, the run has 2"):
        in_process(config, awkward_federation(), tmp_path, HOSTED, min_batch=4)


def test_a_silo_reads_no_file_for_a_server(tmp_path):
    (tmp_path / "secret.csv").write_text("client,epochs\n0,2\n")
    nodes = {name: Node(silo) for name, silo in silos(awkward_federation(), tmp_path, HOSTED).items()}
    config = make_config("fedper", SETTINGS)
    config.method.per_client = str(tmp_path / "secret.csv")
    with pytest.raises(ConfigError, match="n0 reads no file that a server names: per_client = '"):
        members(InProcess(nodes), config).joined()


@pytest.mark.parametrize(
    "method, settings, refusal",
    [
        ("fedavg", {"per_client": {"8": {"epochs": 2}}}, "per_client: unknown client '8'"),
        (
            "fedavg",
            {"per_client": {"3": {"batch": 2}}, "dp_clip": 1.0},
            "dp_clip: with per_client epsilon would differ",
        ),
        ("fedrep", {"per_client": {"3": {"epochs": 2}}}, "fedrep sets the epochs of all its phases itself"),
        ("central", {"per_client": {"3": {"epochs": 2}}}, "central trains on all samples in one place"),
        ("fedbn", {"per_client": {"3": {"batch": 1}}}, "batch = 1 is too small for batch-norm"),
    ],
)
def test_what_cannot_be_is_refused(method, settings, refusal):
    with pytest.raises(ConfigError, match=refusal):
        simulate(method, network("cnn+bn" if method == "fedbn" else "mlp"), rounds=1, **settings)


def test_batches_alone_can_be_given_to_methods_that_set_epochs():
    runs = [simulate("fedrep", network("mlp"), rounds=1, per_client=own) for own in ({"7": {"batch": 2}}, None)]
    assert distance(*runs) > 1e-6 and all(torch.isfinite(each.values).all() for each in runs[0].server.copies.values())
