"""PACFL: clients whose data span similar subspaces form clusters before training; FedAvg in each.

References:
    Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin: Efficient Distribution Similarity Identification in Clustered
    Federated Learning via Principal Angles between Client Data Subspaces. 2022 (AAAI 2023).
"""

from typing import Literal

import numpy as np
import torch

from partwise.errors import needed
from partwise.grouping import agglomerated, half_of_last_merge, numbered, of_all_clients, says_little
from partwise.method import EVERYONE, GROUP, Method
from partwise.network.view import ClassRows
from partwise.options import option


class PACFL(Method):
    """Clusters by the leading singular vectors of every class of a client's data (Algorithm 1)."""

    needs_classes = True
    share = {"*": GROUP}
    directions: int = option(3, "Number of leading singular vectors per class (p).", minimum=1, maximum=100)
    angle: Literal["smallest", "sum", "vectors"] = option(
        "smallest",
        "Angle between clients: the smallest principal angle, their sum, or the smallest between two vectors.",
    )
    threshold: float | None = option(
        None,
        "Largest angle in degrees at which clusters merge; unset: half the angle of the last merge (our choice).",
        above=0,
        when="not clusters",
    )
    clusters: int | None = option(
        None, "Number of clusters; unset: --threshold decides.", minimum=1, up_to_clients=True
    )
    predict_global = None

    def describe(self, b):
        """Return the leading left singular vectors of (pixels x samples) for each class; 0 without samples."""
        flat = b.raw.double().flatten(1)  # not centred: authors' code has pixels from 0 to 255
        vectors = flat.new_zeros(b.classes, self.directions, flat.shape[1])
        for label in b.y.unique():
            found = torch.linalg.svd(flat[b.y == label], full_matrices=False).Vh[: self.directions]
            vectors[label, : len(found)] = found
        return {"directions": ClassRows(vectors.flatten(1), b.one_hot().any(0).to(flat.dtype))}

    def begin(self, server, run):
        updates = run("describe", EVERYONE)
        rows = updates.extras["directions"].sums
        spans = rows.reshape(len(rows), -1, rows.shape[-1] // self.directions).double().cpu().numpy()
        angles = self.angles([span[np.abs(span).sum(1) > 0].T for span in spans])
        server.memory |= {"angles": torch.from_numpy(angles), "compared": updates.clients}

    def angles(self, spans):
        """Return (clients, clients) angles between their directions, in degrees."""
        number = len(spans)
        result = np.zeros((number, number))
        for one in range(number):
            for two in range(one):
                result[one, two] = result[two, one] = self.between(spans[one], spans[two])
        return result

    def between(self, one, two):
        """Return the angle between the directions of two clients, in degrees."""
        if self.angle == "vectors":  # authors' code, without the sign, which a decomposition leaves open
            return np.degrees(np.arccos(np.abs(one.T @ two).max().clip(max=1)))
        angles = np.degrees(needed("scipy.linalg", "data").subspace_angles(one, two))
        return angles.min() if self.angle == "smallest" else angles.sum()

    def groups(self, server):
        angles, compared = server.memory["angles"].numpy(), server.memory["compared"]
        if self.clusters:
            found = agglomerated(angles, min(self.clusters, len(angles)))
        else:
            found = agglomerated(angles, threshold=self.threshold or half_of_last_merge(angles))
        groups = of_all_clients(numbered(found), compared, server.clients)
        if line := says_little(groups, "set clusters, or another threshold"):
            server.tell_once(line)
        return groups
