"""Small runs in float64: federations with awkward clients, and small networks."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from partwise.data.source import Federation, Source
from partwise.engines.purity import PurityCheck
from partwise.engines.vector import Vector
from partwise.network import models
from partwise.network.models.resnet import resnet18
from partwise.network.parts import Parts
from partwise.runs.config import make_config
from partwise.runs.observers import Observer
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from partwise.tasks import Labels, Numbers, Places

CLASSES = 4
OUTPUTS = {"classes": CLASSES, "numbers": 2, "labels": 3, "places": 3}
# With batch 8: one sample; one class; less than a batch; n mod batch = 1; full batches; and some between.
SIZES = (1, 6, 7, 17, 16, 11, 9, 20)
ONE_CLASS = 1  # the number of the client that holds a single class


def awkward_federation(
    sizes: tuple[int, ...] = SIZES, tested: int = 3, validated: int = 0, task: str = "classes"
) -> Federation:
    """Clients of many sizes on made images of 1x8x8; every sample belongs to one client.

    Of other tasks than classes some labels are unknown: all of the first client, and the first label of ONE_CLASS.
    """
    random = np.random.default_rng(7)
    owner = np.repeat(np.arange(len(sizes)), [size + tested + validated for size in sizes])
    y = random.integers(0, CLASSES, len(owner))
    y[owner == ONE_CLASS] = 2
    centres = random.uniform(40, 215, (CLASSES, 1, 8, 8))
    x = np.clip(centres[y] + random.normal(0, 40, (len(y), 1, 8, 8)), 0, 255).astype(np.uint8)
    train, test, validation = [], [], []
    for client, size in enumerate(sizes):
        mine = torch.from_numpy(random.permutation(np.where(owner == client)[0]))
        train.append(mine[:size])
        test.append(mine[size : size + tested])
        validation.append(mine[size + tested :])
    source = Source(
        "awkward", torch.from_numpy(x), torch.from_numpy(y), CLASSES, len(y), (127.5,), (127.5,), "cnn-digits"
    )
    return Federation(with_task(source, task, owner), train, test, torch.cat(test).sort().values, validation)


def with_task(source: Source, task: str, owner: np.ndarray) -> Source:
    """The same images with labels of another task, which follow from class and brightness; `owner` has each sample."""
    if task == "classes":
        return source
    random = torch.Generator().manual_seed(11)
    bright = source.x.double() / 255
    mean, kind = bright.mean((1, 2, 3)), source.y.double()
    names = tuple("abc"[: OUTPUTS[task]])
    if task == "places":
        y = torch.bucketize(bright[:, 0], torch.tensor([0.4, 0.6], dtype=torch.float64)).double()
    elif task == "labels":
        y = torch.stack([kind > 1, mean > 0.5, kind % 2 == 0], 1).double()
    else:
        y = torch.stack([50 + 20 * mean + kind, 3 * (kind - mean)], 1)
    y[torch.rand(y.shape, generator=random) < 0.2] = torch.nan
    y[owner == 0] = torch.nan
    y[owner == ONE_CLASS, 0] = torch.nan
    if task == "places":
        y, own = y.nan_to_num(nan=-1).long(), Places(names)
    else:
        own = (Labels if task == "labels" else Numbers).of(y, names)
    return replace(source, y=y, classes=own.bins, own_task=own)


def network(name: str, factor: float = 1.0, dropout: float = 0.0, seed: int = 0, task: str = "classes") -> Parts:
    """`mlp`, `mlp of two layers`, `cnn`, `cnn+bn`, `cnn+gn` or a narrow `resnet`; its initial values times `factor`.

    `places` and `places+bn` give logits at each place.
    """
    outputs = OUTPUTS[task]
    if name == "resnet":
        parts = resnet18((1, 8, 8), outputs, dropout=dropout, stem=3, width=8)
    elif name == "cnn+gn":
        body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout))
        parts = Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(288, outputs))))
    elif name.startswith("places"):
        norm = [nn.BatchNorm2d(6)] * (name == "places+bn")
        first = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), *norm, nn.ReLU(), nn.Dropout(dropout))
        body = nn.Sequential(first, nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()))
        parts = Parts(nn.Sequential(OrderedDict(body=body, head=nn.Conv2d(6, outputs, 1))))
    else:
        kind = {"mlp": "mlp-100", "mlp of two layers": "tabular"}.get(name, "cnn-digits")
        parts = models.build(kind, (1, 8, 8), outputs, norm=name == "cnn+bn", dropout=dropout)
    parts = parts.initialise(seed)
    for module in parts.modules.values():
        module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)
    return parts


@contextmanager
def untried() -> Iterator[None]:
    """Nothing that a method brings is tried meanwhile."""
    with (
        patch.object(PurityCheck, "__call__", lambda self, request: ""),
        patch.object(PurityCheck, "globally", return_value=""),
    ):
        yield


def simulate(
    method: Any,
    parts: Parts,
    federation: Federation | None = None,
    engine: str = "loop",
    block: int | None = None,
    filler: int | None = None,
    observers: Sequence[Observer] = (),
    trials: bool = False,
    **settings: Any,
) -> Simulation:
    """A run in float64 on the CPU, from given parts; without `trials`, which change nothing and take their time."""
    federation = federation or awkward_federation()
    defaults = {"dtype": "float64", "device": "cpu", "batch": 8, "rounds": 5, "lr": 0.05, "clients": federation.clients}
    defaults["threads"] = torch.get_num_threads()  # a run chooses one for steps as small as these
    config = make_config(method, {**defaults, "engine": engine, "block": block, **settings})
    simulation = prepare(config, federation, parts)
    if filler is not None:
        assert isinstance(simulation.engine, Vector)
        simulation.engine.caller.filler = filler
    with nullcontext() if trials else untried():
        return simulation.run(observers=observers)
