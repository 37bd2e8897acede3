"""The server's step towards the mean: FedAvg where it is the whole way, FedAvgM and FedAdam with an optimiser."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from partwise import ALL, GROUP, GUIDE, LOCAL, MIXED_GUIDE, Method
from partwise.rounds import optim
from partwise.rounds.messages import Updates
from partwise.rounds.mixing import redrawn
from partwise.rounds.plan import plans
from partwise.rounds.server import Server
from partwise.streams import stream
from tests.support.parity import assert_engines_agree
from tests.support.runs import network, simulate
from tests.support.states import distance

SETTINGS = {"rounds": 3, "participation": 0.5, "momentum": 0.5}
ADAM = {"server_optimizer": "adam", "server_learning_rate": 0.02}


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------- one step


def test_a_step_with_momentum_by_hand():
    """The change is (2, 0, -2), the velocity 0.5 (2, 0, 4) + (2, 0, -2) = (3, 0, 0), and half of that is gone."""
    before, mean, slot = numbers(1, 2, 3), numbers(3, 2, 1), {"momentum": numbers(2, 0, 4)}
    after, slot = optim.server_step("sgd", before, mean, slot, 0.5, 0.5)
    assert after.tolist() == [2.5, 2, 3] and slot["momentum"].tolist() == [3, 0, 0]


def test_a_step_of_adam_by_hand():
    """From m = 0 and v = tau^2: m = 0.1 (2, 0, -2), v = 0.99e-6 + 0.01 (4, 0, 4), x + m / (sqrt(v) + 0.001)."""
    before, mean = numbers(1, 2, 3), numbers(3, 2, 1)
    after, slot = optim.server_step("adam", before, mean, optim.initial_server_state("adam", 0.9, before), 1.0, 0.9)
    assert slot["first"].tolist() == pytest.approx([0.2, 0, -0.2], abs=1e-16)
    assert slot["second"].tolist() == pytest.approx([0.04000099, 0.99e-6, 0.04000099], abs=1e-16)
    assert after.tolist() == pytest.approx([1.9950126, 2, 2.0049874], abs=1e-7)


# --------------------------------------------------------------------------------------------------- whole runs


class FedAvgM(Method):
    server_momentum = 0.9


class Everything(Method):
    """Every kind of share that is averaged, and two that are not."""

    share = {"*": ALL, "guide": GUIDE, "group": GROUP, "cloud": MIXED_GUIDE, "mine": LOCAL}

    def build(self, parts, sizes):
        for name in ("guide", "group", "cloud", "mine"):
            parts = parts.like("head", name=name)
        return parts

    def groups(self, server):
        return [client % 2 for client in range(server.clients)]

    def loss(self, net, b, me):
        z = net.body(b.x)
        return sum(b.ce(getattr(net, head)(z)) for head in ("head", "guide", "group", "cloud", "mine"))


@pytest.mark.parametrize("method", ["fedavg", Everything])
@pytest.mark.parametrize(
    "settings", [{"server_learning_rate": 1.0}, {"server_momentum": 0.0}, {"server_optimizer": "sgd"}]
)
def test_the_whole_way_without_momentum_is_fedavg_to_the_bit(method, settings):
    plain, stepped = (simulate(method, network("cnn"), **SETTINGS, **own) for own in ({}, settings))
    assert distance(plain, stepped) == 0


def test_a_method_may_bring_the_servers_momentum_as_its_default():
    own, option = simulate(FedAvgM, network("mlp")), simulate("fedavg", network("mlp"), server_momentum=0.9)
    for name, copies in own.server.copies.items():
        assert torch.equal(copies.values, option.server.copies[name].values)
    assert distance(own, simulate(FedAvgM, network("mlp"), server_momentum=0.0)) > 1e-3


def locally_trained(simulation, model: nn.Module, client: int, number: int) -> None:
    """Plain torch: a client's round on the run's own mini-batches."""
    method, source = simulation.config.method, simulation.federation.source
    sgd = torch.optim.SGD(model.parameters(), method.lr, momentum=method.momentum)
    order = dataclasses.replace(simulation.server.request("train", [client]), round=number)
    (table,) = simulation.engine.drawing.draw(order, client).phases
    for index, count in zip(table.samples, table.real, strict=True):
        rows = torch.from_numpy(index[0, :count])
        sgd.zero_grad()
        x = (source.x[rows].double() - 127.5) / 127.5
        nn.functional.cross_entropy(model(x), source.y[rows]).backward()
        sgd.step()


def fedavgm(weights: list[Tensor]):
    """Torch's own SGD with momentum, whose gradient is the way back from the mean."""
    sgd = torch.optim.SGD(weights, lr=0.7, momentum=0.9)

    def step(means: list[Tensor]) -> None:
        for weight, mean in zip(weights, means, strict=True):
            weight.grad = weight.detach() - mean
        sgd.step()

    return step


def fedadam(weights: list[Tensor]):
    """Reddi et al. 2021, Algorithm 2, number by number."""
    m, v = [torch.zeros_like(w) for w in weights], [torch.full_like(w, 1e-6) for w in weights]

    def step(means: list[Tensor]) -> None:
        for weight, mean, first, second in zip(weights, means, m, v, strict=True):
            delta = mean - weight
            first.mul_(0.9).add_(delta, alpha=0.1)
            second.mul_(0.99).addcmul_(delta, delta, value=0.01)
            weight += 0.02 * first / (second.sqrt() + 1e-3)

    return step


@pytest.mark.parametrize(
    ("server", "settings"), [(fedavgm, {"server_learning_rate": 0.7, "server_momentum": 0.9}), (fedadam, ADAM)]
)
def test_three_rounds_are_those_of_a_plain_loop(server, settings):
    simulation, parts = simulate("fedavg", network("mlp"), **SETTINGS, **settings), network("mlp")
    model = nn.Sequential(*(parts.modules[name] for name in parts.chain))
    weights = [value.detach().clone() for value in model.parameters()]
    step = server(weights)
    for number in range(3):
        cohort = sorted(stream(0, "cohort", number).choice(8, 4, replace=False).tolist())
        shares = simulation.server.samples[cohort] / simulation.server.samples[cohort].sum(dtype=torch.float64)
        means = [torch.zeros_like(weight) for weight in weights]
        for client, share in zip(cohort, shares, strict=True):
            with torch.no_grad():
                for value, weight in zip(model.parameters(), weights, strict=True):
                    value.copy_(weight)
            locally_trained(simulation, model, client, number)
            for mean, value in zip(means, model.parameters(), strict=True):
                mean += share * value.detach()
        step(means)
    names = [f"{part}.{name}" for part in parts.chain for name, _ in parts.modules[part].named_parameters()]
    for name, weight in zip(names, weights, strict=True):
        assert torch.allclose(simulation.server.copies[name].values[0], weight, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("settings", [ADAM, {"server_learning_rate": 0.7, "server_momentum": 0.9}])
def test_vector_equals_loop(settings):
    assert_engines_agree(Everything, "cnn+bn", **settings, bn_buffers="average")


def test_what_is_not_averaged_and_running_values_take_no_step():
    plain, half = (
        simulate(Everything, network("cnn+bn"), rounds=1, bn_buffers="average", server_learning_rate=rate)
        for rate in (1.0, 0.5)
    )
    stepped = {
        name.split(".")[0] if name not in plain.server.parts.buffers else "running values"
        for name, copies in plain.server.copies.items()
        if not torch.equal(copies.values, half.server.copies[name].values)
    }
    assert stepped == {"body", "head", "guide", "group"}


# ------------------------------------------------------------------------------------- what the server remembers


class Grouped(Method):
    share = {"body": ALL, "head": GROUP}
    server_momentum = 0.5


def moving_server() -> Server:
    """A server of two groups, all of whose copies are 0, without an engine."""
    method, parts = Grouped(), network("mlp")
    server = Server(method, parts, None, plans(method, parts), torch.tensor([1, 1]), 0, None)  # type: ignore[arg-type]
    server["*"] = {name: torch.zeros_like(value) for name, value in server["*"].items()}
    server.regroup([0, 1])
    return server


def receive(server: Server, *clients: int) -> None:
    """These clients send what they should hold, plus 1: without momentum, every copy that they have grows by 1."""
    sent = {name: copies.of(clients) + 1 for name, copies in server.copies.items()}
    nothing = torch.zeros(len(clients))
    server.mix(Updates(list(clients), 0, torch.ones(len(clients)), nothing, nothing, sent, {}))


def held(server: Server, part: str) -> list[float]:
    """The number that fills each copy of a part."""
    [numbers] = {tuple(c.values.flatten(1).unique(dim=1)[:, 0].tolist()) for n, c in server.copies.items() if part in n}
    return list(numbers)


def test_a_group_without_participants_neither_moves_nor_forgets():
    """Group 0 hears of its client in rounds 1 and 2 (1, then 0.5 + 1 more), group 1 in rounds 1 and 3."""
    server = moving_server()
    receive(server, 0, 1)
    receive(server, 0)
    assert held(server, "head") == [2.5, 1] and held(server, "body") == [2.5]
    receive(server, 1)
    assert held(server, "head") == [2.5, 2.5] and held(server, "body") == [4.25]


def test_other_groups_begin_without_momentum():
    server = moving_server()
    receive(server, 0, 1)
    server.regroup([1, 0])
    receive(server, 0, 1)
    assert held(server, "head") == [2, 2] and held(server, "body") == [2.5]


def test_a_part_that_is_drawn_anew_begins_without_momentum():
    server = moving_server()
    receive(server, 0, 1)
    names = server.parts.select("body")
    server.copies |= redrawn(server.parts, {name: server.copies[name] for name in names}, 0, 1)
    drawn = {name: server.copies[name].values.clone() for name in names}
    receive(server, 0, 1)
    for name, value in drawn.items():
        assert torch.allclose(server.copies[name].values, value + 1, rtol=0, atol=1e-15)
    assert held(server, "head") == [2.5, 2.5]


def test_values_that_a_method_sets_itself_leave_the_momentum():
    server = moving_server()
    receive(server, 0, 1)
    server["body"] = {name: torch.zeros_like(value) for name, value in server["body"].items()}
    receive(server, 0, 1)
    assert held(server, "body") == [1.5]
