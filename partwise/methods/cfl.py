"""CFL: FedAvg in clusters; a cluster splits when its model has converged but its clients' updates disagree.

References:
    Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
    Privacy Constraints. IEEE Transactions on Neural Networks and Learning Systems, 2021.
"""

import logging
from typing import Literal

import torch

from partwise.grouping import agglomerated, numbered, says_little
from partwise.method import GROUP, Method
from partwise.options import option

log = logging.getLogger(__name__)


class CFL(Method):
    """One cluster at first, split in two by the cosines between its clients' updates, repeatedly."""

    share = {"*": GROUP}
    aggregation = "uniform"
    epsilon_1: float = option(0.1, "Split if the mean update is below this fraction of the run's longest.", minimum=0)
    epsilon_2: float = option(0.5, "... and a client's update is above this fraction of the same norm.", minimum=0)
    gamma_max: float = option(
        0.0, "... and sqrt((1 - largest cosine between the halves) / 2) is above this.", minimum=0, below=1
    )
    first_split_round: int = option(21, "First round, counted from 1, in which clusters may split.", minimum=1)
    linkage: Literal["complete", "single"] = option(
        "single", "Linkage that cuts a cluster in two; single minimises the largest cosine between the halves."
    )
    predict_global = None

    def groups(self, server):
        return [0] * server.clients if server.groups is None else server.groups

    def round(self, server, run):
        updates = run("train", server.cohort)
        clusters = self.clusters(server, updates)
        if not torch.equal(clusters, server.groups):
            server.regroup(clusters)  # both halves go on from the model that they had
        server.mix(updates)

    def clusters(self, server, updates):
        """Return the cluster of every client after this round's splits."""
        clients, products = torch.tensor(updates.clients), self.products(server, updates)
        samples, weights, clusters = updates.samples.cpu(), server.weights(updates), server.groups.clone()
        present = server.groups[clients]
        members = [torch.nonzero(present == cluster)[:, 0] for cluster in present.unique()]  # rows of `updates`
        means = [self.norm_of_mean(products[rows][:, rows], weights[rows]) for rows in members]
        server.memory["largest"] = torch.stack([server.memory.get("largest", means[0]), *means]).max()
        for rows, mean in zip(members, means, strict=True):
            own = products[rows][:, rows]
            half = self.halves(own) if self.settled(server, mean, own) else None
            if half is not None:
                first, second = (samples[rows[half == each]].sum() for each in (0, 1))
                leaving = half == int(second <= first)  # absent clients stay with the half of more samples
                clusters[clients[rows[leaving]]] = clusters.max() + 1
        return clusters

    def products(self, server, updates):
        """Return (participants, participants) inner products of their updates, without running values."""
        names = [name for name in server.net()["*"] if name in updates.parts]
        changes = [(updates.parts[name] - server.copies[name].of(updates.clients)).flatten(1) for name in names]
        return torch.stack([change @ change.T for change in changes]).sum(0).double().cpu()

    def norm_of_mean(self, products, weights):
        """Return the norm of the mean update, by the server's weights."""
        shares = weights / weights.sum().clamp(min=1)
        return (shares @ products @ shares).clamp(min=0).sqrt()

    def settled(self, server, mean, products):
        """Return whether the cluster has converged but its clients have not: |mean| < eps 1, longest > eps 2."""
        longest, scale = products.diagonal().max().sqrt(), server.memory["largest"]
        server.memory["norms"] = torch.stack([mean, longest]) / scale
        line = "round %d: mean update %.3g, longest %.3g; the run's longest mean %.3g"
        log.info(line, server.round + 1, mean, longest, scale)
        settled = mean < self.epsilon_1 * scale and longest > self.epsilon_2 * scale
        return bool(settled) and len(products) > 2 and server.round + 1 >= self.first_split_round

    def halves(self, products):
        """Return the half of every client, 0 or 1; None where gamma_max forbids the split."""
        length = products.diagonal().sqrt()
        cosine = products / (length[:, None] * length).clamp(min=1e-300)
        half = torch.from_numpy(numbered(agglomerated((1 - cosine).numpy(), 2, self.linkage)))
        across = cosine[half == 0][:, half == 1].max()
        return half if ((1 - across).clamp(min=0) / 2).sqrt() > self.gamma_max else None

    def end(self, server, run):
        norms = "the last were {:.2g} and {:.2g}".format(*server.memory.get("norms", (0, 0)))
        if line := says_little(server.groups, f"set epsilon_1, epsilon_2 ({norms}) or first_split_round"):
            server.tell_once(line)
