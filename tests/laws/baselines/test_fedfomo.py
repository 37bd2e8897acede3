"""FedFomo: where nothing helps it is Local; weights by hand; who receives whom."""

import numpy as np
import pytest
import torch

from partwise import Observer
from partwise.data.source import Federation, Source
from partwise.method import Move, Phase
from partwise.methods import find
from tests.support.runs import CLASSES, awkward_federation, network, simulate

FedFomo = find("fedfomo")


class FakeNet:
    """Two numbers as a network, for the hooks that ask for nothing else."""

    def __init__(self, own, losses, samples, before):
        tried = {"losses": losses, "samples": samples, "gains": losses[2:] * 0}
        self.parts = {"body head": own, "before": before, "tried": tried}

    def __getitem__(self, name):
        return self.parts[name]


class FakeMe:
    def __init__(self, others):
        self.got = type("Got", (), {"others": others})


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def moved(losses, samples=3.0, **options):
    """Where a client goes that was at (1, 0) before training, is at (1, 2) now, and received (4, 4) and (1, 1)."""
    net = FakeNet({"w": numbers(1, 2)}, numbers(*losses), numbers(samples), {"w": numbers(1, 0)})
    return FedFomo(**options).towards_better(net, FakeMe({"w": numbers([4, 4], [1, 1])}))


def test_a_client_moves_from_before_training_towards_better_models_by_gain_over_distance():
    """Losses 6, 3, 3, 9 of 3 samples: gains (2 - 1)/2 of its own, (2 - 1)/5 of (4, 4), (2 - 3)/1 of (1, 1)."""
    new = moved([6.0, 3.0, 3.0, 9.0])
    assert torch.allclose(new["tried.gains"], numbers(1 / 5, -1))  # negative ones are told, too
    own, first = 0.5 / 0.7, 0.2 / 0.7
    expected = numbers(1 + first * 3, own * 2 + first * 4)
    assert torch.allclose(new["w"], expected) and torch.equal(new["before.w"], new["w"])


def test_where_no_model_gains_a_client_is_again_where_it_was_before_training():
    assert moved([3.0, 6.0, 3.0, 9.0])["w"].tolist() == [1, 0]
    assert moved([3.0, 6.0, 3.0, 9.0], without_gain="trained")["w"].tolist() == [1, 2]


def test_without_a_held_back_sample_it_goes_on_from_its_trained_model():
    new = moved([0.0, 0.0, 0.0, 0.0], samples=0.0)
    assert new["w"].tolist() == [1, 2] and not new["tried.gains"].any()


@pytest.mark.parametrize(("baseline", "samples", "base"), [("before", 3, 7), ("trained", 3, 1), ("before", 0, 1)])
def test_the_model_before_training_is_the_trained_one_by_option_and_where_there_was_no_training(
    baseline, samples, base
):
    net = FakeNet({"w": numbers(1)}, numbers(1, 1, 1), numbers(samples), {"w": numbers(7)})
    new = FedFomo(baseline=baseline).forget(net, None)
    assert new["before.w"].tolist() == [base]
    assert not any(new[f"tried.{name}"].any() for name in ("losses", "samples", "gains"))


class NobodyHelps(FedFomo):
    def measure(self, net, b, me):
        return {"tried.samples": net["tried"]["samples"] + b.mask.sum()}


class LocalOnMost(find("local")):
    def phases(self):
        return Phase(Move("*"), sample_range=(0.0, 0.8))


def test_with_the_trained_model_as_baseline_and_no_gain_it_is_local_on_the_samples_that_are_not_held_back():
    settings = {"rounds": 3, "momentum": 0.5, "participation": 0.5}
    trained = {**settings, "baseline": "trained"}
    apart, helped = (simulate(m, network("cnn+bn"), **trained) for m in (NobodyHelps, "fedfomo"))
    alone = simulate(LocalOnMost, network("cnn+bn"), **settings)
    differs = False
    for client in range(8):
        names = alone.server.plan.own
        one, two, three = (run.engine.store.own(client, names) for run in (apart, alone, helped))
        assert all(torch.equal(one[name], two[name]) for name in names)
        differs |= any((three[name] - two[name]).abs().max() > 1e-6 for name in names)
    assert differs


def test_losses_are_measured_on_what_was_held_back():
    """In the first round all models are the initial one: its loss on a fifth of the samples, and no gain."""
    federation = awkward_federation()
    run = simulate("fedfomo", network("mlp"), federation, rounds=1)
    held = run.engine.store.own(7, ["tried.losses", "tried.samples", "tried.gains"])
    assert float(held["tried.samples"]) == 4 and not held["tried.gains"].any()
    assert torch.allclose(held["tried.losses"], held["tried.losses"][:1]) and held["tried.losses"][0] > 1


class Groups(Observer):
    """Who gained for whom."""

    def __init__(self):
        self.exchanges = []

    def round(self, seen):
        self.exchanges += seen.exchanges


def two_groups():
    """Eight clients of 40 samples; in both groups a sample shows its class's pattern, but they name it differently."""
    random = np.random.default_rng(3)
    patterns, clients, size = random.uniform(40, 215, (CLASSES, 1, 8, 8)), 8, 50
    shown = random.integers(0, CLASSES, clients * size)
    owner = np.repeat(np.arange(clients), size)
    x = np.clip(patterns[shown] + random.normal(0, 40, (len(shown), 1, 8, 8)), 0, 255).astype(np.uint8)
    y = torch.from_numpy((shown + 2 * (owner >= 4)) % CLASSES)
    source = Source("two groups", torch.from_numpy(x), y, CLASSES, len(y), (127.5,), (127.5,), "mlp-100")
    rows = torch.arange(len(y)).view(clients, size)
    return Federation(source, [*rows[:, :40]], [*rows[:, 40:]], rows[:, 40:].flatten(), [rows[0, :0]] * clients)


def test_clients_take_the_models_of_their_own_group():
    """Under the defaults, in most rounds of clients, and never those of the group that names classes differently."""
    groups = Groups()
    run = simulate("fedfomo", network("mlp"), two_groups(), rounds=20, observers=[groups])
    [*trained] = [exchange for exchange in groups.exchanges if exchange.job == "train"][1:]  # all are alike at first
    taking = [bool((e.uploaded_extras(client)["gains"] > 0).any()) for e in trained for client in range(8)]
    assert sum(taking) > len(taking) / 2
    affinity = run.server.memory["affinity"]
    for client in range(8):
        same = [other for other in range(8) if other // 4 == client // 4 and other != client]
        rest = [other for other in range(8) if other // 4 != client // 4]
        assert affinity[client, same].max() > 0 and affinity[client, rest].max() < affinity[client, same].min()


class Server:
    clients, round, seed = 6, 0, 0

    def __init__(self, affinity):
        self.memory = {"affinity": torch.as_tensor(affinity, dtype=torch.float64)}

    def stream(self, *names):
        return np.random.default_rng([self.seed, *names[1:]])


def test_who_helped_most_is_sent_unless_one_explores():
    affinity = np.zeros((6, 6))
    affinity[2] = [3, 1, 9, 0, 5, 2]
    method = FedFomo(models=3, explore=0.0)
    method.number = 3
    assert method.chosen(Server(affinity), 2) == [4, 0, 5]  # never itself, whatever stands there
    method = FedFomo(models=3, explore=1.0)
    method.number = 3
    chosen = method.chosen(Server(affinity), 2)
    assert len(set(chosen)) == 3 and 2 not in chosen


def test_exploring_ends():
    """Epsilon is 0.3 - 0.05 t in round t, from 0: from the seventh round on, those that helped most are sent."""
    affinity = np.zeros((6, 6))
    affinity[2] = [3, 1, 9, 0, 5, 2]
    method = FedFomo(models=3)
    method.number = 3

    def surprises(round):
        servers = [Server(affinity) for _ in range(200)]
        for number, server in enumerate(servers):
            server.round, server.seed = round, number
        return sum(method.chosen(server, 2) != [4, 0, 5] for server in servers)

    assert surprises(0) > surprises(4) > surprises(6) == surprises(50) == 0


def test_the_server_keeps_the_newest_models_and_sums_of_gains():
    run = simulate("fedfomo", network("mlp"), rounds=3, models=3)
    for client in range(8):
        own = run.engine.store.own(client, ["head.weight"])["head.weight"]
        assert torch.equal(run.server.memory["models"]["head.weight"][client], own)
    affinity = run.server.memory["affinity"]
    assert not affinity.diagonal().any() and (affinity > 0).any() and (affinity < 0).any()


@pytest.mark.parametrize(("models", "sent"), [(5, 5), (20, 7)])
def test_so_many_models_travel_down_and_one_up(models, sent):
    run = simulate("fedfomo", network("mlp"), rounds=1, models=models)
    [row] = run.server.ledger.as_dict()["rounds"]
    model = sum(value.numel() * 8 for value in network("mlp").tensors().values())
    assert row["down"] == {"others": 8 * sent * model}
    assert sum(row["up"].values()) == 8 * (model + 8 * sent)
