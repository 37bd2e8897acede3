"""FedProx: its loss by hand, and the local model of tables."""

from types import SimpleNamespace

import torch

from partwise.methods.fedprox import FedProx
from tests.support.plain import batch_of, net_of
from tests.support.runs import network, simulate


def test_the_pull_is_half_its_weight_times_the_squared_distance():
    """Every one of the numbers is 2 from the received one."""
    net, b = net_of(network("mlp")), batch_of(0)
    me = SimpleNamespace(got={"*": {name: value - 2 for name, value in net["*"].items()}})
    count = sum(value.numel() for value in net["*"].values())
    pull = FedProx(proximal_weight=3.0).loss(net, b, me) - b.ce(net(b.x))
    assert torch.allclose(pull, torch.tensor(3 / 2 * 4 * count, dtype=torch.float64), rtol=1e-12)
    plain, pulled = (net.grad(FedProx(proximal_weight=weight).loss, b, me) for weight in (0.0, 3.0))
    assert all(torch.allclose(pulled[name] - value, torch.full_like(value, 3.0 * 2)) for name, value in plain.items())
    assert FedProx().proximal_weight == 0.01


def test_the_model_is_shared_and_what_a_schedule_freezes_stays():
    start = network("mlp of two layers").tensors()
    run = simulate("vanilla", network("mlp of two layers"), host="fedprox", unfreeze=(0, 9), rounds=2)
    for name, copies in run.server.copies.items():
        assert torch.equal(copies.values[0], start[name]) == name.startswith("body.fc2"), name


def test_its_local_model_is_the_global_one_after_a_local_round():
    assert FedProx(epochs=2).adapt() == FedProx(epochs=2).phases()
