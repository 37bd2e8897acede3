"""Attention and recurrent layers as they are taken in equal torch's, and their dropout is a client's own."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partwise.errors import ConfigError
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts, redraw
from partwise.network.sequences import Attention, Recurrent
from partwise.network.view import Net
from tests.support.layers import close, rows

ROWS, STEPS, FEATURES = 5, 7, 6
RECURRENT = [
    nn.LSTM(FEATURES, 4),
    nn.LSTM(FEATURES, 4, num_layers=3, bidirectional=True, batch_first=True),
    nn.LSTM(FEATURES, 4, num_layers=2, proj_size=3, bidirectional=True),
    nn.LSTM(FEATURES, 4, num_layers=2, bias=False),
    nn.GRU(FEATURES, 4, num_layers=2, batch_first=True),
    nn.GRU(FEATURES, 4, num_layers=2, bidirectional=True, bias=False),
    nn.RNN(FEATURES, 4, num_layers=2, bidirectional=True),
    nn.RNN(FEATURES, 4, nonlinearity="relu", batch_first=True),
]


def taken_in(layer: nn.Module) -> nn.Module:
    """What stands in a layer's place; it is called as a user's forward calls it."""
    return Parts(nn.Sequential(OrderedDict(layer=layer))).prepared(LayerScope()).modules["layer"]


def same(one, two) -> bool:
    first, second = ([leaf for leaf in tree_leaves(tree) if leaf is not None] for tree in (one, two))
    return len(first) == len(second) and all(map(close, first, second))


def same_gradients(one: nn.Module, two: nn.Module, outputs) -> bool:
    """Whether both layers send the same gradient to every parameter, by name."""
    for output in outputs:
        sum(value.square().sum() for value in tree_leaves(output)).backward()
    first, second = dict(one.named_parameters()), dict(two.named_parameters())
    return list(first) == list(second) and all(close(first[name].grad, second[name].grad, 1e-11) for name in first)


@pytest.mark.parametrize("layer", RECURRENT, ids=str)
def test_a_recurrent_layer_is_torchs(layer):
    """Outputs, last states and gradients, from zero and from states that are handed in."""
    theirs = copy.deepcopy(layer).double()
    ours = taken_in(theirs)
    assert isinstance(ours, Recurrent)
    x = rows(ROWS, (STEPS, FEATURES), seed=0)
    first, second = theirs(x), ours(x)
    again = theirs(x, first[1]), ours(x, second[1])
    assert same(first, second) and same(*again)
    assert same_gradients(theirs, ours, again)


def test_a_recurrent_layer_is_drawn_anew_as_torchs_is():
    layer = nn.LSTM(FEATURES, 4, num_layers=2)
    theirs, ours = redraw(layer, 3), redraw(taken_in(layer), 3)
    assert all(map(torch.equal, theirs.parameters(), ours.parameters()))


@pytest.mark.parametrize("settings", [{}, {"batch_first": True}, {"bias": False}, {"kdim": 3, "vdim": 4}], ids=str)
@pytest.mark.parametrize(
    "mask", ["none", "no weights", "weights of every head", "causal", "of numbers", "padding", "a row and head"]
)
def test_attention_is_torchs(settings, mask):
    theirs = nn.MultiheadAttention(FEATURES, 2, **settings).double()
    ours = taken_in(theirs)
    assert isinstance(ours, Attention)
    number, steps = (ROWS, STEPS) if theirs.batch_first else (STEPS, ROWS)
    causal = torch.ones(steps, steps, dtype=torch.bool).triu(1)
    masks = {
        "no weights": {"need_weights": False},
        "weights of every head": {"average_attn_weights": False},
        "causal": {"attn_mask": causal},
        "of numbers": {"attn_mask": rows(steps, (steps,), seed=4)},
        "padding": {"key_padding_mask": torch.arange(steps).expand(number, -1) >= 3},
        "a row and head": {"attn_mask": rows(2 * number, (steps, steps), seed=5)},
    }
    x = [
        rows(ROWS, (STEPS, size), seed) for seed, size in enumerate((FEATURES, theirs.kdim, theirs.vdim))
    ]  # queries, keys, values
    outputs = theirs(*x, **masks.get(mask, {})), ours(*x, **masks.get(mask, {}))
    assert same(*outputs) and same_gradients(theirs, ours, [output[0] for output in outputs])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_a_transformer_is_torchs_in_training_and_evaluation(training, padded):
    """In evaluation torch takes another path, with tensors nested in one another where tokens are padded."""
    layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).double().train(training)
    ours = taken_in(theirs).train(training)
    padding = torch.arange(STEPS).expand(ROWS, -1) >= 4 if padded else None
    x = rows(ROWS, (STEPS, FEATURES), seed=0)
    with torch.no_grad():
        one, two = (net(x, src_key_padding_mask=padding) for net in (theirs, ours))
    real = slice(4) if padded else slice(None)  # what becomes of padding is nothing to anybody
    assert close(one[:, real], two[:, real]) and not torch.equal(two, x)


class Sequences(nn.Module):
    """A layer for sequences, by its own."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer(x, x, x) if isinstance(self.layer, Attention) else self.layer(x)
        return result[0] if isinstance(result, tuple) else result


DROPPING = {
    "attention": nn.MultiheadAttention(FEATURES, 2, dropout=0.5, batch_first=True),
    "transformer": nn.TransformerEncoderLayer(FEATURES, 2, 8, batch_first=True),  # 0.1, its default
    "lstm": nn.LSTM(FEATURES, 4, num_layers=2, dropout=0.5, batch_first=True),
    "gru": nn.GRU(FEATURES, 4, num_layers=2, dropout=0.5, batch_first=True),
}


@pytest.mark.parametrize("layer", DROPPING.values(), ids=DROPPING)
def test_dropout_inside_is_drawn_from_the_clients_key_row_by_row(layer):
    scope = LayerScope()
    parts = Parts(nn.Sequential(OrderedDict(body=Sequences(copy.deepcopy(layer).double())))).prepared(scope)
    x = rows(ROWS, (STEPS, FEATURES), seed=0)

    def run(key: int, x: Tensor = x, training: bool = True) -> Tensor:
        with torch.no_grad():
            return Net(parts, scope, parts.tensors(), training=training, key=torch.tensor(key))(x)

    assert torch.equal(run(3), run(3)) and not torch.equal(run(3), run(4))
    assert close(run(3)[:2], run(3, x[:2]))  # padded rows behind change nothing
    assert torch.equal(run(3, training=False), run(4, training=False))
    assert not torch.equal(run(3), run(3, training=False))


def test_every_gap_between_recurrent_layers_has_a_mask_of_its_own():
    """Layers that hand on what they get: where a number is dropped in no gap, it comes out, times 2 for each gap."""
    layer = nn.RNN(64, 64, num_layers=3, nonlinearity="relu", bias=False, dropout=0.5, batch_first=True)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.copy_(torch.eye(64) if "ih" in name else torch.zeros(64, 64))
    scope = LayerScope()
    parts = Parts(nn.Sequential(OrderedDict(body=Sequences(layer)))).prepared(scope)
    output = Net(parts, scope, parts.tensors(), training=True, key=torch.tensor(1))(torch.ones(50, 4, 64))
    assert set(output.unique().tolist()) == {0.0, 4.0}
    assert abs(float((output > 0).double().mean()) - 0.25) < 6 * (0.25 * 0.75 / output.numel()) ** 0.5


@pytest.mark.parametrize(
    ("layer", "x", "problem"),
    [
        (nn.LSTM(2, 3), torch.ones(4, 2), "LSTM is given 2 dimensions; it must get a tensor"),
        (
            nn.GRU(2, 3),
            nn.utils.rnn.pack_sequence([torch.ones(4, 2)]),
            "GRU is given PackedSequence; it must get a tensor",
        ),
        (nn.MultiheadAttention(2, 1, add_zero_attn=True), None, "with add_bias_kv or add_zero_attn is not supported"),
        (nn.MultiheadAttention(2, 1, add_bias_kv=True), None, "with add_bias_kv or add_zero_attn is not supported"),
    ],
)
def test_what_cannot_be_taken_in_is_refused(layer, x, problem):
    with pytest.raises(ConfigError, match=problem):
        taken_in(layer)(x)
