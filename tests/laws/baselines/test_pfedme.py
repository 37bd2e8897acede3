"""pFedMe: the inner solution is a proximal point, and the local model steps towards it."""

import pytest
import torch

from partwise import ConfigError
from partwise.methods.pfedme import PFedMe
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance

CLIENT = 3  # 17 samples
PULL = 60.0
ALONE = {"rounds": 1, "batch": 32, "proximal_weight": PULL, "lr": 0.03}


def after_a_round(**settings):
    federation = awkward_federation()
    run = simulate("pfedme", network("mlp"), federation, **{**ALONE, **settings})
    names = [name for name in run.server.plan.own if name.startswith("personal.")]
    personal = {name.removeprefix("personal."): value for name, value in run.engine.store.own(CLIENT, names).items()}
    return federation, run, personal


def test_with_many_inner_steps_the_proximal_equation_holds():
    """theta = w - grad f(theta) / lambda (the optimum of Eq. 3), where a round is one step from the received model."""
    federation, _, personal = after_a_round(inner_steps=100, personal_lr=0.01)
    parts = network("mlp")
    own = federation.train[CLIENT]
    x, y = (federation.source.x[own].double() - 127.5) / 127.5, federation.source.y[own]

    def loss(tensors):
        hidden = torch.relu(x.flatten(1) @ tensors["body.fc1.1.weight"].T + tensors["body.fc1.1.bias"])
        return torch.nn.functional.cross_entropy(hidden @ tensors["head.weight"].T + tensors["head.bias"], y)

    assert set(personal) == {"body.fc1.1.weight", "body.fc1.1.bias", "head.weight", "head.bias"}
    gradient = torch.func.grad(loss)(personal)
    for name, value in parts.tensors().items():
        assert torch.allclose(personal[name], value.detach() - gradient[name] / PULL, rtol=0, atol=1e-12), name


def test_the_server_moves_to_the_mean_of_steps_towards_personal_models():
    """One step a client: omega = w - lr lambda (w - theta), and the server's model is their mean by samples."""
    federation, run, _ = after_a_round(inner_steps=3, personal_lr=0.01, lr=0.01)
    samples = torch.tensor([float(len(own)) for own in federation.train], dtype=torch.float64)
    initial = network("mlp").tensors()
    for name in ("head.weight", "body.fc1.1.bias"):
        theta = torch.stack([run.engine.store.own(k, [f"personal.{name}"])[f"personal.{name}"] for k in range(8)])
        w = initial[name].detach()
        local = w - 0.01 * PULL * (w - theta)
        expected = torch.einsum("k,k...->...", samples / samples.sum(), local)
        assert torch.allclose(run.server[name.split(".")[0]][name.partition(".")[2]], expected, rtol=0, atol=1e-12)
        assert (expected - w).abs().max() > 1e-6


def test_personal_models_begin_every_round_where_the_received_one_is():
    """With a rate of 0 they stay there; the model of all does not move then."""
    run = simulate("pfedme", network("mlp"), rounds=2, personal_lr=0.0)
    for name, value in network("mlp").tensors().items():
        assert torch.equal(run.server.copies[name].values[0], value.detach())
    still = simulate("pfedme", network("mlp"), rounds=2, personal_lr=0.02)
    again = simulate("pfedme", network("mlp"), rounds=2, personal_lr=0.02, lr_decay=1.0, momentum=0.9, weight_decay=0.1)
    assert distance(still, again) == 0  # momentum and decay are no part of either step


def test_personal_rate_is_the_runs_unless_it_is_set():
    rates = (None, 0.05, 0.01)
    unset, same, other = (simulate("pfedme", network("mlp"), rounds=1, personal_lr=rate) for rate in rates)
    assert distance(unset, same) == 0 and distance(unset, other) > 1e-4


def test_a_local_step_that_overshoots_ever_more_is_refused():
    """A step leaves 1 - lr lambda of the way to the personal model: at 2 it turns the way round, above 2 it grows."""
    assert PFedMe(lr=0.125, proximal_weight=16.0).lr == 0.125
    with pytest.raises(ConfigError) as refused:
        PFedMe(lr=0.25, proximal_weight=16.0)
    assert str(refused.value) == (
        "pfedme diverges at lr = 0.25 x proximal_weight = 16, which is 4; at most 2 is allowed: set lr to 0.125 or less"
    )
    assert PFedMe(lr=0.25, proximal_weight=16.0, optimizer="adamw").lr == 0.25  # its steps do not grow with the way
