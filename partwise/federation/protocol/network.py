"""The fingerprint of a network as it was drawn."""

import math

from partwise.records.messages import NetworkSums
from partwise.runs.simulation import Simulation


def network_of(simulation: Simulation) -> NetworkSums:
    """Return of every tensor of a network its size, its sum and its norm."""
    result = {}
    for name, copies in sorted(simulation.server.copies.items()):
        value = copies.values.detach().cpu().double()
        result[name] = [float(value.numel()), float(value.sum()), float(value.norm())]
    return result


def same_network(one: NetworkSums, other: NetworkSums) -> bool:
    """Return whether two networks are the same, but for what another processor rounds otherwise."""
    if one.keys() != other.keys() or any(len(one[name]) != len(other[name]) for name in other):
        return False
    pairs = [pair for name in other for pair in zip(one[name], other[name], strict=True)]
    return all(math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-5) for pair in pairs)
