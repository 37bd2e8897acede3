"""A method written with nothing but docs/writing-a-method.md and docs/api.md: what it must coincide with."""

from pathlib import Path

import torch

from tests.support.parity import assert_engines_agree
from tests.support.runs import network, simulate

FEDAVGM = str(Path(__file__).parents[1] / "methods" / "fedavgm.py")


def test_vector_equals_loop():
    assert_engines_agree(FEDAVGM, "mlp")


def test_fedavgm_is_fedavg_with_the_servers_momentum():
    own, option = simulate(FEDAVGM, network("mlp")), simulate("fedavg", network("mlp"), server_momentum=0.9)
    for name, copies in option.server.copies.items():
        assert torch.equal(own.server.copies[name].values, copies.values)
