"""CFL: FedAvg in clusters; a cluster whose model has settled while its clients still pull apart is split in two.

References:
    Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
    Privacy Constraints. IEEE Transactions on Neural Networks and Learning Systems, 2021.
"""

import logging
from typing import Literal

import torch

from partwise.grouping import agglomerated, numbered
from partwise.method import GROUP, Method
from partwise.options import option

log = logging.getLogger(__name__)


class CFL(Method):
    """One cluster at first, split in two again and again by the cosines between its clients' updates."""

    share = {"*": GROUP}
    aggregation = "uniform"
    mean_norm: float = option(0.4, "A cluster splits where its mean update is shorter than this (eps 1).", minimum=0)
    max_norm: float = option(1.6, "And where its longest update is longer than this (eps 2).", minimum=0)
    first_split_round: int = option(20, "The first round, counted from 1, in which clusters may split.", minimum=1)
    linkage: Literal["complete", "single"] = option(
        "complete", "How a cluster is cut in two; single: the largest cosine between the halves is the smallest."
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
        """The cluster of every client, after this round's splits."""
        clients, products = torch.tensor(updates.clients), self.products(server, updates)
        samples, clusters = updates.samples.cpu(), server.groups.clone()
        for cluster in server.groups[clients].unique().tolist():
            rows = torch.nonzero(server.groups[clients] == cluster)[:, 0]  # of the participants, among all updates
            own = products[rows][:, rows]
            if self.splits(server, cluster, own):
                length = own.diagonal().sqrt()
                cosine = own / (length[:, None] * length).clamp(min=1e-300)
                half = torch.from_numpy(numbered(agglomerated((1 - cosine).numpy(), 2, self.linkage)))
                first, second = (samples[rows[half == each]].sum() for each in (0, 1))
                leaving = half == int(second <= first)  # whoever has not taken part stays with the half of more samples
                clusters[clients[rows[leaving]]] = clusters.max() + 1
        return clusters

    def products(self, server, updates):
        """(participants, participants) inner products of their updates, without running values."""
        names = [name for name in server.net()["*"] if name in updates.parts]
        changes = [(updates.parts[name] - server.copies[name].of(updates.clients)).flatten(1) for name in names]
        return torch.stack([change @ change.T for change in changes]).sum(0).double().cpu()

    def splits(self, server, cluster, products):
        mean, longest = products.mean().clamp(min=0).sqrt(), products.diagonal().max().sqrt()
        server.memory["norms"] = torch.stack([mean, longest])
        line = "round %d, cluster %d: the mean update has the norm %.3g, the longest %.3g"
        log.info(line, server.round + 1, cluster, mean, longest)
        settled = mean < self.mean_norm and longest > self.max_norm  # the cluster rests, its clients do not
        return bool(settled) and len(products) > 2 and server.round + 1 >= self.first_split_round

    def end(self, server, run):
        if not server.groups.any() and "norms" in server.memory:  # which no round leaves in which nobody answered
            mean, longest = server.memory["norms"].tolist()
            server.tell_once(
                f"nothing was split: the last mean update had the norm {mean:.3g} (mean_norm = {self.mean_norm:g}), "
                f"the longest {longest:.3g} (max_norm = {self.max_norm:g})"
            )
