"""A silo's side: Flower's SuperNode as a process of its own, and a warm worker here that answers its messages.

The application that comes with a run of Flower's is neither installed nor executed: what a silo does is in its own
installation alone.
"""

import logging
import math
import secrets
import ssl
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from cryptography.x509 import SubjectAlternativeName, load_pem_x509_certificate
from flwr.app import Message

from partwise.errors import ConfigError, PartwiseError, one_line
from partwise.federation.protocol.nodes import POLL_INTERVAL
from partwise.federation.transport.flower import (
    ERROR_LETTERS,
    LARGEST_MESSAGE,
    NAME_QUESTION,
    executor,
    heartbeats,
    limit_of,
    pack,
    pack_error,
    pull,
    push,
    task,
)
from partwise.federation.transport.flower_internals import (
    AcquireTaskRequest,
    ActivateNodeRequest,
    DeactivateNodeRequest,
    FleetHttpClient,
    NodeAuthHttpInterceptor,
    ObjectPullError,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RuntimeHttpClient,
    SubStatus,
    TaskType,
    message_from_proto,
    public_key_to_bytes,
)
from partwise.federation.transport.keys import new_file
from partwise.federation.transport.processes import Child, check_protected, end, free_port, quiet, split_address, start
from partwise.records.lock import Lock
from partwise.writing import make_folder, write

Handle = Callable[[bytes, str], bytes]

BELL = 10.0  # seconds after which a task is looked for though the SuperNode has not rung
PAUSES = (1.0, 30.0)  # seconds before a SuperNode that has ended is started again: the first time, and at most
STEADY = 60  # seconds after which a SuperNode counts as well
SILENCE = 30.0  # seconds between two lines that no server answers
GONE = 10  # seconds for a node that has just ended to be gone
UNKNOWN, CONFLICT = 401, 409  # statuses: a key that the server does not know; one with which another node speaks

log = logging.getLogger("partwise.node")


def run_supernode(
    handle: Handle,
    server: str,
    name: str,
    state: Path,
    *,
    ca: Path | None = None,
    key: Path | None = None,
    plain: bool = False,
    insecure: bool = False,
    most: int = LARGEST_MESSAGE,
    debug: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Answer what the server at `server` (host:port) asks, until `stop`; whatever ends Flower's SuperNode meanwhile.

    `handle(content, run)` gives the answer. `ca` is the federation's certificate, `key` this silo's private key;
    `plain` does without both, beyond this machine only with `insecure`. A message has at most `most` bytes. A server
    that refuses us is a ConfigError.
    """
    split_address(server)
    if plain:
        check_protected(server, insecure)
        ca = key = None
    elif ca is None or key is None:
        raise ConfigError("a silo needs the federation's ca.pem and its own key; partwise keys makes them")
    quiet(debug)
    make_folder(state)
    state.chmod(0o700)
    with Lock(state).held():
        attend(handle, server, name, state, ca, key, most, debug, stop or threading.Event())


def attend(
    handle: Handle,
    server: str,
    name: str,
    state: Path,
    ca: Path | None,
    key: Path | None,
    most: int,
    debug: bool,
    stop: threading.Event,
) -> None:
    """Run a SuperNode and answer the server's messages until told to stop."""
    pause = PAUSES[0]
    while not stop.is_set():
        if ca and key and not reached(server, ca, key, state / "node", stop):
            return
        secret, address = secrets.token_bytes(32), f"127.0.0.1:{free_port()}"
        (state / "secret").unlink(missing_ok=True)
        new_file(state / "secret", secret)
        child = start("supernode", [f"{most}", *supernode_arguments(server, address, state, ca, key)], state, debug)
        began = time.monotonic()
        try:
            serve_tasks(handle, address, secret, name, state / "node", child, stop, most)
        finally:
            end(child)
        if time.monotonic() - began > STEADY:
            pause = PAUSES[0]
        if not stop.wait(pause):
            log.warning("Flower's SuperNode has ended (exit code %s) and is started again", child.returncode)
            pause = min(2 * pause, PAUSES[1])


def supernode_arguments(server: str, address: str, state: Path, ca: Path | None, key: Path | None) -> list[str]:
    """Return the arguments of Flower's SuperNode."""
    host, port = split_address(address)
    return [
        *(["--root-certificates", f"{ca}", "--auth-supernode-private-key", f"{key}"] if ca else ["--insecure"]),
        *("--superlink", server, "--host", host, "--port", str(port), "--isolation", "process"),
        *("--superexec-auth-secret-file", str(state / "secret")),
    ]


def reached(server: str, ca: Path, key: Path, number: Path, stop: threading.Event) -> bool:
    """Wait until the server answers, and return True, or False after `stop`; the log says which of both it is."""
    said = -math.inf
    while not stop.is_set():
        if announce(server, ca, key, number, stop):
            log.info("connected to %s", server)
            return True
        if time.monotonic() - said > SILENCE:
            log.warning("no server answers at %s; trying on", server)
            said = time.monotonic()
        stop.wait(PAUSES[0])
    return False


def announce(server: str, ca: Path, key: Path, number: Path, stop: threading.Event) -> bool:
    """Return whether the server answers.

    Refuse what no patience mends: another federation's server, one that does not know our key, and a second node.
    Also say goodbye for a SuperNode that was killed: Flower believes it online for a minute, and lets no other one in.
    `number` is a file with the node's number, which comes with its first task.
    """
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("no key of an elliptic curve")
        public = public_key_to_bytes(private.public_key())
        signer = NodeAuthHttpInterceptor(private, private.public_key())
        client = FleetHttpClient.from_server_address(server, False, ca.read_bytes(), [signer])
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{ca}' or '{key}' cannot be read: {one_line(error)}") from None
    with client:
        try:
            begun = time.monotonic()
            while activation(client, public) == CONFLICT:
                if time.monotonic() - begun < GONE and not stop.wait(POLL_INTERVAL):
                    continue
                why = f"a node with the key '{key}' is connected already, here or on another machine"
                raise ConfigError(f"{server} refuses this silo: {why}; end that one, or give each silo its own key")
            with suppress(OSError, ValueError, httpx.HTTPStatusError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=int(number.read_text())))
        except httpx.HTTPStatusError:
            why = "its public key is not among the server's, or its clock is wrong"
            raise ConfigError(f"{server} refuses this silo: {why}") from None
        except httpx.TransportError as error:  # a server that is not there may come
            if "CERTIFICATE_VERIFY_FAILED" not in str(error):
                return False
            if "mismatch" not in str(error):
                raise ConfigError(f"{server} has no certificate of '{ca}': {one_line(error)}") from None
            hosts = ", ".join(certified(server))
            raise ConfigError(
                f"the server's certificate is not for '{split_address(server)[0]}', it is for {hosts}: name one of "
                "these in --server, or make the server's keys for this one, too"
            ) from None
    return True


def certified(server: str) -> list[str]:
    """Return the hosts that a server's certificate names."""
    certificate = load_pem_x509_certificate(ssl.get_server_certificate(split_address(server), timeout=GONE).encode())
    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    return [f"{name.value}" for name in names]


def activation(client: FleetHttpClient, public: bytes) -> int:
    """Return the status of a try that never succeeds: to be seen 0 times a second."""
    try:
        client.ActivateNode(ActivateNodeRequest(public_key=public))
    except httpx.HTTPStatusError as error:
        if error.response.status_code == UNKNOWN:
            raise
        return error.response.status_code
    return 0


def serve_tasks(
    handle: Handle,
    address: str,
    secret: bytes,
    name: str,
    number: Path,
    child: Child,
    stop: threading.Event,
    most: int,
) -> None:
    """Carry out what the SuperNode at `address` has received, one after another, until it ends or `stop`."""
    known, last = None, 0.0
    with executor(address, None, secret) as client:
        while not stop.is_set() and child.poll() is None:
            if not child.rings(POLL_INTERVAL) and time.monotonic() - last < BELL:
                continue
            last = time.monotonic()
            while not stop.is_set():
                try:
                    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                    if not found.token:
                        break
                    with task(address, None, found.token) as own:
                        node = answer_next(own, handle, name, most)
                    if node != known:
                        write(number, f"{node}".encode())
                        known = node
                except httpx.HTTPError:  # the SuperNode begins, or ends
                    break
                except Exception as error:  # a message that cannot be read is no reason to end
                    log.warning("a message was not answered: %s", one_line(error))


def answer_next(client: RuntimeHttpClient, handle: Handle, name: str, most: int) -> int:
    """Answer one message of at most `most` bytes; return the node's number."""
    context = client.PullTaskInput(PullTaskInputRequest()).context  # and an application, which nobody looks at
    node, run = context.node_id, context.run_id
    found = client.PullMessages(PullAppMessagesRequest())
    if found.messages_list:
        message = message_from_proto(found.messages_list[0])
        with heartbeats(client), suppress(ObjectPullError):  # its run ended while it was on its way: it is forgotten
            content, error = pull(client, found.message_object_trees[0], node, run, math.inf, most)
            push(client, [answer_message(message, content, error, handle, name)], node, run)
    client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
    return node


def answer_message(message: Message, content: bytes, error: str, handle: Handle, name: str) -> Message:
    """Return the answer to a message, never longer than its sender takes."""
    if message.metadata.message_type == NAME_QUESTION:
        return Message(pack(name.encode()), reply_to=message)
    most = limit_of(message.metadata.group_id)
    try:
        if error:
            raise PartwiseError(error)
        answer = handle(content, f"{message.metadata.run_id}")
        if len(answer) > most:
            raise PartwiseError(f"its answer has {len(answer):,} bytes, and the server takes {most:,}")
        return Message(pack(answer), reply_to=message)
    except PartwiseError as refusal:
        log.warning("not answered: %s", one_line(refusal))
        return Message(pack_error(one_line(refusal)[:ERROR_LETTERS]), reply_to=message)
    except Exception:  # what went wrong in a silo may show its data: it stays there
        log.error("%s", traceback.format_exc())
        return Message(pack_error("internal error; the node's own log says which"), reply_to=message)
