"""Law P5: messages come back as they were, and one that was changed on the way does not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.network.view import ClassCounts, ClassRows, PerClient
from partwise.records.codec import Limit, Unreadable
from partwise.records.wire import copies_digest, narrow_copies, pack_tree, unpack_tree
from partwise.rounds.mixing import Copies

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw):
    shape, dtype, seed = draw(SHAPES), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99))
    return (torch.from_numpy(np.random.default_rng(seed).normal(0, 9, shape)) * 3).to(dtype)


LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text() | tensors()
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def equal(one, two):
    if isinstance(one, torch.Tensor):
        same = one.dtype == two.dtype and one.shape == two.shape
        return same and torch.equal(one.view(-1).view(torch.uint8), two.view(-1).view(torch.uint8))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(equal, one, two))
    return type(one) is type(two) and one == two


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_law_p5_what_was_packed_comes_back(tree):
    assert equal(unpack_tree(pack_tree(tree)), tree)


@given(st.dictionaries(st.text(max_size=3), tensors(), max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_law_p5_any_changed_byte_is_noticed(tree, data):
    message = bytearray(pack_tree(tree))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Unreadable):
        unpack_tree(bytes(message))


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_bytes_that_are_no_message_are_one_line(message):
    with pytest.raises(Unreadable):
        unpack_tree(message)


def test_a_message_that_is_too_long_is_not_read():
    message = pack_tree({"x": torch.zeros(1000)})
    with pytest.raises(Unreadable, match="at most 68 are read"):
        unpack_tree(message, Limit(10, 10))


def test_classes_come_back_and_others_do_not_leave():
    tree = {
        "counts": ClassCounts(torch.tensor([1, 2])),
        "rows": ClassRows(torch.eye(2), torch.tensor([1, 0])),
        "each": PerClient(torch.ones(2, 3)),
        "copies": Copies(torch.ones(2, 3), torch.tensor([0, 1, 1])),
    }
    back = unpack_tree(pack_tree(tree))
    assert {name: type(value) for name, value in back.items()} == {name: type(value) for name, value in tree.items()}
    assert torch.equal(back["copies"].row, tree["copies"].row)
    with pytest.raises(Exception, match="message is of the type"):
        pack_tree(object())


def test_a_node_gets_the_copies_of_its_own_clients_alone():
    copies = Copies(torch.arange(4.0)[:, None], torch.tensor([3, 0, 2, 0, 1]))
    own = narrow_copies(copies, [1, 2, 3])
    assert own.values.flatten().tolist() == [0.0, 2.0]
    assert own.of([1, 2, 3]).flatten().tolist() == [0.0, 2.0, 0.0]


def test_digests_tell_values_shapes_and_types_apart():
    one = Copies(torch.zeros(1, 4))
    others = [Copies(torch.ones(1, 4)), Copies(torch.zeros(1, 2, 2)), Copies(torch.zeros(1, 4, dtype=torch.int32))]
    assert len({copies_digest(each) for each in (one, *others)}) == 4 and copies_digest(one) == copies_digest(
        Copies(torch.zeros(1, 4))
    )
