"""How long Flower's SuperNode sleeps here."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from flwr.proto.message_pb2 import ObjectTree

from partwise.federation.transport import child
from partwise.federation.transport.flower import TooLong


class Clock:
    def __init__(self):
        self.now, self.slept = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)


def test_a_supernode_asks_often_while_there_is_something_to_do(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(child, "time", clock)
    impatient = child.Impatient()
    for idle in (0, 1, 10, 100):  # seconds since the last message
        clock.now = 100.0 + idle
        impatient.sleep(3)
    impatient.sleep(0.5)  # it waits for an answer to a message
    impatient.sleep(3)
    assert clock.slept == pytest.approx([0.2, 0.2, 0.8, 0.8, 0.02, 0.2])


class Internal:
    """Flower's module, of which a test says what happens there."""

    def __init__(self, run=7):
        self.run, self.answers = run, []

    @staticmethod
    def pull_objects(numbers, fetch, **patience):
        return {number: fetch(number) for number in numbers}

    def _pull_and_store_message(self, *, receive, state, object_store):
        return self.run if receive() else None

    def _push_messages(self, *, send, state):
        send(self.answers.pop(0), state)


class Kept:
    """What a SuperNode keeps of messages: here, what is deleted of it."""

    def __init__(self):
        self.deleted = []

    def delete(self, message):
        self.deleted.append(message)

    def delete_messages(self, message_ids):
        self.deleted += message_ids


def message(number, *objects, reply_to=""):
    children = [ObjectTree(object_id="t", children=[ObjectTree(object_id=each) for each in objects])]
    metadata = SimpleNamespace(message_id=number, reply_to_message_id=reply_to)
    return SimpleNamespace(metadata=metadata), ObjectTree(object_id=number, children=children)


def store(exchange, found, kept):
    return exchange.store(state=kept, object_store=kept, receive=lambda: found)


def test_a_supernode_rings_when_a_message_has_come(monkeypatch):
    rung, kept = [], Kept()
    monkeypatch.setattr(child.os, "write", lambda line, content: rung.append((line, content)))
    exchange = child.FlowerExchange(100, Internal())
    assert store(exchange, None, kept) is None and not rung
    assert store(exchange, message("m"), kept) == 7 and rung == [(child.STANDARD_INPUT, b".")]
    assert not kept.deleted


def test_fault_41_a_message_of_a_run_that_has_ended_keeps_nobody_waiting():
    kept = Kept()
    assert store(child.FlowerExchange(100, Internal(run=None)), message("m"), kept) is None
    assert set(kept.deleted) == {"m"}


def test_fault_41_an_answer_to_a_message_that_was_given_up_keeps_no_later_one_back():
    internal, sent = Internal(), []
    exchange = child.FlowerExchange(100, internal)
    internal.answers = [message(f"a{n}", reply_to=f"q{n}")[0] for n in (1, 2, 3)]
    for question, expected in (("q2", ["a1", "a2"]), ("q3", ["a1", "a2", "a3"])):
        store(exchange, message(question), Kept())
        exchange.push(send=lambda answer, state: sent.append(answer.metadata.message_id), state="state")
        assert sent == expected


def test_fault_68_a_supernode_fetches_no_longer_message_than_its_silo_takes():
    exchange = child.FlowerExchange(100, Internal())
    with pytest.raises(TooLong):
        store(exchange, message("m", *"ccccccccc"), Kept())
    assert exchange.pull(["c"], lambda number: bytes(100)) == {"c": bytes(100)}
    with pytest.raises(TooLong):
        exchange.pull(["c"], lambda number: bytes(10_000))
