"""A run over three nodes of this process, ready for round 0."""

from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.runs.config import make_config
from tests.support.nodes import InProcess, members, silos
from tests.support.runs import awkward_federation

SIZES = (7, 6, 9, 11)
HOSTED = [[0, 2], [1], [3]]
SETTINGS = {"rounds": 2, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "tabular", "threads": 1}


def made(method, **more):
    return make_config(method, {**SETTINGS, **more})


def ready(config, folder, link=InProcess, name="a-run", **allow):
    """A run over three nodes, ready for round 0."""
    nodes = {name: Node(silo) for name, silo in silos(awkward_federation(SIZES), folder, HOSTED, **allow).items()}
    return federated(config, members(link(nodes), config, name))
