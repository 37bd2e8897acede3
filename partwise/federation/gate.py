"""The gate before Flower's SuperLink: from outside, silos reach what silos need, and nobody anything else.

Flower serves all its interfaces on one port, and asks for a key on that of the nodes alone: whoever reaches the port
could start runs and register nodes of their own.
"""

import binascii
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import httpx
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

BODY = 64 << 20  # bytes of a request: a message comes in chunks of 4 MiB, however long it is
CALLS = (
    "activate-node deactivate-node send-node-heartbeat pull-messages push-messages get-run get-fab push-object "
    "pull-object confirm-message-received"
)
REGISTRATION = "register-node unregister-node"  # of a node without keys
PASSED_ON = (b"content-type", b"content-length", b"accept", b"flwr-")  # beginnings of names of headers


class TooLong(Exception):
    """A request has a longer body than any that Flower sends."""


class Gate:
    """An ASGI application that hands requests on."""

    def __init__(self, superlink: httpx.AsyncClient, body: int = BODY, keys: Mapping[bytes, str] | None = None):
        """`keys` are those of the silos; None lets in everybody, who may also register themselves."""
        self.superlink, self.body, self.keys = superlink, body, keys
        calls = CALLS.split() + (REGISTRATION.split() if keys is None else [])
        self.paths = {f"/v1/fleet/{call}" for call in calls}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # uvicorn is told to speak nothing else
        if scope["method"] != "POST" or scope["path"] not in self.paths:
            return await answer(send, 404)
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        if self.keys is not None and not self.known(dict(headers)):
            return await answer(send, 401)  # before its body is read: Flower reads first, and asks then
        if int(dict(headers).get(b"content-length", b"0")) > self.body:
            return await answer(send, 413)
        kept = [(name, value) for name, value in headers if name.startswith(PASSED_ON)]
        request = self.superlink.build_request("POST", scope["path"], headers=kept, content=self.content(receive))
        try:
            response = await self.superlink.send(request, stream=True)
        except TooLong:
            return await answer(send, 413)
        except httpx.TransportError:
            return await answer(send, 502)  # which Flower's nodes try again
        try:
            kept = [(name, value) for name, value in response.headers.raw if name.lower() != b"connection"]
            await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await response.aclose()

    async def content(self, receive: Receive) -> AsyncIterator[bytes]:
        length, more = 0, True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                raise httpx.ReadError("the node has gone")
            chunk = event.get("body", b"")
            length, more = length + len(chunk), event.get("more_body", False)
            if length > self.body:
                raise TooLong
            yield chunk

    def known(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a silo's key has signed the request; how old it is and for which node, Flower looks at."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            signed = headers[TIMESTAMP_HEADER.encode()]
            return key in self.keys and verify_signature(bytes_to_public_key(key), signed, signature)  # type: ignore
        except (KeyError, ValueError, binascii.Error):
            return False


async def answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
