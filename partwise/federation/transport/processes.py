"""Flower's processes and their addresses."""

import ipaddress
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from partwise.errors import ConfigError
from partwise.writing import make_folder

SHUTDOWN_SECONDS = 2.5  # seconds; whoever ends with SIGTERM has 5 in all


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[::1]:port`."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536) or (":" in host and host[0] != "["):
        raise ConfigError(f"address '{address}': HOST:PORT is needed, such as 192.168.0.7:9443 or [::1]:9443")
    return host.strip("[]"), int(port)


def check_protected(address: str, insecure: bool) -> None:
    """Refuse to send models and updates unprotected over a network."""
    if not is_loopback(split_address(address)[0]) and not insecure:
        raise ConfigError(f"'{address}' is not this machine: without TLS anybody on the way reads and changes all; "
                          "make keys (partwise keys), or say --insecure")  # fmt: skip


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def quiet(debug: bool = False) -> None:
    """Keep from the terminal what Flower does, but with --debug."""
    logging.getLogger("flwr").setLevel(logging.DEBUG if debug else logging.CRITICAL)


class Child(subprocess.Popen[bytes]):
    """A process of Flower's, and a line to it: it ends where the line does, and rings when there is something to do."""

    def __init__(self, command: Sequence[str], log: IO[bytes], environment: dict[str, str]):
        self.line, its = socket.socketpair()
        with its:
            super().__init__(
                command,
                stdin=its.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to the asking process, which then ends this one
            )

    def rings(self, seconds: float) -> bool:
        """Wait until it rings, or for some seconds; return whether it has rung."""
        self.line.settimeout(seconds)
        try:
            return bool(self.line.recv(1 << 12))
        except OSError:  # it has not, or it has ended
            return False


def start(kind: str, arguments: Sequence[str], state: Path, debug: bool = False) -> Child:
    """Start Flower's `superlink` or `supernode` (child.py); what it says is in a file of the state folder."""
    make_folder(state)
    environment = os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str((state / "flwr").absolute()),
        "FLWR_LOG_LEVEL": "DEBUG" if debug else "WARNING",
    }
    with open(state / f"{kind}.log", "ab") as log:
        return Child([sys.executable, "-m", "partwise.federation.transport.child", kind, *arguments], log, environment)


def end(child: Child) -> None:
    """Let a process of Flower say goodbye, but not for long."""
    child.line.close()
    try:
        child.wait(SHUTDOWN_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
