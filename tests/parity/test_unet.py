"""The U-Net by name: its size, images of any size, and that all engines end equal where pixels are unknown."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import partwise
from partwise import ConfigError, Federation
from partwise.network import models
from partwise.tasks import Places
from tests.support.runs import awkward_federation, simulate
from tests.support.states import distance

SETTINGS = {"rounds": 2, "epochs": 1, "lr": 0.05, "participation": 0.5, "momentum": 0.5, "dropout": 0.2}


def masks(height: int = 5, width: int = 7) -> Federation:
    """The usual federation's images cut to odd sides; a pixel's class is its brightness, every fifth is unknown."""
    federation = awkward_federation(validated=2)
    x = federation.source.x[:, :, :height, :width]
    y = (x[:, 0] // 86).long()
    y.view(-1)[::5] = -1
    y[3] = -1  # nothing is known of one sample
    task = Places(("dark", "grey", "bright"))
    return replace(federation, source=replace(federation.source, x=x, y=y, classes=3, own_task=task, model=""))


@pytest.mark.parametrize("method", ["fedper", "fedtc", "fed3p2p"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_vector_equals_loop(method, norm):
    settings = {**SETTINGS, "batch_norm": norm}
    if method == "fed3p2p":
        settings = {key: value for key, value in settings.items() if key != "rounds"}
        settings |= {"rounds_1": 1, "rounds_2": 1, "coordinators_a": 3, "coordinators_b": 3}
    loop, vector = (simulate(method, None, masks(), engine=engine, **settings) for engine in ("loop", "vector"))
    assert vector.notes[0] == "engine: vector on cpu"
    assert distance(loop, vector) < 1e-10


def test_workers_are_the_loop():
    loop, workers = (simulate("fedper", None, masks(), engine=engine, **SETTINGS) for engine in ("loop", "workers"))
    assert distance(loop, workers) == 0


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (5, 7), (8, 8), (13, 6)])
def test_images_of_any_size_keep_it(height, width):
    parts = models.build("unet", (3, height, width), 4, norm=True, dropout=0.5).initialise(0)
    net = nn.Sequential(*parts.modules.values()).eval()
    assert net(torch.ones(2, 3, height, width)).shape == (2, 4, height, width)


def test_size():
    """A 3x3 convolution has 9 weights for each pair of channels, and a bias for each output; the head has 1."""

    def level(inputs, outputs):
        return 9 * inputs * outputs + outputs + 9 * outputs * outputs + outputs

    body = level(3, 16) + level(16, 32) + level(32, 64) + level(32 + 64, 32) + level(16 + 32, 16)
    parts = models.build("unet", (3, 20, 20), 4)
    assert sum(value.numel() for value in parts.tensors().values()) == body + 16 * 4 + 4
    assert parts.trained_layers("body") == ["enter", "down1", "down2", "up2", "up1"]


def test_it_is_taken_for_images_with_a_class_at_each_pixel_and_refused_for_others():
    assert models.usual((3, 20, 20), each_step=True) == "unet"
    with pytest.raises(ConfigError, match="gives 10x8x8 logits for a sample, but the data have 10 classes"):
        partwise.run("fedavg", data="made", model="unet", clients=3, rounds=1)
    with pytest.raises(ConfigError, match=r"model 'unet' takes images .*, not samples of shape \(30,\)"):
        models.build("unet", (30,), 4)
