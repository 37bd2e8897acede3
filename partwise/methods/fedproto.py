"""FedProto: no model is sent; clients exchange class prototypes, and the nearest prototype decides.

References:
    Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients.
    AAAI 2022.
"""

from typing import Literal

import torch

from partwise.losses import class_means, squares_from_means
from partwise.method import LOCAL, Method
from partwise.network.view import ClassRows
from partwise.options import option

NOWHERE = 1e9  # squared distance to the prototype of a class that nobody has: far, but finite


class FedProto(Method):
    """Body and head stay; the mean feature of each class goes up, that of all clients comes down (Algorithm 1)."""

    needs_classes = True
    share = {"*": LOCAL}
    prototype_weight: float = option(1.0, "Weight of the distance to the global prototypes (lambda).", minimum=0)
    prototype_mean: Literal["uniform", "samples"] = option(
        "uniform", "Weight of a client in a global prototype: the same for all, or its number of samples of the class."
    )
    inference: Literal["prototype", "classifier"] = option(
        "prototype", "Prediction: the class of the nearest global prototype, or the client's own classifier."
    )
    predict_global = None

    def loss(self, net, b, me):
        z = net.body(b.x)
        loss = b.ce(net.head(z))
        if "prototypes" not in me.got:  # the first round
            return loss
        distance = squares_from_means(z, me.got.prototypes, b)
        return loss + self.prototype_weight * b.mean(distance.mean(1))

    def predict(self, net, x, me):
        z = net.body(x)
        if self.inference == "classifier" or "prototypes" not in me.got:
            return net.head(z)
        known = ~me.got.prototypes.isnan().any(1)
        distance = (z[:, None] - me.got.prototypes.nan_to_num()).square().sum(2)
        return -torch.where(known, distance, NOWHERE)

    def report(self, net, b, me):
        return {"prototypes": ClassRows.of(net.body(b.x), b)}

    def down(self, server):
        return {"prototypes": server.memory["prototypes"]} if "prototypes" in server.memory else {}

    def aggregate(self, server, updates):
        rows = updates.extras["prototypes"]
        if self.prototype_mean == "uniform":
            rows = ClassRows(rows.mean, rows.present)  # a client counts once in each of its classes
        server.memory["prototypes"] = class_means(rows, server.memory.get("prototypes"))
