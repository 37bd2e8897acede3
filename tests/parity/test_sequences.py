"""Transformers and recurrent networks with dropout: loop, vector and workers end equal."""

import pytest
import torch
from torch import Tensor, nn

from partwise import Parts
from tests.support.runs import CLASSES, awkward_federation, simulate
from tests.support.states import distance

SETTINGS = {"rounds": 1, "epochs": 2, "lr": 0.05, "participation": 0.5, "momentum": 0.5}
LAYERS = {
    "transformer": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    ),
    "lstm": lambda: nn.LSTM(8, 4, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(8, 8, num_layers=2, dropout=0.2, batch_first=True),
}


class TellRows(nn.Module):
    """Reads an image of 8x8 line by line."""

    def __init__(self, name: str):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer, self.out = LAYERS[name](), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x.flatten(1, 2))
        return self.out((result[0] if isinstance(result, tuple) else result).mean(1))


def assert_engine_is_the_loop(name, engine, most, **own):
    data = awkward_federation(validated=2)
    loop, other = (
        simulate("fedper", Parts(TellRows(name).double()), data, **SETTINGS, **way)
        for way in ({}, {"engine": engine, **own})
    )
    assert other.notes[0] == f"engine: {engine} on cpu"
    assert distance(loop, other) <= most


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru"])
def test_vector_equals_loop_on_networks_for_sequences(name):
    assert_engine_is_the_loop(name, "vector", 1e-10, block=3, filler=40)


@pytest.mark.parametrize("name", ["gru", "lstm", "transformer"])
def test_workers_are_the_loop_on_networks_for_sequences(name):
    assert_engine_is_the_loop(name, "workers", 0, workers=1)


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru"])
def test_their_dropout_is_there(name):
    dry = TellRows(name)
    for layer in dry.modules():
        for attribute in ("p", "dropout"):
            if isinstance(getattr(layer, attribute, None), float):
                setattr(layer, attribute, 0.0)
    runs = [simulate("fedper", Parts(net.double()), **SETTINGS) for net in (TellRows(name), dry)]
    assert distance(*runs) > 1e-4
