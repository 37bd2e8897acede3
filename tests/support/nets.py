"""A network file, as a user writes it."""

from pathlib import Path

NETS = """\
import math
import torch
from torch import nn
from partwise import Parts

class Net(nn.Module):
    def __init__(self, shape, classes, hidden=12):
        super().__init__()
        self.hidden, self.out = nn.Linear(math.prod(shape), hidden), nn.Linear(hidden, classes)
    def forward(self, x):
        return self.out(torch.relu(self.hidden(x.flatten(1))))

def small(shape, classes):
    return Parts(Net(shape, classes, hidden=4), head="out")

def seven(shape):
    return Net(shape, 7)

def asks(width, depth, classes):
    return Net((width,), classes)

def broken(shape):
    raise ValueError("no such shape")

def nothing():
    pass

ready = nn.Linear(64, 10)
"""


def write_nets(folder: Path, more: str = "") -> Path:
    """Write a file with networks into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nets.py").write_text(NETS + more)
    return folder / "nets.py"
