"""The awkward federation with labels of every task, some of them unknown."""

from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import nn

from partwise.data.source import Federation
from partwise.network.parts import Parts
from partwise.tasks import Labels, Numbers, Places, Task
from tests.support.runs import SIZES, awkward_federation

PLACES_NET = "tiny-places"
BINS = (3.0, 4.5)  # in the unit of the first number


def labelled(kind: str, sizes: tuple[int, ...] = SIZES, validated: int = 0) -> Federation:
    """Return clients whose images have two numbers, two labels, or a class at each pixel; every fifth is unknown."""
    federation = awkward_federation(sizes, validated=validated)
    images = federation.source.x[:, 0].double()
    brightness = images.flatten(1).mean(1)
    unknown = torch.arange(len(images)) % 5 == 0
    task: Task
    if kind == "places":
        y = (images // 86).long()  # of three kinds
        y[unknown, :3] = -1
        task = Places(("dark", "grey", "light"))
    else:
        y = torch.stack([brightness / 40 + 1.5, images[:, 0, 0] * 1000], 1)
        if kind == "labels":
            y = (y > y.median(0).values).double()
        y[unknown, 0] = torch.nan
        y[unknown.roll(2), 1] = torch.nan
        names = ("stay", "cost") if kind == "numbers" else ("sick", "tired")
        task = (Numbers if kind == "numbers" else Labels).of(y, names)
    source = replace(federation.source, y=y, classes=task.bins, own_task=task, model="tabular")
    return replace(federation, source=source)


def tiny_places(shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return a network with an output at each pixel."""
    body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
    return Parts(nn.Sequential(OrderedDict(body=body, head=nn.Conv2d(4, classes, 1))))


def with_places_net(monkeypatch) -> None:
    """Let runs name the network of places, which they have to by which nodes build it too."""
    from partwise.network import models

    monkeypatch.setitem(models.NETWORKS, PLACES_NET, "places_of_tests")
    made = SimpleNamespace(tiny_places=tiny_places)
    monkeypatch.setitem(__import__("sys").modules, "partwise.network.models.places_of_tests", made)
