"""Requests and updates as bytes, for clients on other machines.

A message is a SHA-256 of all that follows, the length of a JSON text, that text, and the tensors as safetensors. It
holds no code and no functions: of a plan travels the number of its stage. Whatever was changed on the way is refused.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.errors import PartwiseError
from partwise.network.view import ClassCounts, ClassRows, PerClient
from partwise.records.codec import Decoder, Encoder
from partwise.rounds.messages import Entered, Request, Updates
from partwise.rounds.mixing import Copies
from partwise.rounds.plan import Plan

KNOWN = (ClassCounts, ClassRows, PerClient, Copies, Entered)  # what a message may hold beside plain values and tensors
SENT_AS = {"before_first_round": "before"}  # fields of a request that have another name in a message
DIGEST, LENGTH = 32, 8  # bytes of the SHA-256, and of the length of the text
HEADER = 8  # bytes of the length of the header of safetensors
DEEPEST = 100  # lists and dicts of a text that lie in one another
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')  # of JSON, with the marks in it that are no structure
HOST = torch.device("cpu")


class Unreadable(PartwiseError):
    """Bytes that are no message, or not the one that was sent."""


def packed(content: Any) -> bytes:
    """A tree of plain values and tensors as bytes."""
    from safetensors.torch import save  # a run on this machine does without

    encoder = Encoder(KNOWN)
    text = json.dumps(encoder.encode(content, "message")).encode()
    body = len(text).to_bytes(LENGTH, "big") + text + save(encoder.written())
    return hashlib.sha256(body).digest() + body


@dataclass(frozen=True)
class Limit:
    """The longest message that is read. JSON and tensors are limited apart: JSON unfolds to many times its length."""

    labels: int  # bytes of JSON, with the header of safetensors
    tensors: int  # bytes of tensors, as often as the tree names them

    @property
    def message(self) -> int:
        """Return the bytes of the whole message."""
        return DIGEST + LENGTH + HEADER + self.labels + self.tensors


class Question(bytes):
    """A message, and the limit of its answer, which follows from what it asks."""

    def __new__(cls, message: bytes, answer: Limit) -> "Question":
        return super().__new__(cls, message)

    def __init__(self, message: bytes, answer: Limit):
        self.answer = answer


def unpacked(message: bytes, limit: Limit | None = None) -> Any:
    """Return the tree that was packed; a message beyond the limit is refused before it is decoded."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if limit is not None and len(message) > limit.message:
        raise Unreadable(f"a message of {len(message):,} bytes; at most {limit.message:,} are read")
    body = memoryview(message)[DIGEST:]
    if len(message) < DIGEST + LENGTH + HEADER or hashlib.sha256(body).digest() != message[:DIGEST]:
        raise Unreadable("a message is not what was sent")
    length = int.from_bytes(body[:LENGTH], "big")
    if length > len(body) - LENGTH - HEADER:
        raise Unreadable(f"a message says that it has {length:,} bytes of text")
    text, rest = bytes(body[LENGTH : LENGTH + length]), body[LENGTH + length :]
    labels = length + int.from_bytes(rest[:HEADER], "little")
    if limit is not None and labels > limit.labels:
        raise Unreadable(f"a message with {labels:,} bytes of text; at most {limit.labels:,} are read")
    if depth(text) > DEEPEST:
        raise Unreadable(f"a message of lists in lists, more than {DEEPEST} deep")
    try:
        most = math.inf if limit is None else limit.tensors
        return Decoder(load(bytes(rest)), KNOWN, HOST, most).decode(json.loads(text))
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise Unreadable(f"a message cannot be read: {type(error).__name__}") from None


def depth(text: bytes) -> int:
    """Return how deep lists and dicts of a JSON text lie in one another."""
    marks = np.frombuffer(STRING.sub(b"", text), np.uint8)
    steps = np.isin(marks, list(b"[{")).astype(np.int32) - np.isin(marks, list(b"]}"))
    return int(steps.cumsum().max(initial=0))


def digest(copies: Copies) -> str:
    """What tells copies of a tensor from others."""
    summed = hashlib.sha256(f"{copies.values.dtype} {tuple(copies.values.shape)}".encode())
    for tensor in (copies.values, *([] if copies.row is None else [copies.row])):
        summed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return summed.hexdigest()


def request_content(request: Request) -> dict[str, Any]:
    """What a node needs to know of a request, but for the copies and what will follow."""
    names = ("job", "round", "clients", "rate", "evaluate", "before_first_round", "number", "extras", "averaged")
    times = {client: request.times[client] for client in request.clients}
    sent = {SENT_AS.get(name, name): getattr(request, name) for name in names}
    return sent | {"stage": request.plan.number, "times": times}


def read_request(content: Mapping[str, Any], copies: dict[str, Copies], plans: Sequence[Plan]) -> Request:
    """The request that was meant."""
    named = {sent: name for name, sent in SENT_AS.items()}
    rest = {named.get(name, name): value for name, value in content.items() if name != "stage"}
    return Request(plan=plans[content["stage"]], copies=copies, **rest)


def question_of(content: Mapping[str, Any]) -> str:
    """What tells a request from others, whichever of its tensors came along."""
    return hashlib.sha256(packed([content[name] for name in ("request", "digests", "method", "gone")])).hexdigest()


def copies_of(request: Request) -> dict[str, Copies]:
    """The rows of copies that the request's clients have, and no others."""
    return {name: narrowed(copies, request.clients) for name, copies in request.copies.items()}


def narrowed(copies: Copies, clients: list[int]) -> Copies:
    """Of the copies of a tensor those that some clients have, each once."""
    if copies.row is None:
        return Copies(copies.values)
    used, which = copies.row[clients].unique(return_inverse=True)
    row = torch.zeros_like(copies.row)
    row[clients] = which
    return Copies(copies.values[used.to(copies.values.device)], row)


def updates_content(updates: Updates) -> dict[str, Any]:
    """What of updates travels: never logits, nor models."""
    columns = ("clients", "round", "samples", "steps", "loss", "finite", "withheld", "mean")
    names = (*columns, "parts", "extras", "sent", "scores")
    content = {name: getattr(updates, name) for name in names}
    return {name: value.detach().cpu() if isinstance(value, Tensor) else value for name, value in content.items()}


def read_updates(content: Any) -> Updates:
    """The updates that were meant; types are checked here, and the rest by whoever mixes them."""
    try:
        updates = Updates(**content)
        rows = len(updates.clients)
        flags = [column for column in (updates.finite, updates.withheld) if column is not None]
        columns = (updates.samples, updates.steps, updates.loss, *flags)
        right = (
            all(type(client) is int for client in updates.clients)
            and type(updates.round) is int
            and all(isinstance(value, Tensor) and value.shape == (rows,) for value in columns)
            and not any(value.is_complex() for value in columns)
            and is_mean(updates)
            and all(column.dtype == torch.bool for column in flags)
            and all(type(n) is str and isinstance(v, Tensor) and v.dim() > 0 for n, v in updates.parts.items())
            and all(type(name) is str for name in updates.extras)
            and all(type(k) is int for each in updates.scores.values() for k in each)
            and all(map(is_score, [own for each in updates.scores.values() for own in each.values()]))
            and (updates.sent is None or all(type(k) is str and is_size(v) for k, v in updates.sent.items()))
            and not updates.logits
            and not updates.models
            and not updates.client_events
        )
    except (TypeError, AttributeError, KeyError):
        right = False
    if not right:
        raise Unreadable("an answer has not the form of updates")
    return replace(updates, sent=None if updates.sent is None else Counter(updates.sent))


def is_mean(updates: Updates) -> bool:
    """Whether every client is part of a row of the parts, or of none, where a row is not each client's own."""
    if updates.mean is None:
        return True
    rows = set(map(len, updates.parts.values()))
    right = isinstance(updates.mean, Tensor) and updates.mean.dtype == torch.long and len(rows) == 1
    shaped = right and updates.mean.shape == (len(updates.clients),)
    return shaped and bool(((updates.mean >= -1) & (updates.mean < min(rows))).all())


def is_score(numbers: Mapping[str, Any]) -> bool:
    """Whether these are a number of samples, an accuracy, and other numbers between 0 and 1 or none."""
    shares = [value for name, value in numbers.items() if name != "samples" and value is not None]
    whole = type(numbers["samples"]) is float and numbers["samples"].is_integer()
    return whole and numbers["accuracy"] is not None and all(type(v) is float and 0 <= v <= 1 + 1e-9 for v in shares)


def is_size(number: Any) -> bool:
    """Whether this is a number of bytes."""
    return type(number) is int and 0 <= number < 2**63
