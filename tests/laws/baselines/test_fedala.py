"""FedALA: with all weights 1 it is FedAvg; weights stay between own and received, and learn the right way."""

from types import SimpleNamespace

import pytest
import torch

from partwise import ConfigError
from partwise.methods.fedala import FedALA
from tests.support.plain import batch_of, net_of
from tests.support.runs import awkward_federation, network, simulate

SETTINGS = {"rounds": 3, "momentum": 0.5, "weight_decay": 1e-3}
CLIENT = 7  # 20 samples


def held(run, client=CLIENT):
    return run.engine.store.own(client, run.server.plan.own)


def weights(run, client=CLIENT):
    return {name: value for name, value in held(run, client).items() if name.startswith("blend.") and "/" in name}


def handed(epoch, steps, losses, settled=0.0, threshold=0.1):
    """A method, the network of a client in the midst of learning, and another one that it received."""
    method = FedALA(settled=threshold)
    numbers = {"losses": losses, "steps": float(steps), "epoch": float(epoch), "settled": settled}
    numbers = {f"blend.{name}": torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
    net = net_of(method.build(network("mlp"), None), numbers)
    got = {name: value.detach() for name, value in network("mlp", seed=1).tensors().items()}
    return method, net, SimpleNamespace(got={"body head": got})


def next_loss(net, me):
    with_got = net.with_tensors(me.got["body head"])  # all weights are 1
    return float(batch_of(0).ce(with_got(batch_of(0).x)))


@pytest.mark.parametrize(
    ("steps", "threshold", "settles"),
    [(43, 0.095, True), (43, 0.094, False), (42, 0.095, False), (39, 0.095, False), (47, 0.095, True)],
)
def test_a_start_phase_settles_as_an_epoch_ends_whose_last_ten_losses_spread_less(steps, threshold, settles):
    """4 mini-batches an epoch: step 44 ends the eleventh, 40 the tenth, which is too early, and 43 ends none.

    The last ten losses are then five 0.1 above the newest, four 0.1 below it, and itself: mean 0.01, spread
    sqrt(9 x 0.01 / 10 - 0.0001) = 0.0943.
    """
    _, net, me = handed(4, 0, [0.0] * 10)
    loss = next_loss(net, me)
    method, net, me = handed(4, steps, [loss - 0.1, loss + 0.1] * 5, threshold=threshold)
    new = method.learn(net, batch_of(0), me)
    ends = (steps + 1) % 4 == 0
    expected = [loss + 0.1, *[loss - 0.1, loss + 0.1] * 4, loss] if ends else [loss - 0.1, loss + 0.1] * 5
    assert torch.allclose(new["blend.losses"], torch.tensor(expected, dtype=torch.float64), rtol=1e-12)
    assert float(new["blend.settled"]) == settles
    assert not torch.equal(new["blend.head/weight"], net["blend"]["head/weight"])  # this step still counts


def test_once_settled_it_stays_so_whatever_the_losses_do():
    method, net, me = handed(4, 47, [0.0, 9.0] * 5, settled=1.0)
    new = method.learn(net, batch_of(0), me)
    assert float(new["blend.settled"]) == 1 and float(new["blend.losses"].std()) > 4
    for name in ("blend.head/weight", "blend.head/bias"):
        assert torch.equal(new[name], net["blend"][name.removeprefix("blend.")])


def test_later_no_epoch_is_judged():
    method, net, me = handed(0, 43, [0.0] * 10, threshold=1e9)
    new = method.learn(net, batch_of(0), me)
    assert float(new["blend.settled"]) == 0 and not new["blend.losses"].any()


@pytest.mark.parametrize(("last", "layers"), [(1, {"head"}), (2, {"head", "fc1"}), (3, {"head", "fc1", "conv2"})])
def test_the_last_layers_are_blended_without_running_values(last, layers):
    method = FedALA(last_layers=last)
    parts = method.build(network("cnn+bn"), None)
    assert {name.removeprefix("body.").split(".")[0] for name in method.blended} == layers
    assert not any("running" in name for name in method.blended)
    held = {name: value for name, value in parts.tensors().items() if name.startswith("blend.")}
    assert len(held) == len(method.blended) + 4
    assert not any(value.requires_grad for value in held.values())  # fine-tuning leaves them as they are


@pytest.mark.parametrize("net", ["mlp", "cnn+bn"])
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
def test_the_first_time_it_stops_after_eleven_epochs_at_the_earliest(settled, stops):
    """20 samples in batches of 8: 2 steps an epoch on 16 of them. At a threshold that all pass, epochs 12 to 20 count
    no more; at one that none passes they do."""
    runs = [
        simulate("fedala", network("mlp"), rounds=2, settled=settled, most_epochs=epochs) for epochs in (10, 11, 20)
    ]
    ten, eleven, twenty = (weights(run)["blend.head/weight"] for run in runs)
    assert not torch.equal(ten, eleven)
    assert torch.equal(eleven, twenty) is stops
    assert (
        float(held(runs[2])["blend.epoch"]) == 2 and float(held(runs[2])["blend.steps"]) == 40
    )  # masked, not left out


def test_later_it_learns_for_one_epoch_whatever_the_losses_are():
    two, three = (simulate("fedala", network("mlp"), rounds=rounds, settled=1e9) for rounds in (2, 3))
    assert float(held(three)["blend.steps"]) == 2
    assert not torch.equal(weights(two)["blend.head/weight"], weights(three)["blend.head/weight"])


def test_more_layers():
    run = simulate("fedala", network("cnn"), rounds=2, last_layers=2, most_epochs=1)
    assert {name.split("/")[0] for name in weights(run)} == {"blend.head", "blend.body"}
    with pytest.raises(ConfigError, match="last_layers = 9"):
        simulate("fedala", network("cnn"), rounds=2, last_layers=9)
