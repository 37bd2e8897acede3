"""`partwise serve`: Flower's SuperLink on this machine only, the silos' keys, and the gate in front of it."""

import asyncio
import json
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.protocol.nodes import POLL_INTERVAL
from partwise.federation.transport.door import Door, Limits
from partwise.federation.transport.flower import client_of
from partwise.federation.transport.flower_internals import (
    ControlHttpClient,
    ListNodesRequest,
    RegisterNodeRequest,
)
from partwise.federation.transport.keys import CA, SECRET, SERVER_CERTIFICATE, SERVER_KEY, make_secret, public_keys
from partwise.federation.transport.processes import Child, check_protected, end, free_port, quiet, split_address, start
from partwise.federation.transport.proxy import BODY, Gate
from partwise.records.lock import Lock
from partwise.writing import make_folder, write

STATE_FOLDER = "state"  # folder in that of the keys: the SuperLink's log, and where it is reached
PLACE = "superlink.json"
PATIENCE = 60  # seconds for the SuperLink to begin


@dataclass(frozen=True)
class Served:
    """The address of a folder's SuperLink, for processes on the same machine."""

    address: str
    ca: Path | None

    @classmethod
    def of(cls, folder: Path) -> "Served":
        """Return the one that is served now."""
        try:
            about = json.loads((folder / STATE_FOLDER / PLACE).read_text(encoding="utf-8"))
            return cls(str(about["address"]), None if about["plain"] else folder / CA)
        except (OSError, ValueError, KeyError):
            raise ConfigError(f"nothing is served from '{folder}': partwise serve {folder} is to run first") from None


def serve_superlink(
    folder: Path,
    address: str,
    *,
    plain: bool = False,
    insecure: bool = False,
    port: int | None = None,
    body: int = BODY,
    limits: Limits | None = None,
    debug: bool = False,
    begun: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT; `begun` is told the address that silos reach, where `address` may end in `:0`.

    `plain`: no TLS and no keys, for trying things out; beyond this machine only with `insecure`. `port` is the
    SuperLink's own, on 127.0.0.1; None takes a free one. `limits` are those of connections from outside; None: what
    this process can hold. To be called in the main thread.
    """
    if plain:
        check_protected(address, insecure)
    elif missing := [file for file in (CA, SERVER_CERTIFICATE, SERVER_KEY) if not (folder / file).exists()]:
        raise ConfigError(f"'{folder}' holds no {missing[0]}: `partwise keys` makes it")
    keys = {} if plain else public_keys(folder)
    quiet(debug)
    state = folder / STATE_FOLDER
    make_folder(state)
    state.chmod(0o700)
    make_secret(folder)
    place = Served(f"127.0.0.1:{port or free_port()}", None if plain else folder / CA)
    with Lock(state).held(), listening(address) as listener:
        child = start("superlink", superlink_arguments(folder, place.address, plain), state, debug)
        try:
            with client_of(ControlHttpClient, place.address, place.ca) as control:
                wait_until_served(control, child, state)
                register(control, keys)
                write(state / PLACE, json.dumps({"address": place.address, "plain": plain}).encode())
                renewed = (lambda: None) if plain else partial(renew, folder, keys, control)
                gate = Gate(upstream(place), body, None if plain else keys)
                door = Door(gate, limits or Limits.of_this_process(), None if plain else tls_of(folder))
                asyncio.run(keep(gate, door, folder, listener, child, renewed, begun))
        finally:
            with suppress(OSError):
                (state / PLACE).unlink()
            end(child)


def listening(address: str) -> socket.socket:
    """Return the socket that silos reach, before anything is started."""
    host, port = split_address(address)
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise ConfigError(f"cannot serve at '{address}': {error.strerror}") from None


def tls_of(folder: Path) -> ssl.SSLContext:
    """Return the server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / SERVER_CERTIFICATE, folder / SERVER_KEY)
    return context


def upstream(place: Served) -> httpx.AsyncClient:
    """Return the gate's way to the SuperLink."""
    verify = ssl.create_default_context(cafile=place.ca) if place.ca else False
    url = f"{'https' if place.ca else 'http'}://{place.address}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)  # the door counts them
    return httpx.AsyncClient(base_url=url, verify=verify, timeout=60, trust_env=False, limits=limits)


def superlink_arguments(folder: Path, address: str, plain: bool) -> list[str]:
    """Return the arguments of Flower's SuperLink.

    No --database: it would hold models and updates in a file, and take three times the time. What is lost when a
    SuperLink ends are messages on their way; silos and FlowerLink begin again.
    """
    host, port = split_address(address)
    tls = ["--enable-supernode-auth", "--ssl-certfile", f"{folder / SERVER_CERTIFICATE}",
           "--ssl-keyfile", f"{folder / SERVER_KEY}", "--ssl-ca-certfile", f"{folder / CA}"]  # fmt: skip
    return [
        *(["--insecure"] if plain else tls),
        *("--host", host, "--port", str(port), "--isolation", "process", "--disable-runtime-dependency-installation"),
        *("--superexec-auth-secret-file", str(folder / SECRET)),
    ]


def wait_until_served(control: ControlHttpClient, child: Child, state: Path) -> None:
    """Wait until the SuperLink answers; refuse one that ends or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while True:
        if child.poll() is not None or time.monotonic() > deadline:
            raise PartwiseError(f"Flower's SuperLink does not begin; it says why in '{state / 'superlink.log'}'")
        try:
            control.ListNodes(ListNodesRequest())
            return
        except httpx.HTTPError:
            time.sleep(0.1)


def register(control: ControlHttpClient, keys: dict[bytes, str]) -> None:
    """Make silos known to Flower."""
    there = {node.public_key for node in control.ListNodes(ListNodesRequest()).nodes_info} if keys else ()
    for key in keys.keys() - there:
        control.RegisterNode(RegisterNodeRequest(public_key=key, name=keys[key]))


def renew(folder: Path, keys: dict[bytes, str], control: ControlHttpClient) -> None:
    """Let in silos whose public keys have come, and no longer those whose have gone."""
    with suppress(ConfigError, httpx.HTTPError, OSError):  # a file that is being copied is complete at the next look
        now = public_keys(folder)
        register(control, {key: name for key, name in now.items() if key not in keys})
        for gone in keys.keys() - now.keys():
            del keys[gone]
        keys.update(now)


async def keep(
    gate: Gate,
    door: Door,
    folder: Path,
    listener: socket.socket,
    child: Child,
    renewed: Callable[[], None],
    begun: Callable[[str], None],
) -> None:
    """Keep the gate open as long as the SuperLink lives and nobody asks for an end."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, asked.set)
    accepting = loop.create_task(door.accept(listener))
    try:
        host, port, *_ = listener.getsockname()
        begun(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        while not asked.is_set():
            if child.poll() is not None:
                log = folder / STATE_FOLDER / "superlink.log"
                raise PartwiseError(f"Flower's SuperLink has ended (exit code {child.returncode}); see '{log}'")
            await asyncio.to_thread(renewed)
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), POLL_INTERVAL)
    finally:
        accepting.cancel()
        door.close()
        await gate.superlink.aclose()  # or the SuperLink waits for it
