"""Networks of timm through a stand-in with its interface, and the kinds of layers that such networks bring."""

import sys
from collections import OrderedDict
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partwise
from partwise.errors import ConfigError, DataError
from partwise.network import models
from partwise.network.layers import LayerScope
from partwise.network.models.weights import with_weights
from partwise.network.parts import Parts
from partwise.network.view import Net
from tests.support.runs import CLASSES, simulate
from tests.support.states import distance


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm writes it: batch-norm that holds the dropout and the activation that follow it."""

    def __init__(self, channels: int, act: type[nn.Module] = nn.ReLU, drop: nn.Module | None = None):
        super().__init__(channels)
        self.drop, self.act = drop or nn.Identity(), act()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return self.act(self.drop(F.batch_norm(x, *statistics, self.training, self.momentum, self.eps)))


class DropPath(nn.Module):
    """As timm writes it: whole samples of a residual path are dropped."""

    def __init__(self, drop_prob: float = 0.0):
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, True

    def forward(self, x: Tensor) -> Tensor:
        keep = 1 - self.drop_prob
        return x * x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(keep) / keep if self.training else x


class Tower(nn.Module):
    """A network in timm's manner. Its features are not as many as `num_features` says, as in MobileNetV3."""

    def __init__(self, num_classes: int = 1000, in_chans: int = 3):
        super().__init__()
        self.conv_stem, self.bn1 = nn.Conv2d(in_chans, 6, 3, bias=False), BatchNormAct2d(6, nn.PReLU)
        self.block, self.drop_path = nn.Conv2d(6, 6, 3, padding=1), DropPath(0.5)
        self.gamma = nn.Parameter(0.1 * torch.randn(6, 1, 1))  # no layer that could be asked to draw it
        self.head = nn.Module()
        self.head.norm = nn.LayerNorm(6)
        self.head.fc = nn.Linear(12, num_classes) if num_classes else nn.Identity()
        self.num_features, self.drop_rate = 6, 0.2

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv_stem(x))
        x = self.head.norm((x + self.drop_path(self.gamma * self.block(x))).mean((2, 3)))
        return self.head.fc(F.dropout(torch.cat([x, -x], 1), self.drop_rate, self.training))


class Patches(nn.Module):
    """A network that must know the size of images."""

    def __init__(self, num_classes: int = 1000, in_chans: int = 3, img_size: tuple[int, int] = (224, 224)):
        super().__init__()
        self.patch_embed = nn.Conv2d(in_chans, 5, 4, 4)
        self.pos_embed = nn.Parameter(torch.randn(1, img_size[0] * img_size[1] // 16, 5))
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, num_classes) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.norm(x.flatten(0, 1)).view_as(x).mean(1))  # tokens of all samples are rows


@pytest.fixture
def timm(monkeypatch) -> ModuleType:
    """A module `timm` with two networks that remembers what it was asked for."""
    known = {"tower": Tower, "patches_4": Patches}

    def create_model(name: str, pretrained: bool = False, **options) -> nn.Module:
        stand_in.asked.append({"name": name, "pretrained": pretrained, **options})
        return known[name.split(".")[0]](**options)

    stand_in = ModuleType("timm")
    stand_in.asked = []
    stand_in.create_model, stand_in.list_models = create_model, lambda: list(known)
    stand_in.is_model = lambda name: name.split(".")[0] in known
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    return stand_in


# ---------------------------------------------------------------------------------------------------- by name


def test_the_body_is_timms_network_without_classifier_and_nothing_is_downloaded(timm):
    tower = models.build("timm:tower", (1, 8, 8), 7)
    assert tower.chain == ("body", "head") and tower.modules["head"].in_features == 12
    assert tower.select("body.bn1.act") == ["body.bn1.act.weight"]
    patches = models.build("timm:patches_4.some_tag", (3, 16, 12), 7)
    assert patches.tensors()["body.pos_embed"].shape == (1, 12, 5)
    common = {"pretrained": False, "num_classes": 0}
    assert timm.asked == [
        {"name": "tower", **common, "in_chans": 1, "img_size": (8, 8)},
        {"name": "tower", **common, "in_chans": 1},  # it takes no size
        {"name": "patches_4.some_tag", **common, "in_chans": 3, "img_size": (16, 12)},
    ]


def test_every_value_comes_from_the_stream_of_its_part(timm):
    def drawn(seed: int) -> dict[str, Tensor]:
        torch.rand(3)  # torch's generator is elsewhere each time
        return models.build("timm:tower", (1, 8, 8), 7, dropout=0.5).initialise(seed).tensors()

    one, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    same = {name for name in one if torch.equal(one[name], other[name])}
    assert same == {name for name in one if any(word in name for word in ("bn1", "norm"))}
    parts = models.build("timm:tower", (1, 8, 8), 7).initialise(1)
    before = torch.random.get_rng_state()
    fresh = parts.prepared(LayerScope()).draw(parts.select("body"), 1, "init")
    assert all(torch.equal(fresh[name], parts.tensors()[name]) for name in fresh)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["tower", "patches_4"])
def test_the_engines_agree_on_networks_in_timms_manner(timm, name):
    parts = models.build(f"timm:{name}", (1, 8, 8), CLASSES, dropout=0.25).initialise(0)
    for module in parts.modules.values():
        module.double()
    loop, vector = (simulate("fedper", parts, engine=engine, rounds=2) for engine in ("loop", "vector"))
    assert loop.notes == ["engine: loop on cpu"] and vector.notes == ["engine: vector on cpu"]
    assert distance(loop, vector) < 1e-10


def test_a_run_by_name_with_projector_and_weights(timm, tmp_path):
    trained = Tower(num_classes=1000, in_chans=1)
    torch.save(trained.state_dict(), tmp_path / "tower.pth")
    settings = {"data": "made", "clients": 2, "rounds": 1, "model": "timm:tower", "lr": 1e-30}
    weights = {"weights": str(tmp_path / "tower.pth"), "projector": True, "dropout": 0.1}
    result = partwise.run("fedavg", **settings, **weights, out=tmp_path / "run")
    assert result.simulation.program.parts.layers("body") == ["backbone", "dropout", "projector"]
    copies = result.simulation.server.copies
    for name in ("conv_stem.weight", "gamma", "bn1.act.weight", "head.norm.weight"):
        assert torch.equal(copies[f"body.backbone.{name}"].values[0], trained.state_dict()[name])
    # and on: the client's model is the start of a network without a layer behind it
    tensors = {k: v for k, v in result.models[0].tensors.items() if ".projector." not in k}
    torch.save(tensors, tmp_path / "client.pt")
    plain = with_weights(models.build("timm:tower", (1, 8, 8), 10), tmp_path / "client.pt")
    assert torch.equal(plain.tensors()["body.gamma"], trained.gamma) and plain.notes == ()


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("towr", (1, 8, 8), {}, r"^unknown model 'timm:towr'; did you mean 'tower'\? timm.list_models\(\) lists them$"),
        ("hf-hub:some/one", (1, 8, 8), {}, r"^unknown model 'timm:hf-hub:some/one'; timm.list_models\(\) lists them$"),
        ("tower", (64,), {}, r"^model 'timm:tower' takes images \(channels, height, width\), not samples of shape"),
        ("tower", (1, 2, 2), {}, r"^model 'timm:tower' does not take samples of shape \(1, 2, 2\): Calculated padded"),
        (
            "patches_4",
            (1, 9, 9),
            {},
            r"^model 'timm:patches_4' does not take samples of shape \(1, 9, 9\): The size of",
        ),
        (
            "tower",
            (1, 8, 8),
            {"norm": True},
            r"^batch_norm applies to small built-in networks only; leave it out for model 'timm:tower'",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(timm, name, shape, options, message):
    with pytest.raises(ConfigError, match=message):
        models.build(f"timm:{name}", shape, 10, **options)


def test_without_timm_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(DataError, match=r"^timm is needed, but not installed: pip install 'partwise\[timm\]'"):
        models.build("timm:resnet18", (3, 32, 32), 10)
    monkeypatch.delitem(sys.modules, "timm")
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=r"\(operator torchvision::nms does not exist\)$"):
        models.build("timm:resnet18", (3, 32, 32), 10)


# ------------------------------------------------------------------------------------------------- their layers


def alone(layer: nn.Module) -> tuple[Parts, LayerScope]:
    scope = LayerScope()
    return Parts(nn.ModuleDict(OrderedDict(layer=layer))).prepared(scope), scope


@pytest.mark.parametrize("act", [nn.ReLU, nn.Hardswish, nn.PReLU])
def test_batch_norm_with_an_activation_inside_keeps_it(act):
    theirs = BatchNormAct2d(3, act).double()
    parts, scope = alone(theirs)
    x = 3 * torch.randn(6, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    net = Net(parts, scope, parts.tensors(), training=True, mask=torch.arange(6) < 4)
    assert torch.allclose(net(x)[:4], theirs(x[:4]), rtol=0, atol=1e-12)
    moved = Net(parts, scope, net.tensors)
    assert torch.allclose(moved(x), theirs.eval()(x), rtol=0, atol=1e-12)
    assert set(parts.norms) == {f"layer.{name}" for name in ("weight", "bias", "running_mean", "running_var")}


def test_dropout_inside_batch_norm_is_exchanged_too():
    parts, scope = alone(BatchNormAct2d(3, drop=nn.Dropout(0.5)))
    x = torch.linspace(-1, 1, 2 * 3 * 16).view(2, 3, 4, 4)
    runs = [Net(parts, scope, parts.tensors(), training=True, key=torch.tensor(key))(x) for key in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert (runs[0] >= 0).all() and (runs[0] == 0).float().mean() > 0.6  # half dropped, half of the rest negative


class Renamed(nn.BatchNorm1d):
    """Nothing of its own."""


class Doubling(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Split(nn.BatchNorm2d):
    """timm's SplitBatchNorm2d in short: plain in evaluation, by halves in training."""

    def forward(self, x: Tensor) -> Tensor:
        halves = x.chunk(2) if self.training else [x]
        return torch.cat([super(Split, self).forward(half) for half in halves])


class OfDomain(nn.BatchNorm1d):
    def forward(self, x: Tensor, domain: int) -> Tensor:
        return super().forward(x) + domain


class Halving(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.parametrize("layer", [Doubling(3), Split(3), OfDomain(3), Halving(0.5)])
def test_a_layer_that_does_something_else_is_refused_rather_than_run_as_what_it_derives_from(layer):
    with pytest.raises(ConfigError, match=rf"^{type(layer).__name__}.* is not supported"):
        alone(layer)


def test_a_batch_norm_by_another_name_is_batch_norm():
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    parts, scope = alone(Renamed(3))
    assert torch.allclose(Net(parts, scope, parts.tensors(), training=True)(x), Renamed(3)(x), atol=1e-6)


def test_dropped_paths_are_whole_samples_from_the_key_of_the_step():
    parts, scope = alone(DropPath(0.25))
    x = torch.ones(400, 2, 3)

    def dropped(key: int, rows: int = 400) -> Tensor:
        return Net(parts, scope, {}, training=True, key=torch.tensor(key))(x[:rows])

    rows = dropped(1)
    assert torch.equal(rows, rows[:, :1, :1].expand_as(rows))
    assert set(rows.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.75))}
    assert abs(float((rows[:, 0, 0] == 0).float().mean()) - 0.25) < 5 * (0.25 * 0.75 / 400) ** 0.5
    assert torch.equal(rows, dropped(1)) and not torch.equal(rows, dropped(2))
    assert torch.equal(rows[:7], dropped(1, rows=7))
    assert Net(parts, scope, {})(x) is x


def test_batch_norm_over_the_tokens_of_samples_looks_at_those_of_real_samples():
    layer = nn.BatchNorm1d(3).double()
    parts, scope = alone(layer)
    x = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # samples, tokens
    net = Net(parts, scope, parts.tensors(), training=True, mask=torch.arange(6) < 4)
    assert torch.allclose(net(x.flatten(0, 1))[:20], layer(x[:4].flatten(0, 1)), rtol=0, atol=1e-12)
    assert torch.allclose(net.tensors["layer.running_var"], layer.running_var, rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match="batch-norm 'layer' is given 8 rows of a mini-batch of 6"):
        net(x.flatten(0, 1)[:8])


def test_attention_may_ask_its_dropout_layer_for_the_rate():
    parts, _ = alone(nn.Sequential(nn.Dropout(0.3)))
    assert parts.modules["layer"][0].p == 0.3
