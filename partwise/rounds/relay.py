"""A relay: within a group the model passes from client to client, and the last client of each chain uploads it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from partwise.devices import on_device
from partwise.rounds.messages import Updates
from partwise.rounds.mixing import Copies
from partwise.streams import stream

if TYPE_CHECKING:
    from partwise.rounds.server import Server


def relay(server: "Server", clients: Sequence[int]) -> Updates:
    """Pass the model from client to client within each group; return an update from the last client of each chain."""
    chains = chains_of(server, clients)
    state = {name: server.copies[name].of([chain[0] for chain in chains]).clone() for name in server.plan.up}
    samples = torch.zeros(len(chains), dtype=torch.float64)
    row = torch.zeros(server.clients, dtype=torch.long)  # the chain of a client
    for number, chain in enumerate(chains):
        row[chain] = number
    times = {client: int(server.times[client]) for client in clients}
    lengths = range(max(map(len, chains)))
    after = [{chain[hop]: chain[hop - 1] for chain in chains if hop < len(chain)} for hop in lengths]
    for hop in lengths:
        runners = {chain[hop]: number for number, chain in enumerate(chains) if hop < len(chain)}
        request = replace(server.request("train", sorted(runners)), next_hops=after[hop + 1 :], times=times)
        request.copies.update({name: Copies(values, row) for name, values in state.items()})
        updates = server.ask(request)
        went_on = torch.tensor([runners[client] for client in updates.clients], dtype=torch.long)
        samples[went_on] += updates.samples.double().cpu()
        for name, values in state.items():  # not in place: what a hop's clients received may be looked at
            state[name] = values.index_copy(0, on_device(went_on, values.device), updates.parts[name])
    nothing = torch.zeros(len(chains))
    every = Updates([chain[-1] for chain in chains], server.round, samples, nothing, nothing, state, {})
    return every.only([row for row in range(len(chains)) if samples[row] > 0])  # a chain may be refused altogether


def chains_of(server: "Server", clients: Sequence[int]) -> list[list[int]]:
    """Return the chain of each group that has participants: its clients in the order drawn for this round."""
    assert server.groups is not None
    chains = []
    for group in sorted({int(server.groups[client]) for client in clients}):
        members = [client for client in clients if server.groups[client] == group]
        chains.append(stream(server.seed, "relay", server.round, group).permutation(members).tolist())
    return chains
