"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates take the drift out of local steps."""

import torch

from partwise import Method


class Scaffold(Method):
    def begin(self, server, run):
        server.memory["c"] = {name: torch.zeros_like(value) for name, value in server["*"].items()}

    def down(self, server):
        return {"c": server.memory["c"]}

    def keep(self, net):
        return {name: torch.zeros_like(value) for name, value in net["*"].items()}

    def correct(self, grads, net, me):
        return {name: grad + me.got["c"][name] - me.keep[name] for name, grad in grads.items()}  # line 10

    def finish(self, net, me):
        got, now = me.got["*"], net["*"]
        away = {name: (got[name] - now[name]) / (me.steps.clamp(min=1) * me.lr) for name in now}
        mine = {name: me.keep[name] - me.got["c"][name] + away[name] for name in now}  # line 12
        return mine, {"change": {name: mine[name] - me.keep[name] for name in mine}}

    def aggregate(self, server, updates):
        change = updates.extras["change"]
        c = server.memory["c"]
        server.memory["c"] = {name: c[name] + change[name].sum(0) / server.clients for name in c}  # line 17
