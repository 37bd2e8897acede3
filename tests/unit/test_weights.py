"""Weights from files: what fits is taken bit by bit, what does not is refused in one line, and nothing is executed."""

import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import partwise
from partwise import ALL, LOCAL, Method
from partwise.cli import main
from partwise.errors import ConfigError, DataError
from partwise.network import models
from partwise.network.models.resnet import resnet18
from partwise.network.models.weights import read_weights, with_weights
from partwise.network.parts import Parts

IMAGE = (3, 32, 32)


def narrow(seed: int = 0, classes: int = 10, width: int = 8) -> Parts:
    return resnet18(IMAGE, classes, width=width).initialise(seed)


def usual(parts: Parts) -> dict[str, Tensor]:
    """The state dict as everybody's ResNet-18 has it."""
    state = {name: value.detach().clone() for name, value in parts.modules["body"].state_dict().items()}
    return state | {f"fc.{name}": value.detach().clone() for name, value in parts.modules["head"].state_dict().items()}


def own(parts: Parts) -> dict[str, Tensor]:
    """The tensors as a client's file has them."""
    return {name: value.detach().clone() for name, value in parts.tensors().items()}


def saved(path: Path, tensors: dict, wrap=lambda tensors: tensors) -> Path:
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(wrap(tensors), path)
    return path


def equal(one: Parts, two: Parts, selector: str = "*") -> bool:
    return all(torch.equal(one.tensors()[name], two.tensors()[name]) for name in one.select(selector))


# --------------------------------------------------------------------------------------------------- what is taken


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".pt", ".PTH"])
@pytest.mark.parametrize("naming", [usual, own])
def test_a_state_dict_comes_back_bit_by_bit(tmp_path, ending, naming):
    trained = narrow(1)
    with torch.no_grad():
        for number, name in enumerate(sorted(trained.buffers)):
            trained.tensors()[name].add_(number)
    path = saved(tmp_path / f"weights{ending}", naming(trained))
    start = narrow(2)
    loaded = with_weights(start, path)
    assert equal(loaded, trained) and loaded.notes == ()
    assert equal(start, narrow(2)) and loaded.seed == start.seed  # what it was called on stays


def test_the_usual_naming_of_resnet18_is_understood(tmp_path):
    """Spelled out: these names are the promise, whatever our own layers are called."""
    names = ["conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked", "layer1.0.conv1.weight", "fc.bias"]
    names += ["layer2.0.downsample.0.weight", "layer4.1.bn2.bias", "layer3.0.downsample.1.running_var"]
    state = usual(narrow())
    assert set(names) <= set(state) and len(state) == 122
    assert equal(with_weights(narrow(5), saved(tmp_path / "r.pth", state)), narrow())


WRAPPINGS = {
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model": lambda state: {"model": state},
    "in one another": lambda state: {"model": {"state_dict": state}},
    "DataParallel": lambda state: {f"module.{name}": value for name, value in state.items()},
    "torch.compile": lambda state: {"state_dict": {f"_orig_mod.module.{name}": v for name, v in state.items()}},
    "OrderedDict": OrderedDict,
}


@pytest.mark.parametrize(
    "wrapping",
    ["in one another", "torch.compile", "state_dict", "model", "DataParallel", "OrderedDict"],
)
def test_common_wrappings_are_removed(tmp_path, wrapping):
    path = saved(tmp_path / "r.pth", usual(narrow(1)), WRAPPINGS[wrapping])
    assert equal(with_weights(narrow(2), path), narrow(1))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn-digits", (1, 8, 8)), ("mlp-100", (64,)), ("tabular", (9,)), ("convnet-c", (3, 32, 32))],
)
@pytest.mark.parametrize("naming", [usual, own])
def test_every_model_takes_weights(tmp_path, name, shape, naming):
    one, two = (models.build(name, shape, 5, norm=True).initialise(seed) for seed in (1, 2))
    assert equal(with_weights(two, saved(tmp_path / "weights.pt", naming(one))), one)


def test_half_precision_is_taken_in_the_precision_of_the_network(tmp_path):
    path = saved(tmp_path / "half.safetensors", {name: value.half() for name, value in own(narrow(1)).items()})
    loaded = with_weights(narrow(2), path).tensors()
    for name, value in own(narrow(1)).items():
        assert loaded[name].dtype is torch.float32 and torch.equal(loaded[name], value.half().float())


@pytest.mark.parametrize("naming", [usual, own])
def test_a_classifier_of_another_shape_is_drawn_and_said_so(tmp_path, naming):
    path = saved(tmp_path / "r.pth", naming(narrow(1, classes=1000)))
    loaded = with_weights(narrow(2, classes=7), path)
    layer = "fc" if naming is usual else "head"
    assert loaded.notes == (
        f"weights: head does not come from '{path}': {layer}.weight is (1000, 64) there and (7, 64) here",
    )
    assert equal(narrow(2, classes=7), loaded, "head") and equal(narrow(1), loaded, "body")


def test_a_file_without_classifier_and_projector_leaves_both_as_drawn(tmp_path):
    body = {name: value for name, value in usual(narrow(1)).items() if not name.startswith("fc.")}
    path = saved(tmp_path / "r.safetensors", body)
    start = narrow(2).append("body", "projector", models.projector(64))
    loaded = with_weights(start, path)
    assert loaded.notes == (
        f"weights: head does not come from '{path}': head.weight (10, 64) is not there",
        f"weights: body.projector does not come from '{path}': body.projector.0.weight (256, 64) is not there",
    )
    assert equal(start, loaded, "head body.projector")
    assert equal(narrow(1), loaded, "body")
    again = with_weights(
        narrow(3).append("body", "projector", models.projector(64)), saved(tmp_path / "p.pt", own(loaded))
    )
    assert equal(again, loaded) and not again.notes


# ------------------------------------------------------------------------------ what one run leaves to another


class Added(Method):
    """A part beside the chain, one that is cut from the body, a guide and a memory."""

    share = {"body": ALL, "head": partwise.GUIDE, "filter": LOCAL, "mine": LOCAL}

    def build(self, parts, sizes):
        return parts.copy("*", "mine").cut("body", filter="fc2")

    def keep(self, net):
        return {"drift": torch.zeros(3)}

    def finish(self, net, me):
        return {"drift": me.keep["drift"] + 1}, {}


def test_a_clients_model_is_the_start_of_another_run(tmp_path):
    common = {"data": "made", "clients": 2, "rounds": 1, "model": "tabular", "batch_norm": True}
    first = partwise.run(Added, **common, out=tmp_path / "first")
    path = tmp_path / "first" / "models" / "client-001.safetensors"
    tensors = first.models[1].tensors
    assert {name.partition(".")[0] for name in tensors} == {"body", "filter", "head", "mine", "got", "keep"}
    second = partwise.run("fedavg", **common, weights=str(path), lr=1e-30)
    copies = second.simulation.server.copies
    expected = {name.replace("filter.", "body."): value for name, value in tensors.items()}
    assert all(torch.equal(value.values[0], expected[name]) for name, value in copies.items())
    start = models.build("tabular", (1, 8, 8), 10, norm=True)
    by_hand = saved(tmp_path / "by-hand.pth", first.models[1].state_dict())  # as one saves any module
    assert equal(with_weights(start, by_hand), with_weights(start, path))


def test_a_network_that_is_handed_in_takes_weights_too(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(64, 6), nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x.flatten(1))))

    common = {"data": "made", "clients": 2, "rounds": 1}
    partwise.run("fedper", model=Own(), **common, out=tmp_path / "run")
    path = tmp_path / "run" / "models" / "client-000.safetensors"
    other = partwise.run("fedper", model=Own(), weights=str(path), **common, lr=1e-30)
    ours = other.simulation.program.parts.names
    assert sorted(read_weights(path)) == sorted(ours) == ["first.bias", "first.weight", "last.bias", "last.weight"]
    assert all(torch.equal(other.models[0].tensors[ours[name]], value) for name, value in read_weights(path).items())


# ------------------------------------------------------------------------------------------------ what does not fit


def change(**changes):
    def made(state: dict[str, Tensor]) -> dict[str, Tensor]:
        state = {name: value for name, value in state.items() if name not in changes}
        return state | {name: value for name, value in changes.items() if value is not None}

    return made


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (change(**{"bn1.bias": None}), "body.bn1.bias (8,) is not there"),
        (change(**{"conv1.bias": torch.ones(8)}), "conv1.bias (8,) is not in the network"),
        (change(**{"bn1.bias": torch.ones(9)}), "bn1.bias is (9,) there and (8,) here"),
        (change(**{"bn1.bias": torch.ones(1)}), "bn1.bias is (1,) there and (8,) here"),  # it would broadcast
        (change(**{"bn1.bias": torch.ones(8, dtype=torch.int8)}), "body.bn1.bias (8,) is not there"),
    ],
)
def test_a_misfit_is_refused_with_names_and_shapes(tmp_path, changed, message):
    path = saved(tmp_path / "r.pth", changed(usual(narrow())))
    with pytest.raises(ConfigError) as refusal:
        with_weights(narrow(), path)
    assert str(refusal.value) == f"'{path}' does not fit the network: {message}"


def test_the_weights_of_another_network_are_refused_in_one_short_line(tmp_path):
    path = saved(tmp_path / "r.pth", usual(narrow(width=16)))
    with pytest.raises(ConfigError) as refusal:
        with_weights(narrow(width=8), path)
    first = "conv1.weight is (16, 3, 7, 7) there and (8, 3, 7, 7) here; bn1.weight is (16,) there and (8,) here"
    assert str(refusal.value).startswith(f"'{path}' does not fit the network: {first}; ")
    assert str(refusal.value).endswith("; and 97 more")  # 62 parameters and 40 running values but 2 of the head: 100
    with pytest.raises(ConfigError, match=r"body.conv1.0.weight \(16, 1, 3, 3\) is not there"):
        with_weights(models.build("cnn-digits", (1, 8, 8), 10), path)


# ---------------------------------------------------------------------------------------------------- broken files


class Payload:
    """What a malicious pickle does: it leaves a file behind."""

    def __init__(self, sentinel: Path):
        self.sentinel = str(sentinel)

    def __reduce__(self):
        return os.mkdir, (self.sentinel,)


def test_fault_31_a_pickle_payload_is_never_executed(tmp_path):
    payload = Payload(tmp_path / "executed")
    torch.save({**usual(narrow()), "extra": payload}, tmp_path / "zip.pth")
    torch.save({"extra": payload}, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / f"bare{protocol}.pt").write_bytes(pickle.dumps(payload, protocol))
        (tmp_path / f"bare{protocol}.safetensors").write_bytes(pickle.dumps(payload, protocol))
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    files = [*tmp_path.glob("*.p*"), *tmp_path.glob("*.safetensors")]
    assert len(files) == 3 + 2 * 6
    for path in files:
        with pytest.raises(DataError, match=rf"^'{re.escape(str(path))}' (holds more than tensors|is damaged)"):
            read_weights(path)
    assert not (tmp_path / "executed").exists()
    pickle.loads((tmp_path / "bare2.pt").read_bytes())  # it would have
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.pth", None, "there is no file of weights '{}'"),
        ("weights.ckpt", b"x", "'{}' is not a file of weights; readable are .safetensors, .pth, .pt"),
        ("weights", b"x", "'{}' is not a file of weights; readable are .safetensors, .pth, .pt"),
        ("empty.pth", b"", "'{}' is damaged, or not a file of weights"),
        ("empty.safetensors", b"", "'{}' is damaged, or not a file of weights"),
        ("text.safetensors", b"not a header at all", "'{}' is damaged, or not a file of weights"),
        ("list.pth", [torch.ones(2)], "'{}' holds list, not a state dict (names and tensors)"),
        ("tensor.pth", torch.ones(2), "'{}' holds Tensor, not a state dict (names and tensors)"),
        ("nothing.pth", {}, "'{}' holds nothing, not a state dict (names and tensors)"),
        ("other.pth", {"epoch": 3, "net": {}}, "'{}' holds epoch, net, not a state dict (names and tensors)"),
        ("numbers.pth", {0: torch.ones(2)}, "'{}' holds 0, not a state dict (names and tensors)"),
    ],
)
def test_fault_10_files_that_are_no_weights_are_refused_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(DataError) as refusal:
        read_weights(path)
    assert str(refusal.value) == message.format(path)


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "weights.pth").mkdir()
    with pytest.raises(DataError, match=r"weights.pth' is a folder; weights must be a file: .safetensors, .pth, .pt$"):
        read_weights(tmp_path / "weights.pth")


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    path = saved(tmp_path / "r.pth", change(**{"bn1.bias": torch.full((8,), torch.nan)})(usual(narrow())))
    with pytest.raises(DataError, match=r"r.pth': bn1.bias holds numbers that are not finite$"):
        with_weights(narrow(), path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    tensors = own(models.build("tabular", (4,), 2).initialise(0))
    return {end: saved(folder / f"w{end}", tensors).read_bytes() for end in (".safetensors", ".pth")}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), ending=st.sampled_from([".safetensors", ".pth"]))
def test_a_damaged_file_is_refused_or_read_but_never_a_traceback(tmp_path, whole, data, ending):
    content = bytearray(whole[ending])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
            content[place] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / f"damaged{ending}"
    path.write_bytes(content)
    try:
        with_weights(models.build("tabular", (4,), 2), path)
    except (ConfigError, DataError) as refusal:
        assert str(path) in str(refusal) and "\n" not in str(refusal)


# --------------------------------------------------------------------------------------------- on the command line


def test_weights_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved(Path("w.safetensors"), usual(models.build("cnn-digits", (1, 8, 8), 3).initialise(9)))
    command = ["run", "fedper", "--data", "made", "--clients", "2", "--rounds", "1", "--quiet", "--weights"]
    assert main([*command, "w.safetensors", "--out", "run"]) == 0
    notes = (tmp_path / "run" / "environment.json").read_text(encoding="utf-8")
    assert "weights: head does not come from 'w.safetensors': fc.weight is (3, 64) there and (10, 64) here" in notes
    for path, code in (("nowhere.pth", 3), ("w.safetensors", 2)):
        assert main([*command, path, "--model", "mlp-100"]) == code
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
