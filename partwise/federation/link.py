"""The server's side: messages to silos and their answers, through the SuperLink that is served on this machine."""

import io
import secrets
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.common.serde import message_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from partwise.errors import PartwiseError, one_line
from partwise.federation.flower import (
    NAME,
    QUESTION,
    client_of,
    confirm,
    executor,
    heartbeats,
    pack,
    pull,
    push,
    quiet,
    task,
    unpack,
)
from partwise.federation.keys import SECRET, public_keys
from partwise.federation.superlink import Place

LOOK = 0.1  # seconds between two looks for answers
UPLOAD = 180  # seconds that Flower waits for the rest of an answer
RETURN = 60  # seconds for a server that has ended to be started again
FETCHING = 4  # answers that are fetched at once
KNOWN = 10  # seconds for a node without a key to say its name
APPLICATION = """
[project]
name = "partwise"
version = "1.0.0"
[tool.flwr.app]
publisher = "partwise"
[tool.flwr.app.components]
serverapp = "partwise:nothing"
clientapp = "partwise:nothing"
"""  # Flower wants one with every run; silos do not look at it


@dataclass(frozen=True)
class Answer:
    """What a silo has answered, or why it has not."""

    content: bytes = b""
    error: str = ""


LOST = Answer(error="the server's SuperLink has ended")


class FlowerLink:
    """A run of Flower's, in whose name silos are asked."""

    def __init__(self, folder: Path, debug: bool = False):
        """`folder` holds the federation's keys, and is the one that is served."""
        quiet(debug)
        self.folder, self.session = folder, ExitStack()
        self.asked: dict[str, str] = {}  # by message: the silo, until it has answered
        self.arriving: dict[str, Future[Answer]] = {}
        self.answered_late: list[str] = []
        self.names: dict[int, str] = {}  # of nodes without a key

    def __enter__(self) -> "FlowerLink":
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        status = SubStatus.FAILED if kind else SubStatus.COMPLETED
        details = one_line(error)[:1000] if error else ""
        with suppress(httpx.HTTPError):  # it is gone, and the run with it
            self.client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        self.session.close()

    def begin(self) -> None:
        """Start a run of Flower's and take the place of its application."""
        self.session.close()
        self.asked.clear()
        self.arriving.clear()
        self.names.clear()
        place = Place.of(self.folder)
        address, self.ca = place.address, place.ca
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("pyproject.toml", APPLICATION)
        try:
            with client_of(ControlHttpClient, address, self.ca) as control:
                control.StartRun(StartRunRequest(fab=Fab(content=archive.getvalue())))
            with executor(address, self.ca, (self.folder / SECRET).read_bytes()) as client:
                # Which one does not matter: all runs are alike, and one that somebody has left behind serves as well.
                token = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token
            self.client = self.session.enter_context(task(address, self.ca, token))
            self.run: int = self.client.PullTaskInput(PullTaskInputRequest()).run.run_id
        except (httpx.HTTPError, OSError, ValueError) as error:
            self.session.close()
            raise PartwiseError(f"the server of '{self.folder}' does not answer: {one_line(error)}") from None
        self.session.enter_context(heartbeats(self.client))
        self.pool = ThreadPoolExecutor(FETCHING)
        self.session.callback(self.pool.shutdown, wait=False, cancel_futures=True)

    def online(self) -> dict[int, bytes]:
        """The nodes that are there, and their keys; a server that was started again is waited for."""
        deadline = time.monotonic() + RETURN
        while True:
            try:
                return {node.node_id: node.public_key for node in self.client.GetNodes(GetNodesRequest()).nodes}
            except httpx.HTTPError:
                try:
                    self.begin()
                except PartwiseError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOOK)

    def nodes(self) -> dict[str, int]:
        """The silos that are online, and their nodes' numbers; a node is who its key says that it is.

        Where there are no keys (`plain`) each is asked for its name, and believed.
        """
        online = self.online()
        if self.ca is not None:
            names = public_keys(self.folder)
            return {names[key]: node for node, key in online.items() if key in names}
        new = {str(node): (node, b"") for node in online if node not in self.names}
        for node, answer in self.exchange(NAME, new, KNOWN).items():
            if not answer.error:
                self.names[int(node)] = answer.content.decode()
        return {self.names[node]: node for node in online if node in self.names}

    def ask(
        self,
        messages: Mapping[str, bytes],
        timeout: float,
        enough: Callable[[Mapping[str, bytes]], bool] | None = None,
    ) -> dict[str, Answer]:
        """Send a message to each silo, and return what comes back within `timeout` seconds, or until it is `enough`.

        A silo that is not online is not asked and not in the answers.
        """
        nodes = self.nodes()
        letters = {silo: (nodes[silo], content) for silo, content in messages.items() if silo in nodes}
        return self.exchange(QUESTION, letters, timeout, enough)

    def late(self) -> list[str]:
        """The silos whose answers came when nobody waited for them any more, since the last time of asking."""
        self.look({})
        late, self.answered_late = self.answered_late, []
        return late

    def exchange(
        self,
        kind: str,
        letters: Mapping[str, tuple[int, bytes]],
        timeout: float,
        enough: Callable[[Mapping[str, bytes]], bool] | None = None,
    ) -> dict[str, Answer]:
        if not letters:
            return {}
        deadline = time.monotonic() + timeout
        records = {id(content): pack(content) for _, content in letters.values()}  # once for all that are sent the same
        packed = [self.letter(kind, node, records[id(content)], timeout) for node, content in letters.values()]
        try:
            numbers = push(self.client, packed, SUPERLINK_NODE_ID, self.run)
        except (httpx.HTTPError, ObjectPushError):
            return dict.fromkeys(letters, LOST)
        del records, packed
        waiting = {number: silo for number, silo in zip(numbers, letters, strict=True) if number}
        answers = {silo: LOST for number, silo in zip(numbers, letters, strict=True) if not number}
        self.asked |= waiting
        while True:
            self.look(waiting)
            for number in list(waiting):
                if number not in self.asked and (number not in self.arriving or self.arriving[number].done()):
                    arrived = self.arriving.pop(number, None)
                    answers[waiting.pop(number)] = arrived.result() if arrived else LOST
            if not waiting or time.monotonic() > deadline:
                break
            if enough and enough({silo: each.content for silo, each in answers.items() if not each.error}):
                break
            time.sleep(LOOK)
        self.answered_late += [silo for number, silo in waiting.items() if self.arriving.pop(number, None)]
        return answers | {silo: Answer(error=f"no answer within {timeout:g} s") for silo in waiting.values()}

    def letter(self, kind: str, node: int, content: RecordDict, timeout: float) -> Message:
        """A message of Flower's.

        Its number is a hash of all that it holds: with something random in it equal contents have numbers of their own,
        and no silo can guess that of another's message, which would be enough to answer in its place. It lives twice as
        long as it is waited for, so that what comes too late is told apart from what does not come.
        """
        metadata = Metadata(
            run_id=self.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=secrets.token_hex(16),
            created_at=time.time(),
            ttl=2 * timeout + 1,
            message_type=kind,
        )
        return make_message(metadata=metadata, content=content)

    def look(self, waiting: Mapping[str, str]) -> None:
        """Begin to fetch the answers that have come; those that are not waited for are counted and forgotten."""
        if not self.asked:
            return
        try:
            found = self.client.PullMessages(PullAppMessagesRequest(message_ids=list(self.asked)))
        except httpx.TimeoutException:
            return
        except httpx.HTTPError:  # it has ended, and knows nothing of all this if it was started again
            self.asked.clear()
            return
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            answer = message_from_proto(proto)
            number = answer.metadata.reply_to_message_id
            silo = self.asked.pop(number, None)
            if silo is None:
                continue  # it has answered already
            if number in waiting:
                self.arriving[number] = self.pool.submit(self.fetched, answer, tree)
            elif not answer.has_error():
                self.answered_late.append(silo)
                confirm(self.client, tree.object_id, SUPERLINK_NODE_ID, self.run)

    def fetched(self, answer: Message, tree: ObjectTree) -> Answer:
        if not answer.has_error():
            try:
                answer = pull(self.client, tree, SUPERLINK_NODE_ID, self.run, UPLOAD)
            except (httpx.HTTPError, ObjectPullError, ValueError, KeyError, TypeError) as error:
                return Answer(error=f"its answer did not arrive whole ({one_line(error)})")
        return Answer(*unpack(answer))
