"""A silo of a real federation loads the models of its own clients, which are those of the simulation."""

import pytest
import torch

import partwise
from partwise import Result
from partwise.federation.launch import write_models
from partwise.runs.prepare import prepare
from tests.federation.test_found import SIZES, made, ready
from tests.helpers import awkward_federation


def test_a_silo_loads_its_own_models(tmp_path):
    """FedProto: prototypes are received, and are in the node's files."""
    config = made("fedproto")
    there = ready(config, tmp_path).run()
    assert write_models(there) == {"n0": 2, "n1": 1, "n2": 1}
    federation = awkward_federation(SIZES)
    here = Result(prepare(config, federation).run())
    x = federation.source.x[:9]
    for client, host in enumerate(there.engine.nodes.hosts):
        run = there.engine.nodes.link.nodes[host].silo.folder / "runs" / "a-run"
        model = partwise.load_model(run, client)
        assert torch.allclose(model(x), here.models[client](x), rtol=0, atol=1e-10)
    with pytest.raises(partwise.ConfigError, match="client 3 has no model here"):
        partwise.load_model(there.engine.nodes.link.nodes["n0"].silo.folder / "runs" / "a-run", 3)
