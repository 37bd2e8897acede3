"""What a method's server hooks ask of the server: parts by selector, and one mixing matrix or several."""

import pytest
import torch

from partwise import ALL, GUIDE, LOCAL, MIXED_GUIDE, ConfigError, Method
from partwise.rounds.plan import plans
from partwise.rounds.server import Server
from tests.support.runs import network, simulate
from tests.support.states import distance


def server_of(net: str = "cnn+bn") -> Server:
    """A server of FedAvg without an engine."""
    method, parts = Method(), network(net)
    return Server(method, parts, None, plans(method, parts), torch.tensor([5, 3]), 0, None)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------- parts by selector


@pytest.mark.parametrize("selector", ["*", "head", "body", "body.conv1", "@norm", "body.conv1 head"])
def test_the_server_names_parameters_as_a_network_does(selector):
    server = server_of()
    ours, theirs = server[selector], server.net()[selector]
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    server[selector] = {name: value + 1 for name, value in ours.items()}
    assert all(torch.equal(server[selector][name], value + 1) for name, value in theirs.items())


def test_names_of_everything_are_full_and_those_of_a_part_are_without_it():
    server = server_of("mlp")
    assert [*server["head"]] == ["weight", "bias"]
    assert [*server["*"]] == [*server.parts.tensors()]
    server["*"] = {"head.bias": torch.ones(4).double()}
    assert server["head"]["bias"].tolist() == [1, 1, 1, 1] != server["head"]["weight"][0].tolist()


def test_what_the_server_does_not_have_is_refused_with_the_nearest_name():
    server = server_of("mlp")
    with pytest.raises(ConfigError, match="unknown part 'haed'; did you mean 'head'"):
        server["haed"]
    with pytest.raises(ConfigError, match=r"unknown tensor of '\*' 'head.bais'; did you mean 'head.bias'?"):
        server["*"] = {"head.bais": torch.zeros(4).double()}
    with pytest.raises(ConfigError, match=r"'head.bias' is \(4,\) torch.float64, not \(3,\) torch.float64"):
        server["*"] = {"head.bias": torch.zeros(3).double()}


# ------------------------------------------------------------------------------------------- what a client received


class Attributes(Method):
    """A guide, an extra that is a tensor, and one that is a dict of tensors."""

    share = {"body": ALL, "head": GUIDE}

    def down(self, server):
        return {"pull": torch.tensor(0.1).double(), "c": {"head.bias": torch.ones(4).double()}}

    def loss(self, net, b, me):
        away = (net["head"]["bias"] - me.got.c["head.bias"]).square().sum()
        return b.ce(net(b.x)) + me.got.pull * away + sum(value.square().sum() for value in me.got["head"].values())


class Names(Attributes):
    def loss(self, net, b, me):
        away = (net["head"]["bias"] - me.got["c"]["head.bias"]).square().sum()
        guide = me.got["*"]
        return (
            b.ce(net(b.x)) + me.got["pull"] * away + sum(guide[f"head.{name}"].square().sum() for name in net["head"])
        )


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_extras_by_name_are_those_by_attribute(engine):
    one, two = (simulate(method, network("mlp"), engine=engine, rounds=2) for method in (Attributes, Names))
    assert distance(one, two) == 0


class Later(Attributes):
    """The extras come with the second round; the head is the client's own."""

    share = {"body": ALL, "head": LOCAL}

    def down(self, server):
        return super().down(server) if server.round else {}

    def loss(self, net, b, me):
        assert "body" in me.got and "head" not in me.got and ("c" in me.got) == ("pull" in me.got)
        return b.ce(net(b.x)) * (2 if "c" in me.got else 1)


def test_what_was_received_can_be_asked_for():
    one, two = (simulate(Later, network("mlp"), engine=engine, rounds=2) for engine in ("loop", "vector"))
    first, second = (row["train_loss"] for row in one.history.rows)
    assert distance(one, two) < 1e-12 and second > 1.5 * first


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda got: got["pul"], "unknown received part or extra 'pul'; did you mean 'pull'?"),
        (lambda got: got["haed"], "unknown received part or extra 'haed'; did you mean 'head'?"),
        (lambda got: got["head.wieght"], "unknown part 'head.wieght'"),
        (lambda got: got["mine"], "unknown received part or extra 'mine'.* known: body, c, head, pull"),
    ],
)
def test_what_was_not_received_is_refused_with_the_nearest_name(wrong, line):
    class Wrong(Attributes):
        share = {**Attributes.share, "mine": LOCAL}

        def build(self, parts, sizes):
            return parts.like("head", name="mine")

        def loss(self, net, b, me):
            return b.ce(net(b.x)) + wrong(me.got)

    with pytest.raises(ConfigError, match=line):
        simulate(Wrong, network("mlp"), engine="loop", rounds=1)


# ------------------------------------------------------------------------------------------------ mixing matrices


class Clouds(Method):
    """Clouds of two parts that are mixed alike, from one look at everything that was uploaded."""

    share = {"*": MIXED_GUIDE}

    def begin(self, server, run):
        server.memory["asked"] = torch.zeros(())

    def weights(self, server, updates):
        server.memory["asked"] += 1
        whole = torch.cat([value.flatten(1) for value in updates.parts.values()], 1)
        near = torch.softmax(-torch.cdist(whole, whole), 1)
        matrix = torch.zeros(server.clients, len(updates.clients), dtype=whole.dtype)
        matrix[updates.clients] = near
        return matrix

    def mix(self, server, updates):
        return self.weights(server, updates)


class CloudsByPart(Clouds):
    def mix(self, server, updates):
        matrix = self.weights(server, updates)
        return {"body": matrix.numpy(), "head": matrix}


def test_one_matrix_serves_all_parts_and_is_asked_for_once_a_round():
    one, two = (simulate(method, network("cnn"), rounds=3, participation=0.5) for method in (Clouds, CloudsByPart))
    assert distance(one, two) == 0
    assert one.server.memory["asked"] == 3


class Unequal(Method):
    """The head of the first participant counts, the body is the mean."""

    def mix(self, server, updates):
        first = torch.zeros(1, len(updates.clients))
        first[0, 0] = 1
        return {"*": torch.full_like(first, 1 / len(updates.clients)), "head": first}


def test_the_later_selector_wins_and_what_is_not_named_gets_the_mean():
    class HeadAlone(Unequal):
        def mix(self, server, updates):
            return {"head": super().mix(server, updates)["head"]}

    runs = [simulate(method, network("mlp"), rounds=1, aggregation="uniform") for method in (Unequal, HeadAlone)]
    assert distance(*runs) < 1e-15
    first = runs[0].server.asked[0][1].parts["head.bias"][0]
    assert torch.equal(runs[0].server["head"]["bias"], first)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"haed": torch.ones(1, 8) / 8}, "unknown part 'haed'; did you mean 'head'?"),
        ({"mine": torch.ones(1, 8) / 8}, r"Wrong.mix mixes 'mine', which is not uploaded; uploaded: body, head"),
        (
            torch.ones(8, 8) / 8,
            r"Wrong.mix gives 'body\S*' a mixing matrix \(8, 8\) .* it must be \(1, 8\) \(copies, part",
        ),
    ],
)
def test_a_mix_that_does_not_fit_is_refused(answer, line):
    class Wrong(Method):
        share = {"*": ALL, "mine": LOCAL}

        def build(self, parts, sizes):
            return parts.like("head", name="mine")

        def mix(self, server, updates):
            return answer

    with pytest.raises(ConfigError, match=line):
        simulate(Wrong, network("mlp"), rounds=1)
