"""Servers and nodes of other protocols are refused by name: they read each other's first message, and each refusal."""

import pytest

from partwise.errors import ConfigError, PartwiseError
from partwise.records.messages import PROTOCOL, Join, Joined, Lacks, Refusal
from partwise.records.wire import decode_message, decode_reply, encode_message, pack_tree, unpack_tree

JOIN = Join("a-run", PROTOCOL, {"partwise": "1.0"}, "fedavg", None, {"lr": 0.1}, 3)


@pytest.mark.parametrize("other", [{}, {"silos": "many"}, {"new": 1}])
def test_a_server_of_another_protocol_is_refused_whatever_else_it_says(other):
    line = rf"the server speaks protocol {PROTOCOL - 1}, partwise \S+ {PROTOCOL}"
    with pytest.raises(ConfigError, match=line):
        decode_message(pack_tree({"kind": "join", "run": "a-run", "protocol": PROTOCOL - 1, **other}))


def test_a_node_of_another_protocol_reads_the_first_message():
    """As protocol 5 did: a dict with a kind, and the protocol in it."""
    content = unpack_tree(encode_message(JOIN))
    assert (
        content["kind"] == "join" and content["protocol"] == PROTOCOL and decode_message(encode_message(JOIN)) == JOIN
    )


def test_refusals_of_nodes_of_other_protocols_are_read():
    line = f"the server speaks protocol {PROTOCOL}, partwise 0.9 {PROTOCOL - 1}"
    for reply in ({"refuses": line}, {"refuses": line, "because": [1]}):
        assert decode_reply(Joined, pack_tree(reply)) == Refusal(line)
    assert unpack_tree(encode_message(Refusal(line)))["refuses"] == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ([1, 2], "its answer is none"),
        ({"refuses": 5}, "its answer.refuses is not a text"),
        ({"lacks": 1.5}, "its answer.lacks is not a whole number"),
        ({"lacks": True}, "its answer.lacks is not a whole number"),
        ({}, "its answer lacks its field"),
    ],
)
def test_replies_of_another_form_are_refused_in_a_line(content, line):
    with pytest.raises(PartwiseError, match=line):
        decode_reply(Joined, pack_tree(content))
    assert decode_reply(Joined, pack_tree({"lacks": 2})) == Lacks(2)


@pytest.mark.parametrize("content", [[1], 5, {}, {"kind": "gossip"}, {"kind": ["join"]}, {"kind": None}])
def test_messages_of_no_known_kind_are_refused(content):
    with pytest.raises(PartwiseError, match="does not know messages of the kind"):
        decode_message(pack_tree(content))
