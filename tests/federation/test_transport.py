"""Messages travel through Flower: whole, to whom they are sent, and to nobody else.

One test starts all the processes in the first tier, the others are in the slower one: every worker of pytest that gets
one of them starts a federation of its own.
"""

import os
import signal
import socket
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from partwise.errors import ConfigError
from partwise.federation.transport import supernode
from partwise.federation.transport.flower import QUESTION, pack
from partwise.federation.transport.keys import make_keys
from partwise.federation.transport.link import STILL_WORKING, FlowerLink, SiloAnswer
from partwise.federation.transport.session import stop_runs
from partwise.federation.transport.superlink import serve_superlink
from partwise.federation.transport.supernode import run_supernode
from partwise.records.codec import Limit
from partwise.records.wire import Question
from tests.support.flower import PATIENCE, SERVE, Federated, alive, children, until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
NODES = ("bern", "lyon")
ACTED = "oslo"  # a silo whose part the tests play


@pytest.fixture(scope="module")
def federated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    make_keys(folder, ["127.0.0.1"], [*NODES, ACTED])
    federated = Federated(folder)
    try:
        federated.serve()
        for name in NODES:
            federated.node(name)
        yield federated
    finally:
        federated.end()


@pytest.fixture(scope="module")
def link(federated):
    with FlowerLink(federated.folder) as link:
        until(lambda: set(link.nodes()) >= set(NODES))
        yield link


def test_a_message_comes_back_whole_from_every_silo(link):
    for content in (b"", b"x", os.urandom(5_000_000)):
        assert link.ask(dict.fromkeys(NODES, content), PATIENCE) == dict.fromkeys(NODES, SiloAnswer(content[::-1]))


def test_each_silo_gets_its_own_and_one_that_is_not_there_is_not_asked(link):
    answers = link.ask({"bern": b"for bern", "lyon": b"for lyon", ACTED: b"?", "rome": b"?"}, PATIENCE)
    assert answers == {"bern": SiloAnswer(b"nreb rof"), "lyon": SiloAnswer(b"noyl rof")}


def test_a_refusal_comes_back_as_its_line_and_a_mistake_without_what_it_tells(link, federated):
    answers = link.ask({"bern": b"refuse", "lyon": b"fail"}, PATIENCE)
    assert answers["bern"] == SiloAnswer(error="this silo has no labels")
    assert answers["lyon"] == SiloAnswer(error="internal error; the node's own log says which")
    assert "patient 7" in federated.said("lyon")


def test_where_an_answer_is_enough_the_other_questions_stay_open(link, tmp_path):
    messages = {"bern": b"ready", "lyon": b"wait %s" % bytes(tmp_path / "go")}
    answers = link.ask(messages, PATIENCE, enough=lambda so_far: "bern" in so_far)
    assert answers == {"bern": SiloAnswer(b"ydaer"), "lyon": STILL_WORKING}
    assert link.ask({"bern": b"meanwhile"}, PATIENCE) == {"bern": SiloAnswer(b"elihwnaem")}
    (tmp_path / "go").touch()
    until(lambda: link.late() == [] and link.arriving)  # it has come, and is kept
    numbers = set(link.asked)
    assert link.ask({"lyon": messages["lyon"]}, PATIENCE) == {"lyon": SiloAnswer(messages["lyon"][::-1])}
    assert set(link.asked) == numbers and not link.open and not link.arriving  # it was not sent again


def test_an_open_question_ends_with_the_next_one(link, tmp_path):
    messages = {"bern": b"ready", "lyon": b"wait %s" % bytes(tmp_path / "go")}
    link.ask(messages, PATIENCE, enough=lambda so_far: "bern" in so_far)
    (tmp_path / "go").touch()
    assert link.ask({"lyon": b"another"}, PATIENCE) == {"lyon": SiloAnswer(b"rehtona")}
    until(lambda: link.late() == ["lyon"])
    assert not link.open and not link.arriving


def test_fault_34_a_late_answer_is_counted_and_not_taken_for_a_later_one(link, tmp_path):
    answers = link.ask({"bern": b"wait %s" % bytes(tmp_path / "go")}, 1)
    assert answers == {"bern": SiloAnswer(error="no answer within 1 s")} and link.late() == []
    (tmp_path / "go").touch()
    assert link.ask({"bern": b"second"}, PATIENCE) == {"bern": SiloAnswer(b"dnoces")}
    assert link.late() == ["bern"] and link.late() == []


def test_fault_41_silos_answer_at_once_though_a_launch_was_killed_while_it_was_asking(federated):
    """Of the killed one's questions the silos have the heads, and nothing of what they ask will ever come."""
    killed = FlowerLink(federated.folder)
    killed.__enter__()
    try:
        nodes = until(lambda: set(nodes := killed.nodes()) >= set(NODES) and nodes)
        letters = [killed.letter(QUESTION, nodes[name], pack(b"x"), PATIENCE, 1000) for name in NODES]
        push_heads(killed, letters)
        logs = [federated.folder / "nodes" / name / "supernode.log" for name in NODES]
        until(lambda: all(each.object_id in log.read_text() for each, log in zip(letters, logs, strict=True)))
        stop_runs(federated.folder)  # as the next launch does first
        with FlowerLink(federated.folder) as link:
            until(lambda: set(link.nodes()) >= set(NODES))
            for content in (b"one", b"two", b"three"):
                assert link.ask(dict.fromkeys(NODES, content), PATIENCE) == dict.fromkeys(
                    NODES, SiloAnswer(content[::-1])
                )
    finally:
        killed.__exit__(None, None, None)


def push_heads(link, letters):
    """Send messages without what they consist of."""
    with no_object_id_recompute():
        for letter in letters:
            letter.metadata.__dict__["_message_id"] = letter.object_id
        heads = [message_to_proto(remove_content_from_message(letter)) for letter in letters]
        trees = [get_object_tree(letter) for letter in letters]
    link.session.client.PushMessages(PushAppMessagesRequest(messages_list=heads, message_object_trees=trees))


# ------------------------------------------------------------------------------------- strangers, and silos that lie


def own_key(federated, silo):
    private = load_ssh_private_key((federated.folder / "silos" / f"{silo}.key").read_bytes(), None)
    return private, private.public_key()


@contextmanager
def fleet(federated, pair):
    """What a node speaks with, of whoever has this pair of keys."""
    ca = (federated.folder / "ca.pem").read_bytes()
    with FleetHttpClient.from_server_address(federated.address, False, ca, [NodeAuthHttpInterceptor(*pair)]) as client:
        yield client


@contextmanager
def refused(status):
    with pytest.raises(httpx.HTTPStatusError) as error:
        yield
    assert error.value.response.status_code == status


def status(federated, silo):
    """What a silo's key gets for a call that never succeeds."""
    with fleet(federated, own_key(federated, silo)) as client:
        try:
            client.ActivateNode(ActivateNodeRequest(public_key=public_key_to_bytes(own_key(federated, silo)[1])))
        except httpx.HTTPStatusError as error:
            return error.response.status_code
    return 200


def get(federated, path, method="GET", **more):
    context = ssl.create_default_context(cafile=federated.folder / "ca.pem")
    return httpx.request(method, f"https://{federated.address}{path}", verify=context, **more).status_code


def test_fault_43_a_stranger_reaches_neither_control_nor_runtime(federated, link):
    _, key = generate_key_pairs()
    to = (federated.address, False, (federated.folder / "ca.pem").read_bytes(), [])
    with ControlHttpClient.from_server_address(*to) as control:
        for call, request in (
            (control.StartRun, StartRunRequest()),
            (control.ListNodes, ListNodesRequest()),
            (control.RegisterNode, RegisterNodeRequest(public_key=public_key_to_bytes(key))),
        ):
            with refused(404):
                call(request)
    with RuntimeHttpClient.from_server_address(*to) as runtime:
        with refused(404):
            runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
        with refused(404):
            runtime.PullMessages(PullAppMessagesRequest())


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/openapi.json", "/health", "/v1/responses", "/v1/fleet/", "/v1/fleet/no-such-call"),
        *("/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes", "//v1/control/list-nodes"),
    ],
)
def test_fault_43_nothing_else_is_served(federated, path):
    assert get(federated, path) == get(federated, path, "POST", content=b"") == 404


def test_fault_43_an_unknown_key_is_refused(federated, link):
    pair = generate_key_pairs()
    node = Node(node_id=link.nodes()["bern"])
    with fleet(federated, pair) as client:
        with refused(404):
            client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(pair[1])))
        for call, request in (
            (client.ActivateNode, ActivateNodeRequest(public_key=public_key_to_bytes(pair[1]), heartbeat_interval=30)),
            (client.PullMessages, PullMessagesRequest(node=node)),
            (client.PullObject, PullObjectRequest(node=node, run_id=link.session.run, object_id="0" * 64)),
        ):
            with refused(401):
                call(request)
    with fleet(federated, (pair[0], own_key(federated, "bern")[1])) as client, refused(401):  # bern's name on it
        client.PullMessages(PullMessagesRequest(node=node))
    assert get(federated, "/v1/fleet/pull-messages", "POST", content=b"") == 401


def test_fault_43_a_silo_cannot_be_another_one(federated, link):
    """Messages and objects of bern are not for lyon's key; bern's own key gets an answer to the same call."""
    node = Node(node_id=link.nodes()["bern"])
    ask = PullMessagesRequest(node=node), PullObjectRequest(node=node, run_id=link.session.run, object_id="0" * 64)
    with fleet(federated, own_key(federated, "bern")) as bern, fleet(federated, own_key(federated, "lyon")) as lyon:
        for call, request in zip((lyon.PullMessages, lyon.PullObject), ask, strict=True):
            with refused(401):
                call(request)
        assert not bern.PullMessages(ask[0]).messages_list
        assert not bern.PullObject(ask[1]).object_found


def test_fault_43_a_body_has_its_limit(federated):
    pair = own_key(federated, "bern")
    with fleet(federated, pair) as client, refused(413):
        client.PullObject(PullObjectRequest(node=Node(node_id=1), object_id="0" * (9 << 20)))
    assert get(federated, "/v1/fleet/pull-object", "POST", content=b"0" * (9 << 20)) == 401  # not even looked at


def test_fault_43_another_federations_server_is_refused(federated, tmp_path):
    make_keys(tmp_path / "other", ["127.0.0.1"], ["bern"])
    other = {"ca": tmp_path / "other" / "ca.pem", "key": tmp_path / "other" / "silos" / "bern.key"}
    with pytest.raises(ConfigError, match=r"has no certificate of '.*ca.pem'"):
        run_supernode(lambda content, run: content, federated.address, "bern", tmp_path / "node", **other)
    with pytest.raises(ConfigError, match="refuses this silo: its public key is not among the server's"):
        run_supernode(lambda content, run: content, federated.address, "bern", tmp_path / "node",
                      ca=federated.folder / "ca.pem", key=other["key"])  # fmt: skip


def test_a_host_that_the_servers_certificate_does_not_name_is_refused_with_those_that_it_names(tmp_path):
    """127.0.0.2 leads to the same server, and the certificate is for localhost, 127.0.0.1 and ::1."""
    make_keys(tmp_path, ["127.0.0.1"], ["bern"])
    federated = Federated(tmp_path)
    federated.serve("0.0.0.0:0")
    try:
        keys = {"ca": tmp_path / "ca.pem", "key": tmp_path / "silos" / "bern.key"}
        address = f"127.0.0.2:{federated.address.rpartition(':')[2]}"
        with pytest.raises(ConfigError, match=r"certificate is not for '127.0.0.2', it is for .*127.0.0.1"):
            run_supernode(lambda content, run: content, address, "bern", tmp_path / "node", **keys)
    finally:
        federated.end()


def test_a_node_says_once_that_no_server_answers(tmp_path, monkeypatch, caplog):
    """Every try fails; the third one is the last."""
    tries, stop = [], threading.Event()

    def refused(*_):
        tries.append(1)
        if len(tries) == 3:
            stop.set()
        return len(tries) > 3

    monkeypatch.setattr(supernode, "announce", refused)
    monkeypatch.setattr(supernode, "PAUSES", (0.0, 0.0))
    assert not supernode.reached("fl.example.org:9443", tmp_path, tmp_path, tmp_path, stop)
    assert [record.getMessage() for record in caplog.records] == ["no server answers at fl.example.org:9443; trying on"]
    caplog.set_level("INFO")
    assert supernode.reached("fl.example.org:9443", tmp_path, tmp_path, tmp_path, threading.Event())
    assert caplog.records[-1].getMessage() == "connected to fl.example.org:9443"


def test_fault_43_nothing_goes_unprotected_over_a_network(tmp_path):
    with pytest.raises(ConfigError, match=r"'0.0.0.0:0' is not this machine: without TLS .* --insecure"):
        serve_superlink(tmp_path / "server", "0.0.0.0:0", plain=True)
    with pytest.raises(ConfigError, match=r"'hospital.example:9443' is not this machine"):
        run_supernode(lambda content, run: content, "hospital.example:9443", "bern", tmp_path / "node", plain=True)
    with pytest.raises(ConfigError, match=r"holds no ca.pem: `partwise keys`"):
        serve_superlink(tmp_path / "server", "127.0.0.1:0")
    assert not list(tmp_path.iterdir())


def test_fault_35_a_second_answer_is_ignored(federated, link):
    """The tests play a silo that answers twice, the second time something else."""
    answers = []
    ca = (federated.folder / "ca.pem").read_bytes()
    with http_request_response(federated.address, False, ca, own_key(federated, ACTED)) as (
        _,
        receive,
        send,
        *_,
        push,
        _,
    ):
        until(lambda: ACTED in link.nodes())
        asking = threading.Thread(target=lambda: answers.append(link.ask({ACTED: b"question"}, PATIENCE)))
        asking.start()
        question, _ = until(receive)
        for content in (b"first", b"second"):
            reply = Message(pack(content), reply_to=question)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            for number, each in get_all_nested_objects(reply).items():
                if number in wanted:
                    push(question.metadata.run_id, session, number, each.deflate())
        asking.join()
    assert answers == [{ACTED: SiloAnswer(b"first")}]
    assert link.ask({"bern": b"next"}, PATIENCE) == {"bern": SiloAnswer(b"txen")} and link.late() == []


# ------------------------------------------------------------------------------------------ processes that are killed


def answers(link, silo):
    return link.ask({silo: b"again"}, PATIENCE).get(silo) == SiloAnswer(b"niaga")


def test_a_silo_that_was_killed_answers_when_it_is_started_again(federated, link):
    node = federated.processes["bern"]
    (supernode,) = children(node.pid)
    node.kill()
    node.wait()
    until(lambda: not alive(supernode))
    until(lambda: "bern" not in link.nodes())  # its SuperNode has said goodbye
    federated.node("bern")
    until(lambda: answers(link, "bern"))


def test_a_supernode_that_was_killed_is_started_again(federated, link):
    node = federated.processes["lyon"]
    (supernode,) = children(node.pid)
    os.kill(supernode, signal.SIGKILL)
    until(lambda: children(node.pid) not in ([], [supernode]))
    until(lambda: answers(link, "lyon"))


def test_a_silo_comes_and_goes_with_its_public_key(federated, link):
    make_keys(federated.folder, [], ["rome"])
    until(lambda: status(federated, "rome") != 401)  # the server looks for new keys twice a second
    federated.node("rome")
    until(lambda: "rome" in link.nodes())
    assert answers(link, "rome")
    (federated.folder / "silos" / "rome.pub").unlink()
    assert federated.processes["rome"].wait(PATIENCE) == 1
    assert "refuses this silo" in federated.said("rome")


def test_after_a_server_that_was_killed_all_begin_again(federated, link):
    server = federated.processes["server"]
    (superlink,) = children(server.pid)
    server.kill()
    server.wait()
    until(lambda: not alive(superlink))
    federated.serve(federated.address)  # the next one, at the same address
    until(lambda: set(link.nodes()) >= set(NODES))
    assert all(answers(link, silo) for silo in NODES)


def test_a_server_ends_with_its_superlink_and_says_so(tmp_path):
    make_keys(tmp_path, ["127.0.0.1"], [])
    federated = Federated(tmp_path)
    try:
        federated.serve()
        (superlink,) = children(federated.processes["server"].pid)
        os.kill(superlink, signal.SIGKILL)
        assert federated.processes["server"].wait(PATIENCE) == 1
        assert federated.said("server").startswith("Flower's SuperLink has ended (exit code -9); see ")
        assert federated.said("server").count("\n") == 1
        federated.serve()
        (superlink,) = children(federated.processes["server"].pid)
        federated.processes["server"].terminate()
        assert federated.processes["server"].wait(PATIENCE) == 0
        assert not alive(superlink)
    finally:
        federated.end()


def test_without_keys_a_node_is_asked_for_its_name(tmp_path):
    federated = Federated(tmp_path, plain=True)
    try:
        federated.serve()
        federated.node("bern")
        with FlowerLink(tmp_path) as link:
            until(lambda: "bern" in link.nodes())
            assert answers(link, "bern")
    finally:
        federated.end()


# ------------------------------------------------------------------------- limits, second nodes, and ends of processes


def test_fault_68_a_silo_that_sends_more_than_it_was_asked_for_is_refused_at_the_gate(federated, link):
    """The tests play a silo; the limit of its answer is that of the question, and the other silo is served."""
    answers = []
    ca = (federated.folder / "ca.pem").read_bytes()
    with http_request_response(federated.address, False, ca, own_key(federated, ACTED)) as (
        _,
        receive,
        send,
        *_,
        push,
        _,
    ):
        until(lambda: ACTED in link.nodes())
        limit = Limit(labels=1000, tensors=1000)
        ask = {ACTED: Question(b"question", limit)}
        asking = threading.Thread(target=lambda: answers.append(link.ask(ask, 10)))
        asking.start()
        question, _ = until(receive)

        def answer(content):
            reply = Message(content, reply_to=question)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            for number, each in get_all_nested_objects(reply).items():
                if number in wanted:
                    push(question.metadata.run_id, session, number, each.deflate())

        with refused(413):  # more chunks than an answer of 2000 bytes has
            answer(pack(os.urandom(9 << 20)))
        with refused(413):  # one chunk, which is too long
            answer(pack(os.urandom(1 << 20)))
        answer(pack(b"answer"))
        answer(pack(b"another"))
        with refused(413):  # nobody asks so often
            answer(pack(b"another"))
        asking.join()
    assert answers[0][ACTED].error  # of all those the first one counts, and it never came whole
    assert link.ask({"bern": b"next"}, PATIENCE) == {"bern": SiloAnswer(b"txen")}


def test_fault_68_an_honest_silo_does_not_send_what_nobody_would_read(link):
    limit = Limit(labels=100, tensors=100)
    answers = link.ask({"bern": Question(bytes(1000), limit)}, PATIENCE)
    assert answers["bern"].error == f"its answer has 1,000 bytes, and the server takes {limit.message}"
    assert link.ask({"bern": Question(b"short", limit)}, PATIENCE) == {"bern": SiloAnswer(b"trohs")}


def test_fault_74_a_second_node_with_the_same_key_is_refused_and_the_first_goes_on(
    federated, link, tmp_path, monkeypatch
):
    until(lambda: "bern" in link.nodes() and answers(link, "bern"))
    monkeypatch.setattr(supernode, "GONE", 1)
    keys = {"ca": federated.folder / "ca.pem", "key": federated.folder / "silos" / "bern.key"}
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"a node with the key '.*bern.key' is connected already"):
            run_supernode(lambda content, run: b"the second", federated.address, "bern", tmp_path / "second", **keys)
        assert answers(link, "bern")
    assert federated.processes["bern"].poll() is None


ENDED = """
import sys, time
from pathlib import Path
from partwise.federation.protocol.node import Node
from partwise.commands.federating import run_node

def handle(self, message):
    (folder / "began").touch()
    time.sleep(10**6)

Node.handle = handle
folder, server, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(folder / f"{name}.toml").write_text(f'name = "{name}"\\nhosts = "0-0"\\n')
run_node(f"{folder / name}.toml", server, f"{folder / 'ca.pem'}", f"{folder / 'silos' / name}.key", False, False, False)
"""


def test_fault_75_a_node_that_trains_ends_all_the_same(federated, link):
    """Its training would never end; what it leaves is done again."""
    make_keys(federated.folder, [], ["wien"])
    until(lambda: status(federated, "wien") != 401)
    node = federated.start("wien", ENDED, federated.address, "wien")
    until(lambda: "wien" in link.nodes() or node.poll() is not None)
    [its] = children(node.pid)
    assert link.ask({"wien": b"question"}, 1)["wien"].error
    until((federated.folder / "began").exists)
    node.terminate()
    assert node.wait(PATIENCE) == 0, federated.said("wien")
    until(lambda: not alive(its))
    until(lambda: "wien" not in link.nodes())


def test_fault_70_strangers_who_say_nothing_do_not_keep_silos_out(tmp_path):
    """A server of few descriptors, and many more idle connections than that, from another address."""
    make_keys(tmp_path, ["127.0.0.1"], ["bern"])
    federated = Federated(tmp_path)
    few = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
    idle = []
    try:
        federated.serve(program=few + SERVE)
        host, _, port = federated.address.partition(":")
        for _ in range(500):
            idle.append(socket.create_connection((host, int(port)), PATIENCE, source_address=("127.0.0.2", 0)))
        federated.node("bern")
        with FlowerLink(tmp_path) as link:
            until(lambda: "bern" in link.nodes())
            assert answers(link, "bern")
        assert federated.processes["server"].poll() is None
    finally:
        for connection in idle:
            connection.close()
        federated.end()
