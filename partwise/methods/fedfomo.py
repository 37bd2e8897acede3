"""FedFomo: every client tries the models of others on data that it held back, and moves towards those that are better.

References:
    Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization.
    ICLR 2021.
"""

import torch
from torch import nn

from partwise.method import LOCAL, UPLOAD, Method, Move, Phase
from partwise.network.view import PerClient
from partwise.options import option


class FedFomo(Method):
    """The server keeps everybody's newest model and sends each participant some of them (Algorithm 1)."""

    share = {"*": UPLOAD, "tried": LOCAL}
    models: int = option(5, "Models of others that a client receives (M).", minimum=1)
    explore: float = option(0.3, "How often one is any, and not who helped most (epsilon).", minimum=0, maximum=1)
    validation_share: float = option(0.2, "Share of the samples for trying models, not trained on.", above=0, below=1)
    predict_global = None

    def build(self, parts, task):
        self.number = min(self.models, task.clients - 1)
        zeros = {"losses": self.number + 1, "gains": self.number, "samples": 1}
        tensors = {name: nn.Parameter(torch.zeros(size), requires_grad=False) for name, size in zeros.items()}
        return parts.add("tried", nn.ParameterDict(tensors), drawn=False)

    def prepare(self):
        measure, held_back = Move("tried", update="measure"), (1 - self.validation_share, 1.0)
        return Phase(measure, epochs=1, of=held_back, mode="eval", before="forget", after="towards_better")

    def phases(self):
        return Phase(Move("body head"), of=(0.0, 1 - self.validation_share))

    def forget(self, net, me):
        return {f"tried.{name}": torch.zeros_like(value) for name, value in net["tried"].items()}

    def measure(self, net, b, me):
        """Losses of the client's own model, and of those that it received."""
        others = [{name: rows[number] for name, rows in me.got.others.items()} for number in range(self.number)]
        losses = torch.stack([b.ce(net.with_tensors(model)(b.x)) for model in [{}, *others]])
        held, rows = net["tried"], b.mask.sum()
        return {"tried.losses": held["losses"] + losses * rows, "tried.samples": held["samples"] + rows}

    def towards_better(self, net, me):
        losses = net["tried"]["losses"] / net["tried"]["samples"].clamp(min=1)
        away = {name: others - net["body head"][name] for name, others in me.got.others.items()}
        distance = sum(value.flatten(1).square().sum(1) for value in away.values()).sqrt()
        gains = (losses[0] - losses[1:]).clamp(min=0) / distance.clamp(min=1e-12)  # Eq. 4, none below 0
        weights = gains / gains.sum().clamp(min=1e-12)
        moved = {n: net["body head"][n] + torch.tensordot(weights, value, 1) for n, value in away.items()}  # Eq. 3
        return {**moved, "tried.gains": gains}

    def finish(self, net, me):
        return me.keep, {"gains": net["tried"]["gains"]}

    def begin(self, server, run):
        initial = {name: value for name, value in server["*"].items() if not name.startswith("tried.")}
        server.memory["models"] = {n: v.expand(server.clients, *v.shape).clone() for n, v in initial.items()}
        server.memory["affinity"] = torch.zeros(server.clients, server.clients, dtype=torch.float64)

    def admit(self, server, newcomers):
        more, models = len(newcomers), server.memory["models"]
        grown = {name: torch.cat([v, v.mean(0).expand(more, *v.shape[1:])]) for name, v in models.items()}
        affinity = nn.functional.pad(server.memory["affinity"], (0, more, 0, more))
        server.memory |= {"models": grown, "affinity": affinity}

    def chosen(self, server, client):
        """Whose models a client receives: those that helped it most, here and there any other."""
        random, affinity = server.stream("others", server.round, client), server.memory["affinity"][client]
        left = [other for other in random.permutation(server.clients).tolist() if other != client]
        left.sort(key=lambda other: -float(affinity[other]))
        any_other = random.random(self.number) < self.explore
        return [left.pop(random.integers(len(left)) if wanders else 0) for wanders in any_other]

    def down(self, server):
        whose = torch.tensor([self.chosen(server, client) for client in server.receivers])
        models, share = server.memory["models"], server.plan.share
        awake = {name: v for name, v in models.items() if share[name].upload}  # without what a schedule still freezes
        return {"others": PerClient({name: v[whose.to(v.device)] for name, v in awake.items()})}

    def aggregate(self, server, updates):
        for client, gains in zip(updates.clients, updates.extras["gains"].double().cpu(), strict=True):
            server.memory["affinity"][client, self.chosen(server, client)] += gains
        for name in [name for name in server.memory["models"] if name in updates.parts]:
            server.memory["models"][name][updates.clients] = updates.parts[name]
