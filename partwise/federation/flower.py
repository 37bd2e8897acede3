"""What both ends need of Flower: its processes, its clients, and how our bytes become its messages."""

import ipaddress
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
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

from partwise.errors import ConfigError, one_line
from partwise.writing import make_folder

CHUNK = 4 << 20  # bytes of a message that travel together; Flower keeps each as an object of its own
BEAT = 15  # seconds; Flower gives up a task of which it has heard nothing for 60
QUESTION, NAME = "query", "query.name"  # types of messages: one for `handle`, and "who are you"
BYTES, ERROR = "bytes", "error"

Client = TypeVar("Client", bound=ProtobufClient)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[::1]:port`."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536) or (":" in host and host[0] != "["):
        raise ConfigError(f"address '{address}': HOST:PORT is needed, such as 192.168.0.7:9443 or [::1]:9443")
    return host.strip("[]"), int(port)


def check_plain(address: str, insecure: bool) -> None:
    """Refuse to send models and updates unprotected over a network."""
    if not is_loopback(split_address(address)[0]) and not insecure:
        raise ConfigError(f"'{address}' is not this machine: without TLS anybody on the way reads and changes all; "
                          "make keys (partwise keys), or say --insecure")  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def quiet(debug: bool = False) -> None:
    """Flower tells on the terminal what it does; here that is the business of --debug."""
    logging.getLogger("flwr").setLevel(logging.DEBUG if debug else logging.CRITICAL)


def start(kind: str, arguments: Sequence[str], state: Path, debug: bool = False) -> subprocess.Popen[bytes]:
    """Start Flower's `superlink` or `supernode` (child.py); what it says is in a file of the state folder."""
    make_folder(state)
    environment = os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str((state / "flwr").absolute()),
        "FLWR_LOG_LEVEL": "DEBUG" if debug else "WARNING",
    }
    with open(state / f"{kind}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "partwise.federation.child", kind, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for whoever asks, who then ends this
        )


def end(child: subprocess.Popen[bytes]) -> None:
    """Let a process of Flower say goodbye, but not for long."""
    assert child.stdin
    child.stdin.close()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


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
    """Bytes as records that are nothing but bytes: neither numpy's format nor pickle, and nothing to unfold.

    (Flower's own `Array` may name one chunk a million times, which would be the receiver's memory.)
    """
    starts = range(0, len(content), CHUNK)
    return RecordDict({f"{n}": ConfigRecord({BYTES: content[start : start + CHUNK]}) for n, start in enumerate(starts)})


def pack_error(text: str) -> RecordDict:
    return RecordDict({ERROR: ConfigRecord({ERROR: text})})


def unpack(message: Message) -> tuple[bytes, str]:
    """The bytes of a message, and the error that it holds instead."""
    if message.has_error():
        return b"", one_line(message.error.reason)
    records = message.content.config_records
    if ERROR in records:
        return b"", one_line(records[ERROR][ERROR])
    try:
        chunks = [records[f"{n}"][BYTES] for n in range(len(records))]
        return b"".join(chunks), ""  # type: ignore[arg-type]
    except (KeyError, TypeError):
        return b"", "a message that is none of partwise's"


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
    message = inflate_object_from_contents(tree.object_id, contents)
    if not isinstance(message, Message):
        raise ValueError("not a message")
    message.metadata.__dict__["_message_id"] = tree.object_id  # which is not part of itself
    return message


def confirm(client: RuntimeHttpClient, message_id: str, node: int, run: int) -> None:
    """Flower may forget a message."""
    request = ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=run, message_object_id=message_id)
    client.ConfirmMessageReceived(request)
