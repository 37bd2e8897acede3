"""Networks of one's own keep their names; code is only executed where it is trusted."""

import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import partwise
from partwise import ConfigError, Method, Parts
from tests.support.patients import in_the_run, taken

COMMON = {"data": "made", "clients": 2, "rounds": 1, "train_samples": 24, "lr": 0.05, "dtype": "float64"}


class Net(nn.Module):
    """With whole numbers among its buffers, and a prefix that weights of other programs have."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.again = nn.Linear(12, 12)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.again(self.network(x.flatten(1)))))


class Mine(Method):
    """A method of one's own."""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return partwise.run("fedavg", model=Net(), out=folder, **COMMON), folder


def test_the_state_dict_is_that_of_the_network(own):
    result, folder = own
    net = Net().double()
    net.load_state_dict(load_file(folder / "models" / "client-001.safetensors"))
    x, logits = in_the_run(result)
    model = partwise.load_model(folder, client=1, model=Net())
    assert model.manifest.plain
    assert torch.allclose(net.eval()(model.personal.standardised(x)), logits["1"], rtol=0, atol=1e-10)
    assert torch.equal(model(x), logits["1"])


def test_what_a_method_adds_lies_beside_the_network(tmp_path):
    result = partwise.run("fedrod", model=Parts(Net(), head="out"), out=tmp_path, **COMMON)
    Net().load_state_dict(load_file(tmp_path / "models" / "client-000.safetensors"))
    beside = load_file(tmp_path / "models" / "client-000.extra.safetensors")
    assert {name.split(".")[0] for name in beside} == {"p_head"}
    x, logits = in_the_run(result)
    model = partwise.load_model(tmp_path, client=0, model=Parts(Net(), head="out"))
    assert torch.equal(model(x), logits["0"]) and not model.manifest.plain


def test_a_network_is_imported_where_that_is_trusted(own):
    line = "the network of this run is your own class tests.inference.test_own_networks:Net: pass it"
    with pytest.raises(ConfigError, match=line):
        partwise.load_model(own[1], client=0)
    one, other = partwise.load_model(own[1], 0, trust=True), partwise.load_model(own[1], 0, model=Net())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_another_network_is_refused(own, tmp_path):
    other = Net()
    other.out = nn.Sequential(nn.Linear(12, 7), nn.Linear(7, 10))
    with pytest.raises(
        ConfigError, match=r"does not fit the network: body\.out\.0\.weight is missing there and \(7, 12\) here"
    ):
        partwise.load_model(own[1], 0, model=other)
    divided = Parts(Net(), body=[nn.Flatten(), "network"], head="again", tail=[nn.ReLU(), "out"])
    with pytest.raises(ConfigError, match="has the parts body, head, tail, the run's has body, head"):
        partwise.load_model(own[1], 0, model=divided)
    partwise.run("fedavg", model="mlp-100", out=tmp_path, **COMMON)
    with pytest.raises(ConfigError, match="'mlp-100', which partwise builds by name; leave out model"):
        partwise.load_model(tmp_path, model=Net())


def test_fault_54_no_code_of_a_run_is_executed_without_trust(tmp_path):
    """A method file in the run's folder, and a class that would have to be imported."""
    mark = f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\n"
    (tmp_path / "told.py").write_text(f"{mark}from partwise import Method\nclass Told(Method):\n    pass\n")
    partwise.run(str(tmp_path / "told.py"), model="mlp-100", out=tmp_path / "run", **COMMON)
    folder = taken(tmp_path / "run", tmp_path / "elsewhere")
    (tmp_path / "executed").unlink()
    with pytest.raises(ConfigError, match=r"needs code to predict, .*told.py: read it first, then .* trust=True"):
        partwise.load_model(folder)
    assert not (tmp_path / "executed").exists()
    assert partwise.load_model(folder, trust=True).classes[:2] == ("0", "1")
    assert (tmp_path / "executed").exists()
    (folder / "method-copy.py").write_text("raise SystemError")
    with pytest.raises(partwise.DataError, match=r"method-copy.py' is damaged or another file"):
        partwise.load_model(folder, trust=True)

    partwise.run(Mine, model="mlp-100", out=tmp_path / "class", **COMMON)
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=r"needs code to predict, class tests.inference.test_own_networks:Mine"):
        partwise.load_model(tmp_path / "class")
    assert set(sys.modules) == before
    assert partwise.load_model(tmp_path / "class", trust=True).manifest.method.name.endswith("Mine")
