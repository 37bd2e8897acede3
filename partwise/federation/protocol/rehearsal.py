"""A run on made-up samples, to check a silo's policy before it reports anything."""

import math
from dataclasses import fields, replace

from partwise.federation.protocol.handshake import OF_COLUMNS, agree, columns_of, stand_in
from partwise.records.messages import Joined
from partwise.runs.config import Config
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation

MOST_CLIENTS = 10**5  # clients of other nodes: no memory grows with a number that a server states


def rehearsed(config: Config, joined: Joined, silos: int) -> Simulation:
    """Prepare a run on stand-ins of what this node would tell, as if all other nodes had one client like its first.

    Nothing leaves. Where the run needs more clients than that, other nodes have them, or the server refuses it.
    """
    columns = list(dict.fromkeys(columns_of(joined.features, joined.columns)))  # of the others it tells nothing
    own = replace(joined, columns=columns)
    if joined.task not in OF_COLUMNS:
        own = replace(own, classes=max(2, joined.classes), class_names=[])
    agreed = agree({"this node": own})
    clients = max(len(agreed.names) + silos - 1, clients_needed(config))
    more = range(min(clients - len(agreed.names), MOST_CLIENTS))
    agreed = replace(
        agreed,
        names=[*agreed.names, *(f"another {number}" for number in more)],
        hosts=[*agreed.hosts, *("another node" for _ in more)],
        sizes=[*agreed.sizes, *(agreed.sizes[0] for _ in more)],
    )
    run = replace(config.run, device="cpu", engine="loop", workers=None, block=None, compile="auto")
    data = replace(config.data, positive=None)  # classes have no names here
    return prepare(replace(config, run=run, data=data), stand_in(agreed, config.run.seed, config.data.bins))


def clients_needed(config: Config) -> int:
    """Return the fewest clients with which the settings of a run make sense."""
    method = config.method
    groups = [getattr(method, spec.name) or 0 for spec in fields(method) if spec.metadata.get("up_to_clients")]
    fewest = config.failures.min_clients
    participants = math.ceil(min(fewest / method.participation, MOST_CLIENTS)) if fewest > 1 else 1
    return max(participants, method.clients_per_round or 0, config.run.eval_clients or 0, *groups)
