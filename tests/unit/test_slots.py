"""Clients packed into slots: everyone once, no slot is long idle, and no result depends on how many there are."""

import gc
import shutil
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partwise import ALL, Method, Move, Phase
from partwise.data import Source, partition
from partwise.engines import slots, tracing
from partwise.engines.packing import makespan, pack_clients, segments, width_for
from partwise.engines.side_by_side import SideBySide
from partwise.engines.slots import Slots
from partwise.runs import choose
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance

STEPS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@given(steps=STEPS, width=st.integers(1, 12))
def test_everyone_with_steps_is_in_one_slot_and_the_longest_wait_is_bounded(steps, width):
    queues = pack_clients(steps, width)
    assert sorted(client for queue in queues for client in queue) == [at for at, own in enumerate(steps) if own]
    assert makespan(steps, queues) <= sum(steps) / width + max(steps)  # Graham's bound: the last to begin began in time


@given(steps=STEPS, width=st.integers(1, 12))
def test_stretches_lead_through_all_steps_with_every_client_in_its_slot_for_its_own(steps, width):
    queues = pack_clients(steps, width)
    here, spent, at = {}, dict.fromkeys(range(len(steps)), 0), 0
    for segment in segments(steps, queues, 16):
        assert segment.first == at and segment.last - segment.first <= 16
        for slot, client in segment.leaving:
            assert here.pop(slot) == client and spent[client] == steps[client]
        for slot, client in segment.entering:
            assert slot not in here
            here[slot] = client
        for client in here.values():
            spent[client] += segment.last - segment.first
        at = segment.last
    assert not here and list(spent.values()) == steps


@pytest.mark.parametrize(("clients", "use"), [(20, 0.8), (100, 0.9)])
@pytest.mark.parametrize("seed", range(5))
def test_slots_are_used_where_clients_are_of_very_different_sizes(clients, use, seed):
    y = torch.from_numpy(np.random.default_rng(0).integers(0, 10, 50_000))
    source = Source("labels", torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8), y, 10, 45_000, (0.0,), (1.0,))
    train = partition(source, "dir:0.1", clients, seed, split="original").train
    steps = [-(-len(own) // 10) for own in train]
    width = width_for(steps)
    assert sum(steps) >= use * width * makespan(steps, pack_clients(steps, width))


def test_equal_clients_are_side_by_side_and_most_is_kept():
    assert width_for([30] * 20) == 20 and width_for([30] * 20, most=8) <= 8 and width_for([0, 0]) == 1


@pytest.mark.parametrize("segment", [3, 1, 128])
def test_no_result_depends_on_slots_or_segments(segment, monkeypatch):
    settings = {"momentum": 0.5, "epochs": 2, "participation": 0.5, "augment": "flip,crop:1", "rounds": 1}
    loop = simulate("fedrep", network("cnn+bn", dropout=0.25), **settings)
    monkeypatch.setattr(slots, "STEPS_ON_DEVICE", segment)
    for width in (1, 2, 5):
        monkeypatch.setattr("partwise.engines.side_by_side.width_for", lambda steps, most, width=width: width)
        vector = simulate("fedrep", network("cnn+bn", dropout=0.25), None, "vector", **settings)
        assert distance(loop, vector) < 1e-10


def test_a_new_cohort_makes_no_new_slots(monkeypatch):
    made = []
    monkeypatch.setattr(SideBySide, "make_fast", lambda self, slots, phase, method: made.append(phase.every_round))
    simulate("fedavg", network("mlp"), None, "vector", participation=0.5, rounds=6)
    assert made == [True, False]  # training, and the adaptation in the last round


@pytest.mark.parametrize("method", ["fedavg", "fedtc"])
def test_a_traced_step_is_the_same_bit_for_bit(method, monkeypatch):
    settings = {"engine": "vector", "momentum": 0.5, "rounds": 2}
    plain = simulate(method, network("cnn+bn", dropout=0.25), **settings)
    made, trace = [], Slots.trace
    monkeypatch.setattr(Slots, "trace", lambda self: made.append(trace(self)))
    monkeypatch.setattr(tracing, "TRACING_PAYS", 0)
    assert distance(plain, simulate(method, network("cnn+bn", dropout=0.25), **settings)) == 0
    assert made


def test_a_phase_is_compiled_where_its_own_steps_pay_for_it(monkeypatch):
    """Of a schedule's three stages only the long one is; asked for it, all are, and without it none."""
    settings = {"engine": "vector", "rounds": 8, "unfreeze": (0, 1, 2), "batch": 8}
    steps = sum(len(own) / 8 for own in awkward_federation().train)  # of all clients in a round
    monkeypatch.setattr(choose, "COMPILING_PAYS", 5 * steps)
    monkeypatch.setattr(Slots, "compile", lambda self: None)
    for wanted, stages in {"auto": [2], "yes": [0, 1, 2], "no": []}.items():
        run = simulate("vanilla", network("cnn"), compile=wanted, **settings)
        assert run.engine.caller.compiles == tuple(f"stage {number}, phase 0" for number in stages)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_step_is_the_same_on_a_cpu(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the usual folder is shared with all that compile
    settings = {"momentum": 0.5, "engine": "vector", "rounds": 2}
    plain, compiled = (simulate("fedper", network("mlp"), compile=compile, **settings) for compile in ("no", "yes"))
    assert compiled.engine.caller.compiles and "cannot" not in caplog.text
    assert distance(plain, compiled) < 1e-10


def test_a_step_that_cannot_be_compiled_is_only_slower(monkeypatch, caplog):
    def broken(function, dynamic):
        def run(*leaves):
            raise OSError("no compiler here")

        return run

    plain = simulate("fedper", network("mlp"), engine="vector")
    monkeypatch.setattr(torch, "compile", broken)
    assert distance(plain, simulate("fedper", network("mlp"), engine="vector", compile="yes")) == 0
    assert caplog.text.count("a step of FedPer cannot be compiled, so the run is slower: no compiler here") == 1


def test_what_everybody_gets_may_change_its_size():
    class Growing(Method):
        share = {"*": ALL}

        def phases(self):
            return Phase(Move("*", "pulled"))

        def down(self, server):
            return {"rows": torch.ones(1 + server.round * 7 % 19, 3, dtype=torch.float64)}

        def pulled(self, net, b, me):
            return b.ce(net(b.x)) * me.got.rows.sum() / 60

    loop, vector = (simulate(Growing, network("mlp"), engine=engine, rounds=20) for engine in ("loop", "vector"))
    assert distance(loop, vector) < 1e-10


def test_one_tensor_in_two_places_is_traced_as_two():
    same, other = torch.ones(3), torch.full((3,), 5.0)
    operations = tracing.operations_of(lambda one, two: [one - 2 * two], [same, same])
    assert torch.equal(operations(same, other)[0], same - 2 * other)


def test_steps_that_are_let_go_are_gone_at_once(monkeypatch):
    """Without Python's collector: a graph that it finds while another is captured would end the capture."""
    made = []
    init = Slots.__init__

    def noted(self, *arguments):
        init(self, *arguments)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Slots, "__init__", noted)
    gc.collect()
    gc.disable()
    try:
        simulate("fedrep", network("mlp"), engine="vector", rounds=2)
        assert made and not any(slots() for slots in made)
    finally:
        gc.enable()


class Forgotten:
    pass


def test_nothing_is_collected_while_a_step_is_captured(monkeypatch):
    """A graph of an earlier run that is destroyed during a capture makes it fail, so who is forgotten waits."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {"Stream": lambda device: stream, "current_stream": lambda device: stream, "CUDAGraph": object}
    fakes |= {"stream": lambda stream: nullcontext(), "graph": lambda graph, pool: nullcontext()}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    alive = []

    def step():
        """Forget something that only the garbage collector finds, and make so much that it looks."""
        forgotten = Forgotten()
        forgotten.myself = forgotten
        known = weakref.ref(forgotten)
        del forgotten
        for _ in range(20 * gc.get_threshold()[0]):
            alive.append([])
        alive.append(known() is not None)

    Slots.capture(SimpleNamespace(device="cuda", step=step), None)
    assert [value for value in alive if value != []] == [False, False, True]  # two steps warm up, the third is captured
    assert gc.isenabled()
