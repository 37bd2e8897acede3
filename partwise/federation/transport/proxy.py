"""The gate in front of Flower's SuperLink: silos reach from outside only the calls that they need.

Flower serves all its interfaces on one port, and asks for a key on that of the nodes alone: whoever reaches the port
could start runs and register nodes of their own.
"""

import binascii
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import httpx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from partwise.federation.transport.flower import (
    CHUNK_BYTES,
    OBJECT_OVERHEAD,
    TooLong,
    check_tree,
    largest_tree,
    limit_of,
)
from partwise.federation.transport.flower_internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    PullMessagesResponse,
    PushMessagesRequest,
    bytes_to_public_key,
    verify_signature,
)

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiScope]]
Send = Callable[[AsgiScope], Awaitable[None]]

BODY = CHUNK_BYTES + (1 << 16)  # bytes of a request: a message comes in chunks, however long it is
REQUEST_LABEL_BYTES = 1 << 20  # bytes of a request that brings no chunk
CALLS = (
    "activate-node deactivate-node send-node-heartbeat pull-messages push-messages get-run get-fab push-object "
    "pull-object confirm-message-received"
)
REGISTRATION = "register-node unregister-node"  # of a node without keys
ACTIVATE, HEARTBEAT = "/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat"
PULL_PATH, PUSH, PUSH_OBJECT = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/push-object"
PASSED_ON = (b"content-type", b"content-length", b"accept", b"flwr-")  # beginnings of names of headers
REMEMBERED = 16  # questions of a silo that may still be answered
ANSWERS = 3  # times that a question may be answered: an answer that was lost is sent again


@dataclass
class Due:
    """The bytes that a silo may still send in answer to a request."""

    limit: int  # bytes of an answer
    times: int = ANSWERS


class Debts:
    """The requests to each silo, which limit its bytes: no silo can fill the SuperLink with unrequested data."""

    def __init__(self) -> None:
        self.due: dict[bytes, dict[str, Due]] = {}  # by silo and question
        self.left: dict[bytes, int] = {}  # by silo: bytes of chunks

    def fetched(self, silo: bytes, response: bytes) -> None:
        """Note the questions that a silo has fetched."""
        for message in PullMessagesResponse.FromString(response).messages_list:
            own = self.due.setdefault(silo, {})
            own[message.metadata.message_id] = Due(limit_of(message.metadata.group_id))
            while len(own) > REMEMBERED:
                del own[next(iter(own))]

    def check(self, silo: bytes, request: bytes) -> bool:
        """Return whether an answer is to a question of this silo, and of no more objects than the answer can have."""
        try:
            asked = PushMessagesRequest.FromString(request)
            [message], [tree] = asked.messages_list, asked.message_object_trees
            due = self.due[silo][message.metadata.reply_to_message_id]
            check_tree(tree, due.limit)
        except (DecodeError, ValueError, KeyError):
            return False
        due.times -= 1
        self.left[silo] = due.limit + OBJECT_OVERHEAD * largest_tree(due.limit)
        return due.times >= 0

    def pay(self, silo: bytes, length: int) -> bool:
        """Count bytes that a silo sends; return whether it may."""
        self.left[silo] = self.left.get(silo, 0) - length
        return self.left[silo] >= 0


class Gate:
    """An ASGI application that hands requests on."""

    def __init__(self, superlink: httpx.AsyncClient, body: int = BODY, keys: Mapping[bytes, str] | None = None):
        """`keys` are those of the silos; None lets in everybody, who may also register themselves."""
        self.superlink, self.body, self.keys, self.debts = superlink, body, keys, Debts()
        calls = CALLS.split() + (REGISTRATION.split() if keys is None else [])
        self.paths = {f"/v1/fleet/{call}" for call in calls}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on to the SuperLink."""
        assert scope["type"] == "http"  # uvicorn is told to speak nothing else
        path = scope["path"]
        if scope["method"] != "POST" or path not in self.paths:
            return await answer(send, 404)
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        silo = b"" if self.keys is None else self.silo(dict(headers))
        if silo is None:
            return await answer(send, 401)  # before its body is read: Flower reads first, and asks then
        connection = scope.get("state", {}).get("connection")
        if silo and connection is not None:
            if path == ACTIVATE and connection.another(silo):
                return await answer(send, 409)  # or the two would take each other's messages
            if path in (PULL_PATH, HEARTBEAT):
                connection.silo = silo
        most = self.body if path == PUSH_OBJECT else min(self.body, REQUEST_LABEL_BYTES)
        if int(dict(headers).get(b"content-length", b"0")) > most:
            return await answer(send, 413)
        chunks = self.content(receive, most, silo if path == PUSH_OBJECT else b"")
        content: bytes | AsyncIterator[bytes] = chunks
        try:
            if silo and path == PUSH:
                content = b"".join([chunk async for chunk in chunks])
                if not self.debts.check(silo, content):
                    return await answer(send, 413)
            kept = [(name, value) for name, value in headers if name.startswith(PASSED_ON)]
            request = self.superlink.build_request("POST", path, headers=kept, content=content)
            response = await self.superlink.send(request, stream=True)
        except TooLong:
            return await answer(send, 413)
        except httpx.TransportError:
            return await answer(send, 502)  # which Flower's nodes try again
        try:
            kept = [(name, value) for name, value in response.headers.raw if name.lower() != b"connection"]
            whole = [await response.aread()] if silo and path == PULL_PATH else None
            if whole and response.status_code == 200:
                self.debts.fetched(silo, whole[0])
            await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
            for chunk in whole or ():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if whole is None:
                async for chunk in response.aiter_raw():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await response.aclose()

    async def content(self, receive: Receive, most: int, silo: bytes) -> AsyncIterator[bytes]:
        """Yield a body of at most `most` bytes; its silo pays for each chunk."""
        length, more = 0, True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                raise httpx.ReadError("the node has gone")
            chunk = event.get("body", b"")
            length, more = length + len(chunk), event.get("more_body", False)
            if length > most or (silo and not self.debts.pay(silo, len(chunk))):
                raise TooLong
            yield chunk

    def silo(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return the silo's key that has signed the request; how old it is and for which node, Flower looks at."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            signed = headers[TIMESTAMP_HEADER.encode()]
            known = key in self.keys and verify_signature(bytes_to_public_key(key), signed, signature)  # type: ignore
            return key if known else None
        except (KeyError, ValueError, binascii.Error):
            return None


async def answer(send: Send, status: int) -> None:
    """Send an empty answer."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
