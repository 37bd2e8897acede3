"""Law P5: what is written down comes back, whatever it is made of; and it can be no code."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from partwise.network.view import ClassRows
from partwise.records.changes import copied, unchanged
from partwise.records.codec import Decoder, Encoder, Unstorable
from partwise.rounds.mixing import Copies

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
HOST = torch.device("cpu")


def there_and_back(value, known=(Copies, ClassRows)):
    encoder = Encoder(known)
    text, tensors = json.dumps(encoder.encode(value, "it")), save(encoder.written())
    return Decoder(load(tensors), known, HOST).decode(json.loads(text))


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return tensor.permute(draw(st.permutations(range(len(shape))))) if shape else tensor


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5), tensors()
)
keys = st.one_of(st.text(max_size=4), st.integers(-5, 5), st.just("$"))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def equal(one, two):
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return one == two


@settings(max_examples=150, deadline=None)
@given(trees)
def test_every_tree_comes_back(tree):
    back = there_and_back(tree)
    assert type(back) is type(tree) and equal(tree, back)


@settings(max_examples=60, deadline=None)
@given(tensors())
def test_a_tensor_comes_back_in_the_layout_that_it_had(tensor):
    back = there_and_back(tensor)
    lies_together = tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride()[dim])).is_contiguous()
    if lies_together and tensor.numel() and 1 not in tensor.shape:
        assert back.stride() == tensor.stride()


def test_classes_arrays_counters_and_sets():
    copies = Copies(torch.ones(2, 3), torch.tensor([0, 1]), {"momentum": torch.zeros(2, 3)})
    value = {"copies": copies, "rows": ClassRows(torch.ones(2, 2), torch.ones(2)), "told": {"b", "a"}}
    value |= {"times": np.arange(3), "share": np.float32(0.1), "bytes": Counter({"head": 7}), "nan": float("nan")}
    back = there_and_back(value)
    assert isinstance(back["copies"], Copies) and torch.equal(back["copies"].values, copies.values)
    assert torch.equal(back["copies"].optimizer_state["momentum"], torch.zeros(2, 3))
    assert isinstance(back["rows"], ClassRows) and back["told"] == {"a", "b"} and back["bytes"]["body"] == 0
    assert back["times"].dtype == np.int64 and back["times"].tolist() == [0, 1, 2]
    assert type(back["share"]) is np.float32 and back["share"] == np.float32(0.1) and np.isnan(back["nan"])


def test_one_tensor_in_two_places_is_written_once_and_comes_back_as_one():
    tensor = torch.ones(3)
    encoder = Encoder()
    encoder.encode([tensor, {"again": tensor}], "it")
    assert len(encoder.written()) == 1
    first, second = there_and_back([tensor, {"again": tensor}])
    assert first is second["again"]


@pytest.mark.parametrize("value", [object(), lambda: 0, np.array(["text"]), torch.float32, {"a": [open]}])
def test_what_can_not_be_written_is_refused_with_its_place(value):
    with pytest.raises(Unstorable, match=r"^it"):
        Encoder().encode(value, "it")


def test_only_classes_that_the_reader_names_come_back():
    text = {"$": "Path", "fields": {}}
    with pytest.raises(KeyError):
        Decoder({}, (Copies,), HOST).decode(text)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, dtype=torch.complex128),
        np.zeros(2, complex),
        np.zeros(2, ">f4"),
        torch.zeros(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=["complex tensor", "complex array", "bytes the other way round", "sparse", "without values"],
)
def test_nor_can_tensors_and_arrays_that_no_file_holds(value):
    with pytest.raises(Unstorable, match=r"^it\['a'\] is a(n array| tensor) of "):
        Encoder().encode({"a": value}, "it")


def test_sets_of_several_kinds_views_of_one_memory_and_gradients_come_back():
    both = torch.arange(4.0)
    value = {"set": {1, "a", None, (2, 3)}, "views": [both[:2], both[1:]], "learned": torch.ones(1).requires_grad_()}
    back = there_and_back(value)
    assert back["set"] == value["set"] and back["learned"].requires_grad and not back["views"][0].requires_grad
    assert [view.tolist() for view in back["views"]] == [[0, 1], [1, 2, 3]]


def held():
    return {"list": [1, {"a": "b"}], "tensor": torch.ones(2), "array": np.ones(2), "set": {1}, "net": nn.Linear(1, 1)}


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["list"].append(1),
        lambda tree: tree["list"][1].update(a="c"),
        lambda tree: tree["tensor"].add_(1),
        lambda tree: tree["array"].fill(2),
        lambda tree: tree["set"].add(2),
        lambda tree: nn.init.zeros_(tree["net"].bias),
        lambda tree: tree.update(tensor=tree["tensor"].double()),
    ],
)
def test_whatever_changes_in_a_tree_is_noticed(change):
    tree = held()
    before = copied(tree)
    assert unchanged(copied(tree), before)
    change(tree)
    assert not unchanged(copied(tree), before)
