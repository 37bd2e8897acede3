"""Bytes and operations to the digit: what each method sends, each way, per round and participant (spec 5.5, 8.10)."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.data.source import Federation, Source
from partwise.method import ALL, EVERYONE, FROZEN, GROUP, GUIDE, LOCAL, MIXED_GUIDE, SERVER, SERVER_GUIDE, Method
from partwise.network import models
from partwise.network.parts import Parts
from partwise.network.view import ClassRows, PerClient
from partwise.records.ledger import LedgerRecord
from partwise.rounds.ledger import wire_bytes
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from tests.support.runs import CLASSES, awkward_federation, network, simulate

BODY, HEAD = 64 * 100 + 100, 100 * CLASSES + CLASSES  # of the MLP in tests/support/runs.py
WHOLE = {"body": BODY, "head": HEAD}
NORMED, NORMED_HEAD = 37_632, 64 * CLASSES + CLASSES  # of the CNN with batch-norm, its 2 x 48 affine parameters apart
AFFINE = RUNNING = 96
CLUSTERED = str(Path(__file__).parents[1] / "methods" / "clustered.py")


def times(floats: dict[str, int], factor: int) -> dict[str, int]:
    return {part: number * factor for part, number in floats.items()}


def took_part(run: Simulation, first: int = 0) -> set[int]:
    """The clients that took part from some round on."""
    return {client for row in run.history.rows[first:] for client in row["participants"]}


def assert_ledger(run: Simulation, size: int, every_round: dict[str, int], once: dict[str, int]) -> None:
    """Floats of `size` bytes for each participant, down and up alike, and once for each client that ever took part."""
    ledger = run.server.ledger.as_dict()
    for row, line in zip(ledger["rounds"], run.history.rows, strict=True):
        expected = times(every_round, size * len(line["participants"]))
        number = line["round"]  # from 1, as in metrics.jsonl
        assert row == {"round": number, "participants": len(line["participants"]), "down": expected, "up": expected}
        assert line["bytes_down"] == line["bytes_up"] == sum(expected.values())
    taken = sum(len(line["participants"]) for line in run.history.rows)
    assert ledger["total"] == {way: times(every_round, size * taken) for way in ("down", "up")}
    assert ledger["once"] == {"down": times(once, size * len(took_part(run))), "up": {}}


METHODS = {
    "fedavg": (WHOLE, {}),
    "fedprox": (WHOLE, {}),
    "fedper": ({"body": BODY}, {"head": HEAD}),
    "fedrep": ({"body": BODY}, {"head": HEAD}),
    "lg_fedavg": ({"head": HEAD}, {"body": BODY}),
    "fedbabu": ({"body": BODY}, {"head": HEAD}),
    "local": ({}, WHOLE),
}


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8), ("bfloat16", 4)])
@pytest.mark.parametrize("method", METHODS)
def test_a_participant_sends_and_receives_what_the_method_shares(method, dtype, size):
    run = simulate(method, network("mlp"), participation=0.5, rounds=2, dtype=dtype)
    assert {len(row["participants"]) for row in run.history.rows} == {4}
    assert 4 < len(took_part(run)) <= 8
    assert_ledger(run, size, *METHODS[method])


@pytest.mark.parametrize("method", ["fedper", *(name for name in METHODS if name != "fedper")])
def test_both_engines_count_the_same(method):
    ledgers = [
        simulate(method, network("mlp"), engine=engine, participation=0.5, rounds=2).server.ledger.as_dict()
        for engine in ("loop", "vector")
    ]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize(
    ("method", "settings", "every_round", "once"),
    [
        ("fedbn", {}, {"body": NORMED, "head": NORMED_HEAD}, {"body": AFFINE + RUNNING}),
        ("fedavg", {}, {"body": NORMED + AFFINE, "head": NORMED_HEAD}, {"body": RUNNING}),
        ("fedavg", {"bn_buffers": "average"}, {"body": NORMED + AFFINE + RUNNING, "head": NORMED_HEAD}, {}),
        ("fedbn", {"bn_buffers": "average"}, {"body": NORMED, "head": NORMED_HEAD}, {"body": AFFINE + RUNNING}),
        ("fedper", {}, {"body": NORMED + AFFINE}, {"body": RUNNING, "head": NORMED_HEAD}),
        ("local", {}, {}, {"body": NORMED + AFFINE + RUNNING, "head": NORMED_HEAD}),
    ],
)
def test_normalisation_layers_are_counted_where_they_travel(method, settings, every_round, once):
    run = simulate(method, network("cnn+bn"), rounds=2, participation=0.5, **settings)
    assert_ledger(run, 8, every_round, once)


def test_every_kind_of_share_goes_its_ways():
    """What the server has a copy of comes down; what is uploaded goes up; what a client holds besides comes once."""

    class Every(Method):
        shares = {"all": ALL, "guide": GUIDE, "group": GROUP, "cloud": MIXED_GUIDE, "server": SERVER}
        shares |= {"server_guide": SERVER_GUIDE, "local": LOCAL, "frozen": FROZEN}
        share = {"*": ALL, **shares}

        def build(self, parts, sizes):
            for name in self.shares:
                parts = parts.like("head", name=name)
            return parts

        def groups(self, server):
            return [client % 2 for client in range(server.clients)]

        def mix(self, server, updates):
            return {"cloud": torch.eye(server.clients)[:, updates.clients]}  # everybody's own copy is the one it sent

    ledger = simulate(Every, network("mlp"), rounds=3).server.ledger.as_dict()
    head = 8 * 8 * HEAD
    down = {name for name in Every.shares if name not in ("local", "frozen")}
    up = {"all", "guide", "group", "cloud"}
    for row in ledger["rounds"]:
        assert row["down"] == {"body": 8 * 8 * BODY, **dict.fromkeys(["head", *down], head)}
        assert row["up"] == {"body": 8 * 8 * BODY, **dict.fromkeys(["head", *up], head)}
    assert ledger["once"]["down"] == dict.fromkeys(["guide", "cloud", "server_guide", "local", "frozen"], head)


# --------------------------------------------------------------------------------------------- evaluation, hand-over


@pytest.mark.parametrize(
    "method",
    ["fedbabu", *(name for name in METHODS if name != "fedbabu"), CLUSTERED],
    ids=lambda name: Path(name).stem,
)
def test_transfers_for_evaluation_are_not_counted(method):
    options: dict[str, Any] = {"participation": 0.5, "rounds": 3}
    settings = [{"eval_every": 1, "eval_at": (1, 2, 3)}, {"eval_every": 3}, {"eval_every": 3, "eval_clients": 1}]
    ledgers = [simulate(method, network("mlp" if method != CLUSTERED else "cnn"), **options, **s) for s in settings]
    first, *others = (run.server.ledger.as_dict() for run in ledgers)
    assert all(other == first for other in others)
    assert first["training_flops"] > 0
    assert LedgerRecord.from_json(first).as_json() == first  # as reports read it


@pytest.mark.parametrize("job", ["predict", "adapt"])
def test_an_order_that_only_evaluates_costs_nothing(job):
    run = simulate("fedbabu", network("mlp"), rounds=1, participation=0.5)
    before = run.server.ledger.as_dict()
    answers = run.server.ask(run.server.request(job, list(range(8)), evaluate=True))
    assert len(answers.logits) == 8 and run.server.ledger.as_dict() == before


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_the_body_is_handed_over_once_after_the_warm_up_of_lg_fedavg(participation):
    run = simulate("lg_fedavg", network("mlp"), rounds=5, warmup_rounds=3, participation=participation)
    number = round(8 * participation)
    ledger = run.server.ledger.as_dict()
    assert [row["down"] for row in ledger["rounds"]] == [times(WHOLE, 8 * number)] * 3 + [
        {"head": 8 * HEAD * number}
    ] * 2
    assert [row["up"] for row in ledger["rounds"]] == [row["down"] for row in ledger["rounds"]]
    after = took_part(run, first=3)
    assert ledger["once"] == {"down": {"body": 8 * BODY * len(after)}, "up": {}}
    if participation < 1:
        assert after - {client for row in run.history.rows[:3] for client in row["participants"]}, "weak data"


# ----------------------------------------------------------------------------------------------------------- extras


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=12), size=st.integers(1, 9), double=st.booleans())
def test_of_class_rows_only_those_with_a_count_travel(counts, size, double):
    dtype = torch.float64 if double else torch.float32
    rows = ClassRows(torch.ones(len(counts), size, dtype=dtype), torch.tensor(counts, dtype=dtype))
    present = sum(count > 0 for count in counts)
    assert wire_bytes(rows) == present * (size * (8 if double else 4) + 4 + 4)
    assert wire_bytes({"one": rows, "two": {"three": rows}}) == 2 * wire_bytes(rows)


def test_labels_and_counts_are_four_bytes_whatever_torch_holds_them_in():
    assert wire_bytes(torch.zeros(7, dtype=torch.int64)) == 28
    assert wire_bytes(torch.zeros(7, dtype=torch.int32)) == 28
    assert wire_bytes((torch.zeros(2, 3), torch.zeros(5, dtype=torch.float64))) == 24 + 40
    assert wire_bytes(torch.tensor(1.0)) == 4


def test_class_means_are_counted_by_the_classes_that_each_client_has():
    """The user's method reports the class means of 64 features: at the start, and after every round of training."""
    federation = awkward_federation()
    run = simulate(CLUSTERED, network("cnn"), federation, participation=0.5, rounds=4)
    present = (federation.class_counts() > 0).sum(1)
    row = 64 * 8 + 4 + 4
    ledger = run.server.ledger.as_dict()
    assert ledger["once"]["up"] == {"means": row * int(present.sum())}
    sent = set()  # the classes of the clients of the last round: what the server has means of
    for line, record in zip(run.history.rows, ledger["rounds"], strict=True):
        cohort = line["participants"]
        assert record["up"]["means"] == row * int(present[cohort].sum())
        assert record["down"].get("means", 0) == row * len(sent) * len(cohort)
        sent = {label for client in cohort for label in range(CLASSES) if federation.class_counts()[client, label]}


def test_extras_are_counted_for_each_participant():
    class Talkative(Method):
        def down(self, server):
            rows = torch.zeros(len(server.receivers), 5, dtype=torch.float64)
            return {"common": torch.zeros(3), "labels": torch.zeros(2, dtype=torch.int64), "own": PerClient(rows)}

        def finish(self, net, me):
            return me.keep, {"steps": me.steps, "table": torch.zeros(2, 3, dtype=torch.float64)}

    ledger = simulate(Talkative, network("mlp"), rounds=2, participation=0.5).server.ledger.as_dict()
    for row in ledger["rounds"]:
        assert row["down"] == {**times(WHOLE, 32), "common": 4 * 12, "labels": 4 * 8, "own": 4 * 40}
        assert row["up"] == {**times(WHOLE, 32), "steps": 4 * 8, "table": 4 * 48}


def test_a_report_before_the_first_round_is_sent_once_and_one_within_it_belongs_to_the_round():
    class Asking(Method):
        def report(self, net, b, me):
            return {"count": b.mask.sum().to(torch.float64)}

        def begin(self, server, run):
            assert run("report", EVERYONE).extras["count"].tolist() == server.samples.tolist()

    ledger = simulate(Asking, network("mlp"), rounds=2, participation=0.5).server.ledger.as_dict()
    assert ledger["once"]["up"] == {"count": 8 * 8}
    assert [row["up"] for row in ledger["rounds"]] == [{**times(WHOLE, 32), "count": 4 * 8}] * 2


# ------------------------------------------------------------------------------- the networks of the papers: spec 5.5


def tiny_images(shape: tuple[int, ...], classes: int = 10, clients: int = 2, samples: int = 3) -> Federation:
    """A few random images: only their shape matters."""
    random = np.random.default_rng(0)
    number = clients * (samples + 1)
    x = torch.from_numpy(random.integers(0, 256, (number, *shape), dtype=np.uint8))
    source = Source("tiny", x, torch.arange(number) % classes, classes, number, (127.5,), (127.5,))
    index = torch.arange(number).view(clients, samples + 1)
    return Federation(source, list(index[:, :-1]), list(index[:, -1:]), index[:, -1], [index[0, :0]] * clients)


@pytest.fixture(scope="module")
def mnist_cnn() -> Parts:
    return models.build("cnn-5x5", (1, 28, 28), 10).initialise(0)


def single_precision(method: Any, parts: Parts, federation: Federation, **settings: Any) -> Simulation:
    options = {"rounds": 1, "batch": 3, "engine": "loop", "device": "cpu", "clients": federation.clients}
    return prepare(make_config(method, {**options, **settings}), federation, parts).run()


def unfrozen(*layers: str) -> type[Method]:
    """One stage of a schedule: these layers of the body train and travel, the head and the others stay."""

    class Stretch(Method):
        share = {"*": FROZEN, **{f"body.{layer}": ALL for layer in layers}}

    return Stretch


# floats one way for each participant; multiply-accumulates for each sample, forward and the backward it needs
COSTS = {
    "FedAvg": ("fedavg", 582_026, 12_340_224),
    "FedBABU": ("fedbabu", 576_896, 12_335_104),
    "Vanilla 1": (unfrozen("conv1"), 832, 8_534_016),
    "Vanilla 2": (unfrozen("conv1", "conv2"), 52_096, 11_810_816),
    "Vanilla 3": (unfrozen("conv1", "conv2", "fc1"), 576_896, 12_335_104),
    "Anti 1": (unfrozen("fc1"), 524_800, 4_796_416),
    "Anti 2": (unfrozen("conv2", "fc1"), 576_064, 8_597_504),
    "Anti 3": (unfrozen("conv1", "conv2", "fc1"), 576_896, 12_335_104),
}


@pytest.mark.parametrize(("method", "floats", "operations"), COSTS.values(), ids=COSTS)
def test_bytes_and_operations_of_the_mnist_cnn(mnist_cnn, method, floats, operations):
    """2 clients x 3 samples x 2 epochs x 2 rounds; a multiply-accumulate is two operations."""
    run = single_precision(method, mnist_cnn, tiny_images((1, 28, 28)), rounds=2, epochs=2)
    ledger = run.server.ledger.as_dict()
    for row in ledger["rounds"]:
        assert sum(row["down"].values()) == sum(row["up"].values()) == 2 * 4 * floats
    assert sum(ledger["once"]["down"].values()) == 2 * 4 * (582_026 - floats)
    assert ledger["training_flops"] == 2 * 3 * 2 * 2 * 2 * operations


def test_operations_grow_with_the_samples_that_took_part():
    """The MLP: a forward pass and two products backward at the head, one at the first layer."""
    run = simulate("fedavg", network("mlp"), rounds=3, participation=0.5, epochs=3)
    samples = sum(int(run.server.samples[row["participants"]].sum()) for row in run.history.rows)
    assert run.server.ledger.flops == samples * 3 * 2 * (2 * 64 * 100 + 3 * 100 * CLASSES)


def test_phases_on_one_part_cost_what_they_need():
    """FedRep with 4 + 1 epochs: the head's phase goes back through nothing, the body's not into the head's weights."""
    run = simulate("fedrep", network("mlp"), rounds=1, epochs=5)
    head = 4 * (64 * 100 + 2 * 100 * CLASSES)
    body = 2 * 64 * 100 + 2 * 100 * CLASSES
    assert run.server.ledger.flops == int(run.server.samples.sum()) * 2 * (head + body)


def test_both_engines_count_the_same_operations():
    flops = [
        simulate("fedavg", network("cnn+bn"), rounds=1, engine=engine).server.ledger.flops
        for engine in ("loop", "vector")
    ]
    assert flops[0] == flops[1]


def test_cifar_bytes_of_the_two_classifier_paper():
    """Spec 2.1: 878,538 floats each way for FedAvg on the CIFAR-10 CNN, 873,408 of them the extractor."""
    parts = models.build("cnn-5x5", (3, 32, 32), 10).initialise(0)
    run = single_precision("fedavg", parts, tiny_images((3, 32, 32)))
    (row,) = run.server.ledger.as_dict()["rounds"]
    assert row["down"] == row["up"] == Counter(body=2 * 4 * 873_408, head=2 * 4 * 5_130)
