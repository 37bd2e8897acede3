"""What both ends speak with Flower: its clients, and how our bytes become its messages."""

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest, SendTaskHeartbeatRequest
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient

from partwise.errors import one_line

LARGEST = 4 << 30  # bytes of a message; equal chunks are sent once, so that a short one could be of any length
KINDS = (b"Message ", b"RecordDict ", b"ConfigRecord ")  # how Flower's objects begin
CHUNK = 4 << 20  # bytes of a message that travel together; Flower keeps each as an object of its own
BEAT = 15  # seconds; Flower gives up a task of which it has heard nothing for 60
QUESTION, NAME = "query", "query.name"  # types of messages: one for `handle`, and "who are you"
BYTES, ERROR = "bytes", "error"
LINE = 1000  # letters of an error
ENDS = {
    ErrorCode.NODE_UNAVAILABLE: "its node has gone",
    ErrorCode.MESSAGE_UNAVAILABLE: "its message is lost, or was not fetched in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer is lost",
    ErrorCode.CLIENT_APP_CRASHED: "its worker has ended",
}

Client = TypeVar("Client", bound=ProtobufClient)


def client_of(kind: type[Client], address: str, ca: Path | None, *interceptors: Any, timeout: float = 30) -> Client:
    """A client of Flower's for a process on this machine.

    Without Flower's way of trying again: where it is refused, that ends the process by a signal. Nor by way of a proxy.
    """
    client = kind(f"{'https' if ca else 'http'}://{address}", interceptors=interceptors, verify=False)
    verify = ssl.create_default_context(cafile=ca) if ca else False
    client._client = httpx.Client(verify=verify, timeout=timeout, trust_env=False)
    return client


def executor(address: str, ca: Path | None, secret: bytes) -> RuntimeHttpClient:
    """Who may take tasks."""
    methods = ("/flwr.proto.Runtime/AcquireTask",)
    signer = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)
    return client_of(RuntimeHttpClient, address, ca, signer)


def task(address: str, ca: Path | None, token: str) -> RuntimeHttpClient:
    """Who carries out a task."""
    return client_of(RuntimeHttpClient, address, ca, RuntimeTokenHttpInterceptor(token))


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell Flower that a task goes on. (Flower's own sender of them raises SIGINT where they are refused.)"""
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
    """Bytes as records that are nothing but bytes: neither numpy's format nor pickle."""
    starts = range(0, len(content), CHUNK)
    return RecordDict({f"{n}": ConfigRecord({BYTES: content[start : start + CHUNK]}) for n, start in enumerate(starts)})


def pack_error(text: str) -> RecordDict:
    return RecordDict({ERROR: ConfigRecord({ERROR: text})})


def unpack(message: Message) -> tuple[bytes, str]:
    """The bytes of a message, which are taken out of it, and the error that it holds instead."""
    if message.has_error():
        return b"", ENDS.get(message.error.code, one_line(message.error.reason))
    records = message.content.config_records
    try:
        if ERROR in records:
            return b"", one_line(records[ERROR][ERROR])[:LINE]
        chunks = [records[f"{n}"][BYTES] for n in range(len(message.content))]
        if sum(map(len, chunks)) > LARGEST:  # type: ignore[arg-type]
            return b"", f"a message of more than {LARGEST >> 30} GiB"
        content = b"".join(chunks)  # type: ignore[arg-type]
    except (KeyError, TypeError):
        return b"", "a message that is none of partwise's"
    message.content = RecordDict()  # or whoever works with the bytes has them twice
    return content, ""


def push(client: RuntimeHttpClient, messages: Sequence[Message], node: int, run: int) -> list[str]:
    """Send messages and what they consist of; returns the numbers that they got, empty for one that was not taken."""
    with no_object_id_recompute():
        objects: dict[str, InflatableObject] = {}
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
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


def pull(client: RuntimeHttpClient, tree: ObjectTree, node: int, run: int, patience: float) -> Message:
    """Fetch what a message consists of; its sender may still be sending it."""
    contents = pull_objects(
        list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree))),
        make_pull_object_fn_protobuf(client.PullObject, Node(node_id=node), run),
        max_time=patience,
        max_tries_per_object=None,
        initial_backoff=0.05,
        backoff_cap=0.5,
    )
    confirm(client, tree.object_id, node, run)
    return inflated(tree.object_id, contents)


def inflated(number: str, contents: dict[str, bytes]) -> Message:
    """A message, put together of its objects: only of kinds that we send ourselves."""
    if not all(content.startswith(KINDS) for content in contents.values()):
        raise ValueError("an object that is none of partwise's")
    message = inflate_object_from_contents(number, contents)
    if not isinstance(message, Message):
        raise ValueError("not a message")
    message.metadata.__dict__["_message_id"] = number  # which is not part of itself
    return message


def confirm(client: RuntimeHttpClient, message_id: str, node: int, run: int) -> None:
    """Flower may forget a message."""
    request = ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=run, message_object_id=message_id)
    client.ConfirmMessageReceived(request)
