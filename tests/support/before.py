"""A small run whose checkpoints and silos' states were written by partwise before these had types."""

from pathlib import Path

import numpy as np
import torch

from partwise.data.source import Federation, Source
from partwise.federation.protocol.policy import Allowed
from partwise.federation.protocol.silo import Silo
from partwise.runs.config import make_config

FIXTURES = Path(__file__).parents[1] / "fixtures" / "before"

# ---- the case

OPEN = {"min_clients": 1, "relay": True, "min_class_count": 1, "min_train_samples": 1, "min_test_samples": 1}
OPEN |= {"loss": "exact", "scores": "exact", "min_batch": 1}


def config(**settings):
    """FedPer over a layer of 100 for the body, and one for the head."""
    own = {"rounds": 4, "lr": 0.05, "momentum": 0.5, "batch": 4, "threads": 1, "model": "mlp-100"}
    return make_config("fedper", {**own, "engine": "loop", "device": "cpu", "checkpoint_every": 0, **settings})


def federation(clients=(0, 1, 2)):
    """Some of three clients, each with samples of three numbers and two classes."""
    random = np.random.default_rng(3)
    x = torch.from_numpy(random.normal(0, 1, (30, 3)).astype(np.float32))
    y = torch.from_numpy(random.integers(0, 2, 30))
    rows = torch.cat([torch.arange(10 * client, 10 * client + 10) for client in clients])
    source = Source("before", x[rows], y[rows], 2, len(rows), (0.0,), (1.0,), "tabular")
    starts = [10 * place for place in range(len(clients))]
    train, test, validation = (
        [torch.arange(start + first, start + last) for start in starts] for first, last in ((0, 6), (6, 8), (8, 10))
    )
    names = tuple(f"c{client}" for client in clients)
    return Federation(source, train, test, torch.cat(test), validation, "own", names)


def silos(folder):
    """Two nodes: `n0` hosts two clients, `n1` one."""
    return {
        name: Silo(name, folder / name, allow=Allowed(**OPEN), held=federation(clients))
        for name, clients in {"n0": (0, 1), "n1": (2,)}.items()
    }
