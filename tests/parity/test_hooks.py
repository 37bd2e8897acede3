"""Every piece of a method - hooks, extras, kinds of shares, kinds of moves - in both engines."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partwise import (
    methods,
)
from partwise.engines.vector import Vector
from tests.support.parity import BLOCKS, CALMER, SETTINGS, TRACED, assert_engines_agree
from tests.support.pieces import PIECES
from tests.support.runs import network, simulate
from tests.support.states import distance


@pytest.mark.parametrize(("net", "vector"), [("mlp", TRACED), ("cnn+bn", BLOCKS)])
@pytest.mark.parametrize("method", PIECES)
def test_vector_equals_loop(method, net, vector):
    assert_engines_agree(method, net, vector, rounds=2)


class NoHostSync(TorchDispatchMode):
    """Refuses what would make a GPU wait: reading a number from a tensor, or a shape that depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        chosen = [leaf for leaf in tree_leaves(args[1:]) if "aten::index" in name and isinstance(leaf, torch.Tensor)]
        by_mask = any(index.dtype is torch.bool for index in chosen)  # x[mask] looks for its true rows on the host
        waits = "_local_scalar_dense" in name or "nonzero" in name or by_mask
        assert not waits, f"a host sync inside the step: {name}"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", methods.names())
def test_no_host_sync_inside_a_methods_job(method, monkeypatch):
    assert_no_host_sync(method, monkeypatch)


@pytest.mark.parametrize("method", PIECES)
def test_no_host_sync_inside_a_client_job(method, monkeypatch):
    assert_no_host_sync(method, monkeypatch)


def assert_no_host_sync(method, monkeypatch):
    execute = Vector.execute

    def watched(self, *arguments):
        with NoHostSync():
            return execute(self, *arguments)

    monkeypatch.setattr(Vector, "execute", watched)
    rounds = 2 if method in ("fed3p2p", "fedclust") else 1  # which have two stages
    simulate(
        method,
        network("cnn+bn", dropout=0.25),
        engine="vector",
        **{**SETTINGS, **CALMER.get(method, {}), "rounds": rounds, "epochs": 1, "participation": 1.0},
    )


@pytest.mark.parametrize("method", [*methods.names(), *PIECES])
def test_the_decay_of_the_learning_rate_reaches_the_step(method):
    rounds = 4 if method == "fed3p2p" else 2  # whose second phase begins with the first rate again
    net = "cnn+bn" if method == "fedbn" else "mlp of two layers"
    runs = [simulate(method, network(net), engine="vector", rounds=rounds, lr_decay=decay) for decay in (1.0, 0.5)]
    assert distance(*runs) > 1e-6


@pytest.mark.parametrize("wait", [lambda x: x[x > 1], lambda x: x[0].item(), lambda x: torch.nonzero(x)])
def test_a_host_sync_is_noticed(wait):
    with pytest.raises(AssertionError, match="host sync"), NoHostSync():
        wait(torch.arange(3))
