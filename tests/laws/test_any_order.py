"""Law P7: whatever clients do, in whatever order, and however often the server ends and goes on, its state is sound."""

import json

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partwise.errors import Diverged
from partwise.method import Method
from partwise.records.codec import Decoder, Encoder
from partwise.rounds.failures import PlayedFailures
from partwise.rounds.messages import Updates
from partwise.rounds.plan import plans
from partwise.rounds.safeguards import Safeguards
from partwise.rounds.server import Server
from partwise.runs.checkpoints import CHECKPOINT_TYPES
from tests.support.runs import network

CLIENTS, ROUNDS = 8, 40
SAMPLES = torch.tensor([5, 3, 8, 1, 4, 0, 7, 2])
FAULTS = ("none", "not a number", "lies about its samples", "answers twice", "was not asked")
PARTS = network("mlp")
HOST = torch.device("cpu")


class Clients:
    """Stands for an engine: every client adds its number to what it got, and some do something wrong."""

    def __init__(self):
        self.faults, self.late = {}, False
        self.sound = {}  # what the sound ones among those that were asked sent, by client

    def enter(self, handed, fresh, stage):
        pass

    def run(self, request):
        who = [client for client in request.clients for _ in range(1 + (self.faults.get(client) == "answers twice"))]
        who += [5] * ("was not asked" in self.faults.values())  # who has no samples
        samples = torch.tensor([1e12 if self.wrong(k, "lies") else float(SAMPLES[k] or 1) for k in who])
        parts = {name: request.copies[name].of(who).clone() for name in request.plan.up}
        for row, client in enumerate(who):
            for value in parts.values():
                value[row] += float("nan") if self.wrong(client, "not a number") else client
        fine = [k for k in request.clients if not self.wrong(k, "not a number") and not self.wrong(k, "lies")]
        self.sound = {k: parts["head.bias"][who.index(k)].clone() for k in fine}
        nothing = torch.zeros(len(who))
        return Updates(who, request.round - self.late, samples, nothing, nothing, parts, {})

    def wrong(self, client, how):
        return self.faults.get(client, "").startswith(how)


def server_of(engine):
    method = Method(rounds=ROUNDS, participation=0.6)
    failures = Safeguards(failures=PlayedFailures(dropout=0.2, stragglers=0.2))
    return Server(method, PARTS, None, plans(method, PARTS), SAMPLES, 0, engine, failures)


class Federation(RuleBasedStateMachine):
    """A server, and what it must hold."""

    @initialize()
    def begin(self):
        self.clients = Clients()
        self.server = server_of(self.clients)
        self.server.begin()
        self.rounds, self.ended = 0, False

    @precondition(lambda self: self.rounds < ROUNDS and not self.ended)
    @rule(faults=st.dictionaries(st.integers(0, CLIENTS - 1), st.sampled_from(FAULTS), max_size=3))
    def round(self, faults):
        self.clients.faults = faults
        before = self.server.copies["head.bias"].values[0].clone()
        try:
            asked = self.server.step()
        except Diverged:
            self.ended = True  # and what it held is what it had
            assert torch.equal(self.server.copies["head.bias"].values[0], before)
            return
        self.rounds += 1
        failed = {e.client for e in self.server.events if e.round == self.rounds - 1 and e.what in ("dropped", "late")}
        used = [client for _, updates in asked for client in updates.clients]
        assert used == sorted(set(self.clients.sound) - failed) or not used
        assert len(self.server.cohort) == len(set(self.server.cohort)) == 5 and 5 not in self.server.cohort
        if used:
            weights = SAMPLES[used].double()
            mean = sum(w * self.clients.sound[k].double() for w, k in zip(weights, used, strict=True)) / weights.sum()
            assert torch.allclose(self.server.copies["head.bias"].values[0].double(), mean, atol=1e-9)
        else:
            assert torch.equal(self.server.copies["head.bias"].values[0], before)

    @precondition(lambda self: self.rounds < ROUNDS and not self.ended)
    @rule()
    def a_whole_answer_of_the_round_before(self):
        self.clients.faults, self.clients.late = {}, True
        before = self.server.copies["head.bias"].values[0].clone()
        try:
            self.server.step()
            self.rounds += 1  # all of them had failed anyway
        except Diverged:
            self.ended = True
        self.clients.late = False
        assert torch.equal(self.server.copies["head.bias"].values[0], before)

    @rule()
    def crash_and_resume(self):
        encoder = Encoder(CHECKPOINT_TYPES)
        text = json.dumps(encoder.encode(self.server.state(), "server"))
        other = server_of(self.clients)
        other.restore(Decoder(encoder.written(), CHECKPOINT_TYPES, HOST).decode(json.loads(text)))
        self.server = other

    @invariant()
    def sound(self):
        if hasattr(self, "server"):
            assert self.server.round == self.rounds
            assert all(copies.values.isfinite().all() for copies in self.server.copies.values())
            assert self.server.times.max() <= self.rounds + self.ended and self.server.times[5] == 0


TestFederation = Federation.TestCase
TestFederation.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
