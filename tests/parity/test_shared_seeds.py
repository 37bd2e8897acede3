"""Seeds side by side in common blocks equal separate runs: in float64 to 1e-10, every discrete decision exactly."""

import csv
import itertools
import json
import os
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

import partwise.runs.partitioning
from partwise import ALL, FROZEN, Method, Relay, Stage, methods
from partwise.engines.joint import JointVector, can_share
from partwise.errors import ConfigError, Diverged, PartwiseError
from partwise.papers import reproduce
from partwise.records.files import CONFIG, MODEL
from partwise.rounds.messages import Copies
from partwise.runs.files import AT_FIRST, AT_LAST, EVERY_ROUND
from partwise.runs.simulation import Simulation
from tests.support.commands import TINY, invoke, succeed
from tests.support.engines import short_of_memory
from tests.support.seeds import SEEDS, concatenated, prepared, separately
from tests.support.states import distance


def assert_equal(separate, shared):
    """All that two runs of a seed leave."""

    def decisions(run):
        rounds = [(row["participants"], row["refused"]) for row in run.history.rows]
        return run.server.groups, rounds, run.server.ledger.as_dict(), run.notes

    assert str(decisions(separate)) == str(decisions(shared))
    assert distance(separate, shared) < 1e-10


def watched(monkeypatch):
    """The widths of common blocks, as they are carried out."""
    widths, execute = [], JointVector.execute

    def execute_watched(self, order, client, common, tables):
        widths.append(len(tables))
        return execute(self, order, client, common, tables)

    monkeypatch.setattr(JointVector, "execute", execute_watched)
    return widths


@pytest.mark.parametrize("method", methods.names())
def test_seeds_side_by_side_equal_separate_runs(method, monkeypatch):
    widths = watched(monkeypatch)
    shared = concatenated(prepared(method))
    # Everybody is evaluated in one block; only where all received the global model, nobody is asked.
    assert max(widths) == (3 if method == "central" else 24)
    for one, other in zip(separately(prepared(method)), shared, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("settings", [{"patience": 1, "rounds": 6}, {"persist_optimizer_state": True, "block": 5}])
def test_runs_that_end_early_and_blocks_of_a_given_width(settings, monkeypatch):
    widths = watched(monkeypatch)
    pairs = zip(separately(prepared("fedper", **settings)), concatenated(prepared("fedper", **settings)), strict=True)
    for one, other in pairs:
        assert_equal(one, other)
    assert max(widths) == settings.get("block", 24)


def test_seeds_side_by_side_where_clients_fail_and_means_are_robust():
    settings = {"client_dropout": 0.6, "stragglers": 0.2, "min_clients": 2, "robust": "trimmed", "rounds": 4}
    pairs = zip(separately(prepared("fedper", **settings)), concatenated(prepared("fedper", **settings)), strict=True)
    skipped = set()
    for one, other in pairs:
        assert_equal(one, other)
        assert one.server.events == other.server.events
        skipped.add(tuple(event.round for event in one.server.events if event.what == "skipped"))
    assert len(skipped) > 1, "seeds skip other rounds"


class Chained(Method):
    """Two chains of clients, of other lengths with every seed."""

    def stages(self):
        yield Stage(self.phases(), self.share, self.rounds, Relay(self.chains))

    def chains(self, server):
        return [int(client >= 4 + server.seed) for client in range(server.clients)]


def test_relays_go_hop_by_hop_through_the_chains_of_all_seeds(monkeypatch):
    widths = watched(monkeypatch)
    shared = concatenated(prepared(Chained, participation=1.0))
    # Chains of 4 and 4, 5 and 3, 6 and 2. The sixth hop is of one client, by itself; the others wait for it. Nobody is
    # asked for predictions: all received the global model.
    assert widths == [6, 6, 5, 4, 2] * 2
    for one, other in zip(separately(prepared(Chained, participation=1.0)), shared, strict=True):
        assert_equal(one, other)


class Holding(Method):
    """A method that keeps on itself what belongs into server.memory."""

    def begin(self, server, run):
        self.pull = torch.tensor(float(server.seed)) + torch.zeros(2)

    def loss(self, net, b, me):
        return b.ce(net(b.x)) * self.pull.sum()


def test_a_method_that_holds_something_of_its_seed_runs_by_itself(monkeypatch):
    widths = watched(monkeypatch)
    shared = concatenated(prepared(Holding))
    assert not widths
    for one, other in zip(separately(prepared(Holding)), shared, strict=True):
        assert_equal(one, other)


def test_runs_on_other_numbers_cannot_share():
    one, two = prepared("fedavg")[:2]
    assert can_share([one.engine, two.engine])
    two.program.scale = two.program.scale * 2  # as a table's, which is standardised by each seed's training samples
    assert not can_share([one.engine, two.engine])
    assert not can_share([one.engine, prepared("fedavg")[1].engine]), "the same images, but another tensor"


# -------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("error", [Diverged, OSError])
def test_a_run_that_fails_leaves_the_others_alone(error):
    simulations = prepared("fedavg")
    second = simulations[1]

    def fail(row):
        if error is OSError:
            raise OSError("the disk is full")
        second.server.copies = {
            name: Copies(copies.values * torch.nan, copies.row) for name, copies in second.server.copies.items()
        }

    works = [simulation.run for simulation in simulations]
    works[1] = lambda: second.run(fail)
    shared = concatenated(simulations, works)
    assert isinstance(shared[1], error) and len(second.history.rows) == 1
    separate = separately(prepared("fedavg"))
    for number in (0, 2):
        assert_equal(separate[number], shared[number])


class Overwriting(Method):
    """Its hook means to change what is frozen."""

    share = {"body": FROZEN, "head": ALL}

    def start(self, net, me):
        return {name: 0 * value for name, value in net.tensors.items()}


def test_what_is_frozen_is_not_overwritten_side_by_side_either():
    for error in concatenated(prepared(Overwriting)):
        assert isinstance(error, ConfigError) and "not frozen" in str(error)


def test_out_of_memory_halves_the_common_block(monkeypatch):
    separate = separately(prepared("fedbabu"))
    tried = short_of_memory(monkeypatch, 5)
    shared = concatenated(prepared("fedbabu"))
    monkeypatch.undo()
    assert tried[:6] == [12, 6, 3, 3, 3, 3], "half, and half again"
    assert max(tried[2:]) == 3, "and no later block is wider"
    for one, other in zip(separate, shared, strict=True):
        assert_equal(one, other)


def test_a_client_that_does_not_fit_alone_is_named_by_its_own_number():
    shared = JointVector([simulation.engine for simulation in prepared("fedavg")])
    with pytest.raises(PartwiseError, match="client 1 alone"):
        shared.halved([2 * shared.runs.most + 1])


# -------------------------------------------------------------------------------------------------- the command line


def content(path):
    """What a file of a run's folder holds."""
    if path.suffix == ".safetensors":
        return {name: value.tolist() for name, value in load_file(path).items()}
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return (
        text if path.suffix == ".toml" else [[float(n or -1) for n in row] for row in csv.reader(text.splitlines()[1:])]
    )


def same(one, other):
    """Equal but for rounding, and so but for hashes, and for times."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(one[name], other[name])
            for name in one
            if name not in ("seconds", "started", "notes", "files", "sha256")
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return abs(one - other) < 1e-10 if isinstance(one, float) else one == other


def test_compare_writes_what_separate_runs_write(tmp_path, capsys, monkeypatch):
    read, load, widths = [], partwise.runs.partitioning.load, watched(monkeypatch)
    monkeypatch.setattr(partwise.runs.partitioning, "load", lambda *a, **k: read.append(a) or load(*a, **k))
    arguments = ["compare", "fedbabu", *TINY, "--dtype", "float64", "--finetune-epochs", "1"]
    arguments += ["--threads", "1", "--seeds"]
    told = invoke(capsys, *arguments, "0,1,2", "--out", tmp_path / "together").err.splitlines()
    assert max(widths) == 12 and len(read) == 1, "data are read once for all seeds of a method"
    note = "seeds 0, 1, 2 run side by side: seconds are a run's share of the time of all"
    assert told[:2] == ["engine: vector on cpu", note]
    titles = [f"fedbabu seed {seed} ({seed + 1}/3)" for seed in SEEDS]
    assert [line.partition(":")[0] for line in told[2:]] == titles * 2  # two rounds
    for seed in SEEDS:
        succeed(capsys, *arguments, str(seed), "--out", tmp_path / f"apart-{seed}")
        places = [tmp_path / way / "fedbabu" / f"seed-{seed}" for way in (f"apart-{seed}", "together")]
        one, other = ([path for path in sorted(place.rglob("*")) if path.is_file()] for place in places)
        assert [path.name for path in one] == [path.name for path in other]
        one, other = ([path for path in own if path.parent.name != "checkpoints"] for own in (one, other))
        files = {CONFIG, MODEL, *AT_FIRST, *EVERY_ROUND, *AT_LAST}
        assert len(one) == len(files) + 5  # clients' models and the global one
        for first, second in zip(one, other, strict=True):
            assert same(content(first), content(second)), first.name
        notes = [content(place / "environment.json")["notes"] for place in places]
        assert notes[1] == [*notes[0], note]


@pytest.mark.parametrize("where", ["in a block", "in a run's own turn"])
def test_an_interrupted_comparison_leaves_no_lock_and_no_thread(where, tmp_path, capsys, monkeypatch):
    execute, row, executed = JointVector.execute, Simulation.record, []

    def interrupted_block(self, *arguments):
        executed.append(arguments)
        if len(executed) == 4:
            raise KeyboardInterrupt
        return execute(self, *arguments)

    def interrupted_turn(self, number, updates):
        if number == 1 and self.config.run.seed == 1:
            os.kill(os.getpid(), signal.SIGINT)  # it reaches the main thread, which waits for this one
        return row(self, number, updates)

    if where == "in a block":
        monkeypatch.setattr(JointVector, "execute", interrupted_block)
    else:
        monkeypatch.setattr(Simulation, "record", interrupted_turn)
    code, _, err = invoke(capsys, "compare", "local", *TINY, "--seeds", "0,1,2", "--out", tmp_path)
    told = "" if where == "in a block" else " after round 1; continue with --resume"
    assert code == 130 and err.splitlines()[-1] == f"error: interrupted{told}" and "Traceback" not in err
    assert "partwise run" not in [thread.name for thread in threading.enumerate()]
    for seed in SEEDS:
        left = [path.name for path in sorted((tmp_path / "local" / f"seed-{seed}").iterdir())]
        assert left == sorted(("checkpoints", CONFIG, MODEL, *AT_FIRST, *EVERY_ROUND))


def test_the_seconds_of_runs_add_up_to_no_more_than_all_took(monkeypatch):
    now, execute = itertools.count(), JointVector.execute

    def slow(self, *arguments):
        for _ in range(1000):
            next(now)
        return execute(self, *arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))  # a second whenever somebody looks
    monkeypatch.setattr(JointVector, "execute", slow)  # and a thousand in every block
    runs = concatenated(prepared("local"))
    seconds = [sum(row["seconds"] for row in run.history.rows) for run in runs]
    assert min(seconds) > 1000 and sum(seconds) <= next(now)


def test_the_seeds_of_a_papers_table_run_side_by_side_too(tmp_path, capsys, monkeypatch):
    widths, scaled = watched(monkeypatch), reproduce.at_scale
    wanted = {"engine": "vector", "dtype": "float64", "lr": 1e-4}
    monkeypatch.setattr(reproduce, "at_scale", lambda *arguments: {**scaled(*arguments), **wanted})
    arguments = ["reproduce", "dualfed/figure2-3", "--scale", "smoke", "--rows", "dualfed", "--columns", "pacs"]
    succeed(capsys, *arguments, "--seeds", "0,1", "--out", tmp_path / "together")
    assert max(widths) == 8, "four clients of either seed"
    for seed in (0, 1):
        succeed(capsys, *arguments, "--seeds", str(seed), "--out", tmp_path / "apart")
        places = [tmp_path / way / f"dualfed/figure2-3/smoke/dualfed/pacs/seed-{seed}" for way in ("apart", "together")]
        for name in ("features.json", "metrics.jsonl", "summary.json"):
            one, other = (content(place / name) for place in places)
            assert same(one, other), name
