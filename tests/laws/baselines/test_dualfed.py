"""DualFed: both losses and every prediction by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from partwise.errors import ConfigError
from partwise.losses import supervised_contrast
from partwise.method import ALL, LOCAL
from partwise.methods.dualfed import DualFed
from tests.support.plain import batch_of, net_of
from tests.support.runs import network


def handed(method):
    """A client's network, and both representations of a batch."""
    net, b = net_of(method.build(network("mlp"), SimpleNamespace(features=100))), batch_of(0)
    z = net.body(b.x)
    return net, b, z, net.projector(z)


@pytest.mark.parametrize(("position", "on"), [("dualfed", "z"), ("p", "u"), ("g", "u")])
def test_losses(position, on):
    """Line 19; the global classifier learns alone, or teaches the encoder too where all learn at once."""
    method = DualFed(contrast_weight=3.0, temperature=0.7, classifier_position=position, projector_norm=False)
    net, b, z, u = handed(method)
    main = cross_entropy(net.p_head(u), b.y) + 3 * supervised_contrast(u, b, 0.7)
    generic = cross_entropy(net.head({"z": z, "u": u}[on]), b.y)
    assert torch.allclose(method.main(net, b, None), main, rtol=1e-12)
    assert torch.allclose(method.generic(net, b, None), generic, rtol=1e-12)
    assert torch.allclose(method.together(net, b, None), main + generic, rtol=1e-12)
    taught = {
        loss: {name.split(".")[0] for name, value in net.grad(getattr(method, loss), b, None).items() if value.any()}
        for loss in ("main", "generic", "together")
    }
    assert taught["main"] == {"body", "projector", "p_head"} and taught["generic"] == {"head"}
    assert taught["together"] == taught["main"] | taught["generic"]
    alone = net.grad(method.main, b, None)["body.fc1.1.weight"]
    assert not torch.allclose(net.grad(method.together, b, None)["body.fc1.1.weight"], alone)


@pytest.mark.parametrize("position", ["dualfed", "g"])
def test_predictions(position):
    net, b, z, u = handed(DualFed(projector_norm=False))
    personal, generic = net.p_head(u), net.head(z if position == "dualfed" else u)
    probabilities = personal.softmax(1) + generic.softmax(1)
    expected = {"logits": personal + generic, "personal": personal, "global": generic, "probs": probabilities.log()}
    for ensemble, value in expected.items():
        method = DualFed(ensemble=ensemble, classifier_position=position)
        assert torch.allclose(method.predict(net, b.x, None), value, rtol=1e-12), ensemble
        assert torch.equal(method.predict_global(net, b.x), generic)


def test_behind_a_projector_that_nobody_shares_no_classifier_is_global():
    assert DualFed(classifier_position="p").predict_global is None
    shares = {position: next(iter(DualFed(classifier_position=position).stages())).share for position in "pg"}
    assert shares["p"] == {"body": ALL, "head": ALL, "projector": LOCAL, "p_head": LOCAL}
    assert shares["g"] == {**shares["p"], "projector": ALL}


def test_phases():
    [together] = [DualFed(strategy="simultaneous").phases()]
    assert [(move.parts, move.loss) for move in together.moves] == [("*", "together")]
    main, generic = DualFed(stage2_bn="eval").phases()
    assert [(phase.moves[0].parts, phase.mode) for phase in (main, generic)] == [
        ("body projector p_head", "train"),
        ("head", "eval"),
    ]


def test_what_is_not_allowed_is_refused():
    with pytest.raises(ConfigError, match="temperature = 0"):
        DualFed(temperature=0.0)
