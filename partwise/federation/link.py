"""The server's side: messages to silos and their answers, through the SuperLink that is served on this machine."""

import io
import secrets
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
from flwr.app import Message, Metadata
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
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

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


class FlowerLink:
    """A run of Flower's, in whose name silos are asked."""

    def __init__(self, folder: Path, debug: bool = False):
        """`folder` holds the federation's keys, and is the one that is served."""
        quiet(debug)
        self.folder, self.place = folder, Place.of(folder)
        self.stack = ExitStack()
        self.asked: dict[str, str] = {}  # by message: the silo, until it has answered
        self.arriving: dict[str, Future[Answer]] = {}
        self.answered_late: list[str] = []
        self.names: dict[int, str] = {}  # of nodes without a key

    def __enter__(self) -> "FlowerLink":
        address, ca = self.place.address, self.place.ca
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("pyproject.toml", APPLICATION)
        try:
            with client_of(ControlHttpClient, address, ca) as control:
                control.StartRun(StartRunRequest(fab=Fab(content=archive.getvalue())))
            with executor(address, ca, (self.folder / SECRET).read_bytes()) as client:
                # Which one does not matter: one that was left behind serves as well, and all runs are alike.
                token = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token
            self.client = self.stack.enter_context(task(address, ca, token))
            self.run: int = self.client.PullTaskInput(PullTaskInputRequest()).run.run_id
        except (httpx.HTTPError, OSError, ValueError) as error:
            self.stack.close()
            raise PartwiseError(f"the SuperLink served from '{self.folder}' does not answer: {one_line(error)}") from None
        self.stack.enter_context(heartbeats(self.client))
        self.pool = ThreadPoolExecutor(8)
        self.stack.callback(self.pool.shutdown, wait=False, cancel_futures=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        status = SubStatus.FAILED if kind else SubStatus.COMPLETED
        details = one_line(error)[:1000] if error else ""
        try:
            self.client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        except httpx.HTTPError:  # it is gone, and the run's state with it
            pass
        finally:
            self.stack.close()

    def nodes(self) -> dict[str, int]:
        """The silos that are online, and their nodes' numbers; a node is who its key says that it is."""
        online = {node.node_id: node.public_key for node in self.client.GetNodes(GetNodesRequest()).nodes}
        if self.place.ca is not None:
            names = public_keys(self.folder)
            return {names[key]: node for node, key in online.items() if key in names}
        new = [node for node in online if node not in self.names]
        for node, answer in self.exchange(NAME, {str(node): (node, b"") for node in new}, KNOWN).items():
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
        packed = [self.letter(kind, node, content, timeout) for node, content in letters.values()]
        waiting = dict(zip(push(self.client, packed, SUPERLINK_NODE_ID, self.run), letters, strict=True))
        answers = {silo: Answer(error="gone before it was asked") for number, silo in waiting.items() if not number}
        waiting.pop("", None)
        self.asked |= waiting
        while True:
            self.look(waiting)
            for number in [each for each, future in self.arriving.items() if future.done() and each in waiting]:
                answers[waiting.pop(number)] = self.arriving.pop(number).result()
            if not waiting or time.monotonic() > deadline:
                break
            if enough and enough({silo: each.content for silo, each in answers.items() if not each.error}):
                break
            time.sleep(LOOK)
        return answers | {silo: Answer(error=f"no answer within {timeout:g} s") for silo in waiting.values()}

    def letter(self, kind: str, node: int, content: bytes, timeout: float) -> Message:
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
        return make_message(metadata=metadata, content=pack(content))

    def look(self, waiting: Mapping[str, str]) -> None:
        """Begin to fetch the answers that have come; those that are not waited for are counted and forgotten."""
        if not self.asked:
            return
        try:
            found = self.client.PullMessages(PullAppMessagesRequest(message_ids=list(self.asked)))
        except httpx.TransportError:  # a SuperLink that is started again knows all of this
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
