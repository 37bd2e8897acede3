"""Networks that a user's file defines: found by name, made with what they ask for, refused in one line."""

import functools
import sys

import pytest
import torch
from torch import nn

import partwise
from partwise import ConfigError
from partwise.code_files import split_network
from tests.support.nets import NETS, write_nets
from tests.support.runs import simulate
from tests.support.states import distance

SETTINGS = {"data": "made", "clients": 3, "rounds": 1, "train_samples": 16, "lr": 0.05, "dtype": "float64"}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nets.py:Net", ("nets.py", "Net")),
        ("~/my nets/nets.py:Net", ("~/my nets/nets.py", "Net")),
        ("nets.py", ("nets.py", "")),
        ("nets.py:", ("nets.py", "")),
        ("a.py:b.py:Net", ("a.py:b.py", "Net")),
        ("mlp-100", None),
        ("timm:resnet18", None),
        ("handed in from Python: called for each run", None),
    ],
)
def test_a_file_and_the_name_in_it(name, parts):
    assert split_network(name) == parts


def copies(model, **more):
    """The tensors with which a run begins, as it does nothing to them."""
    result = partwise.run("fedavg", model=model, **{**SETTINGS, "lr": 0.0, **more})
    return {name: each.values for name, each in result.simulation.server.copies.items()}


def test_a_network_gets_what_it_asks_for_and_is_the_one_that_is_handed_in(tmp_path):
    nets = write_nets(tmp_path)
    shapes = {name: tuple(value.shape[1:]) for name, value in copies(f"{nets}:Net").items()}
    assert shapes == {
        "body.hidden.weight": (12, 64),
        "body.hidden.bias": (12,),
        "head.weight": (10, 12),
        "head.bias": (10,),
    }
    own: dict = {}
    exec(NETS, own)
    for name in ("Net", "small"):
        named, handed_in, other = copies(f"{nets}:{name}"), copies(own[name]), copies(f"{nets}:{name}", seed=1)
        assert all(torch.equal(value, handed_in[key]) for key, value in named.items())
        assert not any(torch.isclose(value, other[key]).any() for key, value in named.items())


def test_a_default_gives_way_to_the_data(tmp_path):
    nets = write_nets(tmp_path, "def usual(classes=3, hidden=5):\n    return Net((64,), classes, hidden)\n")
    assert copies(f"{nets}:usual")["head.weight"].shape[1:] == (10, 5)


LINES = {
    "Nett": "'{}': unknown network 'Nett'; did you mean 'Net'? known: Net, small, seven, asks, broken, nothing",
    "ready": "'{}': ready must be a class of torch.nn.Module, or a function, that this file defines",
    "nn": "'{}': nn must be a class of torch.nn.Module, or a function, that this file defines",
    "Parts": "'{}': Parts must be a class of torch.nn.Module, or a function, that this file defines",
    "seven": "the network gives 7 logits for a sample, but the data have 10 classes: end it with nn.Linear(12, 10), or "
    "ask for the number, def __init__(self, outputs)",
    "asks": "model = {}:asks needs width, depth; a network can ask for shape, outputs, classes, task, vocabulary: give "
    "other parameters a default, or write a function, as def net(classes): return Net(10, classes)",
    "broken": "nets.py:23 in broken (model = {}:broken): ValueError: no such shape",
    "nothing": "model must be a name, a torch.nn.Module or Parts, or a class or function that makes one, got None",
}


@pytest.mark.parametrize("name", LINES)
def test_what_makes_no_network_is_refused_before_anything_is_written(name, tmp_path):
    nets = write_nets(tmp_path)
    with pytest.raises(ConfigError) as refused:
        partwise.run("fedavg", model=f"{nets}:{name}", out=tmp_path / "run", **SETTINGS)
    assert str(refused.value) == LINES[name].format(nets)
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_missing_or_broken_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^there is no network file '.*missing.py'$"):
        partwise.run("fedavg", model=str(tmp_path / "missing.py:Net"), **SETTINGS)
    with pytest.raises(ConfigError, match=r"does not say which network of the file; write .*nets.py:NAME$"):
        partwise.run("fedavg", model=str(write_nets(tmp_path)), **SETTINGS)
    nets = write_nets(tmp_path, "1 / 0\n")
    with pytest.raises(ConfigError, match=r"nets.py' cannot be imported: ZeroDivisionError"):
        partwise.run("fedavg", model=f"{nets}:Net", **SETTINGS)


def test_a_librarys_function_that_fails_is_one_line():
    with pytest.raises(ConfigError, match=r"cannot be made: TypeError"):
        partwise.run("fedavg", model=functools.partial(nn.Linear, "a", "b"), **SETTINGS)


def test_every_engine_runs_it_and_seeds_are_what_they_are_alone(tmp_path):
    nets = f"{write_nets(tmp_path)}:Net"
    settings = {"lr": 0.05, "rounds": 2, "participation": 0.5, "model": nets}
    loop = simulate("fedper", None, engine="loop", **settings)
    assert distance(loop, simulate("fedper", None, engine="vector", **settings)) < 1e-10
    assert distance(loop, simulate("fedper", None, engine="workers", workers=2, **settings)) == 0
    both = partwise.compare(["fedper"], model=nets, seeds=[0, 1], **SETTINGS).results
    alone = partwise.run("fedper", model=nets, seed=1, **SETTINGS)
    assert [row["received"] for row in both[1].metrics] == [row["received"] for row in alone.metrics]


def test_a_helper_beside_the_file_is_imported_and_forgotten(tmp_path):
    (tmp_path / "layers.py").write_text("from torch import nn\nclass Flat(nn.Flatten):\n    pass\n")
    more = "from layers import Flat\ndef flat(classes):\n    return nn.Sequential(Flat(), nn.Linear(64, classes))\n"
    assert copies(f"{write_nets(tmp_path, more)}:flat")["head.weight"].shape[1:] == (10, 64)
    assert "layers" not in sys.modules and str(tmp_path) not in sys.path
