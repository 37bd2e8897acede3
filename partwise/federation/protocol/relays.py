"""A relay whose model stays on a node for several hops: the node continues without a request for each.

The server takes what a node did ahead only as the answer to the very question that it then has: where an update on the
way was refused, the question is another one, and is asked as ever.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from partwise.records.messages import Answer, Ask, Hop, Reply, Sent
from partwise.records.wire import copies_digest
from partwise.rounds.mixing import Copies


def next_hop(errand: Ask, copies: Mapping[str, Copies], answer: Reply, hop: Hop) -> Ask | None:
    """Return the message that a server sends after this answer to an earlier one; None: that cannot be known here."""
    asked = errand.request
    if not isinstance(answer, Answer) or answer.updates.clients != asked.clients or asked.extras:
        return None
    updates = answer.updates
    place = {client: row for row, client in enumerate(updates.clients)}
    if not all_finite(updates) or any(before not in place for before, _ in hop.values()):
        return None
    new: dict[str, Copies] = {}
    for name in errand.digests:
        copy = handed_on(copies[name], updates.parts.get(name), place, hop)
        if copy is None:
            return None
        new[name] = copy
    clients = sorted(hop)
    times = {client: hop[client][1] for client in clients}
    return replace(
        errand,
        request=replace(asked, clients=clients, times=times, number=asked.number + 1),
        digests={name: copies_digest(copy) for name, copy in new.items()},
        copies=new,
        begun=errand.begun + len(errand.stages),
        stages=[],
    )


def all_finite(updates: Sent) -> bool:
    """Return whether every client of an answer may hand on what it made."""
    return updates.finite is None or bool(updates.finite.all())


def handed_on(copies: Copies, sent: Tensor | None, place: Mapping[int, int], hop: Hop) -> Copies | None:
    """Return what the next clients receive of a tensor: what those before them sent, in the chains' order."""
    chain = copies.row
    if chain is None:
        return copies
    if sent is None:  # a group's, and of the next clients' groups nothing is known here
        return None
    order = sorted(hop, key=lambda client: int(chain[hop[client][0]]))
    row = torch.zeros_like(chain)
    row[order] = torch.arange(len(order))
    return Copies(sent[[place[hop[client][0]] for client in order]], row)
