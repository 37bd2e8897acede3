"""FedALA: with all weights 1 it is FedAvg; weights stay between own and received, and learn the right way."""

from types import SimpleNamespace

import pytest
import torch

from partwise import ConfigError
from partwise.methods.fedala import FedALA
from tests.helpers import awkward_federation, network, simulate, slower
from tests.laws.baselines.plain import batch_of, net_of

SETTINGS = {"rounds": 3, "momentum": 0.5, "weight_decay": 1e-3}
CLIENT = 7  # 20 samples


def held(run, client=CLIENT):
    return run.engine.store.own(client, run.server.plan.own)


def weights(run, client=CLIENT):
    return {name: value for name, value in held(run, client).items() if name.startswith("blend.") and "/" in name}


def handed(steps, begun, settled=0.1):
    """A method, the network of a client whose last ten losses spread by 0.1, and another one that it received."""
    method = FedALA(settled=settled)
    numbers = {"losses": [0.0, 0.2] * 5, "steps": steps, "begun": begun}
    numbers = {f"blend.{name}": torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    net = net_of(method.build(network("mlp"), None), numbers)
    got = {name: value.detach() for name, value in network("mlp", seed=1).tensors().items()}
    return method, net, SimpleNamespace(got={"body head": got}, lr=torch.tensor(0.05, dtype=torch.float64))


@pytest.mark.parametrize(
    ("steps", "begun", "settled", "stops"),
    [(10.0, 0.0, 0.102, True), (10.0, 0.0, 0.098, False), (9.0, 0.0, 0.102, False), (10.0, 1.0, 0.102, False)],
)
def test_when_the_weights_stop(steps, begun, settled, stops):
    """The first time, after ten losses that spread by less than `settled`; the spread is over all ten."""
    method, net, me = handed(steps, begun, settled)
    new = method.learn(net, batch_of(0), me)
    assert torch.equal(new["blend.head/weight"], net["blend"]["head/weight"]) is stops
    assert float(new["blend.steps"]) == steps + 1 and new["blend.losses"].tolist()[:9] == [0.2, 0.0] * 4 + [0.2]
    with_got = net.with_tensors(me.got["body head"])  # all weights are 1
    assert torch.allclose(new["blend.losses"][9], batch_of(0).ce(with_got(batch_of(0).x)), rtol=1e-12)


@pytest.mark.parametrize(("steps", "begun", "after"), [(0.0, 0.0, 0.0), (1.0, 0.0, 1.0), (0.0, 1.0, 1.0)])
def test_weights_have_begun_with_a_first_step(steps, begun, after):
    method, net, me = handed(steps, begun)
    assert float(method.begin_with(net, me)["blend.begun"]) == after


@pytest.mark.parametrize(("last", "layers"), [(1, {"head"}), (2, {"head", "fc1"}), (3, {"head", "fc1", "conv2"})])
def test_the_last_layers_are_blended_without_running_values(last, layers):
    method = FedALA(last_layers=last)
    parts = method.build(network("cnn+bn"), None)
    assert {name.removeprefix("body.").split(".")[0] for name in method.blended} == layers
    assert not any("running" in name for name in method.blended)
    held = {name: value for name, value in parts.tensors().items() if name.startswith("blend.")}
    assert len(held) == len(method.blended) + 3
    assert not any(value.requires_grad for value in held.values())  # fine-tuning leaves them as they are


@pytest.mark.parametrize("net", ["mlp", *slower("cnn+bn")])
def test_with_weights_fixed_at_one_it_is_fedavg(net):
    still = simulate("fedala", network(net), **SETTINGS, blend_rate=0.0)
    plain = simulate("fedavg", network(net), **SETTINGS)
    for name, value in plain.server["*"].items():
        assert torch.allclose(still.server.copies[name].values[0], value, rtol=0, atol=1e-12), name
    assert all(torch.equal(value, torch.ones_like(value)) for value in weights(still).values())
    rows = [[row["received"]["acc_pooled"] for row in run.history.rows if "received" in row] for run in (still, plain)]
    assert rows[0] == rows[1]


def test_nothing_is_learned_in_a_clients_first_round_and_weights_stay_between_none_and_all():
    first, later = (simulate("fedala", network("mlp"), rounds=rounds, most_epochs=2) for rounds in (1, 3))
    assert all(torch.equal(value, torch.ones_like(value)) for value in weights(first).values())
    learned = weights(later)
    assert set(learned) == {"blend.head/weight", "blend.head/bias"}
    assert all(value.min() >= 0 and value.max() <= 1 for value in learned.values())
    assert min(float(value.min()) for value in learned.values()) < 0.999


def test_a_step_of_a_weight_is_the_slope_of_the_loss_times_the_difference():
    """With one step (Eq. 5): A = clip(1 - rate * grad CE(received) * (w - w_i), 0, 1), at the received model."""
    federation = awkward_federation()
    settings = {"batch": 64, "learning_share": 1.0, "most_epochs": 1, "blend_rate": 0.5}
    one, two = (simulate("fedala", network("mlp"), federation, rounds=n, **settings) for n in (1, 2))
    x = (federation.source.x[federation.train[CLIENT]].double() - 127.5) / 127.5
    y = federation.source.y[federation.train[CLIENT]]
    got = {name: copies.values[0] for name, copies in one.server.copies.items()}
    own = held(one)

    def loss(head):
        hidden = torch.relu(x.flatten(1) @ got["body.fc1.1.weight"].T + got["body.fc1.1.bias"])
        return torch.nn.functional.cross_entropy(hidden @ head["head.weight"].T + head["head.bias"], y)

    slopes = torch.func.grad(loss)({name: got[name] for name in ("head.weight", "head.bias")})
    for name, slope in slopes.items():
        expected = (1 - 0.5 * slope * (got[name] - own[name])).clamp(0, 1)
        assert torch.allclose(weights(two)[f"blend.{name.replace('.', '/')}"], expected, rtol=0, atol=1e-12)
    assert any((value < 1).any() for value in weights(two).values())


def test_training_begins_with_the_blend_in_the_last_layers_and_the_received_model_in_the_others():
    """With a learning rate of 0 what a client holds after a round is what it began with: all the received model."""
    settings = {"most_epochs": 2, "blend_rate": 1.0}
    run = simulate("fedala", network("mlp"), rounds=3, lr=0.0, **settings)
    initial = network("mlp").tensors()
    assert all(torch.allclose(held(run)[name], initial[name].detach(), rtol=0, atol=1e-15) for name in ("head.weight",))
    first, trained = (simulate("fedala", network("mlp"), rounds=rounds, lr=0.05, **settings) for rounds in (1, 2))
    # The second round changes nothing.
    after = simulate("fedala", network("mlp"), rounds=2, lr=0.05, lr_decay=1e-12, **settings)
    got = {name: copies.values[0] for name, copies in first.server.copies.items()}
    own = held(first)
    now, blend = held(after), weights(after)
    assert torch.allclose(now["body.fc1.1.weight"], got["body.fc1.1.weight"], rtol=0, atol=1e-10)
    for name in ("head.weight", "head.bias"):
        share = blend[f"blend.{name.replace('.', '/')}"]
        assert torch.allclose(now[name], own[name] + (got[name] - own[name]) * share, rtol=0, atol=1e-10)
    assert not torch.equal(held(trained)["head.weight"], now["head.weight"])


@pytest.mark.parametrize(("settled", "stops"), [(1e9, True), (0.0, False)])
def test_the_first_time_it_stops_once_the_last_ten_losses_are_alike(settled, stops):
    """20 samples in batches of 8: 2 steps an epoch on 16 of them. Settled at once, 10 steps count, then none."""
    runs = [simulate("fedala", network("mlp"), rounds=2, settled=settled, most_epochs=epochs) for epochs in (5, 20)]
    short, long = (weights(run)["blend.head/weight"] for run in runs)
    assert torch.equal(short, long) is stops
    assert float(held(runs[1])["blend.steps"]) == 40  # masked, not left out


def test_later_it_learns_for_one_epoch_whatever_the_losses_are():
    two, three = (simulate("fedala", network("mlp"), rounds=rounds, settled=1e9) for rounds in (2, 3))
    assert float(held(three)["blend.steps"]) == 2
    assert not torch.equal(weights(two)["blend.head/weight"], weights(three)["blend.head/weight"])


def test_more_layers():
    run = simulate("fedala", network("cnn"), rounds=2, last_layers=2, most_epochs=1)
    assert {name.split("/")[0] for name in weights(run)} == {"blend.head", "blend.body"}
    with pytest.raises(ConfigError, match="last_layers = 9"):
        simulate("fedala", network("cnn"), rounds=2, last_layers=9)
