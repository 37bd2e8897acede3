"""FedClust: clients with similar final layers after a first local training form clusters; FedAvg in each.

References:
    Islam, Javaherian, Xu, Yuan, Chen, Tzeng: FedClust: Tackling Data Heterogeneity in Federated Learning through
    Weight-Driven Client Clustering. ICPP 2024.
"""

import numpy as np
import torch

from partwise.errors import ConfigError
from partwise.grouping import agglomerated, groups_at_largest_gap, numbered, of_all_clients, says_little
from partwise.method import ALL, GROUP, SERVER, Method, Move, Phase, Stage, WithinGroups
from partwise.options import option


class FedClust(Method):
    """Round 1 finds the clusters by average linkage: every client trains, and nothing is averaged."""

    clusters: int | None = option(
        None, "Number of clusters; unset: --threshold decides.", minimum=1, up_to_clients=True
    )
    threshold: float | None = option(
        None,
        "Largest L2 distance of final layers at which clusters merge; unset: the largest gap decides (our choice).",
        above=0,
        when="not clusters",
    )
    cluster_epochs: int = option(1, "Local epochs of the first round, before final layers are compared.", minimum=1)
    predict_global = None

    def stages(self):
        if self.rounds < 2:
            raise ConfigError(
                "rounds = 1 is not allowed: fedclust finds clusters in the first round and needs at least 2"
            )
        only_the_head_goes_up = {"*": SERVER, "head": ALL}
        finding = Phase(Move("*"), epochs=self.cluster_epochs)
        yield Stage(finding, only_the_head_goes_up, rounds=1, cohort=WithinGroups(self.alone))
        yield Stage(self.phases(), {"*": GROUP}, rounds=self.rounds - 1)

    def alone(self, server):
        """Return a group for each client, so that all take part."""
        return range(server.clients)

    def mix(self, server, updates):
        if server.round > 0:
            return None
        heads = torch.cat([value.flatten(1) for value in updates.parts.values()], 1).double().cpu()
        found = self.found(torch.cdist(heads, heads).numpy())
        server.memory["clusters"] = of_all_clients(found, updates.clients, server.clients)
        if line := says_little(server.memory["clusters"], "set clusters, or another threshold"):
            server.tell_once(line)
        return torch.zeros(1, len(updates.clients))  # every cluster begins with the common model

    def found(self, distances):
        """Return the cluster of every client that sent its final layer."""
        if len(distances) <= (self.clusters or 1):
            return np.arange(len(distances))
        if self.threshold:
            return numbered(agglomerated(distances, threshold=self.threshold))
        return numbered(agglomerated(distances, self.clusters or groups_at_largest_gap(distances)))

    def groups(self, server):
        return server.memory.get("clusters", [0] * server.clients)  # without answers, all are one cluster
