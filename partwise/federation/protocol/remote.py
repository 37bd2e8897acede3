"""The engine of clients on other machines: a request becomes a message to every node that hosts some of them.

What nodes send back is looked at one node after another before it is stacked. Nobody waits for a node longer than the
timeout; clients of a node that does not answer were absent.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from partwise.data.source import Federation
from partwise.engines.check import Check
from partwise.engines.client_engine import EngineState
from partwise.engines.laying_out import ClientLayout
from partwise.engines.packing import Decisions
from partwise.engines.store import Store
from partwise.errors import PartwiseError, one_line
from partwise.federation.protocol.answer_limits import AnswerLimits
from partwise.federation.protocol.nodes import REFUSAL_LETTERS, Failure, Nodes
from partwise.federation.protocol.same_form import same_form
from partwise.records.changes import InitialAttributes
from partwise.records.codec import Limit
from partwise.records.messages import Answer, Ask, Errand, Hop, Lacks, Refusal
from partwise.records.wire import (
    Question,
    asked_of,
    copies_digest,
    copies_of,
    decode_reply,
    encode_message,
    question_of,
    read_updates,
)
from partwise.rounds.acceptance import check_extras
from partwise.rounds.augment import Augmentation
from partwise.rounds.batches import Drawing
from partwise.rounds.client import ClientProgram
from partwise.rounds.failures import DROPPED
from partwise.rounds.messages import Entered, Request, Updates, concatenated
from partwise.rounds.mixing import Copies

log = logging.getLogger(__name__)

LOST_EVENT = "lost"  # the event of a client whose node has forgotten what it kept
AGAIN = 3  # times that a node may say what it lacks

E = TypeVar("E", bound=Errand)


class Remote:
    """The engine whose clients sit on other machines; what it lays out are stand-ins for their samples."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)
    check: Check | None = None  # nodes compare nothing with the loop

    def __init__(
        self,
        program: ClientProgram,
        federation: Federation,
        store: Store,
        seed: int,
        device: torch.device,
        augmentation: Augmentation | None,
        nodes: Nodes,
    ):
        self.program, self.federation, self.store, self.device = program, federation, store, device
        self.nodes = nodes
        self.drawing = Drawing(program, federation, seed, store.seed, augmentation)
        self.layout = ClientLayout(program, federation, store, self.drawing, device)
        self.x, self.y, self.counts, self.train = self.layout.x, self.layout.y, self.layout.counts, self.drawing.train
        self.norm_average = self.layout.norm_average
        self.limits = AnswerLimits(program, self.drawing, self.layout)
        self.entered: list[Entered] = []  # what every stage handed to clients, for nodes that come later
        self.known: dict[str, dict[str, str]] = {}  # by node and tensor: the digest of the copies that it has
        self.behind: dict[str, int] = {}  # by node: the stages that it has begun
        self.ahead: dict[str, dict[str, Tensor]] = {}  # by node and question: what it answered before it was asked
        self.first = InitialAttributes(vars(program.method))  # by the method, before it ran

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Begin a stage; nodes hear of it with their next request."""
        self.store.enter(handed, fresh, stage)
        self.entered.append(Entered(handed, list(fresh), stage))

    def release(self) -> None:
        """Let go of memory that is only needed while there is something to train."""
        self.norm_average.forget()

    def state(self) -> EngineState:
        """Return what a run that goes on needs of its stages."""
        return EngineState(self.entered)

    def restore(self, state: EngineState) -> None:
        """Take over such a state."""
        self.entered = state.entered

    def decisions(self) -> list[Decisions]:
        """Return none: nodes decide by themselves how steps are carried out."""
        return []

    def decide(self, decisions: list[Decisions]) -> None:
        """Ignore decisions: such an engine takes none."""

    # ---- asking

    def run(self, request: Request) -> Updates:
        """Return the updates of all clients whose nodes answered; the others are absent."""
        if request.models:
            raise PartwiseError("the clients' models stay on their nodes")
        own = self.by_node(request)
        pieces, events, refusals = list[Updates](), dict[int, tuple[str, str]](), list[str]()
        for node, answer in self.answers(own).items():
            if isinstance(answer, Failure):
                events |= dict.fromkeys(own[node].clients, (DROPPED, f"{node}: {answer.why}"))
                refusals += [f"{node}: {answer.why}"] if answer.from_node else []
            else:
                pieces.append(answer)
        if refusals and not pieces:  # nobody could do it: this is no matter of one node
            raise PartwiseError(refusals[0])
        sound, refused = same_form(pieces)
        events |= {client: ("refused", why) for client, why in refused.items()}
        updates = concatenated(sound) if sound else self.nothing(request)
        here = set(updates.clients) | set(events)
        events |= {client: (DROPPED, "not in its node's answer") for client in request.clients if client not in here}
        return replace(updates, client_events={**updates.client_events, **events})

    def by_node(self, request: Request) -> dict[str, Request]:
        """Return each node's part of a request, in the order of the first client of each."""
        hosted: dict[str, list[int]] = {}
        for client in request.clients:
            hosted.setdefault(self.nodes.hosts[client], []).append(client)
        return {node: request.only(clients) for node, clients in hosted.items()}

    def answers(self, own: dict[str, Request]) -> dict[str, Updates | Failure]:
        """Return each node's answer, in the order of their first clients; send nodes what they lack."""
        waiting, result = list(own), dict[str, Updates | Failure]()
        deadline = self.nodes.clock() + self.nodes.timeout
        for _ in range(AGAIN):
            errands = {node: self.errand(Ask, node, own[node]) for node in waiting}
            answers = self.foreseen(errands)
            messages = {
                node: Question(encode_message(errands[node]), self.limit(node, own[node]))
                for node in waiting
                if node not in answers
            }
            if messages and (left := deadline - self.nodes.clock()) > 0:
                answers |= self.nodes.ask(messages, left)
            result |= {node: self.read(node, own[node], answers.get(node, Failure("no answer"))) for node in waiting}
            waiting = [node for node in waiting if isinstance(result[node], Lacking)]
            if not waiting:
                break
        return {node: result[node] for node in own}

    def foreseen(self, errands: Mapping[str, Ask]) -> dict[str, bytes | Failure]:
        """Return what nodes have answered ahead to just these messages; who is asked anew answers anew."""
        ahead = {node: self.ahead.get(node, {}) for node in errands}
        known = {node: own.get(question_of(errands[node])) for node, own in ahead.items() if own}
        self.ahead |= {node: {} for node in errands if known.get(node) is None}
        return {node: answer.numpy().tobytes() for node, answer in known.items() if answer is not None}

    def errand(self, kind: type[E], node: str, request: Request) -> E:
        """Return a request as it is sent to a node: of the copies those that it has not got yet."""
        copies = copies_of(request)
        digests = {name: copies_digest(each) for name, each in copies.items()}
        known = self.known.setdefault(node, {})
        begun, method = self.behind.get(node, 0), vars(self.program.method)
        return kind(
            run=self.nodes.run,
            request=asked_of(request),
            onward=list(self.staying(node, request)),
            digests=digests,
            copies={name: each for name, each in copies.items() if known.get(name) != digests[name]},
            begun=begun,
            stages=self.entered[begun:],
            method=self.first.changed(method),
            gone=self.first.gone(method),
        )

    def staying(self, node: str, request: Request) -> Iterable[Hop]:
        """Yield the hops to come of a relay before which nothing reaches a node from another one."""
        here = set(request.clients)
        for hop in request.next_hops:
            own = {client: before for client, before in hop.items() if self.nodes.hosts[client] == node}
            if not own or not here.issuperset(own.values()):
                return
            yield {client: (before, request.times[client]) for client, before in own.items()}
            here = set(own)

    def read(self, node: str, request: Request, answer: bytes | Failure) -> "Updates | Failure":
        """Return what a node's answer says; one that cannot be read, or is to another question, is none."""
        if isinstance(answer, Failure):
            self.known.pop(node, None)  # a node that comes back may have forgotten all
            self.behind.pop(node, None)
            return answer
        try:
            reply = decode_reply(Answer, answer, self.limit(node, request))
            match reply:
                case Lacks():
                    self.lacks(node, reply)
                    return Lacking("it lacks what was sent before")
                case Refusal():
                    return Failure(one_line(reply.refuses[:REFUSAL_LETTERS]), from_node=True)
            updates = read_updates(reply.updates)
            check_extras(updates.extras, self.program.parts.modules)
            check_ahead(reply.ahead)
        except (PartwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
            return Failure(f"its answer cannot be used: {one_line(error)[:REFUSAL_LETTERS]}")
        self.ahead.setdefault(node, {}).update(reply.ahead)
        lost = [client for client in reply.lost if client in request.clients]
        if updates.round != request.round or reply.number != request.number:
            return Failure(f"its answer is of round {updates.round + 1}")
        strangers = set(updates.clients) - set(request.clients)
        if strangers or len(set(updates.clients)) < len(updates.clients):
            return Failure("answers for clients that it was not asked for, or twice")
        self.known[node] |= {name: copies_digest(each) for name, each in copies_of(request).items()}
        self.behind[node] = len(self.entered)
        return replace(
            updates, client_events=dict.fromkeys(lost, (LOST_EVENT, f"{node} kept nothing of it: it begins again"))
        )

    def lacks(self, node: str, reply: Lacks) -> None:
        """Note that a node has other copies and stages than was thought."""
        self.known[node] = {}
        self.behind[node] = min(max(reply.lacks, 0), len(self.entered))

    def limit(self, node: str, request: Request) -> Limit:
        """Return the limit of a node's answer."""
        return self.limits.of(request, list(self.staying(node, request)))

    def nothing(self, request: Request) -> Updates:
        """Return the updates of no client."""
        none = torch.zeros(0)
        shapes = {name: copies.values[:0] for name, copies in request.copies.items()}
        parts = {name: shapes[name] for name in request.plan.up if name in shapes} if request.job == "train" else {}
        return Updates([], request.round, none, none, none, parts, {}, sent=Counter())


def check_ahead(ahead: Mapping[str, Tensor]) -> None:
    """Refuse answers ahead that are no bytes."""
    if not all(answer.dtype == torch.uint8 for answer in ahead.values()):
        raise ValueError("answers ahead are bytes")


class Lacking(Failure):
    """A node that has not got what the server thought."""
