"""SCAFFOLD: control variates correct every local step for the drift towards a client's own data.

References:
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
    ICML 2020.
"""

import torch

from partwise.errors import ConfigError
from partwise.method import ALL, Method


class Scaffold(Method):
    """Algorithm 1, the client's variate by option II; the server's rate eta_g is `server_learning_rate`."""

    share = {"*": ALL}
    aggregation = "uniform"

    def __post_init__(self):
        super().__post_init__()
        if self.optimizer != "sgd" or self.momentum:
            raise ConfigError("scaffold needs steps of plain SGD: set optimizer = sgd and momentum = 0")

    def begin(self, server, run):
        server.memory["c"] = {name: torch.zeros_like(value) for name, value in server["*"].items()}

    def down(self, server):
        return {"c": server.memory["c"]}

    def keep(self, net):
        return {name: torch.zeros_like(value) for name, value in net["*"].items()}

    def correct(self, grads, net, me):
        return {name: grad + me.got.c[name] - me.keep[name] for name, grad in grads.items()}  # line 10

    def finish(self, net, me):
        w, way = {**net["*"], **me.got["*"]}, me.steps * me.lr  # K eta; a frozen layer is not received, and is w itself
        change = {
            name: torch.where(way > 0, (w[name] - mine) / way.clamp(min=1e-30) - me.got.c[name], 0.0)  # line 12, ii
            for name, mine in net["*"].items()
        }
        return {name: me.keep[name] + change[name] for name in change}, {"change": change}

    def aggregate(self, server, updates):
        c, change = server.memory["c"], updates.extras["change"]
        server.memory["c"] = {name: c[name] + change[name].sum(0) / server.clients for name in c}  # line 17

    def adapt(self):
        return self.phases()
