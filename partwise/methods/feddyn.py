"""FedDyn: a dynamic regulariser of every client's loss makes all clients agree on one minimum.

References:
    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization.
    ICLR 2021.
"""

import torch

from partwise.method import ALL, Method
from partwise.options import option


class FedDyn(Method):
    """Algorithm 1; `me.keep` is the gradient g_i at a client's last model, the server's memory the mean h of all."""

    share = {"*": ALL}
    aggregation = "uniform"
    dynamic_weight: float = option(0.01, "Weight alpha of the dynamic regulariser.", above=0)

    def keep(self, net):
        return {name: torch.zeros_like(value) for name, value in net["*"].items()}

    def loss(self, net, b, me):
        mine, received = net["*"], me.got["*"]  # without what a schedule still freezes
        along = sum((me.keep[name] * mine[name]).sum() for name in received)
        distance = sum((mine[name] - value).square().sum() for name, value in received.items())
        return b.loss(net(b.x)) - along + self.dynamic_weight / 2 * distance  # Eq. 1

    def finish(self, net, me):
        moved = {name: net["*"][name] - value for name, value in me.got["*"].items()}
        return me.keep | {name: me.keep[name] - self.dynamic_weight * way for name, way in moved.items()}, {}  # Eq. 2

    def begin(self, server, run):
        server.memory["h"] = {name: torch.zeros_like(value) for name, value in server["*"].items()}

    def round(self, server, run):
        w, h, updates = server["*"], server.memory["h"], run("train", server.cohort)
        server.mix(updates)  # the mean of the participants
        sent = {name: value for name, value in updates.parts.items() if name in w}  # no running values
        moved = {name: (value - w[name]).sum(0) / server.clients for name, value in sent.items()}
        server.memory["h"] = h | {name: h[name] - self.dynamic_weight * way for name, way in moved.items()}
        server["*"] = {name: server["*"][name] - server.memory["h"][name] / self.dynamic_weight for name in sent}

    def adapt(self):
        return self.phases()
