"""What the laws of the baselines share: a run that is followed in dicts of tensors, and functions called by hand."""

from collections import OrderedDict

import torch
from torch import nn
from torch.func import functional_call

from partwise.network.layers import LayerScope
from partwise.network.view import Batch, Net
from partwise.tasks import Classes
from tests.support import oracle
from tests.support.oracle import Record, trained_by
from tests.support.runs import CLASSES, network


class Followed(Record):
    """A run on a network of two dense layers, to be followed in plain torch: autograd and arithmetic on dicts."""

    def __init__(self, method, task="classes", **settings):
        net, plain = "places" if task == "places" else "mlp", {"momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0}
        super().__init__(method, net, task, **{**plain, **settings})
        parts = network(net, task=task)
        self.model = nn.Sequential(OrderedDict((name, parts.modules[name]) for name in parts.chain))
        self.start = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        self.lr = self.run.config.method.lr

    def loss(self, w, x, y):
        return self.criterion(functional_call(self.model, w, (x,)), y)

    def gradient(self, objective, w):
        """The gradient of objective(w), by name."""
        w = {name: value.detach().requires_grad_() for name, value in w.items()}
        return dict(zip(w, torch.autograd.grad(objective(w), w.values()), strict=True))

    def batches(self, number, client, phase=0):
        """The mini-batches of a client in a round, and in a phase of it."""
        [exchange] = trained_by(self.rounds[number])
        return list(self.mini_batches(exchange.batches(client)[phase]))

    def copies(self, number):
        """The server's model after a round."""
        return {name: self.rounds[number].copies[name].values[0] for name in self.start}

    def step(self, w, x, y, rate, part=""):
        """One step of SGD on the plain loss; on one part, where it is named."""
        slope = self.gradient(lambda v: self.loss(v, x, y), w)
        return {name: value - rate * slope[name] if name.startswith(part) else value for name, value in w.items()}

    def logits(self, client, w):
        """A model's predictions of a client's test samples."""
        return functional_call(self.model, w, (self.x[self.test[client]],)).detach()

    def assert_that_clients_share(self, *shared, phases=("",)):
        """Clients go through the phases, each on one part; the server averages what is shared, by samples."""
        server, own = self.start, dict.fromkeys(range(8), self.start)
        for number, seen in enumerate(self.rounds):
            ends = []
            for client in seen.cohort:
                own[client] = {**own[client], **among(server, shared)}
                for phase, part in enumerate(phases):
                    for x, y in self.batches(number, client, phase):
                        own[client] = self.step(own[client], x, y, self.lr, part)
                ends.append(own[client])
            server = oracle.mean(ends, self.samples[seen.cohort])
            oracle.assert_copies(among(server, shared), seen)
            sent = oracle.size(among(server, shared))
            oracle.assert_bytes(seen, sent, sent, len(seen.cohort))
            received = {k: self.logits(k, {**own[k], **among(server, shared)}) for k in range(8)}
            oracle.assert_predictions(received, seen, "received")


def among(w, parts):
    """What belongs to some parts."""
    return {name: value for name, value in w.items() if name.split(".")[0] in parts}


def moved(w, direction, rate):
    return {name: value - rate * direction[name] for name, value in w.items()}


def zeros(w):
    return {name: torch.zeros_like(value) for name, value in w.items()}


def mean(models):
    return {name: sum(each[name] for each in models) / len(models) for name in models[0]}


def largest(one, two):
    """The largest difference between two dicts of tensors."""
    assert one.keys() <= two.keys()
    return max(float((value - two[name]).abs().max()) for name, value in one.items())


def net_of(parts, tensors=None):
    """One client's network, to hand to a method's functions."""
    scope = LayerScope()
    prepared = parts.prepared(scope)
    held = {name: value.detach().double() for name, value in prepared.tensors().items()} | (tensors or {})
    return Net(prepared, scope, held, trainable=tuple(n for n in held if n not in prepared.buffers), training=True)


def batch_of(seed, rows=6, real=None):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, 8, 8, generator=random, dtype=torch.float64)
    y = torch.randint(CLASSES, (rows,), generator=random)
    return Batch(x, y, torch.arange(rows) < (rows if real is None else real), Classes.numbered(CLASSES))
