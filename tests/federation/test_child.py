"""How long Flower's SuperNode sleeps here."""

import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from flwr.proto.message_pb2 import ObjectTree

from partwise.federation import child
from partwise.federation.flower import TooLong


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


def test_a_supernode_rings_when_a_message_has_come(monkeypatch):
    rung, stored = [], []

    class Internal:
        pull_objects = None

        @staticmethod
        def _pull_and_store_message(*, receive, state):
            stored.append((receive(), state))
            return 7 if stored[-1][0] else None

    monkeypatch.setattr(child.os, "write", lambda line, content: rung.append((line, content)))
    receiving = child.Receiving(100, Internal)
    assert receiving.store(receive=lambda: None, state="state") is None and not rung
    message = ("message", ObjectTree(object_id="m", children=[ObjectTree(object_id="t")]))
    assert receiving.store(receive=lambda: message, state="state") == 7 and rung == [(child.LINE, b".")]
    assert stored == [(None, "state"), (message, "state")]


def test_fault_68_a_supernode_fetches_no_longer_message_than_its_silo_takes():
    class Internal:
        _pull_and_store_message = staticmethod(lambda *, receive: receive())

        @staticmethod
        def pull_objects(numbers, fetch, **patience):
            return {number: fetch(number) for number in numbers}

    receiving = child.Receiving(100, Internal)
    many = ObjectTree(object_id="m", children=[ObjectTree(object_id="t", children=[ObjectTree(object_id="c")] * 9)])
    with pytest.raises(TooLong):
        receiving.store(receive=lambda: ("message", many))
    assert receiving.pull(["c"], lambda number: bytes(100)) == {"c": bytes(100)}
    with pytest.raises(TooLong):
        receiving.pull(["c"], lambda number: bytes(10_000))
