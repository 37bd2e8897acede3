"""DualFed's comparison: with `--projector` every method has the same representation, and its classifier behind it."""

import pytest

from partwise.method import ALL, FROZEN, LOCAL
from partwise.papers.tables import read_paper
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.runs import awkward_federation, network, simulate

# Who shares the representation, and who the classifier.
SHARES = {
    "local": (LOCAL, LOCAL),
    "fedavg": (ALL, ALL),
    "fedprox": (ALL, ALL),
    "fedper": (ALL, LOCAL),
    "fedrep": (ALL, LOCAL),
    "lg_fedavg": (LOCAL, ALL),
    "fedbn": (ALL, ALL),
    "fedproto": (LOCAL, LOCAL),
    "spherefed": (ALL, FROZEN),
    "fedrod": (ALL, ALL),
    "fedetf": (ALL, FROZEN),
}
LINEAR, NORM, RUNNING = "projector.0.weight", "projector.2.weight", "projector.2.running_mean"


def test_these_are_the_methods_of_the_comparison():
    assert list(SHARES) == [row.method for row in read_paper("dualfed/baselines").rows[:-1]]


@pytest.mark.parametrize(
    ("method", "shares"),
    SHARES.items(),
)
def test_encoder_and_projector_are_the_representation(method, shares):
    config = make_config(method, {"clients": 8, "projector": True, "dtype": "float64", "device": "cpu", "batch": 8})
    run = prepare(config, awkward_federation(), network("resnet"))
    share, parts = run.server.plan.share, run.program.parts
    where = "projector." if method == "fedetf" else "body."  # it takes the place of FedETF's own projection
    representation, classifier = shares
    assert share["body.conv1.weight"] == share[where + LINEAR] == representation
    assert share[where + NORM] == (LOCAL if method == "fedbn" else representation)
    assert share[where + RUNNING] == share["body.bn1.running_var"] == LOCAL
    assert share["head.weight"] == classifier and share.get("p_head.weight", LOCAL) == LOCAL
    heads = [value for name, value in parts.tensors().items() if name in ("head.weight", "p_head.weight")]
    assert len(heads) == (2 if method == "fedrod" else 1)
    assert all(value.shape == (4, 64) for value in heads)  # as many features as the encoder of this narrow ResNet has


def test_fedetf_projects_with_the_projector_or_with_a_linear_layer_of_its_own():
    for projector, body, projection in ((True, {"fc1"}, {"projector"}), (False, {"fc1"}, {"weight", "bias"})):
        settings = {"projector": projector, "personal_rounds": 1, "personal_epochs": 1}
        parts = simulate("fedetf", network("mlp"), rounds=1, **settings).program.parts
        assert {name.split(".")[1] for name in parts.select("body")} == body
        assert {name.split(".")[1] for name in parts.select("projector")} == projection
