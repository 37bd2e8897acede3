"""The gate before Flower's SuperLink, alone: what it hands on, and what not."""

import asyncio
from base64 import b64encode
from datetime import UTC, datetime

import httpx
import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message

from partwise.federation.transport.proxy import Gate

SILO, STRANGER = generate_key_pairs(), generate_key_pairs()
LIMIT = 1000
REACHED = "/v1/fleet/get-run"


def signed(private, public):
    """The headers of a node that has the one key and shows the other."""
    now = datetime.now(UTC).isoformat()
    shown = b64encode(public_key_to_bytes(public)).decode()
    signature = b64encode(sign_message(private, now.encode())).decode()
    return {"flwr-public-key": shown, "flwr-timestamp": now, "flwr-signature": signature}


async def spoken():
    yield b"ans"
    yield b"wer"


def asked(path=REACHED, method="POST", content=b"question", headers=None, keys=True, superlink=None):
    """Status and body that somebody outside gets, and the requests that reached the SuperLink."""
    reached = []

    async def inner(request):
        reached.append((request.url.path, await request.aread(), dict(request.headers)))
        return httpx.Response(200, content=spoken(), headers={"content-type": "application/protobuf"})

    async def talk():
        known = {public_key_to_bytes(SILO[1]): "bern"} if keys else None
        upstream = httpx.AsyncClient(transport=httpx.MockTransport(superlink or inner), base_url="https://127.0.0.1:1")
        outside = httpx.ASGITransport(Gate(upstream, LIMIT, known))
        async with upstream, httpx.AsyncClient(transport=outside, base_url="https://server") as client:
            response = await client.request(method, path, content=content, headers=headers or signed(*SILO))
        return response.status_code, response.content, reached

    return asyncio.run(talk())


def test_a_silos_request_is_handed_on_with_what_flower_needs_and_nothing_else():
    headers = signed(*SILO) | {"content-type": "application/protobuf", "cookie": "x", "authorization": "Bearer y"}
    status, answer, [(path, body, seen)] = asked(headers=headers)
    assert (status, answer, path, body) == (200, b"answer", REACHED, b"question")
    assert seen["flwr-signature"] == headers["flwr-signature"] and seen["content-type"] == "application/protobuf"
    assert not {"cookie", "authorization"} & seen.keys()


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/openapi.json", "/health", "/v1/control/list-nodes", "/v1/runtime/acquire-task"),
        *("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/", "/v1/fleet/pull-messages/"),
        *("//v1/fleet/pull-messages", "/v1/fleet/%2e%2e/control/list-nodes", "/V1/fleet/pull-messages"),
    ],
)
def test_fault_43_all_else_is_not_there_for_a_silo_either(path):
    assert asked(path) == (404, b"", [])


def test_fault_43_other_methods_are_not_there():
    assert all(asked(method=method) == (404, b"", []) for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"))


@pytest.mark.parametrize(
    "headers",
    [
        {"x": "no key at all"},
        signed(*STRANGER),
        signed(STRANGER[0], SILO[1]),  # somebody who has read a silo's public key
        signed(*SILO) | {"flwr-timestamp": "2026-01-01T00:00:00+00:00"},
        signed(*SILO) | {"flwr-signature": "not base64"},
        signed(*SILO) | {"flwr-signature": ""},
    ],
    ids=["none", "unknown", "another's", "other time", "no signature", "empty"],
)
def test_fault_43_without_a_silos_signature_nothing_is_handed_on(headers):
    assert asked(headers=headers) == (401, b"", [])


async def pieces(length):
    for _ in range(length):
        yield b"0"


def test_fault_43_a_body_has_its_limit_whether_or_not_its_length_is_said():
    assert asked(content=b"0" * LIMIT)[0] == 200
    assert asked(content=b"0" * (LIMIT + 1)) == (413, b"", [])
    assert asked(content=pieces(LIMIT))[0] == 200
    assert asked(content=pieces(LIMIT + 1)) == (413, b"", [])


def test_a_superlink_that_does_not_answer_is_a_502_which_nodes_try_again():
    def gone(request):
        raise httpx.ConnectError("refused")

    assert asked(superlink=gone)[:2] == (502, b"")


def test_without_keys_nodes_register_themselves():
    assert asked("/v1/fleet/register-node", headers={"x": "y"}, keys=False)[0] == 200
    assert asked("/v1/control/list-nodes", headers={"x": "y"}, keys=False)[0] == 404
