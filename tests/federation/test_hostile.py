"""Servers and nodes that are hostile or broken: what they may not do to the others."""

from dataclasses import replace

import pytest
import torch

from partwise.errors import DiskFull, PartwiseError
from partwise.federation.protocol.handshake import merged_moments
from partwise.federation.protocol.launch import federated, write_models
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.silo import read_silo
from partwise.federation.protocol.software import NETWORK_FILE, software
from partwise.records.messages import PROTOCOL
from partwise.records.wire import pack_tree, unpack_tree
from tests.support.nodes import InProcess, members, silos
from tests.support.runs import awkward_federation
from tests.support.three_nodes import SETTINGS, SIZES, made, ready


def alone(folder, **allow):
    """A node that somebody else than partwise's server writes to."""
    return Node(silos(awkward_federation(SIZES), folder, [[0, 1, 2, 3]], **allow)["n0"])


def told(node, kind, **content):
    return unpack_tree(node.handle(pack_tree({"kind": kind, "run": "a-run", **content})))


def joining(method="fedavg", file=None, **settings):
    own = {"protocol": PROTOCOL, "software": software([method, settings.get("host")]), "method": method, "file": file}
    return {**own, "settings": {**SETTINGS, **settings}}


# ---- a hostile server: code


@pytest.mark.parametrize("how", ["method", "host", "network", "network of other bytes"])
def test_a_server_cannot_name_a_file_that_a_node_then_executes(how, tmp_path):
    code = tmp_path / "found_here.py"
    code.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    asked = {
        "method": joining(str(code)),
        "host": joining("anti", host=str(code)),
        "network": joining(model=f"{code}:Net"),
        "network of other bytes": joining(model=f"{code}:Net"),
    }[how]
    if how == "network of other bytes":
        asked["software"][NETWORK_FILE] = "0" * 64
    refused = told(alone(tmp_path, files=(str(code),)), "join", **asked)["refuses"]
    why = {
        "network": "n0 takes a network file only with its SHA-256",
        "network of other bytes": "allows no network file",
    }
    assert why.get(how, "unknown") in refused
    assert not (tmp_path / "executed").exists()


class Rewriting(InProcess):
    """A server that changes what it asks for."""

    def change(self, content):
        raise NotImplementedError

    def ask(self, messages, timeout):
        changed = {}
        for name, message in messages.items():
            content = unpack_tree(message)
            if content["kind"] == "request":
                self.change(content)
            changed[name] = pack_tree(content)
        return super().ask(changed, timeout)


@pytest.mark.parametrize("name, value", [("host", "mine.py"), ("sampling", "balanced"), ("lr", "1")])
def test_a_request_changes_no_setting_that_was_agreed_on(name, value, tmp_path):
    class Server(Rewriting):
        def change(self, content):
            content["method"][name] = value

    with pytest.raises(PartwiseError, match=f"'{name}' was agreed on"):
        ready(made("anti"), tmp_path, Server).run()


def test_what_a_method_holds_goes_back_on_nodes_as_it_does_on_the_server(tmp_path):
    simulation = ready(made("fedavg", rounds=4), tmp_path)
    method, node = simulation.config.method, simulation.engine.nodes.link.nodes["n0"]
    first, seen = method.lr, []
    for lr, more in ((first, {}), (0.01, {"turn": 1}), (first, {})):
        vars(method).pop("turn", None)
        method.lr = lr
        vars(method).update(more)
        simulation.server.step()
        there = vars(node.run.simulation.config.method)
        seen.append((there["lr"], there.get("turn")))
    assert seen == [(first, None), (0.01, 1), (first, None)]


# ---- a hostile server: files


@pytest.mark.parametrize("run", ["../../elsewhere", "/tmp/elsewhere", "", ".", "a/b"])
def test_the_name_of_a_run_leads_to_no_other_folder(run, tmp_path):
    answer = told(alone(tmp_path), "join", **{**joining(), "run": run})
    assert "a run's name is made of" in answer["refuses"]


def test_a_silo_reads_no_weights_that_a_server_names_and_no_trace(tmp_path):
    (tmp_path / "trace.csv").write_text("round,client,what\n1,0,drop\n")
    node = alone(tmp_path)
    assert "reads no file that a server names" in told(node, "join", **joining(weights="/etc/shadow"))["refuses"]
    assert "refuses" not in told(node, "join", **joining(failure_trace="/etc/shadow"))
    assert node.joining[1].failures.failure_trace is None
    simulation = ready(made("fedavg", rounds=1, failure_trace=str(tmp_path / "trace.csv")), tmp_path).run()
    assert [(event.round, event.client, event.what) for event in simulation.server.events] == [(0, 0, "dropped")]


def table_of(path):
    path.write_text("age,size,sick\n" + "".join(f"{50 + row},{170 + row},{row % 2}\n" for row in range(40)))
    return path


def test_fault_73_a_node_with_simulated_clients_reads_only_files_that_its_owner_lists(tmp_path):
    listed, secret = table_of(tmp_path / "listed.csv"), table_of(tmp_path / "secret.csv")
    (tmp_path / "another.csv").symlink_to(secret)
    (tmp_path / "silo.toml").write_text(
        'name = "left"\nhosts = "0-1"\n[allow]\ndata = ["listed.csv", "hf:owner/name"]\n'
        "min_train_samples = 1\nmin_test_samples = 1\n"
    )
    node = Node(read_silo(tmp_path / "silo.toml"))
    asked = {"label": "sick", "clients": 4, "partition": "iid", "model": "auto"}
    for key, value in {
        "data": str(secret),
        "data_root": str(tmp_path),
        "weights": str(secret),
        "partition": f"file:{secret}",
    }.items():
        line = told(node, "join", **joining(**{**asked, "data": str(listed), key: value}))["refuses"]
        path = value.removeprefix("file:")
        assert line == f"left reads no file that a server names: {key} = '{path}'; its [allow] data lists none like it"
    for data in (f"{tmp_path}/another.csv", f"{tmp_path}/listed.csv/../secret.csv", "hf:owner/other", f"hf:{tmp_path}"):
        assert "reads no file" in told(node, "join", **joining(**{**asked, "data": data}))["refuses"], data
    assert told(node, "join", **joining(**{**asked, "data": f"{tmp_path}/./listed.csv"}))["names"] == ["0", "1"]
    assert told(node, "join", **joining(data="digits", clients=4, partition="iid"))["names"] == ["0", "1"]


def test_fault_73_an_allowed_file_is_for_nodes_with_simulated_clients_alone(tmp_path):
    weights = table_of(tmp_path / "weights.safetensors")
    line = told(alone(tmp_path, data=(str(weights),)), "join", **joining(weights=str(weights)))["refuses"]
    assert line == f"n0 reads no file that a server names: weights = '{weights}'"


# ---- a server, or a node, of another version


@pytest.mark.parametrize("what", ["partwise", "torch", "code of anti", "code of fedavg"])
def test_fault_76_another_version_or_method_code_is_refused_with_both_named(what, tmp_path):
    asked, known = joining("anti", host="fedavg"), software(["anti", "fedavg"])[what][:20]
    node = alone(tmp_path)
    assert "refuses" not in told(node, "join", **asked)
    asked["software"][what] = "0.0.1"
    line = told(node, "join", **asked)["refuses"]
    assert line == f"{what} is 0.0.1 on the server and {known} on n0: install the same on both"
    del asked["software"][what]
    assert f"{what} is unknown on the server and {known} on n0" in told(node, "join", **asked)["refuses"]


def test_fault_76_a_server_names_the_node_that_refuses_it(tmp_path, monkeypatch):
    monkeypatch.setattr("partwise.federation.protocol.launch.PROTOCOL", PROTOCOL - 1)
    with pytest.raises(PartwiseError, match=rf"^n0 refuses: the server speaks protocol {PROTOCOL - 1}, partwise .*"):
        ready(made("fedavg"), tmp_path)


def test_the_build_of_torch_makes_no_other_version(monkeypatch):
    for build in ("2.7.0", "2.7.0+cpu", "2.7.0+cu126"):
        monkeypatch.setattr(torch, "__version__", build)
        assert software([])["torch"] == "2.7.0"


# ---- a hostile server: what leaves


def test_extras_leave_only_where_the_silo_lets_them(tmp_path):
    config = made("fedproto", model="mlp-100")
    with pytest.raises(PartwiseError, match="n0 lets body leave, and fedproto uploads prototypes"):
        ready(config, tmp_path / "body", parts=("body",)).run()
    ready(config, tmp_path / "both", parts=("body", "prototypes")).run()


def test_a_server_that_asks_for_a_round_twice_does_not_get_the_same_noise(tmp_path):
    """Without a step an upload is what was received, and noise: whoever had that could take it off the next answer."""
    simulation = ready(made("fedavg", upload_clip=1.0, upload_noise=0.5, model="mlp-100"), tmp_path)
    server, engine = simulation.server, simulation.engine
    request = server.request("train", [0, 1, 2, 3])
    noise = []
    for rate in (0.0, 1e-12):
        updates = engine.run(replace(request, rate=rate))
        noise.append({name: value - server.copies[name].values for name, value in updates.parts.items()})
    assert all(not torch.allclose(value, noise[1][name], atol=1e-6) for name, value in noise[0].items())
    again = engine.run(replace(request, rate=1e-12)).parts
    assert all(torch.equal(again[name], updates.parts[name]) for name in again)


# ---- what a node keeps


def changed(federation, how):
    """The data of a node of which rows are missing, rows are new, values differ, or the division does."""
    source, train, test = federation.source, [own.clone() for own in federation.train], list(federation.test)
    if how == "fewer rows":
        train[0] = train[0][1:]
    elif how == "more rows":
        source = replace(source, x=torch.cat([source.x, source.x[:1]]), y=torch.cat([source.y, source.y[:1]]))
        train[0] = torch.cat([train[0], torch.tensor([len(source.y) - 1])])
    elif how == "another value":
        source = replace(source, x=source.x.clone())
        source.x[train[0][0]] += 1
    elif how == "another label":
        source = replace(source, y=source.y.clone())
        source.y[train[0][0]] = (source.y[train[0][0]] + 1) % source.classes
    else:  # a training patient is a test patient now
        train[0], test[0] = (torch.cat([b[:1], a[1:]]) for a, b in ((train[0], test[0]), (test[0], train[0])))
    return replace(federation, source=source, train=train, test=test, global_test=torch.cat(test).sort().values)


@pytest.mark.parametrize("how", ["fewer rows", "more rows", "another value", "another label", "another division"])
def test_fault_72_data_that_changed_between_rounds_are_refused_without_details(how, tmp_path, caplog):
    simulation = ready(made("fedavg", rounds=3), tmp_path)
    server, nodes = simulation.server, simulation.engine.nodes.link.nodes
    server.step()
    silo = nodes["n1"].silo
    nodes["n1"] = Node(replace(silo, held=changed(silo.held, how)))  # started again
    server.step()
    [event] = server.events
    refusal = "the data of n1 are not those with which the run began"
    assert (event.client, event.what) == (1, "dropped")
    assert event.detail == f"n1: cannot join again: n1 refuses: {refusal}"
    assert "have the server begin a new run" in caplog.text
    nodes["n1"] = Node(silo)  # put back as they were
    server.step()
    assert len(server.events) == 1
    nodes["n1"] = Node(replace(silo, held=changed(silo.held, how)))
    link = InProcess(nodes)
    with pytest.raises(PartwiseError, match=f"^n1 refuses: {refusal}$"):  # a server that goes on
        federated(simulation.config, members(link, simulation.config))
    federated(simulation.config, members(link, simulation.config, "another-run"))


def test_a_request_that_a_node_cannot_write_down_leaves_its_clients_as_they_were(tmp_path, monkeypatch):
    simulation = ready(made("fedper"), tmp_path)
    node = simulation.engine.nodes.link.nodes["n1"]

    def full(*arguments, **keywords):
        raise DiskFull("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(node.run.commits, "put", full)
        simulation.server.step()
    [event] = simulation.server.events
    assert (event.client, event.what) == (1, "dropped") and "disk full" in event.detail
    assert node.run.simulation.engine.store.row[1] < 0
    simulation.server.step()
    assert node.run.simulation.engine.store.row[1] == 0 and len(simulation.server.events) == 1


def test_a_file_that_is_damaged_is_named(tmp_path):
    simulation = ready(made("fedper"), tmp_path)
    simulation.server.step()
    node = simulation.engine.nodes.link.nodes["n1"]
    [path] = [commit.path for commit in node.run.commits.files() if commit.stage is None]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PartwiseError, match=f"n1 refuses: .*{path.name}' is damaged"):
        ready(made("fedper"), tmp_path)


def test_a_server_that_goes_back_tests_clients_as_they_were_then(tmp_path):
    config = made("fedper", rounds=4, eval_every=1)
    calm = ready(config, tmp_path / "calm").run()
    ready(config, tmp_path / "back").run()
    again = ready(config, tmp_path / "back").run()  # as if no checkpoint were whole: all is asked again
    assert [row["received"] for row in again.history.rows] == [row["received"] for row in calm.history.rows]


def test_a_stage_that_began_later_is_not_in_the_way_of_a_server_that_goes_back(tmp_path):
    config = made("vanilla", rounds=4, eval_every=1)
    calm = ready(config, tmp_path / "calm").run()
    ready(config, tmp_path / "back").run()
    again = ready(config, tmp_path / "back").run()
    assert not again.server.events
    assert [row["received"] for row in again.history.rows] == [row["received"] for row in calm.history.rows]


@pytest.mark.parametrize("name", ["round", "number"])
def test_what_a_request_calls_its_round_leads_to_no_other_folder(name, tmp_path):
    class Server(Rewriting):
        def change(self, content):
            content["request"][name] = "../../../../elsewhere"

    with pytest.raises(PartwiseError, match=rf"request\.{name} is not a whole number"):
        ready(made("fedavg"), tmp_path / "nodes", Server).run()
    assert [path.name for path in tmp_path.iterdir()] == ["nodes"]
    assert not list(tmp_path.glob("nodes/elsewhere*"))


def test_models_are_those_of_the_last_stage_and_of_the_method_as_it_is(tmp_path):
    """A node that was away as the last stage began, when parts became its clients' own, hears of it with the models."""

    class Away(InProcess):
        def ask(self, messages, timeout):
            asked = unpack_tree(next(iter(messages.values()))).get("request", {})
            there = {k: v for k, v in messages.items() if asked.get("round", 0) < 2 or k != "n1"}
            return super().ask(there, timeout)

    simulation = ready(made("vanilla", rounds=4, eval_every=4), tmp_path, Away)
    simulation.run()
    link = simulation.engine.nodes.link
    simulation.engine.nodes.link = InProcess(link.nodes)
    simulation.config.method.lr = 0.01
    assert write_models(simulation) == {"n0": 2, "n1": 1, "n2": 1}
    for node in link.nodes.values():
        assert node.run.commits.stages == len(simulation.engine.entered)
        assert node.run.simulation.config.method.lr == 0.01


# ---- a hostile node


class Lying(InProcess):
    """The node `n1` changes what it answers."""

    job, change = "train", None

    def ask(self, messages, timeout):
        answers = super().ask(messages, timeout)
        asked = unpack_tree(next(iter(messages.values()))).get("request", {})
        if asked.get("job") == self.job and "n1" in answers:
            content = unpack_tree(answers["n1"])
            changed = type(self).change(content)
            answers["n1"] = pack_tree(content if changed is None else changed)
        return answers


LIES = {
    "no answer": lambda answer: [1, 2],
    "a tensor": lambda answer: torch.ones(3),
    "lacks a text": lambda answer: {"lacks": "x"},
    "lacks infinity": lambda answer: {"lacks": float("inf")},
    "lacks tensors": lambda answer: {"lacks": torch.ones(3)},
    "always lacks": lambda answer: {"lacks": 0},
    "lost": lambda answer: answer.update(lost=5),
    "lost nothing": lambda answer: {key: value for key, value in answer.items() if key != "lost"},
    "sent a text": lambda answer: answer["updates"].update(sent="abc"),
    "sent less than nothing": lambda answer: answer["updates"].update(sent={"body": -1}),
    "sent too much": lambda answer: answer["updates"].update(sent={"body": 10**40}),
    "complex": lambda answer: answer["updates"].update(samples=torch.ones(1, dtype=torch.complex64)),
    "finite": lambda answer: answer["updates"].update(finite=torch.ones(1, dtype=torch.int64)),
    "an extra of texts": lambda answer: answer["updates"].update(extras={"more": ["text"]}),
    "an extra called as a part": lambda answer: answer["updates"].update(extras={"body": torch.ones(1)}),
    "an extra of no rows": lambda answer: answer["updates"].update(extras={"more": torch.ones(())}),
    "a score": lambda answer: answer["updates"].update(scores={"test": {1: {"samples": 1.0, "accuracy": 7.0}}}),
}


@pytest.mark.parametrize("few", [False, True], ids=["among others", "alone"])
@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_makes_no_sense_is_left_out(lie, few, tmp_path):
    link = type("Link", (Lying,), {"change": staticmethod(LIES[lie])})
    simulation = ready(made("fedavg", rounds=1, model="mlp-100"), tmp_path, link)
    server = simulation.server
    updates = simulation.engine.run(server.request("train", [1] if few else [0, 1, 2, 3]))
    assert updates.clients == ([] if few else [0, 2, 3]) and list(updates.client_events) == [1]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 1e300, "text", 1, None])
@pytest.mark.parametrize("name", ["accuracy", "samples"])
def test_scores_that_are_none_are_left_out(name, wrong, tmp_path):
    def change(answer):
        answer["updates"]["scores"]["test"][1][name] = wrong

    link = type("Link", (Lying,), {"job": "predict", "change": staticmethod(change)})
    simulation = ready(made("fedavg", rounds=1, eval_every=1, model="mlp-100"), tmp_path, link).run()
    [row] = simulation.history.rows
    assert 0 <= row["received"]["acc_pooled"] <= 1 and row["received"]["clients"] in (3, 4)


def test_scores_count_by_the_samples_that_a_client_registered(tmp_path):
    def change(answer):
        answer["updates"]["scores"]["test"][1].update(samples=1e6, accuracy=1.0)

    link = type("Link", (Lying,), {"job": "predict", "change": staticmethod(change)})
    simulation = ready(made("fedavg", rounds=1, eval_every=1, model="mlp-100"), tmp_path, link).run()
    held = simulation.federation.test
    assert [score.samples for score in simulation.history.scores["received"].values()] == list(map(len, held))


DESCRIBED = {
    "names": [5, [], [], ["a", 3]],
    "sizes": [5, [], [[1, 2]], [[-1, 2, 3]], [[1.5, 2, 3]], [[10**15, 1, 1]], [["a", 1, 1]]],
    "shape": [5, [], [-1], [2.5], ["a"]],
    "classes": [0, -1, 2.5, "a", None, 10**12],
    "class_names": [5, [1, 2, 3], ["a", "a"], ["only one"]],
    "columns": [5, [1], ["a", "a"], ["a"]],
    "features": [5, [1], ["a", "b", "c"]],
    "whole": [5, None],
    "standardise": ["yes"],
    "centre": [5, ["a"], [float("nan")]],
    "scale": [None, [float("inf")]],
    "white": ["a", float("nan")],
    "data": [None, 5],
    "model": [None, 5],
}


@pytest.mark.parametrize("key, value", [(key, value) for key, values in DESCRIBED.items() for value in values])
def test_data_that_cannot_be_are_refused_in_a_line_that_names_the_node(key, value, tmp_path):
    class Link(InProcess):
        def change(self, content):
            content[key] = value

        def ask(self, messages, timeout):
            answers = super().ask(messages, timeout)
            if unpack_tree(messages["n1"])["kind"] == "join":
                content = unpack_tree(answers["n1"])
                self.change(content)
                answers["n1"] = pack_tree(content)
            return answers

    with pytest.raises(PartwiseError, match=r"^n1: "):
        ready(made("fedavg"), tmp_path, Link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "change", lambda self, content: content.pop(key))
        with pytest.raises(PartwiseError, match=rf"^n1: its answer lacks its field '{key}'"):
            ready(made("fedavg"), tmp_path, Link)


def test_moments_of_another_form_are_refused_in_a_line_that_names_the_node():
    hosts = ["n0", "n1"]
    good = torch.tensor([[2.0, 0.0], [3.0, 0.0], [1e60, 0.0]], dtype=torch.float64)
    full = torch.tensor([[2.0, 1.0], [3.0, 5.0], [1.0, 0.0]], dtype=torch.float64)
    assert merged_moments({"n0": full, "n1": good}, hosts, 2)[0].tolist() == [4, 1]
    forms = [good[:2], good.float(), good * float("nan"), -good, good[:, :1], good * 1e30]
    impossible = [[[0.5], [3.0], [1.0]], [[0.0], [3.0], [0.0]], [[0.0], [0.0], [1.0]], [[2.0], [1e39], [0.0]]]
    for wrong in [*forms, *(torch.tensor(each, dtype=torch.float64).expand(3, 2) for each in impossible)]:
        with pytest.raises(PartwiseError, match=r"^n1: its moments"):
            merged_moments({"n0": full, "n1": wrong}, hosts, 2)


@pytest.mark.parametrize("network", [None, 5, {}, {"body": "x"}, {"body.0.weight": [1]}])
def test_a_network_that_is_none_is_another(network, tmp_path):
    class Link(InProcess):
        def ask(self, messages, timeout):
            answers = super().ask(messages, timeout)
            if unpack_tree(messages["n1"])["kind"] == "begin":
                answers["n1"] = pack_tree({"network": network})
            return answers

    with pytest.raises(PartwiseError, match=r"n1 draws another network|n1: its answer\.network"):
        ready(made("fedavg"), tmp_path, Link)
