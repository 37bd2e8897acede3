# ruff: noqa: F401  (names for the modules beside this one)
"""All of Flower that is not its public API (`flwr.app`): names, and what partwise relies on beside them.

Flower is pinned to one version. `tests/federation/test_flower_internals.py` fails first where another one differs:

- the messages of its protocol (`flwr.proto`), the ways to send and fetch them, and its HTTP clients: their connection
  is the attribute `_client`, so that it can be one without a proxy and without attempts that end the process;
- an object is named by a hash of its content, and the number of a message is that hash: `_message_id` of its metadata;
- `flwr.supernode.start_client_internal` calls, by the names of its own module, `time.sleep(3)` where no message waits,
  `pull_objects`, `_pull_and_store_message` and `_push_messages`;
- a chunk of bytes is written as `CHUNK_HEAD` (flower.py) reads it;
- nodes sign their requests in the headers `FLEET_HTTP_PUBLIC_KEY_HEADER`, `FLEET_HTTP_SIGNATURE_HEADER` and
  `TIMESTAMP_HEADER`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import (
    make_message,
    remove_content_from_message,
)
from flwr.common.constant import (
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    ErrorCode,
    Status,
    SubStatus,
)
from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
)
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import (
    Fab,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
)
from flwr.proto.node_pb2 import (
    Node,
)
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TaskType,
)
from flwr.supercore.control import (
    ControlHttpClient,
)
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)
from flwr.supercore.protobuf.client import (
    ProtobufClient,
)
from flwr.supercore.runtime import (
    RuntimeHttpClient,
)
from flwr.supernode.fleet_http_client import (
    FleetHttpClient,
)
from flwr.supernode.node_auth_http_interceptor import (
    NodeAuthHttpInterceptor,
)

Pull = Callable[..., dict[str, bytes]]
Store = Callable[..., int | None]
Push = Callable[..., None]


def use_connection(client: ProtobufClient, connection: httpx.Client) -> None:
    """Let a client of Flower's speak through this connection."""
    client._client = connection


def number_by_content(message: Message) -> None:
    """Give a message the number that Flower's server expects: the hash of all that it holds."""
    message.metadata.__dict__["_message_id"] = message.object_id


def run_superlink() -> None:
    """Be Flower's SuperLink, with the arguments of the command line."""
    from flwr.superlink.cli import flower_superlink

    flower_superlink()


def run_supernode(clock: Any, exchange: Callable[[ModuleType], tuple[Pull, Store, Push]]) -> None:
    """Be Flower's SuperNode, with another `time`, and other functions to fetch, store and send messages."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    pull, store, push = exchange(start_client_internal)
    start_client_internal.time = clock
    start_client_internal.pull_objects = pull
    start_client_internal._pull_and_store_message = store
    start_client_internal._push_messages = push
    flower_supernode()
