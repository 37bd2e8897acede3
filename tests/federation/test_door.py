"""Fault 70: whoever connects and says nothing, or too slowly, ends; silos are served meanwhile."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from partwise.federation.transport.door import Door, Limits, site_of
from partwise.federation.transport.keys import make_keys
from partwise.federation.transport.superlink import listening, tls_of
from tests.support.flower import PATIENCE

SHORT = 0.2  # seconds of a deadline that a test waits for
LONG = Limits(in_all=100, of_address=100, head=PATIENCE, request=PATIENCE, idle=PATIENCE)
ASK = b"POST %s HTTP/1.1\r\nhost: server\r\ncontent-length: %d\r\n\r\n"


async def application(scope, receive, send):
    """Answers with the length of the body; a stranger's path is refused."""
    length, more = 0, True
    while more:
        event = await receive()
        length, more = length + len(event.get("body", b"")), event.get("more_body", False)
    status = 401 if scope["path"] == "/stranger" else 200
    body = b"%d" % length
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def opened(limits, tls=None):
    """A door in a thread, and its address."""
    listener, loop = listening("127.0.0.1:0"), asyncio.new_event_loop()
    made = {}

    async def serve():
        made["door"] = Door(application, limits, tls)
        accepting = asyncio.create_task(made["door"].accept(listener))
        try:
            await asyncio.Event().wait()
        finally:
            accepting.cancel()
            made["door"].close()

    task = loop.create_task(serve())
    thread = threading.Thread(
        target=lambda: asyncio.set_event_loop(loop) or loop.run_until_complete(asyncio.wait([task]))
    )
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        listener.close()
        loop.close()


@contextmanager
def strangers(address, number, source="127.0.0.1", content=b""):
    """Connections that say only this."""
    connections = []
    try:
        for _ in range(number):
            connection = socket.create_connection(address, PATIENCE, source_address=(source, 0))
            connection.sendall(content)
            connections.append(connection)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def ended(connection):
    """Wait until a connection ends."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def asked(connection, path=b"/silo", content=b"question"):
    """The status and the body of an answer."""
    connection.sendall(ASK % (path, len(content)) + content)
    head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
    return int(head.split()[1]), body or connection.recv(1 << 16)


@pytest.mark.parametrize(
    "content", [b"", b"POST /silo HT", b"POST /silo HTTP/1.1\r\nx: ", (ASK % (b"/silo", 100))[:-2]],
    ids=["idle", "half a line", "half a header", "no end of the headers"],
)  # fmt: skip
def test_fault_70_who_says_nothing_or_no_whole_header_ends(content):
    with opened(replace(LONG, head=SHORT)) as address, strangers(address, 5, content=content) as slow:
        assert all(map(ended, slow))
        with strangers(address, 1) as [silo]:
            assert asked(silo) == (200, b"8")


def test_fault_70_half_a_body_ends():
    with opened(replace(LONG, request=SHORT)) as address:
        with strangers(address, 3, content=ASK % (b"/silo", 100) + b"half") as slow:
            assert all(map(ended, slow))
        with strangers(address, 1) as [silo]:
            assert asked(silo) == (200, b"8")


def test_fault_70_a_handshake_that_does_not_go_on_ends(tmp_path):
    make_keys(tmp_path, ["127.0.0.1"], [])
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with opened(replace(LONG, head=SHORT), tls_of(tmp_path)) as address:
        for content in (b"", b"\x16\x03\x01", b"no TLS at all"):
            with strangers(address, 3, content=content) as slow:
                assert all(map(ended, slow))
    with (
        opened(LONG, tls_of(tmp_path)) as address,
        strangers(address, 3),
        strangers(address, 1) as [plain],
        context.wrap_socket(plain, server_hostname="127.0.0.1") as silo,
    ):
        assert asked(silo) == (200, b"8")


def test_fault_70_an_address_has_its_limit_and_others_theirs():
    with (
        opened(replace(LONG, of_address=4)) as address,
        strangers(address, 1, "127.0.0.2") as [elsewhere],
        strangers(address, 12) as many,
    ):
        assert all(map(ended, many[:8]))  # the oldest
        assert asked(many[-1]) == asked(elsewhere) == (200, b"8")


def test_fault_70_where_all_are_too_many_the_oldest_stranger_ends_and_no_silo():
    with opened(replace(LONG, in_all=4)) as address, strangers(address, 2) as silos:
        assert [asked(silo) for silo in silos] == [(200, b"8")] * 2
        with strangers(address, 8) as many:
            assert all(map(ended, many[:6]))
            assert asked(many[-1], b"/stranger") == (401, b"8")
            assert [asked(silo) for silo in silos] == [(200, b"8")] * 2


def test_fault_70_where_all_are_silos_no_more_come_in():
    with opened(replace(LONG, in_all=2)) as address, strangers(address, 2) as silos:
        assert [asked(silo) for silo in silos] == [(200, b"8")] * 2
        with strangers(address, 1) as [more]:
            assert ended(more)
        assert [asked(silo) for silo in silos] == [(200, b"8")] * 2


def test_fault_70_a_refusal_is_no_way_to_stay():
    with opened(replace(LONG, head=SHORT)) as address, strangers(address, 1) as [stranger]:
        assert asked(stranger, b"/stranger") == (401, b"8")
        assert ended(stranger)


def test_addresses_of_one_site_count_as_one():
    assert site_of("2001:db8::1") == site_of("2001:db8::ffff:1") != site_of("2001:db8:0:1::1")
    assert site_of("::ffff:192.0.2.7") == site_of("192.0.2.7") == "192.0.2.7"


FEW_DESCRIPTORS = """
import asyncio, os, resource, sys
from dataclasses import replace
from partwise.federation.transport.door import Door
from partwise.federation.transport.superlink import listening
from tests.federation.test_door import LONG, application

async def serve():
    listener = listening("127.0.0.1:0")
    door = Door(application, replace(LONG, in_all=10**6, of_address=10**6), None)
    print(listener.getsockname()[1], flush=True)
    free = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
    await door.accept(listener)

asyncio.run(serve())
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_fault_70_no_descriptors_left_ends_a_connection_and_not_the_server():
    with subprocess.Popen([sys.executable, "-c", FEW_DESCRIPTORS], stdout=subprocess.PIPE) as server:
        try:
            address = "127.0.0.1", int(server.stdout.readline())
            with strangers(address, 60) as many:
                assert ended(many[0])
                with strangers(address, 1) as [silo]:
                    assert asked(silo) == (200, b"8")
        finally:
            server.kill()
