"""Flower as both ends use it: its clients, and bytes as its messages."""

import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import ConfigRecord, Message, RecordDict

from partwise.errors import one_line
from partwise.federation.transport.flower_internals import (
    ConfirmMessageReceivedRequest,
    ErrorCode,
    InflatableObject,
    Node,
    ObjectTree,
    ProtobufClient,
    PushAppMessagesRequest,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    SendTaskHeartbeatRequest,
    SuperExecAuthHttpInterceptor,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
    message_to_proto,
    no_object_id_recompute,
    number_by_content,
    pull_objects,
    push_objects,
    remove_content_from_message,
    use_connection,
)

LARGEST_MESSAGE = 4 << 30  # bytes of a message
CHUNK_BYTES = 4 << 20  # bytes of a message that travel together; Flower keeps each as an object of its own
BEAT = 15  # seconds; Flower gives up a task of which it has heard nothing for 60
QUESTION, NAME_QUESTION = "query", "query.name"  # types of messages: one for `handle`, and "who are you"
BYTES, ERROR = "bytes", "error"
DEPTH = 3  # of a message's tree: the message, its table of chunks, the chunks
OBJECT_OVERHEAD = 1 << 10  # bytes of an object beside its chunk, and of the message and the table for each chunk
VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"  # of a number, as protobuf writes it
CHUNK_HEAD = re.compile(rb"ConfigRecord  \d+\x00\n%b\n\x05bytes\x12%b2(%b)" % (VARINT, VARINT, VARINT))
ERROR_LETTERS = 1000  # letters of an error
ENDS = {
    ErrorCode.NODE_UNAVAILABLE: "its node has gone",
    ErrorCode.MESSAGE_UNAVAILABLE: "its message is lost, or was not fetched in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer is lost",
    ErrorCode.CLIENT_APP_CRASHED: "its worker has ended",
}

Client = TypeVar("Client", bound=ProtobufClient)


class TooLong(ValueError):
    """A message is longer than what was asked for can be."""


def ending(message: Message) -> str:
    """Return why a message of Flower's brings an error in place of an answer; empty where it brings one."""
    return ENDS.get(message.error.code, one_line(message.error.reason)[:ERROR_LETTERS]) if message.has_error() else ""


def client_of(kind: type[Client], address: str, ca: Path | None, *interceptors: Any, timeout: float = 30) -> Client:
    """Return a client of Flower's for a process on this machine.

    Without Flower's way of trying again: where it is refused, that ends the process by a signal. Nor by way of a proxy.
    """
    client = kind(f"{'https' if ca else 'http'}://{address}", interceptors=interceptors, verify=False)
    verify = ssl.create_default_context(cafile=ca) if ca else False
    use_connection(client, httpx.Client(verify=verify, timeout=timeout, trust_env=False))
    return client


def executor(address: str, ca: Path | None, secret: bytes) -> RuntimeHttpClient:
    """Return a client that may take tasks."""
    methods = ("/flwr.proto.Runtime/AcquireTask",)
    signer = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
    return client_of(RuntimeHttpClient, address, ca, signer)


def task(address: str, ca: Path | None, token: str) -> RuntimeHttpClient:
    """Return a client that carries out a task."""
    return client_of(RuntimeHttpClient, address, ca, RuntimeTokenHttpInterceptor(token))


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell Flower that a task goes on; Flower's own sender raises SIGINT where it is refused."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with suppress(httpx.HTTPError, ValueError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def pack(content: bytes) -> RecordDict:
    """Return bytes as records that are nothing but bytes: neither numpy's format nor pickle."""
    starts = range(0, len(content), CHUNK_BYTES)
    return RecordDict(
        {f"{n}": ConfigRecord({BYTES: content[start : start + CHUNK_BYTES]}) for n, start in enumerate(starts)}
    )


def pack_error(text: str) -> RecordDict:
    """Return an error in place of an answer."""
    return RecordDict({ERROR: ConfigRecord({BYTES: text.encode()})})


def group_of(token: str, limit: int) -> str:
    """Return what a question has for Flower's group of it: something random, and the most bytes of its answer."""
    return f"{token}-{limit}"


def limit_of(group: str) -> int:
    """Return the most bytes of the answer to a question of this group."""
    _, _, limit = group.rpartition("-")
    return min(int(limit), LARGEST_MESSAGE) if limit.isdecimal() else 0


def push(client: RuntimeHttpClient, messages: Sequence[Message], node: int, run: int) -> list[str]:
    """Send messages and what they consist of; returns the numbers that they got, empty for one that was not taken."""
    with no_object_id_recompute():
        objects: dict[str, InflatableObject] = {}
        for message in messages:
            number_by_content(message)
            objects |= get_all_nested_objects(message)
        answer = client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(message)) for message in messages],
                message_object_trees=[get_object_tree(message) for message in messages],
            )
        )
        to_push = make_push_object_fn_protobuf(client.PushObject, Node(node_id=node), run, answer.session_id)
        push_objects(objects, to_push, object_ids_to_push=set(answer.objects_to_push))
    return list(answer.message_ids)


def pull(
    client: RuntimeHttpClient, tree: ObjectTree, node: int, run: int, patience: float, most: int
) -> tuple[bytes, str]:
    """Fetch a message of at most `most` bytes; its sender may still be sending it. Return its bytes, or its error."""
    check_tree(tree, most)
    contents = pull_objects(
        list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree))),
        limited(make_pull_object_fn_protobuf(client.PullObject, Node(node_id=node), run), most),
        max_time=patience,
        max_tries_per_object=None,
        initial_backoff=0.05,
        backoff_cap=0.5,
    )
    confirm(client, tree.object_id, node, run)
    return unpack(tree, contents, most)


def largest_tree(most: int) -> int:
    """Return how many objects a message of `most` bytes consists of: itself, its table of chunks, and the chunks."""
    return 2 + max(1, -(-most // CHUNK_BYTES))


def check_tree(tree: ObjectTree, most: int) -> None:
    """Refuse what no message of `most` bytes consists of. A tree may name an object again and again."""
    left, objects = [(tree, 1)], 0
    while left:
        each, depth = left.pop()
        objects += 1
        if depth > DEPTH or objects + len(left) + len(each.children) > largest_tree(most):
            raise TooLong(f"a message of more objects than {most:,} bytes have")
        left += [(child, depth + 1) for child in each.children]


def limited(fetch: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    """Return a way to fetch objects that stops where they exceed a message of `most` bytes."""
    left, lock = [most + OBJECT_OVERHEAD * largest_tree(most)], threading.Lock()

    def fetched(number: str) -> bytes:
        content = fetch(number)
        with lock:
            left[0] -= len(content)
        if left[0] < 0:
            raise TooLong(f"a message of more than {most:,} bytes")
        return content

    return fetched


def unpack(tree: ObjectTree, contents: Mapping[str, bytes], most: int) -> tuple[bytes, str]:
    """Return the bytes of a message, or the error that it holds instead, from the objects that it consists of.

    Flower's own reader would unfold names and lists first. Here an object is a table of chunks, or one chunk.
    """
    try:
        [table] = tree.children
        _, _, body = contents[table.object_id].partition(b"\0")
        if len(body) > OBJECT_OVERHEAD * largest_tree(most):
            raise ValueError("a table of more chunks than that")
        numbers = json.loads(body)
        if ERROR in numbers:
            text = bytes(chunk_of(contents[numbers[ERROR]])[: 4 * ERROR_LETTERS])
            return b"", one_line(text.decode(errors="replace"))[:ERROR_LETTERS]
        chunks = [chunk_of(contents[numbers[f"{n}"]]) for n in range(len(numbers))]
    except (ValueError, KeyError, TypeError, RecursionError):
        return b"", "a message that is not partwise's"
    if sum(map(len, chunks)) > most:  # one chunk may be named again and again
        return b"", f"a message of more than {most:,} bytes"
    return b"".join(chunks), ""


def chunk_of(content: bytes) -> memoryview:
    """Return the bytes of a chunk as `pack` makes it, and of nothing else that Flower could read."""
    match = CHUNK_HEAD.match(content)
    if match is None or number_of(match[1]) != len(content) - match.end():
        raise ValueError("an object that is not partwise's")
    return memoryview(content)[match.end() :]


def number_of(digits: bytes) -> int:
    """Return a number as protobuf writes it: seven bits of it in a byte, the lowest first."""
    return sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits))


def confirm(client: RuntimeHttpClient, message_id: str, node: int, run: int) -> None:
    """Let Flower forget a message."""
    request = ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=run, message_object_id=message_id)
    client.ConfirmMessageReceived(request)
