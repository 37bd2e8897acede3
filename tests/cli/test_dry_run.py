"""`--dry-run`: what is said before a run is what the run then does."""

import pytest
import torch

from partwise.reporting.network import activations, client_state, flops, memory, participants, traffic
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.commands import TINY, refuse, succeed

SETTINGS = {"data": "made", "clients": 4, "train_samples": 40, "momentum": 0.5}
STAGES = {"rounds": 2, "warmup_rounds": 1}


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("fedavg", {"model": "mlp-100", "rounds": 1}),
        ("fedper", {"model": "cnn-digits", "rounds": 1}),
        ("fedbabu", {"model": "cnn-digits", "rounds": 1, "batch_norm": True, "engine": "vector"}),
        ("fedrep", {"model": "mlp-100", "rounds": 1, "head_epochs": 3}),
        ("lg_fedavg", {"model": "mlp-100", **STAGES}),
        ("central", {"model": "mlp-100", "rounds": 1}),
    ],
)
def test_bytes_and_flops_are_those_of_the_run(method, own):
    simulation = prepare(make_config(method, {**SETTINGS, **own}))
    plans, number = simulation.server.plans, participants(simulation)
    sent, computed = [traffic(simulation, plan) for plan in plans], [flops(simulation, plan)[1] for plan in plans]
    ledger = simulation.run().server.ledger
    assert len(plans) == len(ledger.rounds)
    for (down, up), row in zip(sent, ledger.rounds, strict=True):
        assert row.participants == number
        assert (number * down, number * up) == (row.down.total(), row.up.total())
    assert sum(computed) == pytest.approx(ledger.flops, rel=1e-12)


def test_flops_of_some_participants_are_their_share_of_all():
    whole, half = (
        prepare(make_config("fedavg", {**SETTINGS, "model": "mlp-100", "participation": share})) for share in (1, 0.5)
    )
    assert (participants(whole), participants(half)) == (4, 2)
    (sample, every), (same, some) = flops(whole, whole.server.plans[0]), flops(half, half.server.plans[0])
    assert sample == same and some == every / 2


def test_memory_by_hand():
    """An MLP 64 > 100 > 10 with momentum: what a client holds, its gradients and its momentum are three networks."""
    simulation = prepare(make_config("fedavg", {**SETTINGS, "model": "mlp-100", "batch": 16}))
    network = 4 * (64 * 100 + 100 + 100 * 10 + 10)
    beside = 4 * (10 + 3) + 8  # class counts; samples, steps, loss; the key of its random numbers
    assert client_state(simulation, simulation.server.plans[0]) == 3 * network + beside
    layers = [layer for part in simulation.program.parts.modules.values() for layer in part.modules()]
    assert activations(simulation) == 4 * sum(
        {torch.nn.Flatten: 64, torch.nn.ReLU: 100}.get(type(layer), getattr(layer, "out_features", 0))
        for layer in layers
        if not list(layer.children())
    )
    rows = {title: int(value.replace(",", "")) for title, value in memory(simulation).rows}
    assert rows["data"] == 2500 * (64 + 8) and rows["one client's network"] == network
    assert rows["state of clients that train at once (4)"] == 4 * (3 * network + beside)
    assert rows["activations of their mini-batches, about"] == 4 * 16 * activations(simulation)
    blocks = prepare(make_config("fedavg", {**SETTINGS, "model": "mlp-100", "batch": 16, "block": 3}))
    assert memory(blocks).rows[2][0] == "state of clients that train at once (3)"


def words(page):
    return [line.split() for line in page.splitlines()]


def test_a_dry_run_shows_the_network_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("partwise.runs.simulation.Simulation.run", None)  # would fail if anything were trained
    page = succeed(capsys, "run", "lg_fedavg", *TINY, "--warmup-rounds", "1", "--dry-run", "--out", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    shown = words(page)
    assert ["part", "parameters", "bytes", "rounds", "1-1", "rounds", "2-2"] in shown
    assert ["head", "1,010", "4,040", "ALL", "ALL"] in shown
    assert [row[3:] for row in shown if row[:1] == ["body"]] == [["ALL", "LOCAL"]]
    assert ["total", "7,510", "30,040"] in shown
    assert "ALL: the mean of all participants" in page and "LOCAL: each client's own, never sent" in page
    assert ["bytes", "down,", "one", "participant", "30,040", "4,040"] in shown
    assert "engine: vector on cpu" in page


def test_a_dry_run_of_a_comparison_shows_every_method_once(capsys):
    page = succeed(capsys, "compare", "fedavg", "fedper", *TINY, "--seeds", "0,1", "--dry-run")
    titles = [line.split(" on ")[0] for line in page.splitlines() if " on made (1x8x8, 10 classes), 4 clients" in line]
    assert titles == ["fedavg", "fedper"]


def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path, capsys):
    succeed(capsys, "run", "local", *TINY, "--out", tmp_path)
    assert "holds a finished run" in refuse(capsys, "run", "local", *TINY, "--out", tmp_path, "--dry-run")
    assert "no normalisation layers" in refuse(capsys, "run", "fedbn", *TINY, "--dry-run")


def test_what_only_a_round_can_tell_is_named(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from partwise import Method\n"
        "class Mine(Method):\n"
        "    def down(self, server): return {'mean': server.memory['mean']}\n"
        "    def loss(self, net, b, me): return b.ce(net(b.x) + me.got.mean)\n"
    )
    page = succeed(capsys, "run", mine, *TINY, "--dry-run")
    assert "not counted, because only a round can tell: extras that it sends down" in page
    assert ["training", "FLOPs,", "all", "participants", "-"] in words(page)
