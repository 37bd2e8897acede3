"""Parameter counts to the digit (spec 6.6), names of layers, and how initial values are drawn."""

import math
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from partwise.engines.probe import check_and_measure
from partwise.errors import ConfigError
from partwise.network import models
from partwise.network.parts import Parts
from partwise.runs.config import make_config
from partwise.runs.prepare import draw
from partwise.tasks import Classes
from tests.support.runs import CLASSES, awkward_federation, network, simulate
from tests.support.states import distance

# model, shape of a sample, classes, features, parameters of the layers of the body in turn, parameters of the head
COUNTS = [
    ("cnn-digits", (1, 8, 8), 10, 64, [160, 4_640, 32_832], 650),
    ("mlp-100", (1, 28, 28), 10, 100, [78_500], 1_010),
    ("mlp-100", (784,), 10, 100, [78_500], 1_010),
    ("tabular", (30,), 2, 32, [1_984, 2_080], 66),
    ("cnn-5x5", (1, 28, 28), 10, 512, [832, 51_264, 524_800], 5_130),
    ("cnn-5x5", (3, 32, 32), 10, 512, [2_432, 51_264, 819_712], 5_130),
    ("cnn-5x5", (3, 32, 32), 100, 512, [2_432, 51_264, 819_712], 51_300),
    ("cnn-5x5", (3, 64, 64), 200, 512, [2_432, 51_264, 5_538_304], 102_600),
    ("convnet-f", (1, 28, 28), 10, 50, [832, 51_264, 51_250], 510),
    ("convnet-c", (3, 32, 32), 10, 64, [896, 18_496, 36_928, 65_600], 650),
    ("convnet-c", (3, 32, 32), 100, 64, [896, 18_496, 36_928, 65_600], 6_500),
]
# model, shape, classes: the sums that section 6.6 prints
TOTALS = {
    ("cnn-digits", (1, 8, 8), 10): (37_632, 38_282),
    ("mlp-100", (784,), 10): (78_500, 79_510),
    ("cnn-5x5", (1, 28, 28), 10): (576_896, 582_026),
    ("cnn-5x5", (3, 32, 32), 10): (873_408, 878_538),
    ("cnn-5x5", (3, 32, 32), 100): (873_408, 924_708),
    ("cnn-5x5", (3, 64, 64), 200): (5_592_000, 5_694_600),
    ("convnet-f", (1, 28, 28), 10): (52_096 + 51_250, 103_856),
    ("convnet-c", (3, 32, 32), 10): (56_320 + 65_600, 122_570),
    ("convnet-c", (3, 32, 32), 100): (56_320 + 65_600, 128_420),
    ("resnet18", (3, 32, 32), 100): (11_176_512, 11_227_812),
    ("resnet18-3x3", (3, 32, 32), 100): (11_168_832, 11_220_132),
}
RESNET_LAYERS = ["layer1", "layer2", "layer3", "layer4", "pool"]

TASK = Classes.numbered(CLASSES)


def parameters(parts: Parts, selector: str = "*") -> int:
    tensors = parts.tensors()
    return sum(tensors[name].numel() for name in parts.select(selector) if name not in parts.buffers)


def same(one: Parts, two: Parts) -> bool:
    first, second = one.tensors(), two.tensors()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def resnet() -> Parts:
    return models.build("resnet18", (3, 32, 32), 100).initialise(0)


# ------------------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(("name", "shape", "classes", "size", "layers", "head"), COUNTS)
def test_every_layer_has_the_parameters_of_its_paper(name, shape, classes, size, layers, head):
    parts = models.build(name, shape, classes)
    assert [parameters(parts, f"body.{layer}") for layer in parts.layers("body")] == layers
    assert parameters(parts, "head") == head
    assert check_and_measure(parts, torch.ones(2, *shape), Classes.numbered(classes)) == size


@pytest.mark.parametrize(("name", "shape", "classes"), TOTALS)
def test_extractor_and_total_are_those_of_the_table(name, shape, classes):
    parts = models.build(name, shape, classes)
    extractor, total = TOTALS[name, shape, classes]
    assert (parameters(parts, "body"), parameters(parts)) == (extractor, total)


@pytest.mark.parametrize("classes", [7, 10, 65, 100, 200])
@pytest.mark.parametrize(("name", "body"), [("resnet18", 11_176_512), ("resnet18-3x3", 11_168_832)])
def test_resnet18_has_as_many_parameters_at_every_size(name, body, classes):
    parts = models.build(name, (3, 64, 64), classes)
    assert parameters(parts, "body") == body
    assert parameters(parts, "head") == 512 * classes + classes


@pytest.mark.parametrize("name", ["resnet18", "resnet18-3x3"])
@pytest.mark.parametrize("pixels", [32, 64])
def test_resnet18_has_512_features_whatever_the_size_of_the_image(name, pixels):
    parts, images = models.build(name, (3, pixels, pixels), 10), torch.ones(2, 3, pixels, pixels)
    assert check_and_measure(parts, images, Classes.numbered(10)) == 512


@pytest.mark.parametrize("name", ["resnet18", "resnet18-3x3"])
def test_resnet18_has_9600_affine_parameters_and_9600_running_values(name):
    parts = models.build(name, (3, 32, 32), 100)
    tensors = parts.tensors()
    assert parameters(parts, "@norm") == 9_600
    assert sum(tensors[buffer].numel() for buffer in parts.buffers) == 9_600
    assert parts.buffers <= set(parts.select("@norm"))


@pytest.mark.parametrize(
    ("name", "shape", "channels"),
    [
        ("cnn-digits", (1, 8, 8), [16, 32]),
        ("cnn-5x5", (1, 28, 28), [32, 64]),
        ("convnet-f", (1, 28, 28), [32, 64]),
        ("convnet-c", (3, 32, 32), [32, 64, 64]),
        ("mlp-100", (784,), [100]),
        ("tabular", (30,), [64, 32]),
    ],
)
def test_batch_norm_adds_two_parameters_and_two_running_values_a_channel(name, shape, channels):
    plain, normed = models.build(name, shape, 10), models.build(name, shape, 10, norm=True)
    assert not plain.buffers
    assert parameters(normed) - parameters(plain) == 2 * sum(channels)
    assert [value.numel() for key, value in normed.tensors().items() if key.endswith("running_var")] == channels
    norms = 0
    for layer in normed.modules["body"]:
        kinds = [type(module) for module in layer]
        for at in [number for number, kind in enumerate(kinds) if kind in (nn.BatchNorm1d, nn.BatchNorm2d)]:
            assert kinds[at - 1] in (nn.Conv2d, nn.Linear) and kinds[at + 1] is nn.ReLU
            norms += 1
    assert norms == len(channels)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn-digits", (1, 8, 8)), ("mlp-100", (64,)), ("tabular", (30,)), ("resnet18-3x3", (3, 32, 32))],
)
def test_dropout_is_the_last_thing_before_the_head(name, shape):
    parts = models.build(name, shape, 10, dropout=0.3)
    drops = [module for part in parts.modules.values() for module in part.modules() if isinstance(module, nn.Dropout)]
    assert [drop.p for drop in drops] == [0.3]
    assert list(parts.modules["body"].modules())[-1] is drops[0]
    assert parameters(parts) == parameters(models.build(name, shape, 10))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((30,), "tabular"),
        ((12, 30), "mlp-100"),
        ((1, 8, 8), "cnn-digits"),
        ((1, 28, 28), "convnet-f"),
        ((3, 32, 32), "cnn-5x5"),
    ],
)
def test_the_usual_network_goes_by_the_shape_of_a_sample(shape, name):
    assert models.usual(shape) == name
    parts = models.build(models.usual(shape), shape, 3)
    assert check_and_measure(parts, torch.ones(2, *shape), Classes.numbered(3)) > 0


# --------------------------------------------------------------------------------------------------- projector

# depth, hidden, batch-norm, parameters: the seven rows of DualFed's table on projectors (spec 3.5 and 3.7)
PROJECTORS = [
    (1, 256, True, 263_680),
    (2, 256, True, 264_448),
    (3, 256, True, 330_752),
    (2, 64, True, 67_264),
    (2, 128, True, 132_992),
    (2, 512, True, 527_360),
    (2, 256, False, 262_912),
]


@pytest.mark.parametrize(("depth", "hidden", "norm", "number"), PROJECTORS)
def test_a_projector_has_the_parameters_of_its_row(depth, hidden, norm, number):
    projector = models.projector(512, depth, hidden, norm)
    assert sum(value.numel() for value in projector.parameters()) == number
    assert projector(torch.zeros(2, 512)).shape == (2, 512)
    layer = ["Linear", "ReLU", *["BatchNorm1d"] * norm]
    kinds = layer * (depth - 1) + ["Linear", *["BatchNorm1d"] * norm]  # ReLU before batch-norm, none at the end
    assert [type(module).__name__ for module in projector] == kinds


def test_the_usual_projector_is_that_of_the_paper():
    assert sum(value.numel() for value in models.projector(512).parameters()) == 264_448


IMAGES = torch.ones(2, 1, 8, 8)


def drawn(model: str | Parts, **settings) -> Parts:
    """The network of a run on the awkward federation."""
    name, handed = (model, None) if isinstance(model, str) else ("auto", model)
    return draw(make_config("fedavg", {"model": name, **settings}), awkward_federation().source, handed, IMAGES)


@pytest.mark.parametrize("name", ["cnn-digits", "mlp-100", "tabular", "resnet18-3x3"])
def test_every_model_takes_a_projector_as_the_last_layer_of_its_body(name):
    plain, projected = drawn(name, seed=3), drawn(name, seed=3, projector=True)
    assert projected.chain == ("body", "head")
    assert projected.layers("body") == [*plain.layers("body"), "projector"]
    assert len({check_and_measure(parts, IMAGES, TASK) for parts in (plain, projected)}) == 1
    # all else is as without it, and it is drawn like a part of that name: DualFed's has the same values
    tensors = projected.tensors()
    assert all(torch.equal(value, tensors[name]) for name, value in plain.tensors().items())
    as_part = plain.add("projector", models.projector(check_and_measure(plain, IMAGES, TASK)))
    assert projected.select("body.projector") == [f"body.{name}" for name in as_part.select("projector")]
    assert all(torch.equal(tensors[f"body.{name}"], as_part.tensors()[name]) for name in as_part.select("projector"))
    cut = projected.cut("body", filter="projector")
    assert cut.layers("body") == plain.layers("body") and cut.layers("filter") == ["projector"]


def test_a_network_that_is_handed_in_takes_a_projector_too():
    parts = drawn(network("cnn"), projector=True)
    assert parts.layers("body") == ["conv1", "conv2", "fc1", "projector"]
    assert {value.dtype for value in parts.tensors().values()} == {torch.float64}
    opaque = drawn(Opaque(), projector=True)
    assert opaque.layers("body") == ["backbone", "projector"] and check_and_measure(opaque, IMAGES, TASK) == 6
    with pytest.raises(ConfigError, match=r"^unknown part 'body'; known: 0, 1$"):
        drawn(nn.Sequential(nn.Conv2d(1, CLASSES, 8), nn.Flatten()), projector=True)
    with pytest.raises(ConfigError, match=r"^part 'body' has a layer 'projector' already; its layers: conv1, "):
        drawn(parts, projector=True)


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.flatten(1))))


def test_the_engines_agree_on_a_projector():
    settings = {"rounds": 1, "projector": True, "lr": 0.01}
    loop, vector = (simulate("fedper", network("mlp"), engine=engine, **settings) for engine in ("loop", "vector"))
    assert distance(loop, vector) < 1e-10


def test_settings_of_networks_by_name_are_refused_for_one_that_is_handed_in():
    for setting in ({"batch_norm": True}, {"dropout": 0.5}):
        with pytest.raises(ConfigError, match="batch_norm and dropout apply to networks by name"):
            drawn(network("cnn"), **setting)


# ------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [
        ("cnn-digits", (1, 8, 8), ["conv1", "conv2", "fc1"]),
        ("mlp-100", (784,), ["fc1"]),
        ("tabular", (30,), ["fc1", "fc2"]),
        ("cnn-5x5", (1, 28, 28), ["conv1", "conv2", "fc1"]),
        ("convnet-f", (1, 28, 28), ["conv1", "conv2", "fc1"]),
        ("convnet-c", (3, 32, 32), ["conv1", "conv2", "conv3", "fc1"]),
        ("resnet18", (3, 32, 32), ["conv1", "bn1", "relu", "maxpool", *RESNET_LAYERS]),
        ("resnet18-3x3", (3, 32, 32), ["conv1", "bn1", "relu", *RESNET_LAYERS]),
    ],
)
def test_layers_are_named(name, shape, layers):
    parts = models.build(name, shape, 10)
    assert parts.chain == ("body", "head")
    assert parts.layers("body") == layers and parts.layers("head") == []
    assert repr(parts) == f"parts: body ({' > '.join(layers)}), head"


def test_resnet18_has_the_usual_names(resnet):
    names = {name.removeprefix("body.") for name in resnet.select("body")}
    usual = {"conv1.weight", *(f"bn1.{kind}" for kind in ("weight", "bias", "running_mean", "running_var"))}
    for stage in range(1, 5):
        for block in (0, 1):
            layers = {f"conv{number}.weight" for number in (1, 2)}
            layers |= {
                f"bn{number}.{kind}" for number in (1, 2) for kind in ("weight", "bias", "running_mean", "running_var")
            }
            if stage > 1 and block == 0:
                layers |= {"downsample.0.weight"}
                layers |= {f"downsample.1.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")}
            usual |= {f"layer{stage}.{block}.{layer}" for layer in layers}
    assert names == usual
    assert len(resnet.tensors()) == 102  # 62 parameters and 40 running values


@pytest.mark.parametrize(("name", "conv1", "stage1"), [("resnet18", 16, 8), ("resnet18-3x3", 32, 32)])
def test_the_stem_and_the_stages_of_resnet18_shrink_the_image_as_its_paper_says(name, conv1, stage1):
    x = torch.zeros(1, 3, 32, 32)
    sizes = {}
    for layer, module in models.build(name, (3, 32, 32), 10).modules["body"].eval().named_children():
        x = module(x)
        sizes[layer] = tuple(x.shape[1:])
    assert sizes["conv1"] == (64, conv1, conv1)
    for number, channels in enumerate((64, 128, 256, 512)):
        pixels = stage1 // 2**number
        assert sizes[f"layer{number + 1}"] == (channels, pixels, pixels)


# ---------------------------------------------------------------------------------------------- initial values


def test_convolutions_of_resnet18_are_normal_by_the_number_of_outgoing_connections(resnet):
    convolutions = {name: value for name, value in resnet.tensors().items() if value.dim() == 4}
    assert len(convolutions) == 20
    for name, weight in convolutions.items():
        std = math.sqrt(2 / (weight.shape[0] * weight.shape[2] * weight.shape[3]))
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.05), name
        assert abs(float(weight.detach().mean())) < 6 * std / math.sqrt(weight.numel()), name
        assert float(weight.detach().abs().max()) > 3 * std, name  # uniform values of this deviation end at 1.73


def test_normalisation_layers_start_at_the_identity(resnet):
    tensors = resnet.tensors()
    start = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    for name in resnet.select("@norm"):
        assert torch.equal(tensors[name], torch.full_like(tensors[name], start[name.rpartition(".")[2]])), name


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn-digits", (1, 8, 8)),
        ("mlp-100", (784,)),
        ("tabular", (30,)),
        ("cnn-5x5", (1, 28, 28)),
        ("convnet-f", (1, 28, 28)),
        ("convnet-c", (3, 32, 32)),
    ],
)
def test_other_networks_are_drawn_as_the_framework_does(name, shape):
    """Kaiming-uniform with a = sqrt(5) and its bias: both uniform within 1 / sqrt(fan in)."""
    parts = models.build(name, shape, 10).initialise(1)
    layers = [layer for part in parts.modules.values() for layer in part.modules()]
    layers = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == len(parts.tensors()) / 2
    for layer in layers:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        for tensor in (layer.weight, layer.bias):
            assert float(tensor.detach().abs().max()) <= bound
        assert float(layer.weight.detach().abs().max()) > 0.9 * bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_the_head_of_resnet18_is_drawn_as_the_framework_does(resnet):
    weight = resnet.tensors()["head.weight"].detach()
    bound = 1 / math.sqrt(512)
    assert 0.99 * bound < float(weight.abs().max()) <= bound


def test_the_same_seed_draws_the_same_values_and_another_seed_others():
    undrawn = models.build("cnn-digits", (1, 8, 8), 10, norm=True)
    assert same(undrawn.initialise(5), undrawn.initialise(5))
    one, other = undrawn.initialise(5).tensors(), undrawn.initialise(6).tensors()
    for name in one:
        constant = ".1." in name and "conv" in name  # batch-norm
        assert torch.equal(one[name], other[name]) == constant, name


def test_drawing_neither_reads_nor_moves_torchs_global_generator():
    draws = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        undrawn = models.build("cnn-digits", (1, 8, 8), 10)
        before = torch.random.get_rng_state()
        draws.append(undrawn.initialise(3).like("head", name="second"))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert same(*draws)


def test_initialise_leaves_the_parts_it_was_called_on():
    undrawn = models.build("cnn-digits", (1, 8, 8), 10)
    before = {name: value.detach().clone() for name, value in undrawn.tensors().items()}
    drawn = undrawn.initialise(0)
    after: dict[str, Tensor] = undrawn.tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not same(undrawn, drawn) and undrawn.seed == 0


def test_a_part_is_drawn_by_its_name_alone():
    """A head of the same shape has the same values on every body, in any place, and under no other name."""
    digits = models.build("cnn-digits", (1, 8, 8), 10).initialise(4).tensors()
    images = models.build("convnet-c", (3, 32, 32), 10).initialise(4).tensors()
    alone = Parts(nn.Sequential(OrderedDict(head=nn.Linear(64, 10), other=nn.Linear(64, 10)))).initialise(4).tensors()
    for name in ("head.weight", "head.bias"):
        assert torch.equal(digits[name], images[name]) and torch.equal(digits[name], alone[name])
    assert not torch.equal(alone["other.weight"], alone["head.weight"])


def test_values_are_drawn_in_single_precision_and_so_the_same_at_every_precision():
    single = models.build("cnn-digits", (1, 8, 8), 10)
    double = models.build("cnn-digits", (1, 8, 8), 10)
    for module in double.modules.values():
        module.double()
    assert same(single.initialise(2), double.initialise(2))


# --------------------------------------------------------------------------------------------------- refusals


def test_an_unknown_model_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"^unknown model 'cnn-5x6'; did you mean 'cnn-5x5'\? known: auto, cnn, "):
        models.build("cnn-5x6", (1, 28, 28), 10)


@pytest.mark.parametrize("name", ["cnn-digits", "cnn-5x5", "convnet-f", "convnet-c", "resnet18", "resnet18-3x3"])
def test_samples_that_are_no_images_are_refused(name):
    with pytest.raises(ConfigError, match=r"takes images \(channels, height, width\), not samples of shape \(784,\)"):
        models.build(name, (784,), 10)


@pytest.mark.parametrize(("name", "shape"), [("cnn-5x5", (1, 15, 15)), ("convnet-c", (3, 17, 17))])
def test_images_that_are_too_small_are_refused_and_one_pixel_more_is_not(name, shape):
    enough = (shape[0], shape[1] + 1, shape[2] + 1)
    with pytest.raises(ConfigError) as refusal:
        models.build(name, shape, 10)
    assert str(refusal.value).startswith(f"model '{name}' does not take samples of shape {shape}: it needs {enough}")
    models.build(name, enough, 10)
