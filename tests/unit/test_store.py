"""The store: rows that are read and written together, wherever they lie, and the mean of all clients."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from partwise.engines import store as module
from partwise.engines import store_memory
from partwise.engines.averages import average_own
from partwise.engines.store import Store
from partwise.errors import PartwiseError
from partwise.rounds.messages import Copies
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import state

CLIENTS = 12


def filled() -> Store:
    """Twelve clients of three groups, of which four took part; every head is drawn for its client."""
    parts = network("mlp")
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(CLIENTS) % 3
    initial = {
        name: Copies(torch.randn(3, *value.shape, dtype=torch.float64, generator=random), groups)
        for name, value in parts.tensors().items()
    }
    initial["body.fc1.1.bias"] = Copies(initial["body.fc1.1.bias"].values[:1])  # one copy for everybody
    store = Store(initial, {}, parts, 0, CLIENTS)
    store.enter({}, ["head.weight", "head.bias"], 1)
    for clients in ([7, 2], [2, 11, 0]):
        brought = {
            ("own", name): torch.randn(len(clients), *value.shape, dtype=torch.float64, generator=random)
            for name, value in parts.tensors().items()
        }
        store.save(clients, brought, [5] * len(clients))
    return store


def test_the_mean_of_everybody_is_the_mean_written_out():
    store, names = filled(), ["body.fc1.1.weight", "body.fc1.1.bias", "head.weight"]
    clients, weights = np.arange(1, CLIENTS), np.arange(1.0, CLIENTS)
    means = average_own(store, names, clients, weights)
    for name in names:
        written = sum(client * store.own(client, [name])[name] for client in range(1, CLIENTS)) / 66
        assert float((means[name] - written).abs().max()) < 1e-14


def test_a_block_is_its_clients_one_by_one():
    store, names = filled(), ["body.fc1.1.weight", "body.fc1.1.bias", "head.weight"]
    block = store.stacked([3, 11, 2, 5], names)
    for place, client in enumerate([3, 11, 2, 5]):
        for name, value in store.own(client, names).items():
            assert torch.equal(block[name][place], value)
    assert not torch.equal(block["head.weight"][0], block["head.weight"][3])  # a draw each
    assert torch.equal(block["body.fc1.1.weight"][0], store.initial["body.fc1.1.weight"].values[0])
    block["body.fc1.1.bias"].zero_()  # in memory of its own
    assert store.initial["body.fc1.1.bias"].values.all() and store.own(2, names)["body.fc1.1.bias"].all()


def test_what_was_held_comes_back():
    store, names = filled(), ["body.fc1.1.weight", "head.bias"]
    before, snapshot = store.stacked(range(CLIENTS), names), store.snapshot()
    changed = {("own", name): torch.zeros_like(before[name]) for name in names}
    store.save(range(CLIENTS), changed, [1] * CLIENTS)
    assert store.stepped(range(CLIENTS)).all()
    store.go_back(snapshot)
    for name, value in store.stacked(range(CLIENTS), names).items():
        assert torch.equal(value, before[name])
    assert np.flatnonzero(store.steps).tolist() == np.flatnonzero(store.row >= 0).tolist() == [0, 2, 7, 11]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedper", {"optimizer": "adamw", "persist_optimizer_state": True, "lr": 0.001, "rounds": 3}),
        ("fed3p2p", {"coordinators_a": 2, "coordinators_b": 2, "rounds": 2}),  # own parts change with its stages
        ("fedbn", {"patience": 1}),  # goes back to its best round
    ],
)
def test_wherever_rows_lie_the_run_is_the_same(method, settings, monkeypatch, tmp_path):
    def run() -> dict[str, torch.Tensor]:
        federation = awkward_federation(tested=4, validated=4)
        return state(simulate(method, network("cnn+bn"), federation, "vector", 3, participation=0.4, **settings))

    usual = run()
    monkeypatch.setattr(module, "SMALLEST_SHEET", 1)
    growing = run()
    files, mapped = [], store_memory.mapped
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(store_memory, "mapped", lambda *what: files.append(mapped(*what)) or files[-1])
    monkeypatch.setattr(store_memory, "HOST_BYTES", 2000)  # some sheets lie in memory, until they grow
    in_files = run()
    assert files and not any(tmp_path.iterdir())  # nothing that could stay behind
    for other in (growing, in_files):
        assert other.keys() == usual.keys()
        assert all(torch.equal(value, other[name]) for name, value in usual.items())


def test_a_full_disk_is_told_before_it_is_written_to(monkeypatch, tmp_path: Path):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(PartwiseError, match=r"no room for 8.0 GB .* \(No space left on device\): set TMPDIR"):
        store_memory.mapped((10**6, 2000), torch.float32)
    assert not any(tmp_path.iterdir())
