"""Networks and data that do not fit each other, and settings that would be ignored, are refused before round 0."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import partwise
from partwise import ConfigError, DataError, Parts, Source
from partwise.data.standardise import normalised
from tests.support.runs import awkward_federation

X, Y = torch.randn(60, 12, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
SETTINGS = {"clients": 3, "partition": "iid", "rounds": 1, "data": (X, Y)}


class Returns(nn.Module):
    """Features to logits, in whatever wrapping."""

    def __init__(self, wrap=lambda logits: logits, classes=3):
        super().__init__()
        self.wrap, self.out = wrap, nn.Linear(12, classes)

    def forward(self, x):
        return self.wrap(self.out(x))


class Cell(nn.Module):
    """Something that torch cannot run for several clients at once."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(12, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.cell(x)[0])


class TimeFirst(nn.Module):
    """A layer for sequences that takes samples for steps, unless it is told that rows come first."""

    def __init__(self, kind, batch_first=False, **settings):
        super().__init__()
        self.layer, self.out = kind(4, batch_first=batch_first, **settings), nn.Linear(4, 3)

    def forward(self, x):
        result = self.layer(x.view(-1, 3, 4))
        return self.out((result[0] if isinstance(result, tuple) else result)[:, -1])


class Permuted(nn.Module):
    """A layer that takes steps first and is given them, with dropout of tensors in which samples come second."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.layer, self.out = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.layer(x.view(-1, 3, 4).transpose(0, 1))[-1])


class Words(nn.Module):
    """Samples are numbers of words."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.words(x.long()).mean(1))


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (Returns(classes=2), "gives 2 logits for a sample, but the data have 3 classes"),
        (Returns(classes=10), "gives 10 logits for a sample, but the data have 3 classes"),
        (
            Returns(lambda logits: logits[..., None]),
            r"the network does not take samples of shape \(12,\)|in sequence differ from the network",
        ),
        (Returns(lambda logits: {"logits": logits}), r"does not take samples of shape \(12,\)"),
        (nn.Linear(5, 3), r"does not take samples of shape \(12,\)"),
        (lambda: Returns(classes=2), "gives 2 logits for a sample, but the data have 3 classes"),
        (lambda: 3, "model must be a name, .* or a class or function that makes one, got 3"),
        (3, "model must be a name, a torch.nn.Module or Parts, or a class or function that makes one, got 3"),
        (
            TimeFirst,
            "model = TimeFirst needs kind; a network can ask for shape, outputs, classes, task, vocabulary",
        ),
        (lambda: (np.random.rand(), Returns())[1], "draws random numbers from numpy or random"),
        (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)), "uninitialised lazy layers"),
    ],
)
def test_fault_12_a_network_that_does_not_fit_is_refused(network, problem):
    with pytest.raises(ConfigError, match=problem):
        partwise.run("fedavg", model=network, **SETTINGS)


def test_a_network_that_torch_cannot_vectorise_runs_one_client_at_a_time_or_is_refused_by_its_layer():
    why = "torch cannot run 'body.cell' (LSTMCell) for several clients at once"
    assert partwise.run("fedper", model=Cell(), **SETTINGS).notes[0] == f"engine: loop, because {why} on cpu"
    with pytest.raises(
        ConfigError, match=f"^{re.escape(f'engine = vector cannot run this: {why}; use engine loop or auto')}"
    ):
        partwise.run("fedper", model=Cell(), engine="vector", **SETTINGS)


@pytest.mark.parametrize(
    ("kind", "settings", "layer"),
    [
        (nn.LSTM, {"hidden_size": 4}, "'body.layer' (LSTM)"),  # it looks at earlier rows alone, never at padding
        (nn.TransformerEncoderLayer, {"nhead": 2, "dropout": 0.0}, "'body.layer.self_attn' (MultiheadAttention)"),
    ],
)
def test_a_layer_that_takes_samples_for_steps_is_named(kind, settings, layer):
    why = f"a row of a mini-batch changes the others in {layer}, which needs batch_first=True here"
    network = TimeFirst(kind, **settings)
    assert partwise.run("fedper", model=network, **SETTINGS).notes[0] == f"engine: loop, because {why} on cpu"
    with pytest.raises(
        ConfigError, match=f"^{re.escape(f'engine = vector cannot run this: {why}; use engine loop or auto')}"
    ):
        partwise.run("fedper", model=network, engine="vector", **SETTINGS)
    partwise.run("fedper", model=TimeFirst(kind, batch_first=True, **settings), engine="vector", **SETTINGS)


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_dropout_of_tensors_in_which_samples_do_not_come_first_is_refused_by_its_layer(engine):
    problem = r"dropout 'body.layer.dropout1' receives a tensor whose first dimension .*; set batch_first=True"
    with pytest.raises(ConfigError, match=problem):
        partwise.run("fedper", model=Permuted(), engine=engine, **SETTINGS)
    partwise.run("fedper", model=Permuted(dropout=0.0), engine=engine, **SETTINGS)


def test_a_layer_that_draws_random_numbers_by_itself_is_named():
    class Noisy(nn.Linear):
        def forward(self, x):
            return torch.nn.functional.dropout(super().forward(x), 0.5, self.training)

    with pytest.raises(ConfigError, match=r"in training: 'body.1' \(Noisy\) draws unseeded random numbers"):
        partwise.run("fedper", model=nn.Sequential(nn.Linear(12, 8), Noisy(8, 8), nn.Linear(8, 3)), **SETTINGS)


def test_a_network_of_embeddings_is_tried_on_real_samples():
    words = (torch.arange(240).view(60, 4) % 5).float()
    result = partwise.run("fedper", **{**SETTINGS, "data": (words, Y)}, model=Words())
    assert result.metrics[-1]["received"]["clients"] == 3


def test_settings_about_a_division_are_refused_where_the_data_are_divided():
    federation = awkward_federation()
    for name, value in {
        "partition": "iid",
        "min_samples": 5,
        "cap": True,
        "validation": 0.2,
        "train_samples": 3,
    }.items():
        with pytest.raises(ConfigError, match=f"already divided among clients; leave out {name}$"):
            partwise.run("fedavg", data=federation, rounds=1, **{name: value})
    clients = [(X[:30], Y[:30]), (X[30:], Y[30:])]
    with pytest.raises(ConfigError, match=r"leave out partition, split$"):
        partwise.run("fedavg", data=clients, rounds=1, partition="iid", split="merged")
    result = partwise.run("fedavg", data=clients, rounds=1, validation=0.2, train_samples=10)
    assert [len(own) for own in result.federation.train] == [8, 8]
    with pytest.raises(ConfigError, match="clients = 3, but the data belong to 2 clients"):
        partwise.run("fedavg", data=clients, rounds=1, clients=3)


def test_settings_about_tables_are_refused_where_there_is_none():
    for name, value in {"label": "died", "drop": "age", "missing": "mean"}.items():
        for data in ("made", (X, Y)):
            with pytest.raises(ConfigError, match=f"^{name}: applies only to tables, and .* is not one; remove it"):
                partwise.run("fedavg", **{**SETTINGS, "data": data, name: value})


def test_images_that_are_handed_in_are_resized_too():
    images = np.zeros((12, 8, 8), np.uint8)
    for data in ((images, [0, 1] * 6), [(images, [0, 1] * 6)] * 2):
        settings = {"rounds": 1} if isinstance(data, list) else {"rounds": 1, "clients": 2, "partition": "iid"}
        assert partwise.run("fedavg", data=data, image_size=16, **settings).federation.source.x.shape[2:] == (16, 16)
    with pytest.raises(ConfigError, match="image_size = 16, but data set 'data' holds no images"):
        partwise.run("fedavg", image_size=16, **SETTINGS)


def test_channels_last_are_refused_where_they_cannot_be_put_right():
    with pytest.raises(ConfigError, match=r"\(8, 8, 3\) seems to have channels last"):
        partwise.run("fedavg", **{**SETTINGS, "data": (np.zeros((60, 8, 8, 3), np.float32), Y)})


@pytest.mark.parametrize(("how", "black", "white"), [("half", -1, 1), ("unit", 0, 1)])
@pytest.mark.parametrize("brightest", [255.0, 16.0])
def test_normalising_goes_by_the_brightest_value_whatever_the_centre(how, black, white, brightest):
    x = torch.tensor([0, int(brightest)], dtype=torch.uint8).view(2, 1, 1, 1)
    source = normalised(Source("mine", x, torch.tensor([0, 1]), 2, 2, (33.3,), (78.6,), white=brightest), how)
    assert ((x.double().flatten() - source.centre[0]) / source.scale[0]).tolist() == [black, white]


def test_normalising_by_imagenet_is_for_three_channels():
    with pytest.raises(ConfigError, match="'imagenet' is for 3 channels, but 'made' has 1"):
        partwise.run("fedavg", data="made", normalise="imagenet")
    with pytest.raises(ConfigError, match="normalise = 'unit' is for images of bytes"):
        partwise.run("fedavg", normalise="unit", **SETTINGS)


def test_runs_of_other_clients_are_not_compared():
    one = partwise.run("local", **SETTINGS)
    other = partwise.run("local", **{**SETTINGS, "clients": 2})
    assert one.worse_off(one) == 0.0
    with pytest.raises(DataError, match="did not test the same clients on the same samples"):
        one.worse_off(other)


def test_the_record_of_a_run_with_objects_says_that_they_were_handed_in(tmp_path, capsys):
    from partwise.cli import main

    partwise.run("fedavg", **SETTINGS, model=Parts(Returns(), head="out"), out=tmp_path / "run")
    command = ["run", "--config", str(tmp_path / "run" / "config.toml")]
    assert main(command) == 2
    assert "the data of this run were handed in from Python" in capsys.readouterr().err
    assert main([*command, "--data", "made"]) == 2
    assert "the network of this run was passed from Python" in capsys.readouterr().err
