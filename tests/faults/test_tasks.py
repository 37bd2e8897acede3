"""What a task cannot have is refused in one line before anything is written: networks, methods, settings, metrics."""

import re

import pandas
import pytest
import torch
from torch import nn

import partwise
from partwise import Method, methods
from partwise.cli import main
from partwise.errors import ConfigError, DataError
from partwise.tasks.task import TAKE_ANY_TASK
from tests.support.files import refusal
from tests.support.parity import OF_CLASSES
from tests.support.runs import awkward_federation, network, simulate

TASKS = ["numbers", "labels", "places"]


def net_of(task):
    return network("places" if task == "places" else "mlp of two layers", task=task)


def refused(tmp_path, method="fedavg", of="numbers", error=ConfigError, model=None, **settings):
    """The line with which a run on such labels is refused, which leaves no folder."""
    out, data, model = tmp_path / "out", awkward_federation(task=of), model or net_of(of)
    line = refusal(error, lambda: partwise.run(method, out=out, data=data, model=model, rounds=1, **settings))
    assert not out.exists()
    return line


# ---------------------------------------------------------------------------------------------------------- methods


def test_the_methods_that_take_one_class_a_sample_are_these():
    assert [name for name in methods.names() if methods.find(name).needs_classes] == OF_CLASSES
    assert not {*OF_CLASSES} & {*TAKE_ANY_TASK.split(", ")} and {*TAKE_ANY_TASK.split(", ")} < {*methods.names()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", OF_CLASSES)
def test_another_task_is_refused_with_methods_that_take_it(method, task, tmp_path):
    line = refused(tmp_path, method, task)
    assert line == f"{method} needs one class a sample, but the task is {task}; methods that take it: {TAKE_ANY_TASK}"


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in [*OF_CLASSES, "fedbn"]])
def test_all_others_take_it(method):
    """Two rounds of each; the other tasks, and FedBN, are in the parity tests."""
    settings = {"fed3p2p": {"rounds_1": 1, "rounds_2": 1, "coordinators_a": 2, "coordinators_b": 2}}.get(method, {})
    run = simulate(method, net_of("labels"), awkward_federation(task="labels"), rounds=2, **settings)
    assert run.history.rounds[-1].at("received").pooled.task == "labels"


USES = {
    "b.ce": lambda net, b, me: b.ce(net(b.x)),
    "b.one_hot": lambda net, b, me: b.one_hot().sum() * b.loss(net(b.x)),
    "b.classes": lambda net, b, me: b.classes * b.loss(net(b.x)),
    "me.counts": lambda net, b, me: me.counts.sum() * b.loss(net(b.x)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_a_users_method_that_looks_at_classes_is_refused_where_it_does(use, engine):
    class Looking(Method):
        def loss(self, net, b, me):
            return USES[use](net, b, me)

    with pytest.raises(ConfigError) as caught:
        simulate(Looking, net_of("numbers"), awkward_federation(task="numbers"), engine, rounds=1, trials=True)
    line = (
        rf"^test_tasks.py:\d+ in .* \(round 1, .*\): {use} needs one class a sample, but the task is numbers; methods"
    )
    assert re.search(line, str(caught.value)) and "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("task", "model", "line"),
    [
        (
            "numbers",
            nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
            "the network gives 4 numbers for a sample, but the data have 2 numbers (a, b); it must give 2: end it with "
            "nn.Linear(64, 2), or ask for the number, def __init__(self, outputs)",
        ),
        (
            "labels",
            nn.Sequential(nn.Flatten(), nn.Linear(64, 1)),
            "the network gives 1 logits for a sample, but the data have 3 labels (a, b, c); it must give 3: end it "
            "with nn.Linear(64, 3), or ask for the number, def __init__(self, outputs)",
        ),
        (
            "places",
            nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)),
            "the network gives 2x8x8 logits for a sample, but the data have 3 classes at each place; it must give "
            "3x8x8: end it with nn.Conv2d(..., 3, 1), or move the classes behind the rows in forward",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_told_both_sizes_and_how_to_mend_it(task, model, line, tmp_path):
    assert refused(tmp_path, of=task, model=model) == line


def test_a_network_by_name_has_no_places(tmp_path):
    assert "gives 3 logits for a sample, but the data have 3 classes at each place" in refused(
        tmp_path, of="places", model="cnn-digits"
    )


# ---------------------------------------------------------------------------------------------------------- settings


def test_classes_alone_are_balanced(tmp_path):
    for setting in ("class_weights", "sampling"):
        line = refused(tmp_path, of="labels", **{setting: "balanced"})
        assert line == f"{setting} = balanced needs one class a sample, but the task is labels; leave it out"


def test_a_metric_of_another_task_is_refused_with_those_of_this_one(tmp_path):
    line = refused(tmp_path, metric="f1")
    assert line == "metric = f1 is not one of task numbers: rmse, mae, r2, spearman"
    assert refused(tmp_path, of="classes", metric="rmse").startswith("metric = rmse is not one of task classes: acc")


def test_a_task_that_the_data_do_not_have_is_refused(tmp_path):
    line = refused(tmp_path, of="numbers", error=DataError, task="labels")
    assert line == "task = labels, but the labels of 'awkward' are numbers"


def test_augmentation_would_move_pixels_away_from_their_classes(tmp_path):
    line = refused(tmp_path, of="places", augment="flip")
    assert line == "augment moves pixels, but not the classes of places; leave it out"


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("labels", "the task is labels"),
        ("places", "the task is places"),
        ("numbers", r"\d+ samples have an unknown number"),
    ],
)
def test_dp_sgd_takes_classes_and_numbers_that_are_all_known(task, why, tmp_path):
    line = refused(tmp_path, of=task, dp_clip=1.0)
    assert re.fullmatch(f"dp_clip takes classes, or numbers that are all known, but {why}; leave it out", line)


# --------------------------------------------------------------------------------------------------------- on the way


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        ({"stay": ["x", "y"] * 6, "sick": [0, 1] * 6}, [], "several label columns must all hold numbers"),
        ({"stay": [None] * 12, "sick": [0, 1] * 6}, [], "label 'stay' is unknown in every sample"),
        ({"stay": [0, 1] * 6}, ["--task", "places"], "a table has no places"),
        ({"stay": [0.5, 1] * 6}, ["--task", "classes"], "0.5 (line 2) is not a whole number"),
        ({"stay": [0.5, 1] * 6}, ["--metric", "f1"], "metric = f1 is not one of task numbers"),
    ],
)
def test_the_command_says_one_line_and_writes_nothing(columns, options, line, tmp_path, capsys):
    table, out = tmp_path / "table.csv", tmp_path / "out"
    frame = {"age": torch.arange(12).tolist(), "client": [0, 1] * 6, **columns}
    pandas.DataFrame(frame).to_csv(table, index=False)
    asked = ["run", "fedavg", "--data", str(table), "--label", ",".join(columns), "--out", str(out), *options]
    assert main(asked) != 0
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ") and line in said
    assert not out.exists()
