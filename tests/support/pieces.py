"""Every piece of a method - hooks, extras, kinds of shares, kinds of moves - as small methods."""

import torch
from torch import nn

from partwise import (
    ALL,
    EVERYONE,
    GUIDE,
    LOCAL,
    MIXED_GUIDE,
    SERVER,
    SERVER_GUIDE,
    UPLOAD,
    ClassRows,
    Method,
    Move,
    PerClient,
    Phase,
    Relay,
    Stage,
)


class Remembering(Method):
    """Memory, start, correct, finish with extras, server memory, extras down, and a guide."""

    share = {"body": ALL, "head": GUIDE}

    def keep(self, net):
        return {"drift": torch.zeros_like(net["head"]["weight"])}

    def start(self, net, me):
        return {"head.bias": 0.5 * net["head"]["bias"] + 0.5 * me.got["head"]["bias"]}

    def loss(self, net, b, me):
        z = net.body(b.x)
        return b.ce(net.head(z)) + 0.1 * b.ce(me.got.head(z)) + 0.01 * me.got.total * net["head"]["bias"].sum()

    def correct(self, grads, net, me):
        return {**grads, "head.weight": grads["head.weight"] + 0.1 * me.keep["drift"] / me.samples}

    def finish(self, net, me):
        change = (net["head"]["weight"] - me.got["head"]["weight"]) / me.steps.clamp(min=1)
        return {"drift": me.keep["drift"] + me.lr * change}, {"change": change}

    def begin(self, server, run):
        server.memory["total"] = torch.zeros((), dtype=torch.float64)

    def down(self, server):
        return {"total": server.memory["total"]}

    def aggregate(self, server, updates):
        server.memory["total"] = server.memory["total"] + updates.extras["change"].square().sum()


class TwoBatches(Method):
    """A gradient of its own from two disjoint mini-batches, a repeated move, a projection, and an optimiser anew."""

    share = {"body": ALL, "head": LOCAL}

    def phases(self):
        return [
            Phase(Move("body head", gradient="outer", lr={"head": 0.01}, batches=2), epochs=1.5),
            Phase(Move("head", repeat=2, momentum=0.0, after="bounded"), Move("body", clip=0.1), steps=2),
            Phase(Move("head", lambda net, b, me: b.ce(net(b.x)), weight_decay={"head": 0.1}), mode="eval", epochs=1),
            Phase(Move("body"), steps=2, restart_optimizer=True),
        ]

    def outer(self, net, b, me):
        near = net.step(net.grad(self.loss, b[0], me), me.lr)
        return near.grad(self.loss, b[1], me)

    def bounded(self, net, me):
        return {"head.bias": net["head"]["bias"].clamp(-0.05, 0.05)}

    def adapt(self):
        return Phase(Move("*"), steps=1)


class Cloud(Method):
    """Every client keeps its own network and is pulled towards a mix made for it."""

    share = {"*": MIXED_GUIDE}

    def loss(self, net, b, me):
        cloud = me.got["*"]
        return b.ce(net(b.x)) + 0.1 * sum((value - cloud[name]).square().sum() for name, value in net["*"].items())

    def mix(self, server, updates):
        rows = torch.zeros(server.clients, len(updates.clients))
        for column, client in enumerate(updates.clients):
            rows[client] = 0.3 / (len(updates.clients) - 1)
            rows[client, column] = 0.7
        return rows


class ServerTrained(Method):
    """The server trains a head on class means; a second one only guides; extras differ from client to client."""

    share = {"body": LOCAL, "head": SERVER, "g_head": SERVER_GUIDE}

    def build(self, parts, sizes):
        return parts.like("head", name="g_head")

    def loss(self, net, b, me):
        z = net.body(b.x)
        return b.ce(net.head(z) + me.got.g_head(z)) + 0.01 * me.got.mine * b.mean(z.square().mean(1))

    def predict(self, net, x, me):
        z = net.body(x)
        return net.head(z) + me.got.g_head(z)

    def report(self, net, b, me):
        return {"features": ClassRows.of(net.body(b.x), b)}

    def begin(self, server, run):
        self.aggregate(server, run("report", EVERYONE))

    def down(self, server):
        return {"mine": PerClient(torch.tensor([client / 10 for client in server.receivers]))}

    def aggregate(self, server, updates):
        rows = updates.extras["features"]
        for part in ("head", "g_head"):
            mean, classes = rows.mean.flatten(0, 1), torch.arange(rows.sums.shape[1], device=rows.sums.device)
            target = classes.repeat(len(rows.sums))
            weight = rows.present.flatten() / rows.present.sum()

            def loss(tensors, mean=mean, target=target, weight=weight):
                logits = mean @ tensors["weight"].T + tensors["bias"]
                return (torch.nn.functional.cross_entropy(logits, target, reduction="none") * weight).sum()

            gradient = torch.func.grad(loss)(server[part])
            server[part] = {name: value - 0.1 * gradient[name] for name, value in server[part].items()}


class Relayed(Method):
    """The model goes from client to client within three groups."""

    def stages(self):
        yield Stage(
            self.phases(), {"body": ALL, "head": ALL}, self.rounds, cohort=Relay(lambda server: [0, 1, 2] * 2 + [0, 1])
        )


class TwoCopies(Method):
    """A second copy of the whole network that stays with the client, as in Ditto."""

    share = {"*": ALL, "mine": LOCAL}

    def build(self, parts, sizes):
        return parts.copy("*", name="mine")

    def phases(self):
        return [Phase(Move("mine", "personal")), Phase(Move("body head"))]

    def personal(self, net, b, me):
        received = me.got["*"]
        pull = sum((value - received[name]).square().sum() for name, value in net["mine"].items())
        return b.ce(net.mine(b.x)) + 0.05 * pull

    def predict(self, net, x, me):
        return net.mine(x)


class Preparing(Method):
    """A pass over some samples after download, tensors of the client's own that no gradient changes, seen uploads."""

    share = {"body": UPLOAD, "head": GUIDE, "weight": LOCAL}

    def build(self, parts, sizes):
        kept = {"received": torch.full((sizes.classes,), 0.5), "losses": torch.zeros(2)}
        tensors = {name: nn.Parameter(value, requires_grad=False) for name, value in kept.items()}
        return parts.add("weight", nn.ParameterDict(tensors), drawn=False)

    def prepare(self):
        weigh = Move("weight", update="weigh")
        return Phase(
            weigh, epochs=self.first_longer, sample_range=(0.0, 0.6), mode="eval", before="afresh", after="blended"
        )

    def phases(self):
        return Phase(Move("body head"), before="shaken", sample_range=(0.5, 1.0))

    def first_longer(self, times):
        return 0 if times == 0 else 2 if times == 1 else 0.5

    def afresh(self, net, me):
        return {"weight.losses": torch.zeros_like(net["weight"]["losses"])}

    def weigh(self, net, b, me):
        kept, mine, theirs = net["weight"], b.ce(net(b.x)), b.ce(me.got.head(net.body(b.x)))
        nearer = torch.sigmoid(mine - theirs) * b.one_hot().any(0)
        losses = kept["losses"] + torch.stack([mine, theirs])
        return {"weight.received": 0.9 * kept["received"] + 0.1 * nearer, "weight.losses": losses}

    def blended(self, net, me):
        own, got, weight = net["head"], me.got["head"], net["weight"]["received"]
        return {"head.bias": own["bias"] + weight * (got["bias"] - own["bias"])}

    def shaken(self, net, me):
        return {"head.weight": net["head"]["weight"] + 0.01 * me.normal(net["head"]["weight"].shape)}

    def describe(self, b):
        return {"mean": b.x.mean(), "labels": b.one_hot().sum(0)}

    def begin(self, server, run):
        server.memory["told"] = run("describe", EVERYONE).extras

    def aggregate(self, server, updates):
        server.memory["seen"] = {name: value.mean(0) for name, value in updates.parts.items() if "body" in name}


PIECES = [Remembering, TwoBatches, Cloud, Relayed, TwoCopies, ServerTrained, Preparing]
