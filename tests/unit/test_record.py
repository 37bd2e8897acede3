"""Records come back from dicts of their fields, and content of another form is refused by its place."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.records.codec import Codec, Unreadable, checksum
from partwise.records.record import Record, WrongForm, read_record


@dataclass(frozen=True)
class Inner(Record):
    number: int
    share: float = 0.5


@dataclass(frozen=True)
class Known:
    """Written with its name, as classes that a codec knows."""

    values: Tensor


@dataclass(frozen=True)
class Outer(Record):
    text: str
    flag: bool
    inner: Inner
    every: list[Inner] = field(default_factory=list)
    by_number: dict[int, str] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "a")
    kind: Literal["one", "two"] = "one"
    maybe: int | None = None
    known: Known | None = None
    array: NDArray[np.int64] | None = None
    rest: Any = None


WHOLE = {"text": "x", "flag": True, "inner": {"number": 3}}


def test_a_record_comes_back_as_it_was():
    codec = Codec((Known,))
    record = Outer("x", False, Inner(3, 1), [Inner(4)], {7: "seven"}, (2, "b"), "two", 5, rest={"a": [1, None]})
    assert read_record(Outer, codec.unpacked(codec.packed(record)), "it") == record
    held = Outer("x", True, Inner(1), known=Known(torch.ones(2)), array=np.arange(3))
    back = read_record(Outer, codec.unpacked(codec.packed(held)), "it")
    assert torch.equal(back.known.values, torch.ones(2)) and back.array.tolist() == [0, 1, 2]
    assert read_record(Outer, WHOLE, "it") == Outer("x", True, Inner(3, 0.5))
    assert type(read_record(Counted, {"counts": Counter(a=2)}, "it").counts) is Counter


@dataclass(frozen=True)
class Counted(Record):
    counts: dict[str, int]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"text": 5}, "it.text is not a text"),
        ({"flag": 1}, "it.flag is not true or false"),
        ({"inner": {"number": True}}, "it.inner.number is not a whole number"),
        ({"inner": {"number": 1.0}}, "it.inner.number is not a whole number"),
        ({"inner": {"number": 1, "share": "x"}}, "it.inner.share is not a number"),
        ({"inner": {}}, "it.inner lacks its field 'number'"),
        ({"inner": [1]}, "it.inner is not a Inner"),
        ({"every": [{"number": 1}, 5]}, r"it.every\[1\] is not a Inner"),
        ({"by_number": {"1": "x"}}, "a name in it.by_number is not a whole number"),
        ({"by_number": {1: 2}}, r"it.by_number\[1\] is not a text"),
        ({"pair": (1, 2)}, "it.pair is not a text"),
        ({"pair": (1,)}, "it.pair has 1 values, not 2"),
        ({"kind": "three"}, "it.kind is none of one, two"),
        ({"maybe": "x"}, "it.maybe is not a whole number"),
        ({"array": [1]}, "it.array is not an array"),
        ({"known": Known(5)}, "it.known.values is not a tensor"),
        ({"more": 1}, "it has a field that no Outer has, 'more'"),
    ],
)
def test_content_of_another_form_is_refused_by_its_place(change, line):
    with pytest.raises(WrongForm, match=line):
        read_record(Outer, {**WHOLE, **change}, "it")


def test_bytes_of_a_later_format_are_refused_by_its_number():
    codec = Codec(())
    body = (1).to_bytes(2, "big") + codec.packed({"a": 1})[34:]
    with pytest.raises(Unreadable, match="a message of format 1; this partwise reads format 0"):
        codec.unpacked(checksum(body) + body)
