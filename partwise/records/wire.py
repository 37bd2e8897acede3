"""Messages of a federation as bytes, for clients on other machines.

They hold no code and no functions; a plan is sent as the number of its stage. A message that was changed on the way, or
does not have its form, is refused.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from partwise.errors import ConfigError, PartwiseError
from partwise.network.view import ClassCounts, ClassRows, PerClient
from partwise.records.codec import Codec, Limit, Unreadable
from partwise.records.messages import (
    KIND_OF,
    MESSAGE_KINDS,
    PROTOCOL,
    AskedRequest,
    Errand,
    Join,
    Lacks,
    Message,
    Refusal,
    Reply,
    Sent,
)
from partwise.records.metrics import FIELDS, WEIGHT
from partwise.records.record import AnyRecord, Json, fields_of, read_record
from partwise.rounds.messages import Entered, Request, Updates
from partwise.rounds.mixing import Copies
from partwise.rounds.plan import Plan
from partwise.version import __version__

WIRE = Codec((ClassCounts, ClassRows, PerClient, Copies, Entered))  # what messages and a silo's disk hold
# The fields of a request that are sent under their own names, as they are
SAME_FIELDS = ("job", "round", "clients", "rate", "evaluate", "number", "extras", "averaged")
pack_tree, unpack_tree = WIRE.packed, WIRE.unpacked


class Question(bytes):
    """A message, and the limit of its reply, which follows from what it asks."""

    def __new__(cls, message: bytes, _answer: Limit) -> "Question":
        """Return the bytes; `__init__` keeps the limit."""
        return super().__new__(cls, message)

    def __init__(self, message: bytes, answer: Limit):
        self.answer = answer


def encode_message(message: Message | Reply) -> bytes:
    """Return a message or a reply as bytes."""
    kind, content = KIND_OF.get(type(message)), fields_of(message)
    return pack_tree(content if kind is None else {"kind": kind, **content})


def decode_message(message: bytes, limit: Limit | None = None) -> Message:
    """Return a message of the server; one of another protocol is refused by its number."""
    content = unpack_tree(message, limit)
    content = dict(content) if isinstance(content, dict) else {}
    kind = content.pop("kind", None)
    known = MESSAGE_KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise PartwiseError(f"partwise {__version__} on this node does not know messages of the kind {kind!r:.40}")
    spoken = content.get("protocol")
    if known is Join and spoken != PROTOCOL:
        raise ConfigError(f"the server speaks protocol {spoken!r:.40}, partwise {__version__} {PROTOCOL}")
    return read_record(known, content, kind)


def decode_reply(kind: type[AnyRecord], answer: bytes, limit: Limit | None = None) -> AnyRecord | Lacks | Refusal:
    """Return a node's reply: of this kind, or that it lacks something, or refuses."""
    content = unpack_tree(answer, limit)
    if not isinstance(content, dict):
        raise Unreadable("its answer is none")
    if "refuses" in content:  # whatever else a node of another protocol may say with it
        known = {name: value for name, value in content.items() if name in ("refuses", "forgot")}
        return read_record(Refusal, known, "its answer")
    if "lacks" in content:
        return read_record(Lacks, content, "its answer")
    return read_record(kind, content, "its answer")


def copies_digest(copies: Copies) -> str:
    """Return a digest of copies of a tensor."""
    summed = hashlib.sha256(f"{copies.values.dtype} {tuple(copies.values.shape)}".encode())
    for tensor in (copies.values, *([] if copies.row is None else [copies.row])):
        summed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return summed.hexdigest()


def asked_of(request: Request) -> AskedRequest:
    """Return what a node needs to know of a request, but for the copies and what will follow."""
    same = {name: getattr(request, name) for name in SAME_FIELDS}
    times = {client: request.times[client] for client in request.clients}
    return AskedRequest(**same, times=times, before=request.before_first_round, stage=request.plan.number)


def read_request(asked: AskedRequest, copies: dict[str, Copies], plans: Sequence[Plan]) -> Request:
    """Return the request that was meant."""
    if not 0 <= asked.stage < len(plans):
        raise Unreadable(f"a request of stage {asked.stage}, and the run has {len(plans)}")
    same = {name: getattr(asked, name) for name in SAME_FIELDS}
    plan, before = plans[asked.stage], asked.before
    return Request(**same, times=asked.times, plan=plan, copies=copies, before_first_round=before)


def question_of(errand: Errand) -> str:
    """Return a digest of a request, whichever of its tensors are sent with it."""
    asked = [errand.request, errand.digests, errand.method, errand.gone]
    return hashlib.sha256(pack_tree(asked)).hexdigest()


def copies_of(request: Request) -> dict[str, Copies]:
    """Return the rows of copies that the request's clients have, and no others."""
    return {name: narrow_copies(copies, request.clients) for name, copies in request.copies.items()}


def narrow_copies(copies: Copies, clients: list[int]) -> Copies:
    """Return of the copies of a tensor those that some clients have, each once."""
    if copies.row is None:
        return Copies(copies.values)
    used, which = copies.row[clients].unique(return_inverse=True)
    row = torch.zeros_like(copies.row)
    row[clients] = which
    return Copies(copies.values[used.to(copies.values.device)], row)


def sent_of(updates: Updates) -> Sent:
    """Return the part of updates that travels, its columns on the host."""
    own: Json = {spec.name: getattr(updates, spec.name) for spec in fields(Sent)}
    own |= {name: value.detach().cpu() for name, value in own.items() if isinstance(value, Tensor)}
    return Sent(**own)


def read_updates(sent: Sent) -> Updates:
    """Return the updates that were meant; forms are checked here, and the rest by who mixes them."""
    rows = len(sent.clients)
    flags = [column for column in (sent.finite, sent.withheld) if column is not None]
    columns = (sent.samples, sent.steps, sent.loss, *flags)
    try:
        right = (
            all(column.shape == (rows,) and not column.is_complex() for column in columns)
            and all(value.dim() > 0 for value in sent.parts.values())
            and is_mean(sent)
            and all(column.dtype == torch.bool for column in flags)
            and all(map(is_score, [own for each in sent.scores.values() for own in each.values()]))
            and all(map(is_size, (sent.sent or {}).values()))
        )
    except KeyError:  # a score without its metrics
        right = False
    if not right:
        raise Unreadable("an answer has not the form of updates")
    return Updates(**{**fields_of(sent), "sent": None if sent.sent is None else Counter(sent.sent)})


def is_mean(updates: Sent) -> bool:
    """Return whether every client is part of a row of the parts, or of none, where a row is not each client's own."""
    if updates.mean is None:
        return True
    rows = set(map(len, updates.parts.values()))
    shaped = updates.mean.dtype == torch.long and len(rows) == 1 and updates.mean.shape == (len(updates.clients),)
    return shaped and bool(((updates.mean >= -1) & (updates.mean < min(rows))).all())


def is_score(numbers: Mapping[str, float | None]) -> bool:
    """Return whether these are numbers of samples and labels, and metrics: finite, shares between 0 and 1, or none."""
    metrics = {name: value for name, value in numbers.items() if name not in ("samples", WEIGHT)}
    counts = [numbers["samples"], *(numbers[name] for name in numbers if name == WEIGHT)]
    whole = all(type(number) is float and number.is_integer() for number in counts)
    given = {name: value for name, value in metrics.items() if value is not None}
    finite = all(type(value) is float and math.isfinite(value) for value in given.values())
    shares = [value for name, value in given.items() if FIELDS[name].percent]
    return whole and metrics.get("accuracy", 0) is not None and finite and all(0 <= v <= 1 + 1e-9 for v in shares)


def is_size(number: int) -> bool:
    """Return whether this is a number of bytes."""
    return 0 <= number < 2**63
