"""The parts of Flower outside its public API (`flwr.app`) that partwise relies on.

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
    make_message as make_message,
)
from flwr.app.message import (
    remove_content_from_message as remove_content_from_message,
)
from flwr.common.constant import (
    SUPERLINK_NODE_ID as SUPERLINK_NODE_ID,
)
from flwr.common.constant import (
    TIMESTAMP_HEADER as TIMESTAMP_HEADER,
)
from flwr.common.constant import (
    ErrorCode as ErrorCode,
)
from flwr.common.constant import (
    Status as Status,
)
from flwr.common.constant import (
    SubStatus as SubStatus,
)
from flwr.common.serde import (
    message_from_proto as message_from_proto,
)
from flwr.common.serde import (
    message_to_proto as message_to_proto,
)
from flwr.proto.control_pb2 import (
    ListNodesRequest as ListNodesRequest,
)
from flwr.proto.control_pb2 import (
    ListRunsRequest as ListRunsRequest,
)
from flwr.proto.control_pb2 import (
    RegisterNodeRequest as RegisterNodeRequest,
)
from flwr.proto.control_pb2 import (
    StartRunRequest as StartRunRequest,
)
from flwr.proto.control_pb2 import (
    StopRunRequest as StopRunRequest,
)
from flwr.proto.fab_pb2 import (
    Fab as Fab,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest as ActivateNodeRequest,
)
from flwr.proto.fleet_pb2 import (
    DeactivateNodeRequest as DeactivateNodeRequest,
)
from flwr.proto.fleet_pb2 import (
    PullMessagesResponse as PullMessagesResponse,
)
from flwr.proto.fleet_pb2 import (
    PushMessagesRequest as PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest as ConfirmMessageReceivedRequest,
)
from flwr.proto.message_pb2 import (
    ObjectTree as ObjectTree,
)
from flwr.proto.node_pb2 import (
    Node as Node,
)
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest as AcquireTaskRequest,
)
from flwr.proto.runtime_pb2 import (
    GetNodesRequest as GetNodesRequest,
)
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest as PullAppMessagesRequest,
)
from flwr.proto.runtime_pb2 import (
    PullTaskInputRequest as PullTaskInputRequest,
)
from flwr.proto.runtime_pb2 import (
    PushAppMessagesRequest as PushAppMessagesRequest,
)
from flwr.proto.runtime_pb2 import (
    PushTaskOutputRequest as PushTaskOutputRequest,
)
from flwr.proto.runtime_pb2 import (
    SendTaskHeartbeatRequest as SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER as FLEET_HTTP_PUBLIC_KEY_HEADER,
)
from flwr.supercore.constant import (
    FLEET_HTTP_SIGNATURE_HEADER as FLEET_HTTP_SIGNATURE_HEADER,
)
from flwr.supercore.constant import (
    TaskType as TaskType,
)
from flwr.supercore.control import (
    ControlHttpClient as ControlHttpClient,
)
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject as InflatableObject,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects as get_all_nested_objects,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_object_tree as get_object_tree,
)
from flwr.supercore.inflatable.inflatable_object import (
    iterate_object_tree as iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_object import (
    no_object_id_recompute as no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf as make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_push_object_fn_protobuf as make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError as ObjectPullError,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError as ObjectPushError,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_objects as pull_objects,
)
from flwr.supercore.inflatable.inflatable_utils import (
    push_objects as push_objects,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor as RuntimeTokenHttpInterceptor,
)
from flwr.supercore.interceptors import (
    SuperExecAuthHttpInterceptor as SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key as bytes_to_public_key,
)
from flwr.supercore.primitives.asymmetric import (
    public_key_to_bytes as public_key_to_bytes,
)
from flwr.supercore.primitives.asymmetric import (
    verify_signature as verify_signature,
)
from flwr.supercore.protobuf.client import (
    ProtobufClient as ProtobufClient,
)
from flwr.supercore.runtime import (
    RuntimeHttpClient as RuntimeHttpClient,
)
from flwr.supernode.fleet_http_client import (
    FleetHttpClient as FleetHttpClient,
)
from flwr.supernode.node_auth_http_interceptor import (
    NodeAuthHttpInterceptor as NodeAuthHttpInterceptor,
)

Pull = Callable[..., dict[str, bytes]]
StoreMessage = Callable[..., int | None]
Push = Callable[..., None]


def use_connection(client: ProtobufClient, connection: httpx.Client) -> None:
    """Let a client of Flower's speak through this connection."""
    client._client = connection


def number_by_content(message: Message) -> None:
    """Give a message the number that Flower's server expects: the hash of all that it holds."""
    message.metadata.__dict__["_message_id"] = message.object_id


def become_superlink() -> None:
    """Run Flower's SuperLink, with the arguments of the command line."""
    from flwr.superlink.cli import flower_superlink

    flower_superlink()


def become_supernode(clock: Any, exchange: Callable[[ModuleType], tuple[Pull, StoreMessage, Push]]) -> None:
    """Run Flower's SuperNode, with another `time`, and other functions to fetch, store and send messages."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    pull, store, push = exchange(start_client_internal)
    replaced = {"time": clock, "pull_objects": pull, "_pull_and_store_message": store, "_push_messages": push}
    vars(start_client_internal).update(replaced)
    flower_supernode()
