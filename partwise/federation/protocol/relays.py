"""A relay whose model stays on a node for several hops: the node goes on by itself, as the server would ask it to.

The server takes what a node did ahead only as the answer to the very question that it then has: where an update on the
way was refused, the question is another one, and is asked as ever.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from partwise.records.wire import digest
from partwise.rounds.mixing import Copies

Hop = Mapping[int, tuple[int, int]]  # by client: after whom it goes on, and the rounds in which it took part before


def next_hop(
    content: Mapping[str, Any], copies: Mapping[str, Copies], answer: Mapping[str, Any], hop: Hop
) -> dict[str, Any] | None:
    """The message that a server sends after this answer to an earlier one; None: that cannot be known here."""
    updates, asked = answer.get("updates"), content["request"]
    if updates is None or updates["clients"] != asked["clients"] or asked["extras"] or not trained(updates):
        return None
    place = {client: row for row, client in enumerate(updates["clients"])}
    if any(before not in place for before, _ in hop.values()):
        return None
    new: dict[str, Copies] = {}
    for name in content["digests"]:
        copy = handed_on(copies[name], updates["parts"].get(name), place, hop)
        if copy is None:
            return None
        new[name] = copy
    times = {client: hop[client][1] for client in sorted(hop)}
    request = {**asked, "clients": sorted(hop), "times": times, "number": asked["number"] + 1}
    begun = content["begun"] + len(content["stages"])
    sent = {"copies": new, "digests": {name: digest(copy) for name, copy in new.items()}, "begun": begun, "stages": []}
    return {**content, "request": request, **sent}


def trained(updates: Mapping[str, Any]) -> bool:
    """Whether every client of an answer may hand on what it made."""
    return updates["finite"] is None or bool(updates["finite"].all())


def handed_on(copies: Copies, sent: Tensor | None, place: Mapping[int, int], hop: Hop) -> Copies | None:
    """What the next clients receive of a tensor: what those before them sent, the chains in the order as before."""
    chain = copies.row
    if chain is None:
        return copies
    if sent is None:  # a group's, and of the next clients' groups nothing is known here
        return None
    order = sorted(hop, key=lambda client: int(chain[hop[client][0]]))
    row = torch.zeros_like(chain)
    row[order] = torch.arange(len(order))
    return Copies(sent[[place[hop[client][0]] for client in order]], row)
