"""Tasks other than classes over nodes: the simulation's numbers, and what a silo tells of its labels."""

from contextlib import nullcontext as nothing
from dataclasses import replace

import numpy as np
import pytest
import torch

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.protocol.data_description import describe_data
from partwise.federation.protocol.elsewhere import together
from partwise.federation.protocol.launch import federated, on_server
from partwise.federation.protocol.leaving import reported
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.policy import Allowed
from partwise.federation.protocol.preview import preview
from partwise.federation.protocol.reported_data import ReportedData
from partwise.federation.protocol.silo import Silo
from partwise.records.messages import Joined
from partwise.records.metrics import Score
from partwise.records.wire import is_score, unpack_tree
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.tasks import Labels
from tests.support.labelled import BINS, PLACES_NET, labelled, with_places_net
from tests.support.node_parity import HOSTED, OWN, SETTINGS, distance
from tests.support.nodes import OPEN, InProcess, in_process, members, part
from tests.support.runs import awkward_federation
from tests.support.silo_tables import NOISY, RANGES, run, silo, table

TASKS = {"numbers": {"bins": BINS}, "labels": {}, "places": {"model": PLACES_NET}}
TABLES = {**SETTINGS, "model": "auto", "task": "numbers"}
STAY = {"label": "stay", "missing": "mean"}


def settings(task, method="fedavg", **more):
    return {**SETTINGS, **OWN.get(method, {}), "task": task, **TASKS[task], **more}


def stays(rows=60, seed=0, unknown=0, **columns):
    """Patients with a length of stay, which is not known of the last ones."""
    stay = np.random.default_rng(seed).gamma(2, 3, rows).round(2)
    stay[rows - unknown :] = np.nan
    return table(rows, seed, stay=stay, **columns).drop(columns="sick")


def three_silos(folder, own=(), **frames):
    frames = {name: stays(60, seed) for seed, name in enumerate(("Graz", "Linz", "Wien"))} | frames
    return {name: silo(folder, frame, name, {**STAY, **dict(own)}) for name, frame in frames.items()}


def answered(simulation, kind, node="Graz"):
    """What a node answered first to a message of a kind."""
    sent = simulation.engine.nodes.link.sent
    return next(unpack_tree(a) for name, m, a in sent if name == node and unpack_tree(m)["kind"] == kind)


# ---- the same as in simulation


@pytest.mark.parametrize("method", ["fedper", "fedtc", "fed3p2p"])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_over_nodes_equals_the_simulation(task, method, tmp_path, monkeypatch):
    with_places_net(monkeypatch)
    federation = labelled(task, validated=2)
    config = make_config(method, settings(task, method))
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, HOSTED).run()
    assert distance(here, there) < 1e-10 and not there.server.events
    for row, other in zip(here.history.rounds, there.history.rounds, strict=True):
        for mine, theirs in ((row.at(at), other.at(at)) for at in ("received", "trained")):
            assert theirs.mean == pytest.approx(mine.mean, rel=1e-9)
        assert row.bytes_up == other.bytes_up and row.bytes_down == other.bytes_down
        assert other.validation["received"].mean == pytest.approx(row.validation["received"].mean, rel=1e-9)


@pytest.mark.parametrize("task", ["numbers", "places"])
def test_what_ranks_over_all_clients_is_exact_from_what_each_sent(task, tmp_path, monkeypatch):
    """Of one number, some of whose cells are unknown, and of places: by how many are known, not by samples."""
    with_places_net(monkeypatch)
    federation = labelled(task)
    source = federation.source
    if task == "numbers":
        own = replace(source.own_task, names=("stay",))
        federation = replace(federation, source=replace(source, y=source.y[:, :1], own_task=own))
    config = make_config("fedper", settings(task))
    here = prepare(config, federation).run().history.rounds[-1].at("received").ranking
    there = in_process(config, federation, tmp_path, HOSTED).run().history.rounds[-1].at("received").ranking
    assert there == pytest.approx(here, rel=1e-9)


def test_numbers_on_nodes_are_standardised_by_everybodys_training_rows(tmp_path):
    federation = labelled("numbers")
    config = make_config("fedavg", settings("numbers"))
    simulation = in_process(config, federation, tmp_path, HOSTED)
    rows = torch.cat(federation.train)
    known = [column[~column.isnan()] for column in federation.source.y[rows].T]
    nodes = [node.run.simulation for node in simulation.engine.nodes.link.nodes.values()]
    for task in (each.program.task for each in (simulation, *nodes)):
        assert task.names == ("stay", "cost") and task.edges == BINS
        assert task.centre == pytest.approx([float(own.mean()) for own in known], rel=1e-12)
        assert task.scale == pytest.approx([float(own.std(correction=0)) for own in known], rel=1e-12)


def test_label_columns_come_in_any_order(tmp_path):
    first, second = stays(60, 0, cost=2.0 * np.arange(60)), stays(60, 1, cost=3.0 * np.arange(60))
    own = {"Graz": silo(tmp_path, first, "Graz", {**STAY, "label": "stay,cost"})}
    own["Linz"] = silo(tmp_path, second, "Linz", {**STAY, "label": "cost, stay"})
    simulation = run(make_config("fedavg", TABLES), own)
    linz = simulation.engine.nodes.link.nodes["Linz"].run.simulation.federation.source
    assert simulation.program.task.names == ("stay", "cost") == linz.task.names
    assert linz.task.in_own_unit(linz.y)[:, 1].tolist() == pytest.approx(second["cost"].tolist())


# ---- what is told of labels


def test_fault_62_of_numbers_their_names_and_moments_are_told_and_nothing_else(tmp_path):
    """Two silos that differ in the labels alone, with equal moments, tell the same to the byte."""
    told = []
    for name, order in (("a", slice(None)), ("b", slice(None, None, -1))):
        (tmp_path / name).mkdir()
        frame = stays(60, unknown=6)
        frame = frame.assign(stay=frame["stay"].to_numpy()[order])
        node = Node(silo(tmp_path / name, frame, "Graz", {**STAY, "train_samples": 45, "test_share": 0.25}))
        link = InProcess({"Graz": node})
        config = make_config("fedavg", TABLES)
        told.append((federated(config, members(link, config)), node))
    joined, sums = (answered(told[0][0], kind) for kind in ("join", "moments"))
    assert joined.keys() == set(Joined.__dataclass_fields__)
    labels = {name: joined[name] for name in ("task", "places", "classes", "class_names")}
    assert labels == {"task": "numbers", "places": [], "classes": 1, "class_names": ["stay"]}
    assert joined == answered(told[1][0], "join")
    node = told[0][1]
    [own] = node.run.simulation.federation.train
    frame = stays(60, unknown=6)["stay"].to_numpy()[own.numpy()]
    known = frame[~np.isnan(frame)]
    assert sums.keys() == {"moments", "labels"} and sums["moments"].shape == (3, 2)
    expected = [len(known), known.mean(), np.square(known - known.mean()).sum()]
    assert sums["labels"].flatten().tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("task", ["labels", "places"])
def test_fault_62_of_labels_and_places_only_names_and_shapes_are_told(task, tmp_path, monkeypatch):
    with_places_net(monkeypatch)
    federation = labelled(task)
    simulation = in_process(make_config("fedavg", settings(task)), federation, tmp_path, HOSTED)
    kinds = [unpack_tree(message)["kind"] for _, message, _ in simulation.engine.nodes.link.sent]
    assert set(kinds) == {"join", "begin"}
    joined = answered(simulation, "join", "n0")
    labels = {name: joined[name] for name in ("task", "places", "classes", "class_names")}
    if task == "labels":
        assert labels == {"task": "labels", "places": [], "classes": 2, "class_names": ["sick", "tired"]}
    else:
        assert labels == {"task": "places", "places": [8, 8], "classes": 3, "class_names": ["dark", "grey", "light"]}


def test_fault_62_a_class_that_few_samples_have_at_a_place_is_not_named(tmp_path):
    federation = labelled("places")
    y = torch.where(federation.source.y == 2, 1, federation.source.y)
    y[federation.train[3][:4], 0, 0] = 2
    federation = part(replace(federation, source=replace(federation.source, y=y)), [3])
    node = Node(Silo("n0", tmp_path, held=federation, allow=replace(Allowed(**OPEN), min_class_count=5)))
    config = make_config("fedavg", {"task": "places"})
    record = ReportedData(node.silo, federation, node.silo.config(config))
    assert describe_data(federation, record, node.silo.allow).class_names == ["dark", "grey"]


def moments_of(folder, frame, name, label="stay"):
    """The moments of the stay that a server gets: of the label, or of the feature where another column is the label."""
    data = {**STAY, "label": label, "train_samples": len(frame) - 10, "test_share": 0.1}
    node, config = Node(silo(folder, frame, "Graz", data)), make_config("fedavg", TABLES)
    simulation = federated(config, members(InProcess({"Graz": node}), config, name))
    sums = answered(simulation, "moments")
    if label == "stay":
        return sums["labels"][:, 0].tolist()
    return sums["moments"][:, simulation.federation.source.feature_names.index("stay")].tolist()


def test_fault_62_one_more_patients_label_is_not_read_from_two_answers(tmp_path):
    """Also where the column was a feature in the run before."""
    frame = stays(60)
    more = stays(61).assign(stay=[*frame["stay"], 99.0])
    first = moments_of(tmp_path, frame, "first")
    assert moments_of(tmp_path, more, "second") == first
    as_feature = moments_of(tmp_path, more, "third", label="age")
    assert as_feature == first


def test_fault_62_labels_of_which_few_are_known_are_not_told_of(tmp_path):
    few = stays(60, unknown=45)
    own = three_silos(tmp_path, Graz=few)
    with pytest.raises(PartwiseError, match="Graz has fewer than 20 training samples with a known label, its own min"):
        run(make_config("fedavg", TABLES), own)
    lower = silo(tmp_path, few, "Graz", STAY, min_train_samples=5)
    config = make_config("fedavg", {**TABLES, "min_train_samples": 20})
    simulation = run(config, {**own, "Graz": lower})
    assert answered(simulation, "moments")["labels"].tolist() == [[0], [0], [0]]
    assert answered(simulation, "moments", "Linz")["labels"][0].tolist() == [48]


def test_under_noise_moments_of_labels_have_noise_within_a_stated_range(tmp_path):
    config = make_config("fedavg", {**TABLES, **NOISY})
    frame = stays()
    with pytest.raises(PartwiseError, match="Graz demands noise, and its file states no range of column 'stay'"):
        run(config, {"Graz": silo(tmp_path, frame, "Graz", STAY, ranges=RANGES, least_noise=0.5)})
    ranges = {**RANGES, "stay": (0.0, 60.0)}
    own = {"Graz": silo(tmp_path, frame, "Graz", STAY, ranges=ranges, least_noise=0.5)}
    first = answered(run(config, own), "moments")["labels"]
    assert first[0, 0] != 48 and 0 <= first[1, 0] <= 60
    assert torch.equal(answered(run(config, own, "another"), "moments")["labels"], first)


def test_fault_62_a_label_is_counted_in_the_same_bins_in_every_run(tmp_path):
    """Counts below 5 and below 5.1 differ by who has a stay in between."""
    own = three_silos(tmp_path)
    run(make_config("fedavg", {**TABLES, "bins": [5, 9]}), own, "first")
    run(make_config("fedavg", TABLES), own, "second")
    with pytest.raises(PartwiseError, match=r"counts 'stay' in the same bins in every run: set bins = \[5.0, 9.0\]"):
        run(make_config("fedavg", {**TABLES, "bins": [5.1, 9]}), own, "third")


def test_what_the_preview_says_of_labels_is_what_is_told(tmp_path):
    own = three_silos(tmp_path, Graz=stays(60, unknown=6))
    lines = preview(own["Graz"])
    assert '- the labels by name: stay; a run must say task = "numbers"' in lines
    simulation = run(make_config("fedavg", TABLES), own)
    count = answered(simulation, "moments")["labels"][0, 0]
    assert f"- count, mean and squared distances from the mean of the training labels: stay ({count:g})" in lines
    whole = silo(tmp_path, stays().assign(stay=np.arange(60) % 3), "Graz", STAY)
    assert any(
        line.startswith("- in a run of task numbers, in place of the classes: of the label") for line in preview(whole)
    )


# ---- scores


def test_scores_that_are_no_shares_leave_with_three_significant_digits():
    assert [reported("rmse", value, "rounded") for value in (12345.6, 0.00012345)] == [12300.0, 0.000123]
    assert reported("place_accuracy", 0.98765, "rounded") == 0.988
    assert reported("perplexity", float("inf"), "exact") is None


def test_fault_63_a_score_of_few_known_labels_does_not_leave(tmp_path):
    """All samples but one of a client's test set have no label: its score would be that patient's error."""
    federation = labelled("numbers")
    y = federation.source.y.clone()
    y[federation.test[3][1:], 0] = torch.nan
    y[federation.test[3][:1], 0] = 1.0
    federation = replace(federation, source=replace(federation.source, y=y))
    simulation = in_process(
        make_config("fedavg", settings("numbers", rounds=1)), federation, tmp_path, HOSTED, min_test_samples=2
    )
    simulation.run()
    scored = simulation.history.scores["received"]
    assert 3 not in scored and scored


def test_together_leaves_out_who_has_no_such_metric():
    scores = [Score(10, task="labels", mean_auroc=0.8), Score(30, task="labels", mean_auroc=None)]
    assert together(scores, "labels").ranking == pytest.approx(0.8)
    numbers = [Score(10, task="numbers", rmse=3.0), Score(10, task="numbers", rmse=1.0)]
    assert together(numbers, "numbers", [4, 12]).ranking == pytest.approx(((4 * 9 + 12) / 16) ** 0.5)


def test_a_score_on_the_wire_is_finite_and_its_shares_are_within_0_and_1():
    good = {"samples": 9.0, "known": 7.0, "rmse": 2e6, "r2": -3.0}
    assert is_score(good) and is_score({"samples": 9.0, "iou": 1.0})
    for wrong in ({"rmse": float("inf")}, {"known": 1.5}, {"iou": 1.1}, {"strange": 1.0}):
        with pytest.raises(KeyError) if "strange" in wrong else nothing():
            assert not is_score({**good, **wrong})


# ---- refusals


def refused(folder, method, federation, line, **more):
    with pytest.raises(PartwiseError, match=line):
        in_process(make_config(method, {**SETTINGS, **OWN.get(method, {}), **more}), federation, folder, HOSTED).run()


def test_a_run_names_its_task(tmp_path):
    federation = labelled("numbers")
    line = 'labels of n0 are numbers, but the run names no task, which means classes; set task = "numbers"'
    refused(tmp_path, "fedavg", federation, line)
    refused(tmp_path, "fedavg", federation, "labels of n0 are numbers, but the run's task is labels", task="labels")
    refused(
        tmp_path,
        "fedavg",
        awkward_federation(),
        "labels of n0 are classes, but the run's task is numbers",
        task="numbers",
    )


def test_who_needs_bins_is_refused_where_nobody_says_them(tmp_path):
    line = r"b.bins needs bins of the labels: state their edges, as bins = \[2, 5, 9\] in \[data\] of the run"
    refused(tmp_path / "numbers", "fed3p2p", labelled("numbers"), line, task="numbers")
    federation = labelled("labels")
    many = federation.source.y[:, :1].repeat(1, 6)
    own = Labels.of(many, tuple("abcdef"))
    federation = replace(federation, source=replace(federation.source, y=many, own_task=own))
    refused(tmp_path / "labels", "fed3p2p", federation, "over nodes, predict at most 5 labels", task="labels")


def test_settings_that_fit_another_task_are_refused_before_any_node_is_asked():
    for given, line in (
        ({"metric": "mae", "task": "numbers"}, "metric = mae over all clients needs their answers.*ranks by rmse"),
        ({"metric": "rmse"}, "metric = rmse over all clients needs.*task classes ranks by accuracy"),
        ({"bins": [1, 2]}, "bins are edges between numbers; set task = numbers"),
    ):
        with pytest.raises(ConfigError, match=line):
            on_server(make_config("fedavg", {**SETTINGS, **given}))
    assert on_server(make_config("fedavg", {**SETTINGS, "metric": "rmse", "task": "numbers"}))


def test_a_method_of_classes_is_refused_in_a_line(tmp_path):
    refused(
        tmp_path, "fedproto", labelled("numbers"), "needs one class a sample, but the task is numbers", task="numbers"
    )


def test_other_label_columns_than_most_are_named(tmp_path):
    own = three_silos(tmp_path, Wien=stays(60, 2).rename(columns={"stay": "nights"}))
    own["Wien"] = replace(own["Wien"], data={**own["Wien"].data, "label": "nights"})
    with pytest.raises(PartwiseError, match="Wien: its label columns are nights, but those of most are stay"):
        run(make_config("fedavg", TABLES), own)
