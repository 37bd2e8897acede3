"""What partwise relies on of Flower's insides is there: this fails first where another version is installed."""

import ast
import inspect
import re
import time
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Metadata
from flwr.supernode import start_client_internal

import partwise
from partwise.federation.transport import flower_internals as internals
from partwise.federation.transport.flower import CHUNK_HEAD, client_of, pack

TRANSPORT = Path(partwise.__file__).parent / "federation" / "transport"


def parameters(function):
    return set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (start_client_internal._pull_and_store_message, {"state", "object_store", "receive"}),
        (start_client_internal._push_messages, {"send"}),
        (start_client_internal.pull_objects, {"initial_backoff", "backoff_cap"}),
        (internals.pull_objects, {"max_time", "max_tries_per_object", "initial_backoff", "backoff_cap"}),
        (internals.push_objects, {"object_ids_to_push"}),
        (internals.SuperExecAuthHttpInterceptor, {"master_secret", "protected_methods"}),
        (internals.ProtobufClient, {"base_url", "interceptors", "verify"}),
        (internals.make_message, {"metadata", "content"}),
    ],
)
def test_functions_take_what_they_are_given(function, named):
    assert named <= parameters(function)


def test_functions_are_called_with_as_many_arguments_as_they_take():
    assert len(parameters(internals.make_pull_object_fn_protobuf)) == 3
    assert len(parameters(internals.make_push_object_fn_protobuf)) == 4
    assert len(parameters(internals.FleetHttpClient.from_server_address)) == 5  # the last has a default
    assert len(parameters(internals.NodeAuthHttpInterceptor)) == 2


def test_a_supernode_waits_by_the_name_that_is_replaced():
    source = inspect.getsource(start_client_internal)
    assert start_client_internal.time is time and "time.sleep(3)" in source
    for name in ("pull_objects", "_pull_and_store_message", "_push_messages"):
        assert re.search(rf"(?<!def )\b{name}\(", source), name


def test_the_connection_of_a_client_can_be_replaced():
    client = client_of(internals.RuntimeHttpClient, "127.0.0.1:9", None)
    assert client._client.timeout.read == 30 and not client._client.trust_env


def test_the_number_of_a_message_is_the_hash_of_its_content():
    metadata = Metadata(1, "", 1, 2, "", "", 0.0, 1.0, "query")
    message = internals.make_message(metadata=metadata, content=pack(b"content"))
    internals.number_by_content(message)
    assert message.metadata.message_id == message.object_id and re.fullmatch(r"[0-9a-f]{64}", message.object_id)


def test_a_chunk_is_written_as_it_is_read():
    assert CHUNK_HEAD.match(ConfigRecord({"bytes": b"content"}).deflate())


def test_no_other_module_touches_the_insides():
    """Beside `flwr.app`, which is public."""
    touched = []
    for path in TRANSPORT.parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            inner = [name for name in named if name.split(".")[0] == "flwr" and name != "flwr.app"]
            touched += [(path.name, name) for name in inner if path.name != "flower_internals.py"]
    assert not touched
