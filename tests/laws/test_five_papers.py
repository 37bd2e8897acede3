"""The exact checks of the five papers' methods: what they must equal, what must stay as it is, and what they send."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from partwise import ConfigError, Federation, Source
from partwise.method import ALL, FROZEN, LOCAL, Method, Move, Phase
from partwise.methods import find, names
from partwise.methods.dualfed import DualFed
from partwise.network.models import projector
from partwise.reporting.network import traffic
from partwise.rounds.plan import as_phases
from partwise.rounds.server import Server
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.result import Models
from partwise.schedule import Schedule
from partwise.streams import stream
from tests.support.by_hand import by_hand
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import apart, distance, state

SETTINGS = {"momentum": 0.5, "weight_decay": 1e-3, "lr_decay": 0.9, "epochs": 1, "rounds": 3, "lr": 0.02}


def copies(simulation, *parts):
    """The server's copies of some parts, by the name of the tensor without its part."""
    named = {name.partition("."): values.values for name, values in simulation.server.copies.items()}
    return {name: values for (part, _, name), values in named.items() if part in parts}


def own(simulation, client, *parts):
    names = [name for name in simulation.program.parts.tensors() if name.split(".")[0] in parts]
    names = [name for name in names if name not in simulation.program.parts.buffers]
    return simulation.engine.store.own(client, names)


# ------------------------------------------------------------------------------------------------ scheduling


every_host = pytest.mark.parametrize(
    "host",
    [host for host in names() if host not in ("vanilla", "anti")],
)
OF_A_HOST = {
    "fedbabu": {"finetune_epochs": 2},
    "fed3p2p": {"coordinators_a": 3, "coordinators_b": 3},
    "fedetf": {"personal_rounds": 1},
    "scaffold": {"momentum": 0.0},
}


@every_host
def test_a_schedule_that_begins_with_everything_is_its_host(host):
    settings = {**SETTINGS, "participation": 0.5, "augment": "flip,crop:1", "epochs": 1, "rounds": 2}
    settings |= OF_A_HOST.get(host, {})
    plain = state(simulate(host, network("cnn+bn", dropout=0.25), **settings))
    for order in ("vanilla", "anti"):
        scheduled = simulate(order, network("cnn+bn", dropout=0.25), **settings, host=host, unfreeze=(0, 0, 0))
        assert apart(plain, state(scheduled)) == 0, order


WAKING = {"vanilla": ["conv1", "conv2", "fc1"], "anti": ["fc1", "conv2", "conv1"]}


@pytest.mark.parametrize(("order", "waking"), WAKING.items())
def test_layers_wake_in_their_order_and_sleep_at_their_initial_values(order, waking):
    start = network("cnn").tensors()
    for rounds in (1, 2, 3):
        points = [point if point < rounds else 9 for point in range(3)]
        run = simulate(order, network("cnn"), **{**SETTINGS, "rounds": rounds}, unfreeze=points)
        for number, layer in enumerate(waking):
            values = {name: c.values[0] for name, c in run.server.copies.items() if name.startswith(f"body.{layer}.")}
            awake = [not torch.equal(value, start[name]) for name, value in values.items()]
            assert all(awake) if number < rounds else not any(awake), (rounds, layer)
        for name in ("head.weight", "head.bias"):
            assert torch.equal(run.server.copies[name].values[0], start[name])


@every_host
@pytest.mark.parametrize("order", ["vanilla", "anti"])
def test_any_method_may_be_the_host(host, order):
    """Of three layers the first trains from the start, the next wakes after a round, and the last never does."""
    settings = {**SETTINGS, "rounds": 2, "participation": 0.5, **OF_A_HOST.get(host, {})}
    run = simulate(order, network("cnn+bn"), **settings, host=host, unfreeze=(0, 1, 9))
    assert all(value.isfinite().all() for value in state(run).values())
    parts, base = run.program.parts, run.program.method.base
    first, second, last = (set(parts.select(layer)) - set(parts.buffers) for layer in base)
    frozen = [{name for name, share in plan.share.items() if share == FROZEN} for plan in run.server.plans]
    assert frozen[0].isdisjoint(first) and frozen[0] >= second and all(each >= last for each in frozen)
    if host != "fed3p2p":  # in its second phase the extractor freezes, and the filter is drawn anew
        assert all(each.isdisjoint(first | second) for each in frozen[1:])
        start = {name.partition(".")[2]: value for name, value in network("cnn+bn").tensors().items()}
        for name in last:
            assert torch.equal(run.server.copies[name].values[0], start[name.partition(".")[2]]), name


def test_unset_points_are_even_and_a_run_has_a_stage_for_each():
    run = simulate("anti", network("cnn"), **{**SETTINGS, "rounds": 7})
    assert [(plan.first_round, plan.rounds) for plan in run.server.plans] == [(0, 2), (2, 2), (4, 3)]  # floor(k 7 / 3)


def test_one_run_of_anti_gives_the_values_at_every_evaluation_point():
    settings = {**SETTINGS, "rounds": 3, "unfreeze": (0, 1, 2)}
    whole = simulate("anti", network("cnn"), **settings, eval_at=(1, 2, 3))
    for rounds in (1, 2):
        short = simulate("anti", network("cnn"), **{**settings, "rounds": rounds}, eval_at=(rounds,))
        assert whole.history.rows[rounds - 1]["method_adapted"] == short.history.rows[-1]["method_adapted"]


@pytest.mark.parametrize("points", [(0, 1, 2, 3), (1, 2), (0, 2, 1)])
def test_fault_05_points_that_make_no_schedule_are_refused(points):
    with pytest.raises(ConfigError, match="is not allowed: it must begin with 0 and rise, at most one round for each"):
        simulate("vanilla", network("cnn"), unfreeze=points)


def test_fault_05_a_point_after_the_last_round_is_told_once(caplog):
    simulate("vanilla", network("cnn"), rounds=2, unfreeze=(0, 1, 2))
    assert [record.getMessage() for record in caplog.records] == [
        "unfreeze: body.fc1 never train, because the run has only 2 rounds"
    ]


def test_fault_06_a_body_of_one_layer_is_too_short():
    with pytest.raises(ConfigError, match=r"at most one round for each of the base layers body.fc1$"):
        simulate("anti", network("mlp"), unfreeze=(0, 1, 2))
    with pytest.raises(ConfigError, match=r"fed3p2p cuts the body before its last layer, but it has only \['fc1'\]"):
        simulate("fed3p2p", network("mlp"))


def test_a_schedule_of_a_schedule_is_refused():
    with pytest.raises(ConfigError, match="host = 'vanilla' is itself a schedule"):
        make_config("anti", {"host": "vanilla"})
    with pytest.raises(ConfigError, match="unknown method 'fedbab'; did you mean 'fedbabu'"):
        make_config("anti", {"host": "fedbab"})


def test_a_schedule_is_a_class_like_any_method():
    named = simulate("anti", network("cnn"), **SETTINGS, host="fedper", unfreeze=(0, 1))
    made = simulate(Schedule(find("fedper"), "backwards"), network("cnn"), **SETTINGS, unfreeze=(0, 1))
    assert distance(named, made) == 0


# ----------------------------------------------------------------------------------------------------- FedTC


def test_fedtc_with_a_classifier_that_does_not_learn_trains_as_fedbabu_does():
    fedtc = simulate("fedtc", network("cnn+bn", dropout=0.25), **SETTINGS, participation=0.5, lr_classifier=0.0)
    fedbabu = simulate("fedbabu", network("cnn+bn", dropout=0.25), **SETTINGS, participation=0.5)
    for name, values in copies(fedbabu, "body", "head").items():
        assert torch.equal(values, copies(fedtc, "body", "head")[name]), name


def test_fedtc_alone_is_guided_by_its_classifier_of_the_round_before():
    run = simulate("fedtc", network("cnn"), awkward_federation(sizes=(17,)), **{**SETTINGS, "rounds": 2})
    for name, value in own(run, 0, "head").items():
        assert torch.equal(run.server.copies[name].values[0], value)  # what it will receive next is what it has


def test_fedtc_that_resets_its_classifier_ends_with_the_servers():
    run = simulate("fedtc", network("cnn"), **SETTINGS, reset_local_classifier=True)
    assert run.server.plan.share["head.weight"] == ALL
    with pytest.raises(ConfigError, match="guide = global needs the received classifier"):
        simulate("fedtc", network("cnn"), share_classifier=False)
    alone = simulate("fedtc", network("cnn"), **SETTINGS, share_classifier=False, guide="local")
    assert alone.server.plan.share["head.weight"] == LOCAL


def test_fedtc_with_nothing_received_is_fedper_with_a_rate_of_its_own_for_the_head():
    fedper = simulate("fedper", network("cnn"), **SETTINGS)
    for rate, same in ((0.02, True), (0.04, False)):
        alone = {"share_classifier": False, "guide": "local", "lr_classifier": rate}
        run = simulate("fedtc", network("cnn"), **SETTINGS, **alone)
        assert all(torch.equal(v, own(fedper, 4, "head")[n]) for n, v in own(run, 4, "head").items()) == same
        assert all(torch.equal(v, copies(fedper, "body")[n]) for n, v in copies(run, "body").items()) == same


# ---------------------------------------------------------------------------------------------------- FedFCD


def test_fedfcd_stripped_of_everything_is_local():
    stripped = simulate("fedfcd", network("cnn+bn"), **SETTINGS, align=False, fusion=False, alternation="joint")
    local = simulate("local", network("cnn+bn"), **SETTINGS)
    assert distance(stripped, local) == 0
    ledgers = [run.server.ledger.as_dict() for run in (stripped, local)]
    assert ledgers[0] == ledgers[1] and ledgers[0]["total"] == {"down": {}, "up": {}}


@pytest.mark.parametrize("fusion", [True, False])
def test_fedfcds_global_head_is_in_a_clients_model_once_and_without_fusion_nowhere(fusion):
    run = simulate("fedfcd", network("mlp"), **SETTINGS, fusion=fusion)
    parts = {"body", "head", "g_head"} if fusion else {"body", "head"}
    model = Models(run)[2].tensors
    assert {name.split(".")[0] for name in model} == set(run.server.ledger.once.down) == parts
    for name, copy in copies(run, "g_head").items():  # the newest: what the client predicts with
        assert torch.equal(model[f"g_head.{name}"], copy[0])


def test_fedfcds_server_draws_every_pass_from_a_stream_of_its_own(monkeypatch):
    drawn, real = [], Server.stream
    monkeypatch.setattr(Server, "stream", lambda server, *names: drawn.append(names) or real(server, *names))
    simulate("fedfcd", network("mlp"), **SETTINGS)
    assert len(set(drawn)) == len(drawn) == 1 + SETTINGS["rounds"]  # before round 0, and after every round


def test_fedfcds_class_means_by_hand():
    run = simulate("fedfcd", network("mlp"), **{**SETTINGS, "rounds": 1}, alternation="batch")
    sums, counts = torch.zeros(4, 100, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for client in range(8):
        index = run.federation.train[client]
        x = (run.federation.source.x[index].double() - 127.5) / 127.5
        weight, bias = (own(run, client, "body")[f"body.fc1.1.{name}"] for name in ("weight", "bias"))
        features = (x.flatten(1) @ weight.T + bias).relu()
        sums.index_add_(0, run.federation.source.y[index], features)
        counts.index_add_(0, run.federation.source.y[index], torch.ones(len(index), dtype=torch.float64))
    assert torch.allclose(run.server.memory["features"], sums / counts[:, None], atol=1e-12)


def test_fedfcds_lfr_cache():
    settings = {**SETTINGS, "participation": 0.5}
    run = simulate("fedfcd", network("mlp"), **settings, lfr_cache=True)
    newest = run.server.memory["newest"]
    assert torch.equal(
        newest.counts.sum(0),
        torch.bincount(torch.cat([run.federation.source.y[i] for i in run.federation.train]), minlength=4).double(),
    )


# --------------------------------------------------------------------------------------------------- DualFed


class MainBranch(DualFed):
    """DualFed without its second stage."""

    def phases(self):
        return Phase(Move("body projector p_head", "main"))


class WithProjector(Method):
    """FedPer with a personal projector and head."""

    aggregation = "uniform"
    share = {"body": ALL, "head": LOCAL, "projector": LOCAL, "p_head": LOCAL}

    def build(self, parts, sizes):
        return parts.like("head", name="p_head").add("projector", projector(sizes.features))

    def phases(self):
        return Phase(Move("body projector p_head"))

    def loss(self, net, b, me):
        return b.ce(net.p_head(net.projector(net.body(b.x))))


def same_parameters(one, other, parts=("projector", "p_head")):
    for name, values in copies(other, "body").items():
        if "running" not in name:
            assert torch.equal(values, copies(one, "body")[name]), name
    for client in range(8):
        mine, yours = (own(run, client, *parts) for run in (one, other))
        assert all(torch.equal(mine[name], yours[name]) for name in yours), client


def test_dualfeds_second_stage_leaves_the_main_branch_as_it_is():
    settings = {**SETTINGS, "rounds": 2}
    run = simulate("dualfed", network("cnn+bn"), **settings)
    same_parameters(run, simulate(MainBranch, network("cnn+bn"), **settings))


def test_dualfed_without_contrast_is_fedper_with_a_projector():
    run = simulate("dualfed", network("cnn+bn"), **SETTINGS, contrast_weight=0.0)
    same_parameters(run, simulate(WithProjector, network("cnn+bn"), **SETTINGS))


# --------------------------------------------------------------------------------------------------- Fed3+2p


def global_model(run):
    """Fed3+2p's global model under the names of the network before it was cut."""
    named = {name.replace("filter.", "body.", 1): value for name, value in run.server.snapshots["global"].items()}
    return {name: named[name] for name in network("cnn").tensors()}


def test_fed3p2p_with_a_group_for_every_client_is_fedavg_in_its_first_phase():
    run = simulate("fed3p2p", network("cnn"), **SETTINGS, coordinators_a=8, coordinators_b=2, rounds_1=3, rounds_2=1)
    fedavg = simulate("fedavg", network("cnn"), **SETTINGS)
    for name, value in global_model(run).items():
        assert torch.allclose(value, fedavg.server.copies[name].values[0], rtol=0, atol=1e-13), name


def test_fed3p2p_with_one_group_is_sequential_sgd_in_its_first_phase():
    run = simulate("fed3p2p", network("cnn"), **SETTINGS, coordinators_a=1, coordinators_b=1, rounds_1=3, rounds_2=1)
    fedavg = simulate("fedavg", network("cnn"), **SETTINGS)  # for its settings and mini-batches alone
    expected = by_hand(fedavg, lambda number: stream(0, "relay", number, 0).permutation(8), network("cnn"))
    for name, value in global_model(run).items():
        assert torch.allclose(value, expected[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize("mode", ["whole_group", "within_group", "regroup"])
def test_fed3p2ps_second_phase_leaves_what_is_global_as_it_is(mode):
    settings = {**SETTINGS, "participation": 0.5, "coordinators_a": 3, "coordinators_b": 3, "participation_mode": mode}
    run = simulate("fed3p2p", network("cnn"), **{**settings, "rounds": 6}, eval_every=1)
    rows = run.history.rows
    assert len(rows) == 6 and [row["stage"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert all(row["global"] == rows[2]["global"] for row in rows[3:])
    for part in ("body", "head"):
        for name, values in copies(run, part).items():
            assert torch.equal(values[0], run.server.snapshots["global"][f"{part}.{name}"])
    filters, groups = run.server.copies["filter.fc1.1.weight"], run.server.groups
    assert len(filters.values) == 3 and torch.equal(filters.row, groups)
    assert not torch.equal(filters.values[0], filters.values[1])


@pytest.mark.parametrize("ablation", [
    {"filter_mode": "frozen_global", "coordinators_a": 2},
    {"filter_mode": "local", "coordinators_a": 2},
    {"filter_mode": "frozen_global", "type_a": False},
    {"two_phase": False},
])  # fmt: skip
def test_fed3p2ps_ablations_run(ablation):
    run = simulate("fed3p2p", network("cnn"), **SETTINGS, **ablation)
    assert len(run.server.plans) == (1 if ablation == {"two_phase": False} else 2)
    if ablation.get("filter_mode") == "frozen_global":
        for name, values in copies(run, "body", "filter").items():
            part = "filter" if name.startswith("fc1") else "body"
            assert torch.equal(values[0], run.server.snapshots["global"][f"{part}.{name}"])


# ----------------------------------------------------------------------------------------------------- bytes

FLOAT = 4


def ready(method, model, shape, classes, **settings):
    """A run on two clients with samples of this shape, ready and not begun."""
    x, y = torch.zeros(4 * classes, *shape, dtype=torch.uint8), torch.arange(4 * classes) % classes
    half = 2 * classes
    index = [torch.arange(half), torch.arange(half, 2 * half)]
    source = Source("bytes", x, y, classes, len(y), (127.5,), (127.5,))
    train, test = [each[classes:] for each in index], [each[:classes] for each in index]
    federation = Federation(source, train, test, torch.cat(test))
    return prepare(make_config(method, {"model": model, **settings}), federation)


@pytest.mark.parametrize(
    ("method", "model", "shape", "classes", "floats"),
    [
        ("fed3p2p", "convnet-f", (1, 28, 28), 10, [103_856, 51_250]),
        ("fed3p2p", "convnet-c", (3, 32, 32), 10, [122_570, 65_600]),
        ("fed3p2p", "convnet-c", (3, 32, 32), 100, [128_420, 65_600]),
        ("fedtc", "cnn-5x5", (3, 32, 32), 10, [878_538]),
        ("fedtc", "resnet18", (3, 32, 32), 100, [11_227_812]),
        ("dualfed", "resnet18", (3, 32, 32), 7, [11_180_103]),
        ("dualfed", "resnet18", (3, 32, 32), 10, [11_181_642]),
        ("dualfed", "resnet18", (3, 32, 32), 65, [11_209_857]),
        ("vanilla", "cnn-5x5", (1, 28, 28), 10, [832, 52_096, 576_896]),
        ("anti", "cnn-5x5", (1, 28, 28), 10, [524_800, 576_064, 576_896]),
        ("fedbabu", "cnn-5x5", (1, 28, 28), 10, [576_896]),
        ("fedavg", "cnn-5x5", (1, 28, 28), 10, [582_026]),
    ],
)
def test_floats_that_a_participant_receives_and_sends(method, model, shape, classes, floats):
    extra = {"coordinators_a": 2, "coordinators_b": 2} if method == "fed3p2p" else {}
    simulation = ready(method, model, shape, classes, **extra)
    sent = [traffic(simulation, plan) for plan in simulation.server.plans]
    assert sent == [(FLOAT * number, FLOAT * number) for number in floats]


@pytest.mark.parametrize(
    ("method", "floats"),
    [("vanilla", 62_982_400), ("anti", 167_776_000), ("fedbabu", 173_068_800), ("fedavg", 174_607_800)],
)
def test_floats_of_300_rounds(method, floats):
    simulation = ready(method, "cnn-5x5", (1, 28, 28), 10, rounds=300)
    assert sum(plan.rounds * traffic(simulation, plan)[0] for plan in simulation.server.plans) == FLOAT * floats


def test_fed3p2ps_ledger():
    """Once, of two clients: label counts up, and at the switch what is frozen; the personal head is drawn there."""
    run = ready("fed3p2p", "convnet-f", (1, 28, 28), 10, rounds=2, coordinators_a=2, coordinators_b=2, batch=10).run()
    ledger = run.server.ledger.as_dict()
    for row, floats in zip(ledger["rounds"], (103_856, 51_250), strict=True):
        assert sum(row["down"].values()) == sum(row["up"].values()) == 2 * FLOAT * floats
    assert ledger["once"]["up"] == {"labels": 2 * FLOAT * 10}
    once = {"body": 52_096, "head": 510}
    assert ledger["once"]["down"] == {part: 2 * FLOAT * number for part, number in once.items()}


def test_dualfed_g_sends_the_projector_too():
    simulation = ready("dualfed", "resnet18", (3, 32, 32), 7, classifier_position="g")
    assert traffic(simulation, simulation.server.plan) == (FLOAT * (11_180_103 + 264_448),) * 2


@pytest.mark.parametrize(
    ("model", "shape", "classes", "held", "up", "down"),
    [
        ("mlp-100", (1, 28, 28), 10, 2, 816, 8_040),
        ("cnn-5x5", (3, 32, 32), 10, 2, 4_112, 41_000),  # 512 features, as ResNet-18 has
        ("cnn-5x5", (3, 32, 32), 100, 10, 20_560, 410_000),
    ],
)
def test_fedfcds_bytes_are_class_means_up_and_a_classifier_and_all_means_down(model, shape, classes, held, up, down):
    clients = classes // held
    y = torch.arange(3 * classes) // 3
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.integers(0, 256, (len(y), *shape), dtype=np.uint8))
    index = [torch.arange(3 * held * client, 3 * held * (client + 1)) for client in range(clients)]
    train, test = [own[own % 3 > 0] for own in index], [own[own % 3 == 0] for own in index]
    source = Source("classes", x, y, classes, len(y), (127.5,), (127.5,))
    config = make_config("fedfcd", {"model": model, "rounds": 1, "batch": 8})
    run = prepare(config, Federation(source, train, test, torch.cat(test))).run()
    total = run.server.ledger.as_dict()["total"]
    assert sum(total["up"].values()) == clients * up and set(total["up"]) == {"features"}
    assert sum(total["down"].values()) == clients * down and set(total["down"]) == {"g_head", "features"}


def test_dualfeds_second_stage_in_evaluation_mode_leaves_running_values_too():
    settings = {**SETTINGS, "rounds": 2}

    def running(method, mode):
        run = simulate(method, network("cnn+bn"), **settings, stage2_bn=mode)
        buffers = sorted(run.program.parts.buffers)
        return {(c, n): value for c in range(8) for n, value in run.engine.store.own(c, buffers).items()}

    still, main, trained = (running(*of) for of in (("dualfed", "eval"), (MainBranch, "eval"), ("dualfed", "train")))
    assert all(torch.equal(value, main[place]) for place, value in still.items())
    assert any(not torch.equal(value, trained[place]) for place, value in still.items())


def test_fed3p2ps_second_phase_trains_a_filter_drawn_anew():
    settings = {**SETTINGS, "coordinators_a": 2, "coordinators_b": 2, "rounds": 2}
    run, still = (simulate("fed3p2p", network("cnn"), **{**settings, "lr": lr}) for lr in (0.02, 0.0))
    trained, drawn = (each.server.copies["filter.fc1.1.weight"].values for each in (run, still))
    assert not torch.equal(drawn[0], drawn[1])  # one draw for each group
    assert not torch.equal(drawn[0], network("cnn").tensors()["body.fc1.1.weight"])
    assert not torch.equal(trained, drawn)


def test_fedbabu_fine_tunes_the_head_alone_on_request():
    [tuned] = as_phases(find("fedbabu")(finetune_part="head").adapt())
    [all_of_it] = as_phases(find("fedbabu")().adapt())
    assert (tuned.moves[0].parts, all_of_it.moves[0].parts) == ("head", "*")


MOVES = {"epoch": [["body"], ["head"]], "batch": [["body", "head"]], "joint": [["body head"]]}


@pytest.mark.parametrize(("alternation", "moves"), MOVES.items())
def test_fedfcds_alternation(alternation, moves):
    [stage] = find("fedfcd")(alternation=alternation, epochs=1).stages()
    assert [[move.parts for move in phase.moves] for phase in as_phases(stage.phases)] == moves


def test_normalisation_is_no_layer_of_its_own():
    """Fault 6: neither a filter nor a base layer is made of scales and shifts alone."""
    with pytest.raises(ConfigError, match="fed3p2p cuts the body before its last layer"):
        simulate("fed3p2p", network("cnn+gn"))
    plan = ready("vanilla", "resnet18", (3, 32, 32), 7, rounds=5, batch=8).server.plans[0]
    awake = [name for name, share in plan.share.items() if name.startswith("body.") and share == ALL]
    assert {name.split(".")[1] for name in awake} == {"conv1", "bn1"}


def test_base_layers_of_ones_own():
    run = simulate("anti", network("cnn"), **SETTINGS, layers="body.conv1, body.conv2 body.fc1", unfreeze=(0, 2))
    first = [name for name, share in run.server.plans[0].share.items() if share == ALL]
    assert {name.split(".")[1] for name in first} == {"conv2", "fc1"}
    with pytest.raises(ConfigError, match=r"body\.conv9"):
        simulate("anti", network("cnn"), **SETTINGS, layers="body.conv1, body.conv9")


def test_fed3p2p_with_a_filter_of_ones_own():
    run = simulate("fed3p2p", network("cnn"), **SETTINGS, coordinators_a=2, coordinators_b=0, filter_from="conv2")
    assert {name.split(".")[1] for name in run.program.parts.tensors() if name.startswith("filter.")} == {
        "conv2",
        "fc1",
    }
    with pytest.raises(ConfigError, match="coordinators_b = 9 is more than the 8 clients"):
        simulate("fed3p2p", network("cnn"), coordinators_b=9)


def test_fed3p2ps_phases_need_a_round_each():
    with pytest.raises(ConfigError, match=r"^rounds = 1 divides into 1 and 0 for the phases; each needs at least 1$"):
        make_config("fed3p2p", {"rounds": 1})
    with pytest.raises(ConfigError, match=r"^rounds = 5 divides into 5 and 0 for the phases; each needs at least 1$"):
        make_config("fed3p2p", {"rounds": 5, "rounds_1": 5})


def test_heads_may_be_drawn_by_every_client():
    for init in ("common", "per_client"):
        run = simulate("fedper", network("mlp"), **{**SETTINGS, "lr": 0.0}, init=init)
        heads = [own(run, client, "head")["head.weight"] for client in (0, 2)]
        assert torch.equal(*heads) == (init == "common")


@pytest.mark.parametrize("engine", ["loop", "vector"])
@pytest.mark.parametrize("method", ["fedfcd", "dualfed"])
def test_half_precision(method, engine):
    settings = {**SETTINGS, "lr": 0.001, "engine": engine}
    exact, half = (simulate(method, network("mlp"), **settings, dtype=dtype) for dtype in ("float32", "bfloat16"))
    for name, copies in exact.server.copies.items():
        assert (copies.values - half.server.copies[name].values).abs().max() < 1e-3, name


def test_dualfeds_mean_of_probabilities_has_no_zero():
    net = SimpleNamespace(body=lambda x: x, projector=lambda z: z, p_head=lambda u: 150 * u, head=lambda z: 150 * z)
    logits = DualFed(ensemble="probs").predict(net, torch.eye(3), None)
    assert logits.isfinite().all() and torch.equal(logits.argmax(1), torch.arange(3))
