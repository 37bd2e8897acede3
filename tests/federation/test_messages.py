"""Bytes as messages of Flower's, and back: nothing else is read, and never more than was asked for."""

import json
import tracemalloc

import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from partwise.federation.transport import flower
from partwise.federation.transport.proxy import ANSWERS, Debts

METADATA = Metadata(run_id=1, message_id="", src_node_id=1, dst_node_id=2, reply_to_message_id="", group_id="",
                    created_at=0.0, ttl=1.0, message_type="query")  # fmt: skip
OTHER = (b"", "a message that is not partwise's")


def apart(content):
    """What a message consists of: the tree of its objects, and their contents."""
    message = make_message(metadata=METADATA, content=content)
    objects = {number: each.deflate() for number, each in get_all_nested_objects(message).items()}
    return get_object_tree(message), objects


def sent(content, most=10_000):
    """A message as it arrives: what it consists of, put together again."""
    return flower.unpack(*apart(content), most)


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 20, 101, 5000])
@pytest.mark.parametrize("chunk", [10, 200, 20_000])
def test_bytes_of_any_length_arrive(monkeypatch, length, chunk):
    monkeypatch.setattr(flower, "CHUNK_BYTES", chunk)
    content = bytes(n % 256 for n in range(length))
    tree, objects = apart(flower.pack(content))
    flower.check_tree(tree, length)
    assert flower.unpack(tree, objects, length) == (content, "")


def test_equal_chunks_arrive_as_often_as_they_were_sent(monkeypatch):
    monkeypatch.setattr(flower, "CHUNK_BYTES", 10)
    assert sent(flower.pack(bytes(1000))) == (bytes(1000), "")


def test_an_error_is_one_line_that_does_nothing_to_a_terminal():
    assert sent(flower.pack_error("no\n\x1b[2Jlabels")) == (b"", r"no \x1b[2Jlabels")
    for error, line in (
        (Error(ErrorCode.NODE_UNAVAILABLE, "..."), "its node has gone"),
        (Error(77, "some\nthing"), "some thing"),
    ):
        assert flower.ending(make_message(metadata=METADATA, error=error)) == line
    assert flower.ending(make_message(metadata=METADATA, content=flower.pack(b"answer"))) == ""


@pytest.mark.parametrize(
    "records",
    [
        {"1": ConfigRecord({"bytes": b"x"})},
        {"0": ConfigRecord({"other": b"x"})},
        {"0": ConfigRecord({"bytes": "x"})},
        {"0": ConfigRecord({"bytes": [b"x"]})},
        {"0": ConfigRecord({"bytes": b"x", "more": b"x"})},
        {"0": ConfigRecord({"bytes": [1, 2, 3]})},
        {"0": ConfigRecord()},
        {"error": ConfigRecord({"text": "x"})},
        {"0": ArrayRecord({"bytes": Array("uint8", (1,), "bytes", b"x")})},
    ],
)
def test_what_was_packed_by_others_is_an_error(records):
    assert sent(RecordDict(records)) == OTHER


@pytest.mark.parametrize("table", [b"[]", b"[1]", b"5", b"null", b"not JSON", b"[" * 5000, b'{"0": "?"}', b'{"0": 5}'])
def test_a_table_of_chunks_that_is_none_is_an_error(table):
    tree = ObjectTree(object_id="m", children=[ObjectTree(object_id="t")])
    assert flower.unpack(tree, {"t": b"RecordDict  1\0" + table}, 10_000) == OTHER if table != b"[]" else (b"", "")


def test_fault_68_a_short_message_cannot_unfold_to_any_length():
    """A chunk that is named a thousand times is one object on the way."""
    chunk = ConfigRecord({"bytes": bytes(1 << 20)})
    records = RecordDict()
    for n in range(1025):
        records[f"{n}"] = chunk
    tracemalloc.start()
    assert sent(records, 1 << 30) == (b"", "a message of more than 1,073,741,824 bytes")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_fault_68_a_table_is_no_longer_than_a_message_has_chunks():
    table = b"RecordDict  1\0" + json.dumps({f"{n}": "0" * 64 for n in range(100_000)}).encode()
    tree = ObjectTree(object_id="m", children=[ObjectTree(object_id="t")])
    tracemalloc.start()
    assert flower.unpack(tree, {"t": table}, 10_000) == OTHER
    assert tracemalloc.get_traced_memory()[1] < 2 * len(table)
    tracemalloc.stop()


def test_fault_68_a_tree_has_as_many_objects_as_its_message():
    leaf = ObjectTree(object_id="chunk")
    for chunks in (1, 2, 3):
        tree = ObjectTree(object_id="m", children=[ObjectTree(object_id="t", children=[leaf] * chunks)])
        if chunks < 3:
            flower.check_tree(tree, 2 * flower.CHUNK_BYTES)
        else:
            with pytest.raises(flower.TooLong):
                flower.check_tree(tree, 2 * flower.CHUNK_BYTES)
    deep = leaf
    for _ in range(flower.DEPTH):
        deep = ObjectTree(object_id="x", children=[deep])
    with pytest.raises(flower.TooLong):
        flower.check_tree(deep, 1 << 30)


def test_fault_68_fetching_stops_where_a_message_is_too_long():
    fetched = []

    def fetch(number):
        fetched.append(number)
        return bytes(flower.CHUNK_BYTES)

    limited = flower.limited(fetch, 2 * flower.CHUNK_BYTES)
    limited("a"), limited("b")
    with pytest.raises(flower.TooLong):
        limited("c")
    assert fetched == ["a", "b", "c"]


# ---- what the gate lets a silo send


def question(limit, token="token"):
    group = flower.group_of(token, limit)
    metadata = Metadata(run_id=1, message_id="", src_node_id=1, dst_node_id=2, reply_to_message_id="", group_id=group,
                        created_at=0.0, ttl=1.0, message_type="query")  # fmt: skip
    message = make_message(metadata=metadata, content=flower.pack(b"question"))
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def reply(to, content):
    answer = Message(flower.pack(content), reply_to=to)
    answer.metadata.__dict__["_message_id"] = answer.object_id
    tree = get_object_tree(answer)
    return PushMessagesRequest(
        messages_list=[message_to_proto(answer)], message_object_trees=[tree]
    ).SerializeToString()


def asked(debts, silo, limit):
    message = question(limit)
    debts.fetched(silo, PullMessagesResponse(messages_list=[message_to_proto(message)]).SerializeToString())
    return message


def test_fault_68_a_silo_sends_what_it_was_asked_for_and_nothing_else():
    debts = Debts()
    message = asked(debts, b"bern", 1000)
    assert not debts.check(b"lyon", reply(message, b"answer"))  # another's question
    assert not debts.check(b"bern", reply(question(1000, "another"), b"answer"))  # nobody's
    assert not debts.check(b"bern", b"\xff\xff no protobuf") and not debts.check(b"bern", b"")
    assert not debts.pay(b"bern", 1)
    for _ in range(ANSWERS):  # one that was lost on the way comes again
        assert debts.check(b"bern", reply(message, b"answer"))
        assert debts.pay(b"bern", 1000) and not debts.pay(b"bern", 10_000)
    assert not debts.check(b"bern", reply(message, b"answer"))


def test_fault_68_an_answer_has_no_more_objects_than_its_limit_allows(monkeypatch):
    debts = Debts()
    message = asked(debts, b"bern", 100)
    monkeypatch.setattr(flower, "CHUNK_BYTES", 10)
    assert debts.check(b"bern", reply(message, bytes(range(100))))
    assert not debts.check(b"bern", reply(message, bytes(range(200))))


def test_a_group_says_how_long_an_answer_may_be():
    assert flower.limit_of(flower.group_of("a-token", 77)) == 77
    for other in ("", "token", "token-", "token-x"):
        assert flower.limit_of(other) == 0
    assert flower.limit_of(f"token-{10**30}") == flower.LARGEST_MESSAGE
