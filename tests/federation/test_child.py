"""How long Flower's SuperNode sleeps here."""

import pytest

from partwise.federation import child


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
    assert clock.slept == pytest.approx([0.2, 0.2, 1, 3, 0.02, 0.2])
