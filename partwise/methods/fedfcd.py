"""FedFCD: features are aligned, and the decisions of a global and a personal classifier are fused.

References:
    Li, Wang, Wang: Hierarchical Optimization Method for Federated Learning with Feature Alignment and Decision Fusion.
    Computers, Materials & Continua, 2024.
"""

from typing import Literal

import torch

from partwise.losses import class_means, squares_from_means, train_on_class_means
from partwise.method import EVERYONE, LOCAL, SERVER, Method, Move, Phase, Stage, train
from partwise.network.view import ClassRows
from partwise.options import option


class FedFCD(Method):
    """Models stay: clients send class means, and get the server's classifier and the means over all clients."""

    needs_classes = True
    align_weight: float = option(
        1.0, "Weight of the alignment with the global class means (lambda).", minimum=0, when="align"
    )
    server_lr: float | None = option(
        None, "Learning rate of the server's classifier; unset: --lr.", minimum=0, when="fusion"
    )
    server_batch: int = option(1, "Class means per step of the server's classifier.", minimum=1, when="fusion")
    server_epochs: int = option(1, "Epochs of the server's classifier on the class means.", minimum=1, when="fusion")
    extractor_loss_head: Literal["fused", "local"] = option(
        "fused", "Prediction on which the extractor is trained.", when="fusion"
    )
    alternation: Literal["epoch", "batch", "joint"] = option(
        "epoch", "Train extractor and classifier in turn, by epoch or batch, or jointly."
    )
    align: bool = option(True, "Use feature alignment (FA).")
    fusion: bool = option(True, "Use fused decisions (FD).")
    align_reduction: Literal["mean_dim", "sum_dim"] = option(
        "mean_dim", "Reduction of the distance over feature dimensions (Eq. 6).", when="align"
    )
    lfr_cache: bool = option(
        False, "Use the last class means of clients that do not take part.", when="align or fusion"
    )
    predict_global = None

    def build(self, parts, sizes):
        return parts.like("head", name="g_head") if self.fusion else parts

    def stages(self):
        share = {"body": LOCAL, "head": LOCAL} | ({"g_head": SERVER} if self.fusion else {})
        yield Stage(self.phases(), share=share, rounds=self.rounds, report=self.exchanges)

    @property
    def exchanges(self):
        """Return whether clients exchange anything; without alignment and fusion they do not."""
        return self.align or self.fusion

    def phases(self):
        if self.alternation == "joint":
            return train("body head", "aligned")
        body, head = Move("body", "aligned"), Move("head", "fused")
        if self.alternation == "batch":
            return Phase(body, head)
        return [Phase(body, epochs=1), Phase(head, epochs=1)] * self.epochs

    def decision(self, net, z):
        return net.head(z) + net.g_head(z) if self.fusion else net.head(z)  # Eq. 7, 8

    def aligned(self, net, b, me):
        z = net.body(b.x)
        loss = b.ce(self.decision(net, z) if self.extractor_loss_head == "fused" else net.head(z))  # Eq. 9
        if not self.align:
            return loss
        distance = squares_from_means(z, me.got.features, b)
        reduced = distance.mean(1) if self.align_reduction == "mean_dim" else distance.sum(1)
        return loss + self.align_weight * b.mean(reduced)  # Eq. 6

    def fused(self, net, b, me):
        return b.ce(self.decision(net, net.body(b.x).detach()))  # Eq. 10

    def predict(self, net, x, me):
        return self.decision(net, net.body(x))

    def report(self, net, b, me):
        return {"features": ClassRows.of(net.body(b.x), b)}  # Eq. 3

    def begin(self, server, run):
        if self.exchanges:
            self.learn(server, run("report", EVERYONE), server.stream("g_head", "begin"))

    def down(self, server):
        return {"features": server.memory["features"]} if self.align else {}

    def aggregate(self, server, updates):
        if self.exchanges:
            self.learn(server, updates, server.stream("g_head", server.round))

    def learn(self, server, updates, random):
        rows = self.cached(server, updates) if self.lfr_cache else updates.extras["features"]
        if self.fusion:
            lr = self.lr if self.server_lr is None else self.server_lr
            train_on_class_means(server, "g_head", rows, lr, self.server_batch, self.server_epochs, random)  # Eq. 4
        server.memory["features"] = class_means(rows, server.memory.get("features"))  # Eq. 5

    def cached(self, server, updates):
        """Return the newest class means of every client that ever sent some."""
        rows = updates.extras["features"]
        zeros = ClassRows(*(torch.zeros(server.clients, *value.shape[1:]).to(value) for value in rows))
        newest = server.memory.setdefault("newest", zeros)
        for every, new in zip(newest, rows, strict=True):
            every[updates.clients] = new
        return newest
