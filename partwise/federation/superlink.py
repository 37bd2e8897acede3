"""`partwise serve`: Flower's SuperLink on this machine alone, the silos' keys in it, and the gate before it."""

import asyncio
import json
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.flower import check_plain, client_of, end, free_port, quiet, split_address, start
from partwise.federation.gate import BODY, Gate
from partwise.federation.keys import CA, SECRET, SERVER, SERVER_KEY, make_secret, public_keys
from partwise.runs.lock import Lock
from partwise.writing import make_folder, write

STATE = "state"  # folder in that of the keys: the SuperLink's log, and where it is reached
PLACE = "superlink.json"
PATIENCE = 60  # seconds for the SuperLink to begin
LOOK = 0.5  # seconds between two looks whether it lives, and whether a silo's key has come or gone


@dataclass(frozen=True)
class Place:
    """Where the SuperLink of a folder is reached, by processes of the same machine."""

    address: str
    ca: Path | None

    @classmethod
    def of(cls, folder: Path) -> "Place":
        """The one that is served now."""
        try:
            about = json.loads((folder / STATE / PLACE).read_text(encoding="utf-8"))
            return cls(str(about["address"]), None if about["plain"] else folder / CA)
        except (OSError, ValueError, KeyError):
            raise ConfigError(f"nothing is served from '{folder}': partwise serve {folder} is to run first") from None


class Server(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn's own way ends with the signal once more, which is no exit code 0."""

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


def serve(
    folder: Path,
    address: str,
    *,
    plain: bool = False,
    insecure: bool = False,
    port: int | None = None,
    body: int = BODY,
    debug: bool = False,
    begun: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT; `begun` is told the address that silos reach, where `address` may end in `:0`.

    `plain`: no TLS and no keys, for trying things out; beyond this machine only with `insecure`. `port` is the
    SuperLink's own, on 127.0.0.1; None takes a free one. To be called in the main thread.
    """
    host, public = split_address(address)
    if plain:
        check_plain(address, insecure)
    elif missing := [file for file in (CA, SERVER, SERVER_KEY) if not (folder / file).exists()]:
        raise ConfigError(f"'{folder}' holds no {missing[0]}: partwise keys {folder} --server {host} makes it")
    keys = {} if plain else public_keys(folder)
    quiet(debug)
    state = folder / STATE
    make_folder(state)
    state.chmod(0o700)
    make_secret(folder)
    with Lock(state).held():
        inner = f"127.0.0.1:{port or free_port()}"
        child = start("superlink", superlink_arguments(folder, inner, plain), state, debug)
        try:
            place = Place(inner, None if plain else folder / CA)
            with client_of(ControlHttpClient, place.address, place.ca) as control:
                wait_until_served(control, child, state)
                register(control, keys)
                write(state / PLACE, json.dumps({"address": inner, "plain": plain}).encode())
                tls = {} if plain else {"ssl_certfile": folder / SERVER, "ssl_keyfile": folder / SERVER_KEY}
                verify = ssl.create_default_context(cafile=folder / CA) if not plain else False
                upstream = httpx.AsyncClient(
                    base_url=f"{'http' if plain else 'https'}://{inner}", verify=verify, timeout=60, trust_env=False
                )
                gate = Gate(upstream, body, None if plain else keys)
                config = uvicorn.Config(gate, host, public, lifespan="off", ws="none", log_level="critical",
                                        access_log=False, server_header=False, **tls)  # type: ignore[arg-type] # fmt: skip
                asyncio.run(keep(Server(config), child, lambda: renew(folder, keys, control, plain), begun, state))
        finally:
            with suppress(OSError):
                (state / PLACE).unlink()
            end(child)


def superlink_arguments(folder: Path, address: str, plain: bool) -> list[str]:
    """What Flower's SuperLink is told.

    No --database: it would hold models and updates in a file, and take three times the time. What is lost when a
    SuperLink ends are messages on their way; silos and FlowerLink begin again.
    """
    host, port = split_address(address)
    tls = ["--enable-supernode-auth", "--ssl-certfile", f"{folder / SERVER}", "--ssl-keyfile", f"{folder / SERVER_KEY}",
           "--ssl-ca-certfile", f"{folder / CA}"]  # fmt: skip
    return [
        *(["--insecure"] if plain else tls),
        *("--host", host, "--port", str(port), "--isolation", "process", "--disable-runtime-dependency-installation"),
        *("--superexec-auth-secret-file", str(folder / SECRET)),
    ]


def wait_until_served(control: ControlHttpClient, child: subprocess.Popen[bytes], state: Path) -> None:
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
    there = {node.public_key for node in control.ListNodes(ListNodesRequest()).nodes_info}
    for key in keys.keys() - there:
        control.RegisterNode(RegisterNodeRequest(public_key=key, name=keys[key]))


def renew(folder: Path, keys: dict[bytes, str], control: ControlHttpClient, plain: bool) -> None:
    """Let in silos whose public keys have come, and no longer those whose have gone."""
    if plain:
        return
    with suppress(ConfigError, httpx.HTTPError):  # a file that is being copied is complete at the next look
        now = public_keys(folder)
        if now != keys:
            register(control, now)
            for gone in keys.keys() - now.keys():
                del keys[gone]
            keys.update(now)


async def keep(
    server: Server,
    child: subprocess.Popen[bytes],
    renew: Callable[[], None],
    begun: Callable[[str], None],
    state: Path,
) -> None:
    """Serve as long as the SuperLink lives and nobody asks for an end."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, asked.set)
    serving = loop.create_task(server.serve())
    try:
        while not server.started:
            if serving.done():
                raise PartwiseError("the address cannot be served; is it in use?")
            await asyncio.sleep(0.02)
        host, port, *_ = server.servers[0].sockets[0].getsockname()
        begun(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        while not asked.is_set():
            if child.poll() is not None:
                raise PartwiseError(
                    f"Flower's SuperLink has ended (exit code {child.returncode}); see '{state / 'superlink.log'}'"
                )
            if serving.done():
                raise PartwiseError("the gate has ended")
            await asyncio.to_thread(renew)
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), LOOK)
    finally:
        server.should_exit = server.force_exit = True
        with suppress(SystemExit):
            await serving
