"""FedPAC: features are aligned with global class centroids, and every client gets its own mix of classifiers.

References:
    Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration. ICLR 2023.
"""

import numpy as np
import torch
from torch import nn

from partwise.errors import needed
from partwise.losses import class_means, squares_from_means
from partwise.method import ALL, LOCAL, MIXED_GUIDE, Method, Move, Phase
from partwise.network.view import ClassRows
from partwise.options import option


class FedPAC(Method):
    """The classifiers are combined by a quadratic programme of bias and variance (Eq. 9-11, Algorithm 1)."""

    needs_classes = True
    share = {"body": ALL, "head": MIXED_GUIDE, "statistics": LOCAL}
    align_weight: float = option(1.0, "Weight lambda of the alignment with the classes' centroids.", minimum=0)
    head_epochs: int = option(1, "Epochs of training the classifier, before the extractor.", minimum=1)
    head_lr: float | None = option(None, "Learning rate of the classifier (eta_g); unset: --lr.", minimum=0)

    def build(self, parts, sizes):
        zeros = {"sums": (sizes.classes, sizes.features), "counts": (sizes.classes,), "squares": ()}
        tensors = {name: nn.Parameter(torch.zeros(shape), requires_grad=False) for name, shape in zeros.items()}
        return parts.add("statistics", nn.ParameterDict(tensors), drawn=False)

    def start(self, net, me):
        return {f"head.{name}": value for name, value in me.got["head"].items()}

    def phases(self):
        return [
            Phase(Move("statistics", update="measure"), epochs=1, mode="eval", before="forget"),
            Phase(Move("head", lr=self.head_lr), epochs=self.head_epochs),
            Phase(Move("body", "aligned")),
        ]

    def forget(self, net, me):
        return {f"statistics.{name}": torch.zeros_like(value) for name, value in net["statistics"].items()}

    def measure(self, net, b, me):
        z, held = net.body(b.x), net["statistics"]
        rows = ClassRows.of(z, b)
        squares = held["squares"] + b.sum(z.square().sum(1))
        new = {"sums": held["sums"] + rows.sums, "counts": held["counts"] + rows.counts, "squares": squares}
        return {f"statistics.{name}": value.to(held[name].dtype) for name, value in new.items()}

    def aligned(self, net, b, me):
        z = net.body(b.x)
        distance = squares_from_means(z, me.got.centroids, b).mean(1)
        return b.ce(net.head(z)) + self.align_weight * b.mean(distance)  # Eq. 7

    def finish(self, net, me):
        held, samples = net["statistics"], net["statistics"]["counts"].sum().clamp(min=1)
        h = held["sums"] / samples  # Eq. 10: p_c times the centroid
        variance = (held["squares"] / samples - h.square().sum()) / samples
        return me.keep, {"features": ClassRows(held["sums"], held["counts"]), "variance": variance}

    def report(self, net, b, me):
        return {"centroids": ClassRows.of(net.body(b.x), b)}  # after training, with the client's own extractor

    def begin(self, server, run):
        server.memory["centroids"] = torch.full_like(server["statistics"]["sums"], torch.nan)

    def down(self, server):
        return {"centroids": server.memory["centroids"]}

    def mix(self, server, updates):
        rows = updates.extras["features"]
        variance = updates.extras["variance"].double().clamp(min=0).cpu().numpy()  # rounding may leave less
        h = (rows.sums / rows.counts.sum(1).clamp(min=1)[:, None, None]).flatten(1).double().cpu().numpy()
        matrix = torch.zeros(server.clients, len(updates.clients), dtype=torch.float64)
        for row, client in enumerate(updates.clients):
            away = h[row] - h
            matrix[client] = torch.from_numpy(least_on_simplex(np.diag(variance) + away @ away.T))  # Eq. 11
        return {"head": matrix}

    def aggregate(self, server, updates):
        server.memory["centroids"] = class_means(updates.extras["centroids"], server.memory["centroids"])


def least_on_simplex(matrix):
    """Return the weights a >= 0 with sum 1 that minimise a'Ma.

    Minimising a'Ma / 2 - sum a over a >= 0 gives them up to scale: both have the same conditions of optimality. It is a
    problem of non-negative least squares, solved exactly.
    """
    scaled = matrix / (np.trace(matrix) or 1.0)
    root = np.linalg.cholesky(scaled + 1e-12 * np.eye(len(matrix))).T  # a client without spread makes it singular
    weights, _ = needed("scipy.optimize", "data").nnls(root, np.linalg.solve(root.T, np.ones(len(matrix))))
    return weights / weights.sum()
