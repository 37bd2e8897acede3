"""Data, networks and methods of a user's own: what is taken as it is, and what is refused in one line."""

import dataclasses
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn

import partwise
from partwise import (
    ALL,
    GROUP,
    GUIDE,
    LOCAL,
    ConfigError,
    DataError,
    Federation,
    Method,
    Move,
    Parts,
    Phase,
    Relay,
    Source,
    Stage,
    option,
    train,
)
from tests.support.runs import CLASSES, awkward_federation, network, simulate


class Functional(nn.Module):
    """A network whose forward does more than call its children."""

    def __init__(self):
        super().__init__()
        self.backbone, self.fc = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.backbone(x.flatten(1))))


def test_a_network_that_is_more_than_its_parts_in_a_row_is_refused_and_can_be_explained():
    settings = {"data": "made", "clients": 3, "rounds": 1}
    flat = nn.Sequential(OrderedDict(body=nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), head=nn.Linear(16, 10)))
    with pytest.raises(ConfigError, match=r"body > head in sequence differ from the network|does not take samples"):
        partwise.run("fedper", model=Parts(Functional(), body="backbone", head="fc"), **settings)

    def body(module, x):
        return torch.relu(nn.functional.linear(x.flatten(1), module.weight, module.bias))

    parts = Parts(Functional(), body="backbone", head="fc", forward={"body": body})
    assert partwise.run("fedper", model=parts, **settings).metrics[-1]["received"]["clients"] == 3
    assert partwise.run("fedper", model=flat, **settings).metrics[-1]["received"]["clients"] == 3


def test_a_network_that_is_handed_in_stays_as_it_is_and_gives_the_same_run_twice():
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    parts = Parts(nn.Sequential(OrderedDict(body=body, head=head)).double())
    before = {name: value.clone() for name, value in parts.tensors().items()}
    one, two = (simulate("fedavg", parts, rounds=1, seed=3).server.copies for _ in range(2))
    assert all(torch.equal(copies.values, two[name].values) for name, copies in one.items())
    assert all(torch.equal(value, before[name]) for name, value in parts.tensors().items()) and parts.seed == 0


class Small(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x.flatten(1))))


def before_round_0(model, seed):
    """The weights with which a run begins."""
    settings = {"data": "made", "clients": 3, "rounds": 1, "train_samples": 32, "lr": 0.0, "seed": seed}
    copies = partwise.run("fedavg", model=model, **settings).simulation.server.copies
    return torch.cat([copies[name].values.flatten() for name in sorted(copies)])


@pytest.mark.parametrize("model", [Small, lambda: Small(8), lambda: Parts(Small(), head="out")])
def test_a_class_or_a_function_is_called_anew_for_each_seed(model):
    generator = torch.get_rng_state()
    first, again, other = (before_round_0(model, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_network_keeps_its_values_with_every_seed_and_several_seeds_say_so(caplog):
    net = Small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert torch.equal(before_round_0(net, 0), before_round_0(net, 1))
    settings = {"data": "made", "clients": 3, "rounds": 1, "train_samples": 32, "lr": 0.5}
    partwise.compare(["fedavg", "local"], model=net, seeds=[0, 1], **settings)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("model is one network, so seeds 0, 1 start from the same weights")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    caplog.clear()
    partwise.compare(["fedavg"], model=net, seeds=[1], **settings)
    runs = partwise.compare(["fedavg"], model=Small, seeds=[0, 1], **settings).results
    assert not caplog.records
    assert [run.config.model.model for run in runs] == ["handed in from Python: called for each run"] * 2
    alone = partwise.run("fedavg", model=Small, seed=1, **settings)
    assert [row["received"] for row in runs[1].metrics] == [row["received"] for row in alone.metrics]


def test_parameters_without_gradient_are_not_trained():
    parts = network("cnn")
    for parameter in parts.modules["body"].conv1.parameters():
        parameter.requires_grad_(False)
    copies, before = simulate("fedavg", parts, rounds=1).server.copies, network("cnn").tensors()
    same = {name for name, value in before.items() if torch.equal(copies[name].values[0], value)}
    assert same == {"body.conv1.0.weight", "body.conv1.0.bias"}


def test_plain_objects_are_enough():
    federation = awkward_federation()
    source = Source(
        "mine", federation.source.x, federation.source.y, CLASSES, len(federation.source.y), (127.5,), (127.5,)
    )
    plain = Federation(source, federation.train, federation.test, federation.global_test)
    result = partwise.run("fedper", data=plain, rounds=1)
    assert "handed in" in result.config.to_toml() and result.simulation.federation.rule == "its own division"
    table = partwise.run("fedavg", data=dataclasses.replace(source, train=60), clients=3, rounds=1).table
    assert list(table[0])[:2] == ["round", "stage"] and "received.acc_pooled" in table[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": awkward_federation().train}, "client 0: a test sample is not in global_test"),
        ({"train": awkward_federation().test}, "client 0: a test sample is a training or validation sample too"),
        ({"train": awkward_federation().train[:3]}, "got 3 training, 8 test, 8 validation sets"),
        ({"train": [torch.tensor([10**6])] * 8}, "client 0: train must hold indices 0 .."),
    ],
)
def test_a_federation_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(awkward_federation(), **change)


def test_a_run_with_objects_of_ones_own_cannot_be_repeated_from_its_file_alone(tmp_path):
    partwise.run("fedavg", data=awkward_federation(), rounds=1, out=tmp_path / "run")
    from partwise.cli import main

    assert main(["run", "--config", str(tmp_path / "run" / "config.toml")]) == 2


def test_a_model_is_a_module_with_parameters_that_can_be_trained_on():
    result = partwise.run("fedper", data="made", clients=3, rounds=1, batch_norm=True)
    model, x = result.models[1], result.simulation.federation.source.x[:6]
    assert sum(value.numel() for value in model.parameters()) == 38_282 + 2 * (16 + 32)
    assert {f"network.{name}" for name in model.own} <= set(model.state_dict())
    before = model(x)
    before.square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    assert not torch.equal(model(x), before)
    assert torch.equal(result.models[1](x), before)  # a model is a copy


def test_import_needs_torch_and_numpy_alone():
    others = ["click", "datasets", "filelock", "flwr", "matplotlib", "mlxtend", "pandas", "PIL", "plotly", "pyarrow"]
    others += ["pydantic", "rich", "safetensors", "scipy", "sklearn", "timm", "torchvision"]
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); "
    code += "import partwise; partwise.run('fedper', data='made', clients=2, rounds=1, model='mlp-100')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


# ---- methods


class PlainMean(Method):
    def loss(self, net, b, me):
        return nn.functional.cross_entropy(net(b.x), b.y)


class Column(Method):
    def loss(self, net, b, me):
        return b.mean(net(b.x))


class Forgetful(Method):
    def finish(self, net, me):
        return {"rounds": me.samples}, {}


class Misnamed(Method):
    def phases(self):
        return train("*", "lozz")


class NoShare(Method):
    share = {"*": 3}


class GuideInRelay(Method):
    def stages(self):
        yield Stage(train(), {"body": ALL, "head": GUIDE}, 1, cohort=Relay(lambda server: [0] * 8))


class LastStageEmpty(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, 2)
        yield Stage(train(), {"*": ALL}, self.rounds - 2)


class UnknownJob(Method):
    def round(self, server, run):
        run("trian", server.cohort)


class Astray(Method):
    def phases(self):
        return Phase(Move("*", after=lambda net, me: {"head.wight": net["head"]["weight"]}))


class PartAsExtra(Method):
    def down(self, server):
        return {"head": torch.zeros(1)}


class GroupCopy(Method):
    share = {"*": GROUP}

    def groups(self, server):
        return [0, 1] * 4

    def aggregate(self, server, updates):
        server["head"] = server["head"]


class WrongShape(Method):
    share = {"body": ALL, "head": LOCAL}

    def aggregate(self, server, updates):
        server["head"] = {"bias": torch.zeros(())}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (PlainMean, "PlainMean.loss depends on padded rows"),
        (Column, r"one number per row, \(8,\), not \(8, 4\)"),
        (Forgetful, r"finish\(\) returns \['rounds'\] to keep"),
        (Misnamed, r"unknown function 'lozz'; known: loss, predict"),
        (NoShare, r"share of '\*' is 3; it must be ALL"),
        (GuideInRelay, "is a relay and 'head.weight' is GUIDE"),
        (LastStageEmpty, "stage 1 has 0 rounds"),
        (UnknownJob, "the job must be 'train', 'report' or 'describe'"),
        (Astray, r"unknown tensor 'head.wight'; did you mean 'head.weight'\?"),
        (PartAsExtra, "an extra cannot be called 'head'"),
        (GroupCopy, "several copies of 'head', one per group or client"),
        (WrongShape, r"'head.bias' is \(4,\) torch.float64, not \(\) torch.float32"),
    ],
)
def test_what_a_method_cannot_mean_is_refused_in_one_line(method, message):
    with pytest.raises(ConfigError, match=message):
        simulate(method, network("mlp"), engine="vector", rounds=2, trials=True)


def test_a_field_needs_a_default_and_a_type_that_an_option_can_have():
    with pytest.raises(ConfigError, match=r"Bare.pull needs a default"):
        type("Bare", (Method,), {"__annotations__": {"pull": float}})
    with pytest.raises(ConfigError, match=r"Odd.table cannot be an option"):
        type("Odd", (Method,), {"__annotations__": {"table": dict}, "table": option(None, "No.")})


class Regrouping(Method):
    """Groups that change within a stage, as clustered methods need them."""

    share = {"*": GROUP}

    def groups(self, server):
        return [0] * 8

    def aggregate(self, server, updates):
        if server.round == 0:
            server.regroup([0, 1] * 4)


def test_groups_may_change_within_a_stage():
    simulation = simulate(Regrouping, network("mlp"), rounds=2)
    weight = simulation.server.copies["head.weight"]
    assert len(weight.values) == 2 and not torch.equal(*weight.values)
    assert weight.row.tolist() == [0, 1] * 4


class Twice(Method):
    """Trains twice in a round, then asks everybody for a report."""

    def round(self, server, run):
        server.mix(run("train", server.cohort))
        server.mix(run("train", server.cohort))
        run("report", "everyone")

    def report(self, net, b, me):
        return {"real": b.mask.sum().to(b.x.dtype)}


def test_a_round_of_ones_own_is_counted_as_it_was():
    once, twice = (simulate(method, network("mlp"), rounds=1) for method in ("fedavg", Twice))
    assert twice.server.ledger.flops == 2 * once.server.ledger.flops
    rows = [simulation.history.rows[0] for simulation in (once, twice)]
    assert rows[1]["bytes_up"] == 2 * rows[0]["bytes_up"] + 3 * 8 * 8  # and a number from each client, three times
    assert rows[1]["bytes_down"] == 3 * rows[0]["bytes_down"]  # a report is made on the newest copies
    assert rows[1]["train_loss"] > 0 and rows[1]["trained"]["clients"] == 8


class PoisonedMemory(Method):
    """The client with 17 samples remembers and reports what is not finite; its parameters are fine."""

    def keep(self, net):
        return {"drift": torch.zeros((), dtype=torch.float64)}

    def finish(self, net, me):
        drift = torch.where(me.samples == 17, torch.nan, 1.0).to(torch.float64)
        return {"drift": me.keep["drift"] + drift}, {"drift": drift}


def test_a_refused_client_keeps_its_memory_and_does_not_count():
    simulation = simulate(PoisonedMemory, network("mlp"), rounds=2)
    assert [row["refused"] for row in simulation.history.rows] == [[3], [3]]
    assert [row["trained"]["clients"] for row in simulation.history.rows] == [7, 7]
    kept = simulation.engine.store.remembered(range(8))["drift"]
    assert kept.tolist() == [2, 2, 2, 0, 2, 2, 2, 2]


class GuidedBody(Method):
    """The server's mean of the body only guides: a client keeps its own, normalisation too."""

    share = {"body": GUIDE, "head": ALL}


def after_a_round_of_half(method):
    """A run, the clients that never stepped in it, and the mean of a tensor over those that did, by samples."""
    simulation = simulate(method, network("cnn+bn"), rounds=1, participation=0.5)
    store, samples = simulation.engine.store, simulation.server.samples.double()
    stepped = [client for client in simulation.server.cohort if store.stepped(client)]

    def mean(name):
        own = torch.stack([store.own(client, [name])[name] for client in stepped])
        return torch.tensordot(samples[stepped] / samples[stepped].sum(), own, 1)

    return simulation, [client for client in range(8) if client not in stepped], mean


@pytest.mark.parametrize("method", ["fedbn", "fedavg", "fedper", "dualfed", "fedfcd", "local", GuidedBody])
def test_clients_that_never_stepped_are_tested_with_averaged_running_values(method):
    """And with averaged scales and shifts only where these are what is kept of a part that is shared: FedBN."""
    simulation, strangers, mean = after_a_round_of_half(method)
    plan, parts = simulation.server.plan, simulation.program.parts
    held = simulation.engine.layout.held(simulation.server.request("predict", strangers), strangers)
    start = simulation.engine.store.stacked(strangers, plan.own)
    averaged = [name for name in plan.own if name in (parts.norms if method == "fedbn" else parts.buffers)]
    assert "body.conv1.1.running_mean" in averaged
    for name, value in held.items():
        expected = mean(name).expand_as(value) if name in averaged else start[name]
        assert torch.allclose(value, expected, rtol=0, atol=1e-14 if name in averaged else 0), name
        assert name not in averaged or not torch.equal(value, start[name])


@pytest.mark.parametrize("method", ["fedavg", "fedbn", GuidedBody])
def test_the_global_model_has_averaged_running_values_and_the_servers_means(method):
    """Of what only clients hold it has the mean over all of them; what is uploaded has its mean on the server."""
    simulation, _, mean = after_a_round_of_half(method)
    tensors, copies = simulation.evaluation.global_tensors(), simulation.server.copies
    assert torch.allclose(tensors["body.conv1.1.running_mean"], mean("body.conv1.1.running_mean"), rtol=0, atol=1e-14)
    name = "body.conv1.1.weight"
    if method == "fedbn":
        weights = simulation.server.samples.double() / simulation.server.samples.sum()
        every = torch.tensordot(weights, simulation.engine.store.stacked(range(8), [name])[name], 1)
        assert torch.allclose(tensors[name], every, rtol=0, atol=1e-14)
    else:
        assert torch.equal(tensors[name], copies[name].values[0])


def test_threads_change_nothing_but_rounding():
    # Threads that wait for each other cost time where the machine is busy: a few wide steps.
    settings = {"data": "made", "clients": 3, "rounds": 1, "batch": 128, "dtype": "float64"}
    one, two = (partwise.run("fedper", **settings, threads=number) for number in (1, 2))
    for first, second in zip(one.table, two.table, strict=True):
        numbers = {name: value for name, value in first.items() if isinstance(value, float) and name != "seconds"}
        assert numbers == pytest.approx({name: second[name] for name in numbers}, abs=1e-9)
