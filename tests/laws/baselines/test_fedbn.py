"""FedBN: what clients keep is normalisation, all of it and nothing else."""

import torch
from torch import nn

from partwise.runs.result import Models
from tests.support.runs import network, simulate


def of_normalisation(parts):
    """Names of scales, shifts and running values, found in the modules."""
    layers = [(f"{part}.{name}.", layer) for part in parts.chain for name, layer in parts.modules[part].named_modules()]
    return {start + name for start, layer in layers if isinstance(layer, nn.BatchNorm2d) for name in layer.state_dict()}


def test_two_clients_differ_in_normalisation_alone_and_only_the_rest_travels():
    run, parts = simulate("fedbn", network("cnn+bn"), rounds=2), network("cnn+bn")
    one, two = (Models(run)[client].tensors for client in (3, 4))
    names = of_normalisation(parts) & set(one)  # without the number of steps
    assert len(names) == 2 * 4
    assert {name for name in one if not torch.equal(one[name], two[name])} == names
    rest = sum(value.numel() for name, value in parts.tensors().items() if name not in names)
    sent = run.server.ledger.as_dict()["rounds"][-1]
    assert sum(sent["up"].values()) == sum(sent["down"].values()) == 8 * 8 * rest  # 8 bytes, 8 clients
