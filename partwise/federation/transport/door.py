"""The server's limits on connections: how many may be open, and for how long one may be idle.

Anybody may connect. So connections are counted, by address and in all, before a handshake begins; each has deadlines;
and where there are too many, or no descriptors left, the oldest one that has shown no key ends.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from partwise.federation.transport.proxy import AsgiScope, Receive, Send

Application = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

RESERVED_DESCRIPTORS = 128  # descriptors for everything else: files, the SuperLink, its log
WANTED = 4096  # descriptors that are asked of the system
REFUSALS = (400, 401, 404, 413)  # statuses of requests that have shown no key
BYE = 1.0  # seconds for the end of TLS
BREATH = 0.1  # seconds until another connection is accepted, where none could be
IPV6_SITE = 64  # bits of an IPv6 address that name a site: all its addresses count as one


@dataclass(frozen=True)
class Limits:
    """The numbers of open connections, and the seconds to wait."""

    in_all: int = 1024
    of_address: int = 512
    head: float = 20.0  # for the handshake and the headers of a request
    request: float = 600.0  # for the body of a request and its answer
    idle: float = 60.0  # for the next request of a silo

    @classmethod
    def of_this_process(cls) -> "Limits":
        """Return limits that the descriptors of this process allow: two for a connection, it is handed on."""
        try:
            import resource
        except ImportError:  # a system that has no such limit
            return cls()
        given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = (WANTED if limit == resource.RLIM_INFINITY else limit for limit in (given, most))
        if soft < min(WANTED, hard):
            soft = min(WANTED, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
        in_all = max(2, min(cls.in_all, (soft - RESERVED_DESCRIPTORS) // 2))
        return cls(in_all, in_all // 2)


class Connection(H11Protocol):
    """A connection from outside; requests on it go to the door's application."""

    def __init__(self, door: "Door", address: str):
        self.door, self.address = door, address
        self.known = False  # a request of it has shown a silo's key
        self.silo = b""  # the key of the node that speaks here
        self.welcome: asyncio.Task[None] | None = None  # the handshake
        self.timer: asyncio.TimerHandle | None = None
        super().__init__(door.config, ServerState(), {"connection": self}, asyncio.get_running_loop())
        self.app = self.answer
        self.wait(door.limits.head)

    def wait(self, seconds: float | None) -> None:
        """End in some seconds, unless something happens until then; None: a request is being answered."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.end)

    async def answer(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request; a silo that is too slow with it ends."""

        async def noted(event: AsgiScope) -> None:
            if event["type"] == "http.response.start":
                self.known |= event["status"] not in REFUSALS
            await send(event)

        self.wait(None)
        try:
            async with asyncio.timeout(self.door.limits.request):
                await self.door.application(scope, receive, noted)
        except TimeoutError:
            self.end()
        finally:
            if self in self.door.open:
                self.wait(self.door.limits.idle if self.known else self.door.limits.head)

    def another(self, silo: bytes) -> bool:
        """Return whether a node speaks on another connection with the key of a silo."""
        return any(each.silo == silo for each in self.door.open if each is not self)

    def end(self) -> None:
        """End at once, also in the middle of a handshake."""
        self.wait(None)
        self.door.open.pop(self, None)
        if self.transport is not None:
            self.transport.abort()
        elif self.welcome is not None:
            self.welcome.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget a connection that has ended."""
        self.wait(None)
        self.door.open.pop(self, None)
        super().connection_lost(error)


class Door:
    """Accepts connections, and holds to its limits."""

    def __init__(self, application: Application, limits: Limits, tls: ssl.SSLContext | None):
        self.application, self.limits, self.tls = application, limits, tls
        self.open: dict[Connection, None] = {}  # in the order in which they came
        self.config = uvicorn.Config(application, lifespan="off", ws="none", log_config=None, access_log=False)
        self.config.timeout_keep_alive = int(limits.idle)  # its own deadline is never the first
        self.config.load()

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until this is cancelled."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                conversation, peer = await loop.sock_accept(listener)
            except OSError:  # no descriptors, no memory, or it has gone already
                self.make_room(list(self.open))
                await asyncio.sleep(BREATH)
                continue
            self.let_in(conversation, site_of(peer[0]))

    def let_in(self, conversation: socket.socket, address: str) -> None:
        """Begin a handshake, where limits allow one more; a connection that has shown no key gives way."""
        neighbours = [each for each in self.open if each.address == address]
        full = len(neighbours) >= self.limits.of_address and not self.make_room(neighbours)
        if full or (len(self.open) >= self.limits.in_all and not self.make_room(list(self.open))):
            conversation.close()
            return
        connection = Connection(self, address)
        self.open[connection] = None
        connection.welcome = asyncio.get_running_loop().create_task(self.shake_hands(connection, conversation))

        def over(_: asyncio.Task[None]) -> None:
            if connection.transport is None:  # also where it was ended before it could begin
                connection.end()
                conversation.close()

        connection.welcome.add_done_callback(over)

    async def shake_hands(self, connection: Connection, conversation: socket.socket) -> None:
        """Let the protocol of a connection begin."""
        waits = {"ssl_handshake_timeout": self.limits.head, "ssl_shutdown_timeout": BYE} if self.tls else {}
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # a handshake that fails
            await loop.connect_accepted_socket(lambda: connection, conversation, ssl=self.tls, **waits)

    def make_room(self, among: list[Connection]) -> bool:
        """End the oldest of some connections that has shown no key; return whether there was one."""
        for connection in among:
            if not connection.known:
                connection.end()
                return True
        return False

    def close(self) -> None:
        """End all connections."""
        for connection in list(self.open):
            connection.end()


def site_of(host: str) -> str:
    """Return what counts as one address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, IPV6_SITE), strict=False))
