"""A client's functions are pure, and padded rows change nothing: what is not so is refused by name, with the reason."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from partwise import ALL, GUIDE, LOCAL, ClassRows, ConfigError, Method, Move, Parts, PerClient, Phase, methods
from partwise.engines.purity import PurityCheck
from partwise.methods import find
from partwise.network.keyed import Draws
from partwise.runs.config import known_fields
from tests.support import runs
from tests.support.parity import BLOCKS, CALMER, SETTINGS, TRACED, assert_engines_agree
from tests.support.pieces import PIECES
from tests.support.runs import awkward_federation, network
from tests.support.states import state

simulate = partial(runs.simulate, trials=True)
PADDED = "depends on padded rows"
AGAIN = "returns something else when called again"
ITSELF = "changes the method itself"
IN_PLACE = "changes a read-only input in place"
SIDE_BY_SIDE = "cannot run for several clients at once"


def with_loss(name, term, **more):
    """A method whose loss has one term more: `term(method, net, b, me, z, p)`."""

    def loss(self, net, b, me):
        z = net.body(b.x)
        logits = net.head(z)
        return b.ce(logits) + term(self, net, b, me, z, logits.softmax(1))

    return type(name, (Method,), {"__module__": __name__, "loss": loss, "share": {"body": ALL, "head": LOCAL}, **more})


def mean_of(chosen, rows):
    """A mean over some rows, in which padded ones are forgotten."""
    return (chosen * rows.square().sum(1)).sum() / chosen.sum().clamp(min=1)


def counted(method):
    method.calls = getattr(method, "calls", 0) + 1
    return method.calls


class SwitchedOn(with_loss("Base", lambda method, net, b, me, z, p: me.got.weight * z.square().mean())):
    """A term that `down` switches on in the second round."""

    def down(self, server):
        return {"weight": torch.tensor(0.1 * (server.round > 0))}


class SwitchedOnForOne(SwitchedOn):
    def down(self, server):
        return {"weight": PerClient(torch.tensor([0.1 * (server.round > 0 and k == 5) for k in server.receivers]))}


class SwitchedOnByMemory(with_loss("Base", lambda method, net, b, me, z, p: me.keep["seen"] * z.square().mean())):
    def keep(self, net):
        return {"seen": torch.zeros(())}

    def finish(self, net, me):
        return {"seen": me.keep["seen"] + 1}, {}


class SwitchedOnByItself(with_loss("Base", lambda method, net, b, me, z, p: method.weight * z.square().mean())):
    def begin(self, server, run):
        self.weight = 0.0

    def aggregate(self, server, updates):
        self.weight = 0.1


def apart(net, b, me):
    """A plain mean over rows that is 0, with gradient 0, while the client holds what it received."""
    return ((net.body(b.x) - me.got.body(b.x).detach()) ** 2).mean()


class NearReceived(Method):
    def loss(self, net, b, me):
        return b.ce(net(b.x)) + apart(net, b, me)


class NearWhatStartTook(NearReceived):
    share = {"body": GUIDE, "head": LOCAL}

    def start(self, net, me):
        return {f"body.{name}": value for name, value in me.got["body"].items()}


class NearMemory(Method):
    """The same for the distance from what the client remembers, which at first is what it holds."""

    def keep(self, net):
        return dict(net["*"])

    def loss(self, net, b, me):
        off = sum((value - me.keep[name]).square().sum() for name, value in net["*"].items())
        return b.ce(net(b.x)) + off * net(b.x).square().mean()


class MeanReport(Method):
    def report(self, net, b, me):
        return {"z": net.body(b.x).mean(0)}


class CountsOneClass(Method):
    def report(self, net, b, me):
        return {"n": (b.y == 3).sum()}


class CentredPrediction(Method):
    def predict(self, net, x, me):
        logits = net(x)
        return logits - logits.mean(0)


class CentredGlobally(Method):
    def predict_global(self, net, x):
        logits = net(x)
        return logits - logits.mean(0)


class MeanGradient(Method):
    def phases(self):
        return Phase(Move("*", gradient="outer"))

    def outer(self, net, b, me):
        grads = net.grad(self.loss, b, me)
        return {name: grad * b.x.mean() for name, grad in grads.items()}


class WrongAdaptation(Method):
    def adapt(self):
        return Phase(Move("head", "tuned"), steps=1)

    def tuned(self, net, b, me):
        return torch.nn.functional.cross_entropy(net(b.x), b.y)


class RemembersInPlace(Method):
    def keep(self, net):
        return {"seen": torch.zeros(())}

    def finish(self, net, me):
        return {"seen": me.keep["seen"].add_(1)}, {}


class ScalesInPlace(Method):
    def predict(self, net, x, me):
        net["head"]["bias"].mul_(2)
        return net(x)


class Tallies(with_loss("Base", lambda m, net, b, me, z, p: 0.1 * (m.tally.append(1) or len(m.tally) > 30))):
    def build(self, parts, sizes):
        self.tally = []
        return parts


class RandomStart(Method):
    def start(self, net, me):
        return {"head.bias": torch.randn_like(net["head"]["bias"])}


class RandomFinish(Method):
    def finish(self, net, me):
        return me.keep, {"noise": torch.rand(3)}


class RandomCorrection(Method):
    def correct(self, grads, net, me):
        return {name: grad * random.random() for name, grad in grads.items()}


class RandomProjection(Method):
    def phases(self):
        return Phase(Move("*", after="near"))

    def near(self, net, me):
        return {"head.bias": net["head"]["bias"] + 0.1 * torch.randn(4, dtype=torch.float64)}


class AsksForNumbers(Method):
    def correct(self, grads, net, me):
        return {name: grad / 2 if grad.abs().max().item() > 1 else grad for name, grad in grads.items()}


# name of the function, reason, method: each was accepted once, or refused for another reason
IN_BLOCKS = [
    ("loss", PADDED, with_loss("Entropy", lambda m, net, b, me, z, p: 0.1 * (p * p.log()).sum(1).mean())),
    ("loss", PADDED, with_loss("Small", lambda m, net, b, me, z, p: 1e-6 * z.square().mean())),
    ("loss", PADDED, with_loss("Norm", lambda m, net, b, me, z, p: 0.01 * z.norm())),
    ("loss", PADDED, with_loss("Pairs", lambda m, net, b, me, z, p: torch.cdist(p, p).mean())),
    ("loss", PADDED, with_loss("Largest", lambda m, net, b, me, z, p: 0.01 * z.amax())),
    ("loss", PADDED, with_loss("Hinge", lambda m, net, b, me, z, p: 1e-3 * (z.square().sum(1) - 1e3).relu().sum())),
    ("loss", PADDED, with_loss("Spread", lambda m, net, b, me, z, p: -0.01 * z.var(0, correction=0).mean())),
    ("loss", PADDED, with_loss("RightOnes", lambda m, net, b, me, z, p: mean_of(p.argmax(1) == b.y, z))),
    ("loss", PADDED, with_loss("OneClass", lambda m, net, b, me, z, p: 0.1 * (z.square().sum(1) * (b.y == 0)).sum())),
    ("loss", PADDED, with_loss("Sure", lambda m, net, b, me, z, p: mean_of(p.amax(1) > 0.6, p))),
    ("loss", PADDED, with_loss("Long", lambda m, net, b, me, z, p: 0.1 * max(0, len(b.y) - 7) * b.mean(p[:, 0]))),
    ("loss", PADDED, with_loss("Behind", lambda m, net, b, me, z, p: z[7:].square().sum())),
    ("a step", "padded block", with_loss("Short", lambda m, net, b, me, z, p: min(1, len(b.y) / 3) * b.mean(p[:, 0]))),
    ("loss", PADDED, SwitchedOn),
    ("loss", PADDED, SwitchedOnForOne),
    ("loss", PADDED, SwitchedOnByMemory),
    ("loss", PADDED, SwitchedOnByItself),
    ("loss", PADDED, NearReceived),
    ("loss", PADDED, NearWhatStartTook),
    ("loss", PADDED, NearMemory),
    ("outer", PADDED, MeanGradient),
    ("report", PADDED, MeanReport),
    ("report", PADDED, CountsOneClass),
    ("predict", PADDED, CentredPrediction),
    ("predict_global", PADDED, CentredGlobally),
    ("tuned", PADDED, WrongAdaptation),
    ("a step", SIDE_BY_SIDE, AsksForNumbers),
]
EVERYWHERE = [
    ("loss", AGAIN, with_loss("Noise", lambda m, net, b, me, z, p: 1e-3 * (z * torch.randn_like(z)).mean())),
    ("loss", AGAIN, with_loss("Dropped", lambda m, net, b, me, z, p: 0 * torch.nn.functional.dropout(z, 1e-9).sum())),
    ("loss", AGAIN, with_loss("Pythons", lambda m, net, b, me, z, p: random.random() * b.mean(p[:, 0]))),
    ("loss", AGAIN, with_loss("Numpys", lambda m, net, b, me, z, p: np.random.rand() * b.mean(p[:, 0]))),
    ("loss", AGAIN, with_loss("Fresh", lambda m, net, b, me, z, p: np.random.default_rng().normal() * b.mean(p[:, 0]))),
    ("loss", ITSELF, with_loss("Counts", lambda m, net, b, me, z, p: counted(m) * b.mean(p[:, 0]))),
    ("loss", ITSELF, Tallies),
    ("loss", ITSELF, with_loss("Notes", lambda m, net, b, me, z, p: 0 * counted(m))),
    ("finish", IN_PLACE, RemembersInPlace),
    ("predict", IN_PLACE, ScalesInPlace),
    ("start", AGAIN, RandomStart),
    ("finish", AGAIN, RandomFinish),
    ("correct", AGAIN, RandomCorrection),
    ("near", AGAIN, RandomProjection),
]


def cases(table):
    return [pytest.param(*row, id=row[2].__name__) for row in table]


@pytest.mark.parametrize(("name", "reason", "method"), cases([*IN_BLOCKS, *EVERYWHERE]))
def test_what_is_not_pure_is_refused_in_blocks(name, reason, method):
    with pytest.raises(ConfigError, match=f"{method.__name__}(.|: ){name} .*{reason}"):
        simulate(method, network("mlp"), engine="vector", rounds=3)


@pytest.mark.parametrize(("name", "reason", "method"), cases(EVERYWHERE))
def test_what_is_not_pure_is_refused_one_by_one(name, reason, method):
    with pytest.raises(ConfigError, match=f"{method.__name__}.{name} .*{reason}"):
        simulate(method, network("mlp"), engine="loop", rounds=3)


@pytest.mark.parametrize("method", [method for _, _, method in IN_BLOCKS])
def test_one_by_one_there_are_no_padded_rows_to_look_at(method):
    simulate(method, network("mlp"), engine="loop", rounds=2)


class WritesMemory(with_loss("Base", lambda method, net, b, me, z, p: 0)):
    def keep(self, net):
        return {"seen": torch.zeros(())}

    def loss(self, net, b, me):
        me.keep["seen"] = torch.ones(())
        return b.ce(net(b.x))


class WritesReceived(WritesMemory):
    def loss(self, net, b, me):
        me.got.seen = 1
        return b.ce(net(b.x))


@pytest.mark.parametrize("engine", ["loop", "vector"])
@pytest.mark.parametrize(("method", "what"), [(WritesMemory, "me.keep"), (WritesReceived, "me.got.seen")])
def test_what_a_client_may_read_it_cannot_write(method, what, engine):
    with pytest.raises(ConfigError, match=rf"in \w+.loss \(round 1, client.* phase 1, step 1\): {what} is read-only"):
        simulate(method, network("mlp"), engine=engine, rounds=1)


class RandomKeep(Method):
    def keep(self, net):
        return {"noise": torch.randn(3)}


def test_what_clients_remember_at_first_is_no_draw():
    with pytest.raises(
        ConfigError, match=r"RandomKeep.keep draws random numbers, but every client must begin with the same tensors"
    ):
        simulate(RandomKeep, network("mlp"))


def spied(monkeypatch):
    """The jobs and stages that are tried, in turn."""
    tried, check = [], PurityCheck.check_job

    def noted(self, request, *arguments):
        tried.append((request.job, request.plan.number, request.round))
        check(self, request, *arguments)

    monkeypatch.setattr(PurityCheck, "check_job", noted)
    return tried


def test_functions_are_tried_once_a_stage_where_nothing_changes(monkeypatch):
    tried = spied(monkeypatch)
    simulate("fed3p2p", network("cnn"), engine="vector", coordinators_a=2, coordinators_b=2, rounds_1=2, rounds_2=2)
    assert tried == [("train", 0, 0), ("predict", 0, 1), ("train", 1, 2), ("predict", 1, 3)]


def test_functions_are_tried_again_when_what_they_read_changes_in_kind(monkeypatch):
    class Grows(Method):
        def down(self, server):
            return {"rows": torch.ones(1 + (server.round > 1))}

    tried = spied(monkeypatch)
    simulate(Grows, network("mlp"), engine="vector", rounds=4)
    assert [at for job, _, at in tried if job == "train"] == [0, 2]


@pytest.mark.parametrize("method", [*methods.names(), *PIECES])
def test_every_method_of_the_project_is_tried_and_found_pure(method, caplog):
    settings = {**SETTINGS, **CALMER.get(method, {}), "rounds": 2, "rounds_1": 1, "rounds_2": 1, "epochs": 1}
    known = known_fields(find(method) if isinstance(method, str) else method)
    own = {name: value for name, value in settings.items() if name in known}
    simulation = simulate(method, network("cnn+bn", dropout=0.25), engine="vector", **own)
    assert ("predict", 0) in simulation.engine.purity.tried and "could not be checked" not in caplog.text


@pytest.mark.parametrize("method", ["fed3p2p", "fedfcd"])
@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_trials_change_nothing(method, engine):
    settings = {"rounds": 2, "coordinators_a": 2, "coordinators_b": 2} if method == "fed3p2p" else {"rounds": 2}
    with_and_without = [
        runs.simulate(method, network("cnn+bn", dropout=0.25), engine=engine, trials=trials, **settings)
        for trials in (True, False)
    ]
    first, second = map(state, with_and_without)
    assert all(torch.equal(first[name], second[name]) for name in second)


class Noisy(Method):
    """Random numbers of a client's own wherever a client computes."""

    share = {"body": ALL, "head": LOCAL}

    def phases(self):
        both = Phase(Move("head", "mixed", repeat=2, after="near"), Move("body", gradient="outer", batches=2))
        return [both, Phase(Move("*"), steps=2)]

    def keep(self, net):
        return {"noise": torch.zeros(3, dtype=torch.float64)}

    def start(self, net, me):
        return {"head.bias": net["head"]["bias"] + 0.01 * me.normal((4,))}

    def mixed(self, net, b, me):
        z = net.body(b.x)
        return (
            b.ce(net.head(z + 0.1 * b.normal(z.shape))) + b.mean(b.random(b.y.shape) * z.square().mean(1)) * me.random()
        )

    def outer(self, net, b, me):
        near = net.step(net.grad(self.mixed, b[0], me), me.lr)
        return near.grad(self.mixed, b[1], me)

    def near(self, net, me):
        return {"head.bias": net["head"]["bias"] + 0.001 * me.random((4,))}

    def correct(self, grads, net, me):
        return {name: grad + 1e-4 * me.normal(grad.shape) for name, grad in grads.items()}

    def finish(self, net, me):
        return {"noise": me.normal((3,))}, {"sent": me.random((2,))}

    def report(self, net, b, me):
        return {"z": ClassRows.of(b.normal((len(b.y), 2)), b)}

    def predict(self, net, x, me):
        return net(x) + 0.01 * me.normal((len(x), 1))

    def aggregate(self, server, updates):
        server.memory["sent"] = updates.extras["sent"]


@pytest.mark.parametrize(("net", "vector"), [("mlp", BLOCKS), ("mlp", TRACED), ("cnn+bn", BLOCKS)])
def test_a_clients_own_random_numbers_are_the_same_in_every_engine(net, vector):
    assert_engines_agree(Noisy, net, vector)


def test_every_draw_is_another_and_every_clients_its_own():
    sent = simulate(Noisy, network("mlp"), rounds=1).server.memory["sent"].flatten()
    assert len(sent.unique()) == len(sent) == 16
    again, later = (simulate(Noisy, network("mlp"), rounds=rounds).server.memory["sent"].flatten() for rounds in (1, 2))
    assert torch.equal(sent, again) and not torch.isin(sent, later).any()


def test_random_numbers_have_the_distribution_that_they_say():
    draws = Draws(torch.tensor(3), torch.float64)
    uniform, normal = draws.random((100_000,)), draws.normal((100_000,))
    assert uniform.min() > 0 and uniform.max() < 1
    # five standard errors of mean and variance of 100,000 independent numbers
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / 1e5) ** 0.5 and abs(normal.mean()) < 5 / 1e5**0.5
    assert abs(normal.var() - 1) < 5 * (2 / 1e5) ** 0.5
    assert abs(torch.corrcoef(torch.stack([uniform, normal]))[0, 1]) < 5 / 1e5**0.5


def test_neighbouring_steps_share_no_numbers():
    """Keys of steps are a fixed number apart: the second draw of one was the first of the next."""
    keys = (11 + np.arange(50) * 0x9E3779B1) & 0xFFFFFFFF
    streams = [Draws(torch.tensor(key), torch.float64) for key in keys.tolist()]
    drawn = torch.cat([stream.random((4,)) for stream in streams for _ in range(5)])
    assert len(drawn.unique()) == len(drawn) == 1000


def test_a_number_below_one_is_not_rounded_to_it(monkeypatch):
    monkeypatch.setattr("partwise.network.keyed.hashed", lambda key, shape: torch.full(shape, 2**32 - 1))
    assert 0.9999999 < Draws(torch.tensor(0), torch.float32).random((1,)).item() < 1


def test_more_rows_leave_the_numbers_of_the_first_as_they_are():
    few, many = (Draws(torch.tensor(3), torch.float64).normal((rows, 5)) for rows in (2, 7))
    assert torch.equal(few, many[:2])


@pytest.mark.parametrize("value", [float("nan"), 1e25])
def test_data_of_any_size_are_neither_padding_nor_randomness(value):
    federation = awkward_federation()
    x = federation.source.x.flatten(1).float()
    x[-1] = value
    source = replace(federation.source, x=x, centre=(0.0,), scale=(1.0,), model="tabular")
    federation = replace(federation, source=source)
    settings = {"rounds": 1, "participation": 0.5, "allow_nonfinite_data": True, "lr": 1e-6}
    simulation = simulate(
        "fedavg", Parts(nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 4)).double()), federation, "vector", **settings
    )
    assert simulation.notes[0] == "engine: vector on cpu"
