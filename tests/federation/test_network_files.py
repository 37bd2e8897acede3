"""A network in a user's file trains on nodes that list a file of the same bytes, whatever it is called there."""

import shutil

import pytest

import partwise
from partwise.errors import ConfigError
from partwise.federation.protocol.launch import write_models
from partwise.runs.prepare import prepare
from tests.support.nets import write_nets
from tests.support.runs import awkward_federation
from tests.support.three_nodes import SIZES, made, ready


def test_nodes_equal_the_simulation_and_keep_the_code_of_their_models(tmp_path):
    nets = write_nets(tmp_path / "server")
    config, theirs = made("fedper", model=f"{nets}:Net"), tmp_path / "theirs.py"
    shutil.copy(nets, theirs)
    with pytest.raises(ConfigError, match="n0 refuses: n0 allows no network file with the SHA-256"):
        ready(config, tmp_path / "without")
    there = ready(config, tmp_path / "nodes", files=(str(theirs),)).run()
    here = prepare(config, awkward_federation(SIZES)).run()
    for name, copies in here.server.copies.items():
        assert (copies.values - there.server.copies[name].values).abs().max() < 1e-10
    write_models(there)
    run = there.engine.nodes.link.nodes["n0"].silo.folder / "runs" / "a-run"
    model = partwise.load_model(run, 0, trust=True)
    assert model.manifest.network.name == f"{theirs}:Net"
    theirs.write_text("raise SystemError")
    with pytest.raises(ConfigError, match="n0 allows no network file"):
        ready(config, tmp_path / "changed", files=(str(theirs),))


def test_a_node_measures_a_network_before_it_builds_it(tmp_path):
    more = "def large(shape, classes):\n    return Net(shape, classes, hidden=10**12)\n"
    more += "def looks(shape, classes):\n    net = Net(shape, classes)\n    net.out.bias[0].item()\n    return net\n"
    nets = write_nets(tmp_path, more)
    for name, line in {
        "large": r"n0 refuses: n0 takes networks of [\d,]+ bytes at most \(most_bytes in its file\)",
        "looks": r"n0 refuses: nets.py:\d+ in looks \(while its size is computed, on torch's device meta, model = ",
    }.items():
        with pytest.raises(ConfigError, match=line):
            ready(made("fedper", model=f"{nets}:{name}"), tmp_path / name, files=(str(nets),))
