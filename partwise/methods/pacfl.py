"""PACFL: clients whose data span like directions form a cluster, before training, and each cluster runs FedAvg.

References:
    Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin: Efficient Distribution Similarity Identification in Clustered
    Federated Learning via Principal Angles between Client Data Subspaces. 2022 (AAAI 2023).
"""

from typing import Literal

import numpy as np
import torch

from partwise.errors import needed
from partwise.grouping import agglomerated, numbered
from partwise.method import EVERYONE, GROUP, Method
from partwise.network.view import ClassRows
from partwise.options import option


class PACFL(Method):
    """A few singular vectors of every class of a client's data say what cluster it belongs to (Algorithm 1)."""

    share = {"*": GROUP}
    directions: int = option(3, "Leading singular vectors of each class (p).", minimum=1)
    angle: Literal["smallest", "sum"] = option("smallest", "What counts of the principal angles between two clients.")
    threshold: float = option(10.0, "Degrees above which clusters are not joined.", above=0, when="not clusters")
    clusters: int | None = option(None, "Clusters, in place of the threshold.", minimum=1, up_to_clients=True)
    predict_global = None

    def describe(self, b):
        """The leading left singular vectors of (pixels x samples), class by class; what a client lacks is 0."""
        flat = b.x.double().flatten(1)
        vectors = flat.new_zeros(b.classes, self.directions, flat.shape[1])
        for label in b.y.unique():
            found = torch.linalg.svd(flat[b.y == label], full_matrices=False).Vh[: self.directions]
            vectors[label, : len(found)] = found
        return {"directions": ClassRows(vectors.flatten(1), b.one_hot().any(0).to(flat.dtype))}

    def begin(self, server, run):
        updates = run("describe", EVERYONE)
        rows = updates.extras["directions"].sums
        spans = rows.reshape(len(rows), -1, rows.shape[-1] // self.directions).double().cpu().numpy()
        distance = np.full((server.clients, server.clients), 180.0)  # whoever has no samples is like nobody
        place = np.ix_(updates.clients, updates.clients)
        distance[place] = self.angles([span[np.abs(span).sum(1) > 0].T for span in spans])
        np.fill_diagonal(distance, 0)
        server.memory["angles"] = torch.from_numpy(distance)

    def angles(self, spans):
        """(clients, clients) principal angles between what two clients' directions span, in degrees."""
        between, number = needed("scipy.linalg", "data").subspace_angles, len(spans)
        reduce = np.min if self.angle == "smallest" else np.sum
        result = np.zeros((number, number))
        for one in range(number):
            for two in range(one):
                result[one, two] = result[two, one] = reduce(np.degrees(between(spans[one], spans[two])))
        return result

    def groups(self, server):
        angles, threshold = server.memory["angles"].numpy(), None if self.clusters else self.threshold
        return numbered(agglomerated(angles, self.clusters, threshold=threshold))
