"""Fault 68: messages that unfold are refused at a limit that follows from the request, before they are decoded."""

import hashlib
import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from partwise.errors import ConfigError, DataError, PartwiseError
from partwise.federation.protocol import handshake as agreement
from partwise.federation.protocol.handshake import agree, check_described, stand_in
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.size import check_size
from partwise.records.codec import DEEPEST_TREE, Limit, Unreadable
from partwise.records.messages import Joined
from partwise.records.record import read_record
from partwise.records.wire import pack_tree, unpack_tree
from partwise.rounds.batches import Recipe, epoch, number_of_samples, number_of_steps
from partwise.runs.config import make_config
from tests.support.nodes import InProcess, in_process, members, silos
from tests.support.runs import awkward_federation

LIMIT = Limit(labels=1 << 12, tensors=1 << 12)
SIZES, HOSTED = (7, 6, 9), [[0], [1], [2]]


def message(text, tensors=b""):
    """A message as somebody makes it who does not use `pack_tree`."""
    body = len(text).to_bytes(8, "big") + text + (tensors or save({}))
    return hashlib.sha256(body).digest() + body


def refused(made, limit=LIMIT, most=1 << 20):
    """The line of a refusal, during which next to nothing was allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable) as error:
            unpack_tree(made, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most
    return str(error.value)


# ---- JSON and tensors


def test_fault_68_long_text_is_not_decoded():
    assert "at most" in refused(message(b"[" + b"[]," * (8 << 20) + b"1]"))
    inside = Limit(labels=1 << 12, tensors=64 << 20)  # where tensors may be long, text may not
    assert "bytes of text; at most 4,096 are read" in refused(message(b"[" + b"[]," * 100_000 + b"1]"), inside)


def test_fault_68_deep_text_is_not_decoded():
    deep = [b"[" * 2000 + b"]" * 2000, b'{"a":' * 600 + b"1" + b"}" * 600]
    assert all("deep" in refused(message(text)) for text in deep)
    for depth, fits in ((DEEPEST_TREE, True), (DEEPEST_TREE + 1, False)):
        text = b"[" * depth + b"]" * depth
        if fits:
            unpack_tree(message(text), LIMIT)
        else:
            assert f"more than {DEEPEST_TREE} deep" in refused(message(text))


def test_brackets_in_names_are_not_depth():
    assert unpack_tree(pack_tree({"[" * 500: '\\"' + "{" * 500}), LIMIT) == {"[" * 500: '\\"' + "{" * 500}


def test_fault_68_a_million_names_of_tensors():
    header = json.dumps({f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(100_000)})
    tensors = len(header).to_bytes(8, "little") + header.encode()
    wide = Limit(labels=1 << 16, tensors=1 << 30)
    assert "bytes of text; at most 65,536 are read" in refused(message(b"[]", tensors), wide, most=1 << 20)


def test_fault_68_a_tensor_counts_as_often_as_it_is_named():
    row = torch.zeros(1 << 8)  # a KiB
    assert len(unpack_tree(pack_tree({"parts": [row] * 4}), LIMIT)["parts"]) == 4
    assert "TooLarge" in refused(pack_tree({"parts": [row] * 5}))


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=80, deadline=None)
def test_fault_68_whatever_comes_is_a_line_or_within_its_limit(text, labels, tensors):
    try:
        tree = unpack_tree(message(text), Limit(labels, tensors))
    except Unreadable:
        return
    assert len(text) <= labels
    assert json.loads(text) == tree or isinstance(tree, dict | list)


# ---- the limit of an answer follows from the request


def ready(method, folder):
    config = make_config(method, {"lr": 0.05, "batch": 4, "rounds": 1, "model": "mlp-100"})
    return in_process(config, awkward_federation(SIZES), folder, HOSTED)


def test_fault_68_the_limit_of_an_answer_follows_from_what_is_asked(tmp_path):
    simulation = ready("scaffold", tmp_path)
    engine, server = simulation.engine, simulation.server
    server.begin()
    train, predict = server.request("train", [0, 1, 2]), server.request("predict", [0, 1, 2])
    network = sum(copies.values[0].nbytes for copies in server.copies.values())
    one, three = engine.limit("n0", train.only([0])), engine.limit("n0", train)
    assert three.tensors == 3 * one.tensors and one.labels < three.labels < 3 * one.labels
    # Its parts once, and SCAFFOLD's change, as large as they, twice
    assert 3 * network <= one.tensors <= 3 * network + (1 << 17)
    assert engine.limit("n0", predict).tensors <= 3 << 17  # nothing goes up


def test_fault_68_an_answer_beyond_its_limit_is_left_out(tmp_path):
    simulation = ready("fedavg", tmp_path)
    link = simulation.engine.nodes.link
    ask = link.ask

    def unfolding(messages, timeout):
        answers = ask(messages, timeout)
        content = unpack_tree(answers["n1"])
        content["updates"]["extras"] = {"more": [torch.zeros(1, 1 << 18)] * 1000}  # a MiB, 1000 times
        return {**answers, "n1": pack_tree(content)}

    link.ask = unfolding
    simulation.server.step()
    [event] = simulation.server.events
    assert (event.client, event.what) == (1, "dropped") and "its answer cannot be used" in event.detail


def test_fault_68_a_node_reads_no_long_text(tmp_path):
    [silo] = silos(awkward_federation((7,)), tmp_path, [[0]]).values()
    [own] = [Node(silo)]
    answer = unpack_tree(own.handle(message(b"[" + b"[]," * (1 << 19) + b"1]")))
    assert "bytes of text; at most" in answer["refuses"]


# ---- what is told of data

TOLD = {
    "names": ["a"],
    "sizes": [[9, 3, 0]],
    "shape": [2],
    "task": "classes",
    "places": [],
    "classes": 2,
    "class_names": [],
    "features": ["x", "y"],
    "columns": ["x", "y"],
    "whole": False,
    "standardise": False,
    "centre": [0.0],
    "scale": [1.0],
    "white": 255.0,
    "data": "",
    "model": "",
    "min_clients": 1,
}


def joined(**own):
    return {name: read_record(Joined, each, "its answer") for name, each in own.items()}


def wide(count, column="x="):
    features = [f"{column}{n}" for n in range(count)]
    return {"features": features, "columns": ["x"] if column == "x=" else features, "shape": [count]}


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (wide(agreement.MOST_FEATURES + 1, "f"), "n1: 10,001 features; a table has at most 10,000"),
        (wide(agreement.MOST_TEXTS + 1), "n1: column 'x' has 1,001 texts; a column has at most 1,000"),
        ({"shape": [10**6, 10**6], "features": []}, "n1: samples of the shape .*; a sample has at most 4,194,304"),
        ({"classes": 10**6}, "n1: has 1000000 classes"),
        ({"task": "colours"}, "n1: labels of the task 'colours'"),
        ({"task": "numbers"}, "n1: labels of the task 'numbers' without names of their columns"),
        ({"task": "places"}, "n1: labels of the shape"),
        ({"task": "places", "places": [2**12, 2**12]}, "n1: labels of the shape .* at most 4,194,304"),
    ],
)
def test_fault_68_numbers_that_no_data_have_are_refused(told, line):
    other = {**TOLD, **told, "names": ["b"]}
    with pytest.raises(DataError, match=line):
        agree(joined(n1=other))


def test_fault_68_silos_together_are_no_wider_than_a_table():
    """No silo has too many texts; all together they would make every node's input as wide as they like."""
    told = {}
    for node in range(3):
        texts = {"features": [f"x={node}-{n}" for n in range(400)], "columns": ["x"], "shape": [400]}
        told |= joined(**{f"n{node}": {**TOLD, **texts, "names": [f"{node}"]}})
        check_described(f"n{node}", told[f"n{node}"])
    with pytest.raises(DataError, match="all silos together: column 'x' has 1,200 texts"):
        agree(told)


def test_fault_68_a_node_refuses_features_that_no_table_has():
    agreed = replace(agree(joined(n0=TOLD)), features=[f"x={n}" for n in range(200_005)])
    with pytest.raises(DataError, match="200,005 features"):
        agreement.schema_of(agreed)


def test_fault_68_samples_that_are_only_stated_take_no_memory():
    agreed = agree(joined(n0={**TOLD, "sizes": [[10**8, 10**8, 10**8]]}))
    federation = stand_in(agreed, seed=0)
    for [index] in (federation.train, federation.test, federation.validation):
        assert len(index) == 10**8 and index.untyped_storage().nbytes() < 1000
    assert federation.class_counts().sum() == 10**8


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.none() | st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_steps_are_counted_as_an_epoch_is_cut(samples, size, batches, drop_last, steps):
    for smallest in (1, min(2, size)):
        recipe = Recipe(size, 1.5, steps, batches, smallest, drop_last)
        pieces = [rows for _, rows in epoch(samples, recipe)]
        number = number_of_steps(samples, recipe)
        if steps is not None:
            assert number == (steps if pieces else 0)
        assert number_of_samples(samples, recipe) == batches * sum(pieces[n % len(pieces)] for n in range(number))


def test_fault_68_a_network_too_large_for_a_message_is_refused_before_it_is_made(tmp_path):
    """A head for 10**12 classes, as no machine could hold it, and one that is a byte too large."""
    config = make_config("fedavg", {"lr": 0.05, "batch": 4, "rounds": 1, "model": "mlp-100", "dtype": "float64"})
    source = awkward_federation(SIZES).source
    with pytest.raises(
        ConfigError, match=r"n0 takes networks of 2,147,483,648 bytes at most .*mlp-100 has 80\d,\d{3},"
    ):
        check_size(config, replace(source, classes=10**12), 2**31, "n0")
    pixels = source.x[0].numel()
    size = 8 * (pixels * 100 + 100 + 100 * source.classes + source.classes)
    check_size(config, source, size, "n0")
    with pytest.raises(ConfigError, match=f"has {size:,}"):
        check_size(config, source, size - 1, "n0")
    own = {
        name: replace(silo, most_bytes=size - 1)
        for name, silo in silos(awkward_federation(SIZES), tmp_path, HOSTED).items()
    }
    link = InProcess({name: Node(silo) for name, silo in own.items()})
    with pytest.raises(PartwiseError, match="n0 refuses: n0 takes networks of"):
        federated(config, members(link, config))


# ---- the memory of a whole run, in a process of its own

ATTACKED = """
import resource, sys, tempfile
from pathlib import Path
import torch
from partwise.errors import PartwiseError
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.records.wire import pack_tree, unpack_tree
from partwise.runs.config import make_config
from tests.support.nodes import InProcess, members, silos
from tests.federation.test_limits import message
from tests.support.runs import awkward_federation

def join(change):
    return lambda answer: pack_tree(unpack_tree(answer) | change)

long = message(b"[" + b"[]," * (1 << 24) + b"1]")
again = pack_tree({"updates": [torch.zeros(1 << 20)] * 1000})
ATTACKS = {
    "none": ("join", lambda answer: answer),
    "samples": ("join", join({"sizes": [[10**8] * 3]})),
    "classes": ("join", join({"classes": 10**6})),
    "shape": ("join", join({"shape": [1, 10**4, 10**4]})),
    "names": ("join", join(dict.fromkeys(("features", "columns"), ["f%d" % n for n in range(200_005)]))),
    "text": ("request", lambda answer: long),
    "tensors": ("request", lambda answer: again),
}
kind, change = ATTACKS[sys.argv[1]]

class Liar(InProcess):
    def ask(self, messages, timeout):
        answers = super().ask(messages, timeout)
        if unpack_tree(messages["n1"])["kind"] == kind:
            answers["n1"] = change(answers["n1"])
        return answers

config = make_config("fedavg", {"rounds": 1, "lr": 0.05, "batch": 8, "model": "mlp-100"})
with tempfile.TemporaryDirectory() as folder:
    own = silos(awkward_federation((20, 17, 9)), Path(folder), [[0], [1], [2]])
    nodes = {name: Node(silo) for name, silo in own.items()}
    try:
        federated(config, members(Liar(nodes), config)).run()
    except PartwiseError as error:
        print(error, file=sys.stderr)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(attack):
    """The memory that a run takes of which a node says what it likes."""
    done = subprocess.run([sys.executable, "-c", ATTACKED, attack], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_fault_68_memory_stays_below_1_2_times_the_usual():
    usual = memory("none")
    for attack in ("samples", "classes", "shape", "names"):
        assert memory(attack) < 1.2 * usual, attack
    # Here the attack itself lies in the memory of this process: 48 MiB of text, and 4 MiB that would become 4 GB
    for attack, own in (("text", 3 * (48 << 10)), ("tensors", 2 * (4 << 10))):
        assert memory(attack) < 1.2 * usual + own, attack
