"""The server's side: messages to silos and their answers, through the SuperLink on this machine."""

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message, Metadata, RecordDict

from partwise.errors import PartwiseError, one_line
from partwise.federation.transport.flower import (
    ERROR_LETTERS,
    LARGEST_MESSAGE,
    NAME_QUESTION,
    QUESTION,
    confirm,
    ending,
    group_of,
    pack,
    pull,
    push,
)
from partwise.federation.transport.flower_internals import (
    SUPERLINK_NODE_ID,
    GetNodesRequest,
    ObjectPushError,
    ObjectTree,
    PullAppMessagesRequest,
    make_message,
    message_from_proto,
)
from partwise.federation.transport.keys import public_keys
from partwise.federation.transport.processes import quiet
from partwise.federation.transport.session import Session
from partwise.records.codec import Limit
from partwise.records.wire import Question

ANSWER_POLL_INTERVAL = 0.1  # seconds between two looks for answers
RETURN = 60  # seconds for a server that has ended to be started again
FETCHING = 4  # answers that are fetched at once
CLOCKS = 10  # seconds; Flower takes 5 that a silo's clock is ahead
NAME_TIMEOUT = 10  # seconds for a node without a key to say its name


@dataclass(frozen=True)
class SiloAnswer:
    """A silo's answer, or why there is none."""

    content: bytes = b""
    error: str = ""


SUPERLINK_ENDED = SiloAnswer(error="the server's SuperLink has ended")
STILL_WORKING = SiloAnswer(error="it is still at work")


class FlowerLink:
    """Asks silos."""

    def __init__(self, folder: Path, debug: bool = False):
        """`folder` holds the federation's keys, and is the one that is served."""
        quiet(debug)
        self.folder = folder
        self.asked: dict[str, str] = {}  # by message: the silo, until it has answered
        self.limits: dict[str, int] = {}  # by message: the most bytes of its answer
        self.open: dict[str, tuple[str, bytes]] = {}  # by silo: a question that goes on, and what it says
        self.arriving: dict[str, Future[SiloAnswer]] = {}
        self.answered_late: list[str] = []
        self.names: dict[int, str] = {}  # of nodes without a key

    def __enter__(self) -> "FlowerLink":
        self.session = Session(self.folder)
        self.pool = ThreadPoolExecutor(FETCHING)
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.__exit__(*error)
        self.pool.shutdown(wait=False, cancel_futures=True)

    def begin_again(self) -> None:
        """Go on with another SuperLink, which knows nothing of what was asked before."""
        following = Session(self.folder)
        self.session.stack.close()
        self.session = following
        self.forget_all()
        self.names.clear()

    def online(self) -> dict[int, bytes]:
        """Return the nodes that are there, and their keys; a server that was started again is waited for."""
        deadline = time.monotonic() + RETURN
        while True:
            try:
                return {node.node_id: node.public_key for node in self.session.client.GetNodes(GetNodesRequest()).nodes}
            except httpx.HTTPError:
                try:
                    self.begin_again()
                except PartwiseError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(ANSWER_POLL_INTERVAL)

    def nodes(self) -> dict[str, int]:
        """Return the silos that are online, and their nodes' numbers; a node is who its key says that it is.

        Where there are no keys (`plain`) each is asked for its name, and believed.
        """
        online = self.online()
        if self.session.ca is not None:
            names = public_keys(self.folder)
            return {names[key]: node for node, key in online.items() if key in names}
        new = {str(node): (node, Question(b"", Limit(0, ERROR_LETTERS))) for node in online if node not in self.names}
        for node, answer in self.exchange(NAME_QUESTION, new, NAME_TIMEOUT).items():
            if not answer.error:
                self.names[int(node)] = answer.content.decode(errors="replace")
        return {name: node for node, name in self.names.items() if node in online}  # of two the one that came later

    def ask(
        self,
        messages: Mapping[str, bytes],
        timeout: float,
        enough: Callable[[Mapping[str, bytes]], bool] | None = None,
    ) -> dict[str, SiloAnswer]:
        """Send a message to each silo, and return what comes back within `timeout` seconds, or until it is `enough`.

        A silo that is not online is not asked and not in the answers. Where it was enough, the others are `AT_WORK`;
        sending one of them the same object again continues to wait for the answer to the first.
        """
        nodes = self.nodes()
        letters = {silo: (nodes[silo], content) for silo, content in messages.items() if silo in nodes}
        return self.exchange(QUESTION, letters, timeout, enough)

    def late(self) -> list[str]:
        """Return the silos whose answers came when nobody waited for them any more, since the last time of asking."""
        self.look({}, time.monotonic() + RETURN)
        late, self.answered_late = self.answered_late, []
        return late

    def exchange(
        self,
        kind: str,
        letters: Mapping[str, tuple[int, bytes]],
        timeout: float,
        enough: Callable[[Mapping[str, bytes]], bool] | None = None,
    ) -> dict[str, SiloAnswer]:
        """Send letters and return the silos' answers by silo."""
        if not letters:
            return {}
        deadline = time.monotonic() + timeout
        waiting = self.going_on(letters)
        everybody, letters = letters, {silo: each for silo, each in letters.items() if silo not in waiting.values()}
        records = {id(content): pack(content) for _, content in letters.values()}  # once for all that are sent the same
        limits = [
            each.answer.message if isinstance(each, Question) else LARGEST_MESSAGE for _, each in letters.values()
        ]
        packed = [
            self.letter(kind, node, records[id(content)], timeout, limit)
            for (node, content), limit in zip(letters.values(), limits, strict=True)
        ]
        try:
            numbers = push(self.session.client, packed, SUPERLINK_NODE_ID, self.session.run) if packed else []
        except (httpx.HTTPError, ObjectPushError):
            return dict.fromkeys(everybody, SUPERLINK_ENDED)
        del records, packed
        new = {number: silo for number, silo in zip(numbers, letters, strict=True) if number}
        answers = {silo: SUPERLINK_ENDED for number, silo in zip(numbers, letters, strict=True) if not number}
        waiting |= new
        self.asked |= new
        self.limits |= {number: limit for number, limit in zip(numbers, limits, strict=True) if number}
        while True:
            self.look(waiting, deadline)
            for number in list(waiting):
                if number not in self.asked and (number not in self.arriving or self.arriving[number].done()):
                    arrived = self.arriving.pop(number, None)
                    answers[waiting.pop(number)] = arrived.result() if arrived else SUPERLINK_ENDED
            if not waiting or time.monotonic() > deadline:
                break
            if enough and enough({silo: each.content for silo, each in answers.items() if not each.error}):
                self.open |= {silo: (number, everybody[silo][1]) for number, silo in waiting.items()}
                return answers | dict.fromkeys(waiting.values(), STILL_WORKING)
            time.sleep(ANSWER_POLL_INTERVAL)
        self.answered_late += [silo for number, silo in waiting.items() if self.arriving.pop(number, None)]
        return answers | {silo: SiloAnswer(error=f"no answer within {timeout:g} s") for silo in waiting.values()}

    def going_on(self, letters: Mapping[str, tuple[int, bytes]]) -> dict[str, str]:
        """Return by message the silos that are still at work on these very letters; their other open questions end."""
        result = {}
        for silo in letters.keys() & self.open.keys():
            number, content = self.open.pop(silo)
            if content is letters[silo][1] and (number in self.asked or number in self.arriving):
                result[number] = silo
            elif self.arriving.pop(number, None):
                self.answered_late.append(silo)
        return result

    def letter(self, kind: str, node: int, content: RecordDict, timeout: float, limit: int) -> Message:
        """Return a message of Flower's.

        Its number is a hash of all that it holds: with something random in it equal contents have numbers of their own,
        and no silo can guess that of another's message, which would be enough to answer in its place. It lives twice as
        long as it is waited for, so that what comes too late is told apart from what does not come. The limit of its
        answer travels with it: the silo and the gate hold to it, before the answer is anywhere on this machine.
        """
        metadata = Metadata(
            run_id=self.session.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=group_of(secrets.token_hex(16), limit),
            created_at=time.time(),
            ttl=2 * timeout + CLOCKS,
            message_type=kind,
        )
        return make_message(metadata=metadata, content=content)

    def look(self, waiting: Mapping[str, str], deadline: float) -> None:
        """Begin to fetch the answers that have come; those that are not waited for are counted and forgotten."""
        if not self.asked:
            return
        try:
            found = self.session.client.PullMessages(PullAppMessagesRequest(message_ids=list(self.asked)))
        except httpx.TimeoutException:
            return
        except httpx.HTTPError:  # it has ended, and knows nothing of all this if it was started again
            self.forget_all()
            return
        wanted = {*waiting, *(number for number, _ in self.open.values())}
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            answer = message_from_proto(proto)
            number = answer.metadata.reply_to_message_id
            silo, limit = self.asked.pop(number, None), self.limits.pop(number, 0)
            if silo is None:
                continue  # it has answered already
            if number in wanted:
                patience = deadline - time.monotonic()
                self.arriving[number] = self.pool.submit(self.fetched, answer, tree, patience, limit)
            elif not answer.has_error():
                self.answered_late.append(silo)
                self.forget(tree.object_id)
            if answer.has_error():
                self.forget(number)  # of which Flower may still hold the content

    def forget(self, message: str) -> None:
        """Tell Flower that a message is done with."""
        with suppress(httpx.HTTPError):
            confirm(self.session.client, message, SUPERLINK_NODE_ID, self.session.run)

    def forget_all(self) -> None:
        """Wait for no answer any more."""
        self.open.clear()
        self.asked.clear()
        self.limits.clear()

    def fetched(self, answer: Message, tree: ObjectTree, patience: float, limit: int) -> SiloAnswer:
        """Return the content of an answer, or why it cannot be used."""
        if why := ending(answer):
            return SiloAnswer(error=why)
        try:
            return SiloAnswer(*pull(self.session.client, tree, SUPERLINK_NODE_ID, self.session.run, patience, limit))
        except Exception as error:  # whatever a silo may send, it is that silo's answer that fails
            return SiloAnswer(error=f"its answer did not arrive whole: {one_line(error)}")
