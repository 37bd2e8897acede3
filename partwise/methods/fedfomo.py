"""FedFomo: every client evaluates others' models on held-out data, and moves towards the better ones.

References:
    Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization.
    ICLR 2021.
"""

from typing import Literal

import torch
from torch import nn

from partwise.method import LOCAL, UPLOAD, Method, Move, Phase
from partwise.network.view import PerClient
from partwise.options import option

SAME = 16  # roundings by which a model may differ from one that the client adopted before


class FedFomo(Method):
    """The server keeps every client's newest model and sends each participant some of them (Algorithm 1)."""

    share = {"*": UPLOAD, "before tried": LOCAL}
    models: int = option(5, "Number of other clients' models that a client receives (M).", minimum=1)
    baseline: Literal["before", "trained"] = option(
        "before", "Reference of a model's gain: the client's model before its last training, or after it."
    )
    without_gain: Literal["before", "trained"] = option(
        "before", "Model from which the client starts if no other model gains.", when="baseline=before"
    )
    explore: float = option(0.3, "Probability of receiving a random model, not a helpful one.", minimum=0, maximum=1)
    explore_decay: float = option(0.05, "Decrease of that probability per round.", minimum=0)
    validation_share: float = option(
        0.2, "Fraction of samples that evaluate received models, not trained on.", above=0, below=1
    )
    predict_global = None

    def build(self, parts, sizes):
        self.number = min(self.models, sizes.clients - 1)
        zeros = {"losses": self.number + 2, "gains": self.number, "samples": 1}
        tensors = {name: nn.Parameter(torch.zeros(size), requires_grad=False) for name, size in zeros.items()}
        parts = parts.add("tried", nn.ParameterDict(tensors), drawn=False).copy("*", name="before")
        parts.module("before").requires_grad_(False)
        return parts

    def prepare(self):
        measure, held_back = Move("tried", update="measure"), (1 - self.validation_share, 1.0)
        return Phase(measure, epochs=1, sample_range=held_back, mode="eval", before="forget", after="towards_better")

    def phases(self):
        return Phase(Move("body head"), sample_range=(0.0, 1 - self.validation_share))

    def forget(self, net, me):
        """Clear the sums; before the first training, `before` is the client's own model."""
        afresh = (net["tried"]["samples"] == 0) | (self.baseline == "trained")
        zeros = {f"tried.{name}": torch.zeros_like(value) for name, value in net["tried"].items()}
        before = net["before"].items()
        return zeros | {f"before.{n}": torch.where(afresh, net["body head"][n], value) for n, value in before}

    def measure(self, net, b, me):
        """Add up the losses of the model before training, of the client's own and of those received."""
        others = [{name: rows[number] for name, rows in me.got.others.items()} for number in range(self.number)]
        losses = torch.stack([b.loss(net.with_tensors(model)(b.x)) for model in [net["before"], {}, *others]])
        held, rows = net["tried"], b.mask.sum()
        return {"tried.losses": held["losses"] + losses * rows, "tried.samples": held["samples"] + rows}

    def towards_better(self, net, me):
        own, base, samples = net["body head"], net["before"], net["tried"]["samples"]
        losses = net["tried"]["losses"] / samples.clamp(min=1)
        away = {name: torch.cat([own[name][None], rows]) - base[name] for name, rows in me.got.others.items()}
        distance = sum(value.flatten(1).square().sum(1) for value in away.values()).sqrt()
        size = sum(value.square().sum() for value in base.values()).sqrt()
        differs = distance > SAME * torch.finfo(size.dtype).eps * size
        gains = torch.where(differs, (losses[0] - losses[1:]) / distance, 0.0)  # Eq. 4
        helpful = gains.clamp(min=0)
        stays = helpful.sum() == 0 if self.without_gain == "trained" else samples == 0  # without samples none is tried
        helpful = torch.cat([helpful[:1] + stays, helpful[1:]])
        weights = helpful / helpful.sum().clamp(min=torch.finfo(helpful.dtype).tiny)
        moved = {name: base[name] + torch.tensordot(weights, value, 1) for name, value in away.items()}  # Eq. 3
        return {**moved, **{f"before.{n}": value for n, value in moved.items()}, "tried.gains": gains[1:]}

    def finish(self, net, me):
        return me.keep, {"gains": net["tried"]["gains"]}

    def begin(self, server, run):
        initial = {name: value for name, value in server["*"].items() if not name.startswith(("tried.", "before."))}
        server.memory["models"] = {n: v.expand(server.clients, *v.shape).clone() for n, v in initial.items()}
        server.memory["affinity"] = torch.zeros(server.clients, server.clients, dtype=torch.float64)

    def admit(self, server, newcomers):
        more, models = len(newcomers), server.memory["models"]
        grown = {name: torch.cat([v, v.mean(0).expand(more, *v.shape[1:])]) for name, v in models.items()}
        affinity = nn.functional.pad(server.memory["affinity"], (0, more, 0, more))
        server.memory |= {"models": grown, "affinity": affinity}

    def chosen(self, server, client):
        """Return the clients whose models this one receives: those that helped it most, at times any other."""
        random, affinity = server.stream("others", server.round, client), server.memory["affinity"][client]
        left = [other for other in random.permutation(server.clients).tolist() if other != client]
        left.sort(key=lambda other: -float(affinity[other]))
        any_other = random.random(self.number) < self.explore - self.explore_decay * server.round
        return [left.pop(random.integers(len(left)) if wanders else 0) for wanders in any_other]

    def down(self, server):
        whose = torch.tensor([self.chosen(server, client) for client in server.receivers])
        models, share = server.memory["models"], server.plan.share
        awake = {name: v for name, v in models.items() if share[name].upload}  # a schedule may still freeze others
        return {"others": PerClient({name: v[whose.to(v.device)] for name, v in awake.items()})}

    def aggregate(self, server, updates):
        for client, gains in zip(updates.clients, updates.extras["gains"].double().cpu(), strict=True):
            server.memory["affinity"][client, self.chosen(server, client)] += gains
        for name in [name for name in server.memory["models"] if name in updates.parts]:
            server.memory["models"][name][updates.clients] = updates.parts[name]
