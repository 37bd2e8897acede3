"""Bytes as messages of Flower's, and back."""

import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from partwise.federation import flower

METADATA = Metadata(run_id=1, message_id="", src_node_id=1, dst_node_id=2, reply_to_message_id="", group_id="",
                    created_at=0.0, ttl=1.0, message_type="query")  # fmt: skip


def sent(content, error=None):
    """A message as it arrives: what it consists of, put together again."""
    message = make_message(metadata=METADATA, content=content, error=error)
    objects = {number: each.deflate() for number, each in get_all_nested_objects(message).items()}
    return flower.inflated(message.object_id, objects)


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 20, 101])
def test_bytes_of_any_length_arrive(monkeypatch, length):
    monkeypatch.setattr(flower, "CHUNK", 10)
    content = bytes(range(length))
    assert flower.unpack(sent(flower.pack(content))) == (content, "")


def test_equal_chunks_arrive_as_often_as_they_were_sent(monkeypatch):
    monkeypatch.setattr(flower, "CHUNK", 10)
    assert flower.unpack(sent(flower.pack(bytes(1000)))) == (bytes(1000), "")


def test_an_error_is_one_line_that_does_nothing_to_a_terminal():
    assert flower.unpack(sent(flower.pack_error("no\n\x1b[2Jlabels"))) == (b"", r"no \x1b[2Jlabels")
    assert flower.unpack(sent(None, Error(ErrorCode.NODE_UNAVAILABLE, "..."))) == (b"", "its node has gone")
    assert flower.unpack(sent(None, Error(77, "some\nthing"))) == (b"", "some thing")


@pytest.mark.parametrize(
    "records",
    [
        {"1": ConfigRecord({"bytes": b"x"})},
        {"0": ConfigRecord({"other": b"x"})},
        {"0": ConfigRecord({"bytes": "x"})},
        {"0": ConfigRecord({"bytes": [b"x"]})},
        {"error": ConfigRecord({"text": "x"})},
    ],
)
def test_what_was_packed_by_others_is_an_error(records):
    assert flower.unpack(sent(RecordDict(records))) == (b"", "a message that is none of partwise's")


def test_a_short_message_cannot_unfold_to_any_length(monkeypatch):
    """A chunk that is named a thousand times is one object on the way."""
    monkeypatch.setattr(flower, "LARGEST", 1 << 30)
    chunk = ConfigRecord({"bytes": bytes(1 << 20)})
    records = RecordDict()
    for n in range(1025):
        records[f"{n}"] = chunk
    message = make_message(metadata=METADATA, content=records)
    assert flower.unpack(message) == (b"", "a message of more than 1 GiB")


def test_only_what_we_send_ourselves_is_unfolded():
    records = RecordDict({"0": ArrayRecord({"bytes": Array("uint8", (1,), "bytes", b"x")})})
    with pytest.raises(ValueError, match="none of partwise's"):
        sent(records)
