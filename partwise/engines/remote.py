"""The engine whose clients sit on other machines: a request becomes a message to every node that hosts some of them.

What nodes send back is looked at one node after another before it is stacked. Nobody waits for a node longer than the
timeout; whoever does not answer was absent.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from partwise.engines.client_engine import EngineState
from partwise.engines.engine import Engine
from partwise.engines.purity import REAL_ROWS, mini_batch
from partwise.errors import PartwiseError, one_line
from partwise.records.changes import Held
from partwise.records.codec import Limit
from partwise.records.messages import Answer, Ask, Errand, Hop, Lacks, Refusal
from partwise.records.wire import (
    Question,
    asked_of,
    copies_of,
    decode_reply,
    digest,
    encode,
    question_of,
    read_updates,
)
from partwise.rounds.acceptance import check_extras
from partwise.rounds.batches import JobBatches
from partwise.rounds.failures import DROPPED
from partwise.rounds.messages import Entered, Request, Updates, concatenated
from partwise.rounds.mixing import Copies
from partwise.rounds.state import Extras

log = logging.getLogger(__name__)

LOST = "lost"  # what befell a client whose node has forgotten what it kept
LINE = 500  # letters of a refusal that are kept
AGAIN = 3  # times that a node may say what it lacks

# The limit of an answer, in bytes
LABELS = 1 << 16  # of text that every answer may have, ...
LABELS_OF_CLIENT = 1 << 11  # ... what it may have more for each client: numbers, scores, ...
LABELS_OF_TENSOR = 1 << 9  # ... and for each tensor: its name, type and shape, in JSON and in safetensors
COLUMNS = 8 * 8  # of a client's samples, steps, loss and the like
SPARE = 1 << 16  # of a client's extras, beside twice those that stand-ins make
UNKNOWN_EXTRAS = 16  # times a client's network, where stand-ins make none


@dataclass(frozen=True)
class Failure:
    """Why a node gave no answer."""

    why: str
    told: bool = False  # by the node itself: it refuses, or something went wrong there


E = TypeVar("E", bound=Errand)

AT_WORK = Failure("it is still at work")


class Nodes(Protocol):
    """The other machines: who hosts whom, and a way to ask them all at once."""

    @property
    def run(self) -> str: ...  # its name, the same wherever it goes on

    @property
    def hosts(self) -> Sequence[str]: ...  # (clients,) the node of every client

    @property
    def timeout(self) -> float: ...  # seconds

    @property
    def clock(self) -> Callable[[], float]: ...  # seconds

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]: ...


class Remote(Engine):
    """Clients on other machines."""

    def __init__(self, *arguments: Any, nodes: Nodes, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.nodes = nodes
        self.entered: list[Entered] = []  # what every stage handed to clients, for nodes that come later
        self.known: dict[str, dict[str, str]] = {}  # by node and tensor: the digest of the copies that it has
        self.behind: dict[str, int] = {}  # by node: the stages that it has begun
        self.ahead: dict[str, dict[str, Tensor]] = {}  # by node and question: what it answered before it was asked
        self.first = Held(vars(self.program.method))  # by the method, before it ran
        self.extra_sizes: dict[tuple[str, int], list[int]] = {}  # by job and stage: bytes of each extra of a client

    def blocks(self, request: Request, batches: dict[int, JobBatches]) -> Iterable[list[int]]:
        raise NotImplementedError("blocks are the nodes' own")

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        super().enter(handed, fresh, stage)
        self.entered.append(Entered(handed, list(fresh), stage))

    def state(self) -> EngineState:
        return EngineState(self.entered)

    def restore(self, state: EngineState) -> None:
        self.entered = state.entered

    # ---- asking

    def run(self, request: Request) -> Updates:
        """Return the updates of all clients whose nodes answered; the others are absent."""
        if request.models:
            raise PartwiseError("the clients' models stay on their nodes")
        own = self.by_node(request)
        pieces, befell, told = list[Updates](), dict[int, tuple[str, str]](), list[str]()
        for node, answer in self.answers(own).items():
            if isinstance(answer, Failure):
                befell |= dict.fromkeys(own[node].clients, (DROPPED, f"{node}: {answer.why}"))
                told += [f"{node}: {answer.why}"] if answer.told else []
            else:
                pieces.append(answer)
        if told and not pieces:  # nobody could do it: this is no matter of one node
            raise PartwiseError(told[0])
        sound, refused = of_usual_form(pieces)
        befell |= {client: ("refused", why) for client, why in refused.items()}
        updates = concatenated(sound) if sound else self.nothing(request)
        here = set(updates.clients) | set(befell)
        befell |= {client: (DROPPED, "not in its node's answer") for client in request.clients if client not in here}
        return replace(updates, client_events={**updates.client_events, **befell})

    def by_node(self, request: Request) -> dict[str, Request]:
        """Return each node's part of a request, in the order of the first client of each."""
        hosted: dict[str, list[int]] = {}
        for client in request.clients:
            hosted.setdefault(self.nodes.hosts[client], []).append(client)
        return {node: request.only(clients) for node, clients in hosted.items()}

    def answers(self, own: dict[str, Request]) -> dict[str, Updates | Failure]:
        """Return what each node answers, in the order of their first clients; one that lacks something is told it."""
        waiting, result = list(own), dict[str, Updates | Failure]()
        deadline = self.nodes.clock() + self.nodes.timeout
        for _ in range(AGAIN):
            errands = {node: self.errand(Ask, node, own[node]) for node in waiting}
            answers = self.foreseen(errands)
            messages = {
                node: Question(encode(errands[node]), self.limit(node, own[node]))
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
        digests = {name: digest(each) for name, each in copies.items()}
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
            self.known.pop(node, None)  # whoever comes back may have forgotten all
            self.behind.pop(node, None)
            return answer
        try:
            reply = decode_reply(Answer, answer, self.limit(node, request))
            match reply:
                case Lacks():
                    self.lacks(node, reply)
                    return Lacking("it lacks what was sent before")
                case Refusal():
                    return Failure(one_line(reply.refuses[:LINE]), told=True)
            updates = read_updates(reply.updates)
            check_extras(updates.extras, self.program.parts.modules)
            check_ahead(reply.ahead)
        except (PartwiseError, LookupError, TypeError, ValueError, RuntimeError) as error:
            return Failure(f"its answer cannot be used: {one_line(error)[:LINE]}")
        self.ahead.setdefault(node, {}).update(reply.ahead)
        lost = [client for client in reply.lost if client in request.clients]
        if updates.round != request.round or reply.number != request.number:
            return Failure(f"its answer is of round {updates.round + 1}")
        strangers = set(updates.clients) - set(request.clients)
        if strangers or len(set(updates.clients)) < len(updates.clients):
            return Failure("answers for clients that it was not asked for, or twice")
        self.known[node] |= {name: digest(each) for name, each in copies_of(request).items()}
        self.behind[node] = len(self.entered)
        return replace(
            updates, client_events=dict.fromkeys(lost, (LOST, f"{node} kept nothing of it: it begins again"))
        )

    def lacks(self, node: str, reply: Lacks) -> None:
        """Note that a node has other copies and stages than was thought."""
        self.known[node] = {}
        self.behind[node] = min(max(reply.lacks, 0), len(self.entered))

    # ---- how long an answer may be

    def limit(self, node: str, request: Request) -> Limit:
        """Return the limit of a node's answer: what its clients send, and what it may answer ahead."""
        first = self.limit_of(request, len(request.clients))
        ahead = [self.limit_of(request, len(hop)) for hop in self.staying(node, request)]
        return Limit(
            first.labels + LABELS_OF_TENSOR * len(ahead), first.tensors + sum(limit.message for limit in ahead)
        )

    def limit_of(self, request: Request, clients: int) -> Limit:
        """Return the limit of what some clients send: their parts as the plan has them, their extras, their scores."""
        sent = request.plan.up if request.job == "train" else ()
        parts = [self.store.initial[name].values[0].nbytes for name in sent]
        extras = self.sizes_of_extras(request)
        return Limit(
            LABELS + LABELS_OF_CLIENT * clients + LABELS_OF_TENSOR * (len(parts) + len(extras)),
            clients * (COLUMNS + sum(parts) + 2 * sum(extras) + SPARE),
        )

    def sizes_of_extras(self, request: Request) -> list[int]:
        """Return the bytes of each extra that a client sends: of those that the method makes of stand-ins."""
        subject = request.job, request.plan.number
        if subject not in self.extra_sizes:
            try:
                with torch.no_grad():
                    extras = self.extras_of_stand_ins(request)
                sizes = [leaf.nbytes for leaf in tree_leaves(extras) if isinstance(leaf, Tensor)]
            except Exception as error:  # a method may need what only a real client has
                log.debug("no extras of stand-ins: %s", one_line(error))
                sizes = [UNKNOWN_EXTRAS * copies.values[0].nbytes for copies in self.store.initial.values()]
            self.extra_sizes[subject] = sizes
        return self.extra_sizes[subject]

    def extras_of_stand_ins(self, request: Request) -> list[Extras]:
        """Return what `describe`, `report` and `finish` make of samples that the server has made up."""
        program, rows = self.program, mini_batch(REAL_ROWS, 0, 1)
        if request.job == "describe":
            return [program.describe(rows, self.x, self.y)]
        batches = JobBatches([], [], None, None)
        several, common = self.layout(request, request.clients[:1], [batches])
        client = tree_map(lambda tensor: tensor[0], several)
        made = []
        if self.drawing.reports(request):
            made.append(program.report(client, rows, common))
        if request.job == "train" and program.has("finish"):
            if program.has("start"):
                client = client.overwritten(program.start(client, common))
            made.append(program.finish(client, common)[1])
        return made

    def nothing(self, request: Request) -> Updates:
        """Return what is left where nobody answered."""
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


def of_usual_form(pieces: Sequence[Updates]) -> tuple[list[Updates], dict[int, str]]:
    """Return those of one form, which most clients have, so that they can be stacked; and why the others cannot be."""
    forms = [form(piece) for piece in pieces]
    counts = Counter[Any]()
    for piece, own in zip(pieces, forms, strict=True):
        counts[own] += len(piece.clients) if own else 0
    usual = counts.most_common(1)[0][0] if counts else None
    sound = [piece for piece, own in zip(pieces, forms, strict=True) if own and own == usual]
    others = [piece for piece, own in zip(pieces, forms, strict=True) if not own or own != usual]
    why = "its tensors have other names, shapes or types than those of most clients"
    return sound, {client: why for piece in others for client in piece.clients}


def form(updates: Updates) -> str:
    """Return names, shapes and types of all that a node sent; empty: something of it has not a row for each client."""
    leaves, structure = tree_flatten(updates.extras)
    columns = [updates.samples, updates.steps, updates.loss]
    sent, rows = [*updates.of_clients().values(), *leaves, *columns], len(updates.clients)
    if not all(tensor.dim() and len(tensor) == rows and not tensor.requires_grad for tensor in sent):
        return ""
    parts = tuple(sorted((name, kind(value)) for name, value in updates.parts.items()))
    unsaid = updates.finite is None, updates.withheld is None
    return str((parts, str(structure), [kind(value) for value in (*leaves, *columns)], unsaid))


def kind(tensor: Tensor) -> str:
    """Return the shape and the type of a row."""
    return f"{tuple(tensor.shape[1:])} {tensor.dtype}"
