"""FedFomo: where nothing helps it is Local; weights by hand; who receives whom."""

import numpy as np
import pytest
import torch

from partwise.method import Move, Phase
from partwise.methods import find
from tests.helpers import awkward_federation, network, simulate

FedFomo = find("fedfomo")


class FakeNet:
    """Two numbers as a network, for the hooks that ask for nothing else."""

    def __init__(self, own, losses, samples):
        self.parts = {"body head": own, "tried": {"losses": losses, "samples": samples, "gains": losses[1:] * 0}}

    def __getitem__(self, name):
        return self.parts[name]


class FakeMe:
    def __init__(self, others):
        self.got = type("Got", (), {"others": others})


def test_a_client_moves_towards_better_models_by_gain_over_distance():
    """Losses 6, 3, 4, 9 of 3 samples, own model (1, 0): gains (2 - 1)/5 of (4, 4), (2 - 4/3)/1 of (1, 1); 0."""
    own = {"w": torch.tensor([1.0, 0.0], dtype=torch.float64)}
    others = {"w": torch.tensor([[4.0, 4.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)}
    losses = torch.tensor([6.0, 3.0, 4.0, 9.0], dtype=torch.float64)
    new = FedFomo().towards_better(FakeNet(own, losses, torch.tensor([3.0])), FakeMe(others))
    gains = torch.tensor([1 / 5, 2 / 3, 0], dtype=torch.float64)
    assert torch.allclose(new["tried.gains"], gains)
    first, second, _ = (gains / gains.sum()).tolist()
    expected = torch.tensor([1 + first * 3, first * 4 + second * 1], dtype=torch.float64)
    assert torch.allclose(new["w"], expected)


def test_where_nobody_is_better_a_client_keeps_its_own():
    own = {"w": torch.tensor([1.0, 0.0])}
    losses = torch.tensor([1.0, 1.0, 2.0])
    new = FedFomo().towards_better(FakeNet(own, losses, torch.tensor([1.0])), FakeMe({"w": torch.ones(2, 2)}))
    assert torch.equal(new["w"], own["w"]) and not new["tried.gains"].any()


class NobodyHelps(FedFomo):
    def measure(self, net, b, me):
        return {"tried.samples": net["tried"]["samples"] + b.mask.sum()}


class LocalOnMost(find("local")):
    def phases(self):
        return Phase(Move("*"), of=(0.0, 0.8))


def test_all_gains_zero_is_local_on_the_samples_that_are_not_held_back():
    apart, alone = (
        simulate(m, network("cnn+bn"), rounds=3, momentum=0.5, participation=0.5) for m in (NobodyHelps, LocalOnMost)
    )
    helped = simulate("fedfomo", network("cnn+bn"), rounds=3, momentum=0.5, participation=0.5)
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


class Server:
    clients, round = 6, 0

    def __init__(self, affinity):
        self.memory = {"affinity": torch.as_tensor(affinity, dtype=torch.float64)}

    def stream(self, *names):
        return np.random.default_rng([len(str(name)) for name in names] + [hash(names[1:]) % 1000])


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


def test_the_server_keeps_the_newest_models_and_sums_of_gains():
    run = simulate("fedfomo", network("mlp"), rounds=3, models=3)
    for client in range(8):
        own = run.engine.store.own(client, ["head.weight"])["head.weight"]
        assert torch.equal(run.server.memory["models"]["head.weight"][client], own)
    affinity = run.server.memory["affinity"]
    assert not affinity.diagonal().any() and (affinity >= 0).all() and affinity.any()


@pytest.mark.parametrize(("models", "sent"), [(5, 5), (20, 7)])
def test_so_many_models_travel_down_and_one_up(models, sent):
    run = simulate("fedfomo", network("mlp"), rounds=1, models=models)
    [row] = run.server.ledger.as_dict()["rounds"]
    model = sum(value.numel() * 8 for value in network("mlp").tensors().values())
    assert row["down"] == {"others": 8 * sent * model}
    assert sum(row["up"].values()) == 8 * (model + 8 * sent)
