"""Faults 66 and 67: how many silos are behind a mean, what may be handed on, and whom a key stands for."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.protocol.claims import false_claims, parse_hosts
from partwise.federation.protocol.launch import Members, federated
from partwise.federation.protocol.node import Node
from partwise.methods.pacfl import PACFL
from partwise.records.wire import pack_tree, unpack_tree
from partwise.rounds.plan import hands_on
from partwise.rounds.safeguards import Safeguards
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.listed import LISTED
from tests.support.node_parity import OWN
from tests.support.nodes import InProcess, hosting, in_process, members, silos
from tests.support.runs import SIZES as EIGHT
from tests.support.runs import awkward_federation

SIZES, HOSTED = (7, 6, 9), [[0], [1], [2]]
SETTINGS = {"rounds": 3, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "tabular", "threads": 1}


def made(method="fedavg", **more):
    return make_config(method, {**SETTINGS, **more})


def real(folder, sizes=SIZES, **allow):
    """Nodes with a key each: one client, called as the key is."""
    federation = awkward_federation(sizes)
    federation = replace(federation, names=tuple(f"n{number}" for number in range(len(sizes))))
    own = silos(federation, folder, [[number] for number in range(len(sizes))], **allow)
    return {name: Node(silo) for name, silo in own.items()}


def demanding(nodes, **demands):
    """The same nodes, some of which want more silos behind every mean."""
    for name, number in demands.items():
        silo = nodes[name].silo
        nodes[name] = Node(replace(silo, allow=replace(silo.allow, min_clients=number)))
    return nodes


class Away(InProcess):
    """Some nodes do not answer some jobs of some rounds."""

    gone: dict = {}  # by job and round: the nodes

    def ask(self, messages, timeout):
        asked = unpack_tree(next(iter(messages.values()))).get("request", {})
        gone = self.gone.get((asked.get("job"), asked.get("round")), ())
        return super().ask({name: message for name, message in messages.items() if name not in gone}, timeout)


class Changing(InProcess):
    """The content of some messages, or of their answers, is changed."""

    def question(self, name, content):
        pass

    def answer(self, name, kind, content):
        pass

    def ask(self, messages, timeout):
        asked = {name: unpack_tree(message) for name, message in messages.items()}
        for name, content in asked.items():
            self.question(name, content)
        answers = {}
        for name, answer in super().ask({name: pack_tree(content) for name, content in asked.items()}, timeout).items():
            content = unpack_tree(answer)
            self.answer(name, asked[name]["kind"], content)
            answers[name] = pack_tree(content)
        return answers


def copies(simulation):
    return {name: each.values.clone() for name, each in simulation.server.copies.items()}


def same(one, two):
    return all(torch.equal(value, two[name]) for name, value in one.items())


# ---- fault 66: fewer silos than one of them demands


def test_fault_66_with_two_of_three_silos_away_nothing_is_averaged(tmp_path):
    """One silo demands three; the others would have been content with one."""
    nodes = demanding(real(tmp_path), n1=3)
    link = type("Link", (Away,), {"gone": {("train", 1): ("n1", "n2")}})(nodes)
    simulation = federated(made(), Members(link, "a-run", made(), list(nodes)))
    simulation.server.step()
    before = copies(simulation)
    simulation.server.step()
    assert same(before, copies(simulation))
    event = simulation.server.events[-1]
    assert (event.round, event.client, event.what) == (1, None, "skipped")
    assert event.detail == ("1 of 3 updates can be used, they come from 1 silo, and a silo demands min_clients = 3")
    simulation.server.step()  # all are back
    assert not same(before, copies(simulation))


def test_fault_66_a_node_counts_once_however_many_clients_it_hosts(tmp_path):
    federation = awkward_federation(SIZES)
    nodes = {name: Node(silo) for name, silo in silos(federation, tmp_path, [[0, 2], [1]], min_clients=2).items()}
    link = type("Link", (Away,), {"gone": {("train", 0): ("n1",)}})(nodes)
    simulation = federated(made(), members(link, made()))
    before = copies(simulation)
    simulation.server.step()
    assert same(before, copies(simulation))
    assert [event.what for event in simulation.server.events] == ["dropped", "skipped"]


def test_fault_66_a_group_with_fewer_silos_keeps_its_copy(tmp_path, monkeypatch):
    """Clients 0 and 1 are a group, client 2 is alone in its own: its model would become the group's."""
    monkeypatch.setattr(PACFL, "groups", lambda self, server: [0, 0, 1])
    nodes = demanding(real(tmp_path), n0=2)
    simulation = federated(made("pacfl"), Members(InProcess(nodes), "a-run", made("pacfl"), list(nodes)))
    simulation.server.begin()
    before = copies(simulation)
    simulation.server.step()
    updates = simulation.server.asked[0][1]
    weights = torch.tensor(SIZES[:2], dtype=torch.float64) / sum(SIZES[:2])
    for name, value in updates.parts.items():
        mean = (weights.view(-1, *[1] * (value.dim() - 1)) * value[:2]).sum(0)
        assert torch.allclose(simulation.server.copies[name].values[0], mean, rtol=0, atol=1e-10)
        assert torch.equal(simulation.server.copies[name].values[1], before[name][1])
    [event] = simulation.server.events
    assert event.what == "skipped" and event.detail.startswith("group 1 keeps its copy: 1 of 3 updates")


def test_fault_66_what_is_summed_after_the_last_round_counts_too(tmp_path):
    """SphereFed fits the head to sums of features: of one silo, they are that silo's."""
    nodes = demanding(real(tmp_path), n0=2)
    link = type("Link", (Away,), {"gone": {("report", 3): ("n1", "n2")}})(nodes)
    simulation = federated(made("spherefed"), Members(link, "a-run", made("spherefed"), list(nodes)))
    head = simulation.server["head"]["weight"].clone()
    simulation.run()
    assert torch.equal(simulation.server["head"]["weight"], head)
    assert simulation.server.events[-1].what == "skipped"
    calm = demanding(real(tmp_path / "calm"), n0=2)
    all_there = federated(made("spherefed"), Members(InProcess(calm), "a-run", made("spherefed"), list(calm)))
    assert not torch.equal(all_there.run().server["head"]["weight"], head)


@pytest.mark.parametrize("kept", [1, 2, None, "3", 3.0])
def test_fault_66_a_node_refuses_a_server_that_keeps_to_less(kept, tmp_path):
    class Server(Changing):
        def question(self, name, content):
            if content["kind"] == "begin":
                content["min_clients"] = kept

    nodes = demanding(real(tmp_path), n1=3)
    line = f"silos behind every mean, the server keeps to {kept}|begin.min_clients is not a whole number"
    with pytest.raises(PartwiseError, match=line):
        federated(made(), Members(Server(nodes), "a-run", made(), list(nodes)))


def test_fault_66_a_run_with_too_few_silos_is_refused_by_the_server_and_by_the_node(tmp_path):
    nodes = demanding(real(tmp_path), n1=4)
    with pytest.raises(ConfigError, match="n1 wants 4 silos at least, the run has 3"):
        federated(made(), Members(InProcess(nodes), "a-run", made(), list(nodes)))
    few = made(clients_per_round=2)
    with pytest.raises(ConfigError, match=r"n1 wants 3 silos .* this run has 2 at most"):
        federated(few, Members(InProcess(demanding(nodes, n1=3)), "a-run", few, list(nodes)))

    class Server(Changing):  # which says nothing of n1's demand
        def answer(self, name, kind, content):
            if kind == "join":
                content["min_clients"] = 1

    with pytest.raises(PartwiseError, match="n1 refuses: n1 wants 4 silos at least, the run has 3"):
        federated(made(), Members(Server(demanding(nodes, n1=4)), "a-run", made(), list(nodes)))


@pytest.mark.parametrize("number", [0, -1, 2.5, "2", None, True])
def test_a_minimum_that_is_none_is_refused_in_a_line_that_names_the_node(number, tmp_path):
    class Server(Changing):
        def answer(self, name, kind, content):
            if kind == "join" and name == "n1":
                content["min_clients"] = number

    with pytest.raises(PartwiseError, match=r"^n1: (min_clients = |its answer.min_clients is not a whole number)"):
        federated(made(), Members(Server(real(tmp_path)), "a-run", made(), ["n0", "n1", "n2"]))


# ---- fault 66: what hands single silos' models on

HANDS_ON = {
    "fed3p2p": "a relay takes a client's model to the next one",
    "fedamp": "each client gets a mix of body, head made for it alone",
    "fedfomo": "clients get body, head of single others",
    "fedpac": "each client gets a mix of head made for it alone",
}


@pytest.mark.parametrize("method", sorted(LISTED))
def test_which_methods_hand_single_models_on(method):
    """Clusters do not: the server keeps to the minimum for each by itself. Class means and variates are no models."""
    config = make_config(method, {**SETTINGS, **OWN.get(method, {})})
    simulation = prepare(config, awkward_federation(EIGHT))
    assert hands_on(config.method, simulation.server.plans) == HANDS_ON.get(method, "")


def test_settings_and_hosts_decide_what_is_handed_on():
    without_relay = make_config("fed3p2p", {**SETTINGS, "coordinators_b": 2, "type_a": False})
    assert not hands_on(without_relay.method, prepare(without_relay, awkward_federation(EIGHT)).server.plans)
    scheduled = make_config("anti", {**SETTINGS, "host": "fedpac"})
    assert "a mix of head" in hands_on(scheduled.method, prepare(scheduled, awkward_federation(EIGHT)).server.plans)


@pytest.mark.parametrize("method", sorted(HANDS_ON))
def test_fault_66_a_silo_hands_its_model_on_only_where_its_file_says_so(method, tmp_path):
    config, federation = made(method, **OWN.get(method, {})), awkward_federation(EIGHT)
    line = f"n0 allows no {method}, where {HANDS_ON[method]}: its .allow. does not say relay = true"
    with pytest.raises(PartwiseError, match=line):
        in_process(config, federation, tmp_path, [[0, 3, 4], [1, 6], [2, 5, 7]], relay=False)


def test_fault_66_krum_takes_one_silos_model_for_the_mean(tmp_path):
    """Of five uploads with one attacker among them Krum takes 5 - 2 - 2 = 1."""
    config, hosted = made(robust="krum:1"), [[number] for number in range(5)]
    line = "n0 allows no fedavg, where robust = krum:1 may take one client's model for the mean"
    with pytest.raises(PartwiseError, match=line):
        in_process(config, awkward_federation((7, 6, 9, 11, 8)), tmp_path, hosted, relay=False)
    in_process(config, awkward_federation((7, 6, 9, 11, 8)), tmp_path, hosted)


# ---- fault 67: a key is one client


class Claiming(Changing):
    """The node `n1` claims what it likes as it joins."""

    claim: dict = {}

    def answer(self, name, kind, content):
        if name == "n1" and kind == "join":
            content.update(self.claim)


def claims(names, size=6):
    return {"names": names, "sizes": [[size, 2, 0]] * len(names)}


CLAIMS = {
    "21 clients": (claims([f"c{number}" for number in range(21)]), "claims to be 21 clients, but a key is one client"),
    "another silo": (claims(["n0"]), "claims to be 'n0', the name of another silo"),
    "another name": (claims(["Graz"]), "claims to be 'Graz', but a key is one client"),
    "itself and another": (claims(["n1", "n2"]), "claims to be 'n2', the name of another silo"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_fault_67_who_claims_other_clients_than_its_key_is_named_and_left_out(claim, tmp_path, caplog):
    claimed, line = CLAIMS[claim]
    link = type("Link", (Claiming,), {"claim": claimed})(real(tmp_path, min_clients=2))
    own = Members(link, "a-run", made(), ["n0", "n1", "n2"])
    simulation = federated(made(robust="median"), own).run()
    assert own.nodes == ["n0", "n2"] and own.hosts == ["n0", "n2"]
    assert f"n1 {line}" in caplog.text and "the run begins without it" in caplog.text
    assert not simulation.server.events


@pytest.mark.parametrize("claim", CLAIMS)
def test_fault_67_where_too_few_silos_remain_the_launch_ends_and_names_the_liar(claim, tmp_path):
    claimed, line = CLAIMS[claim]
    link = type("Link", (Claiming,), {"claim": claimed})(real(tmp_path, min_clients=3))
    with pytest.raises(ConfigError, match=f"^n1 {line}"):
        federated(made(), Members(link, "a-run", made(), ["n0", "n1", "n2"]))


def test_fault_67_hosts_lets_a_node_host_some_clients_and_no_more(tmp_path):
    federation = awkward_federation((7, 6, 9, 11))
    nodes = {name: Node(silo) for name, silo in silos(federation, tmp_path, [[0, 2], [1], [3]]).items()}
    assert hosting(nodes) == {"n0": 2, "n1": 1, "n2": 1}
    federated(made(), Members(InProcess(nodes), "a-run", made(), list(nodes), may_host=hosting(nodes)))
    own = Members(InProcess(nodes), "a-run", made(), list(nodes), may_host={**hosting(nodes), "n0": 1})
    federated(made(), own)
    assert own.nodes == ["n1", "n2"]


def test_fault_67_a_client_that_two_nodes_claim_is_told_of_both():
    claimed = {"left": ["0", "1"], "right": ["1", "2"], "third": ["third"]}
    told = {node: SimpleNamespace(names=names) for node, names in claimed.items()}
    false = false_claims(told, {"left": 2, "right": 2})
    assert false == dict.fromkeys(("left", "right"), "claims the client '1', which is claimed twice")


def test_hosts_on_the_command_line():
    assert parse_hosts(["left=1000", "a=b=2"]) == {"left": 1000, "a=b": 2}
    for wrong in ("left", "left=", "=3", "left=0", "left=-1", "left=x"):
        with pytest.raises(ConfigError, match="NAME=N is needed"):
            parse_hosts([wrong])


def test_fault_67_a_silo_weighs_no_more_than_the_operator_lets_it(tmp_path):
    """7, 10**8 and 9 samples, at most 8 of them counted: weights 7, 8 and 8 of 23."""

    class Liar(Claiming):
        claim = {"sizes": [[10**8, 2, 0]]}

        def answer(self, name, kind, content):
            super().answer(name, kind, content)
            if name == "n1" and "updates" in content:
                content["updates"]["samples"] = content["updates"]["samples"] * 0 + 10**8

    nodes = real(tmp_path)
    simulation = federated(made(), Members(Liar(nodes), "a-run", made(), list(nodes), most_samples=8))
    simulation.server.step()
    updates = simulation.server.asked[0][1]
    assert updates.samples.tolist() == [7, 10**8, 9]
    weights = torch.tensor([7, 8, 8], dtype=torch.float64) / 23
    for name, value in updates.parts.items():
        mean = (weights.view(-1, *[1] * (value.dim() - 1)) * value).sum(0)
        assert torch.allclose(simulation.server.copies[name].values[0], mean, rtol=0, atol=1e-10)
    assert not any(b"most_samples" in message for _, message, _ in simulation.engine.nodes.link.sent)


def test_the_clients_of_a_silo_weigh_together_what_one_may():
    """6 and 2 samples of one silo, 10 of another, at most 4 counted: 3 and 1, 4; their proportion stays."""
    safeguards = Safeguards(silos=["a", "b", "a"], most_samples=4)
    samples = torch.tensor([6.0, 10.0, 2.0], dtype=torch.float64)
    assert safeguards.capped(samples, [0, 1, 2]).tolist() == [3, 4, 1]
    assert safeguards.capped(samples[2:], [2]).tolist() == [2]
