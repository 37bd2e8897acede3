"""Nodes in this process: all that a federation is, but for the network between its machines."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from partwise.data.source import Federation
from partwise.federation.protocol.launch import Members, federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.nodes import Failure
from partwise.federation.protocol.policy import Allowed
from partwise.federation.protocol.silo import Silo
from partwise.runs.config import Config
from partwise.runs.simulation import Simulation

# All that a silo can allow: what leaves is compared with a simulation.
OPEN = {"min_clients": 1, "relay": True, "min_class_count": 1, "min_train_samples": 1, "min_test_samples": 1}
OPEN |= {"loss": "exact", "scores": "exact", "min_batch": 1}


class InProcess:
    """Carries messages to nodes of this process, and keeps them for whoever wants to look."""

    def __init__(self, nodes: Mapping[str, Node]):
        self.nodes = dict(nodes)
        self.sent: list[tuple[str, bytes, bytes | Failure]] = []

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Failure]:
        answers: dict[str, bytes | Failure] = {}
        for name, message in messages.items():
            answers[name] = self.nodes[name].handle(message) if name in self.nodes else Failure("not there")
            self.sent.append((name, message, answers[name]))
        return answers


def part(federation: Federation, clients: list[int]) -> Federation:
    """Some clients with their own samples alone, as they lie on their node's disk."""
    sets = (federation.train, federation.test, federation.validation)
    rows = torch.cat([own[client] for client in clients for own in sets])
    place = torch.full((len(federation.source.y),), -1)
    place[rows] = torch.arange(len(rows))
    train, test, validation = ([place[own[client]] for client in clients] for own in sets)
    source = replace(federation.source, x=federation.source.x[rows], y=federation.source.y[rows], train=len(rows))
    names = tuple(federation.names[client] for client in clients)
    return Federation(source, train, test, torch.cat(test).sort().values, validation, federation.rule, names)


def silos(federation: Federation, folder: Path, hosted: list[list[int]], **allow) -> dict[str, Silo]:
    """Nodes `n0`, `n1`, ... that host some clients each."""
    allowed = Allowed(**{**OPEN, **allow})
    return {
        f"n{number}": Silo(f"n{number}", folder / f"n{number}", allow=allowed, held=part(federation, clients))
        for number, clients in enumerate(hosted)
    }


def hosting(nodes: Mapping[str, Node]) -> dict[str, int]:
    """As many clients as each node hosts, as an operator allows them who knows the nodes."""
    several = {}
    for name, silo in ((name, node.silo) for name, node in nodes.items()):
        if silo.held is not None:
            several[name] = silo.held.clients
        elif silo.hosts is not None:
            several[name] = silo.hosts[1] - silo.hosts[0] + 1
    return several


def members(link: InProcess, config: Config, run: str = "a-run", **more) -> Members:
    """The nodes of a link, as members of a run."""
    return Members(link, run, config, list(link.nodes), may_host=hosting(link.nodes), **more)


def in_process(config, federation: Federation, folder: Path, hosted: list[list[int]], **allow) -> Simulation:
    """A run over nodes of this process, ready for round 0."""
    nodes = {name: Node(silo) for name, silo in silos(federation, folder, hosted, **allow).items()}
    return federated(config, members(InProcess(nodes), config))
