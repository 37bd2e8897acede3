"""On a CUDA device: the vector engine equals the loop on the CPU in float64, without a host sync inside a step."""

import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import partwise
from partwise import methods
from partwise.engines import store, store_memory
from partwise.engines.laying_out import ClientLayout
from partwise.engines.slots import Slots
from partwise.engines.vector import Vector
from tests.support.parity import CASES, stable
from tests.support.pieces import PIECES
from tests.support.runs import awkward_federation, network, simulate
from tests.support.seeds import concatenated, prepared, separately
from tests.support.states import distance

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def assert_device_agrees(method, net, **settings):
    options = {**stable(method, net), **settings}
    federation = awkward_federation(validated=2)
    loop = simulate(method, network(net, dropout=0.25), federation, **options)
    for block in (3, None):
        vector = simulate(method, network(net, dropout=0.25), federation, "vector", block, device="cuda", **options)
        assert vector.notes[0] == "engine: vector on cuda"
        assert distance(loop, vector) < 1e-10, block


@pytest.mark.parametrize(("method", "net"), [case for case in CASES if case[1] != "cnn"])
def test_vector_on_cuda_equals_loop_on_the_cpu(method, net):
    assert_device_agrees(method, net)


CLUSTERED = str(Path(__file__).parents[1] / "methods" / "clustered.py")


@pytest.mark.parametrize("method", [*PIECES, CLUSTERED])
def test_every_piece_of_a_method_on_cuda(method):
    assert_device_agrees(method, "cnn+bn")


@pytest.mark.parametrize("method", methods.names())
def test_every_method_is_captured_and_waits_for_nothing_while_it_trains(method, monkeypatch):
    captured, waiting, through = [], [], Slots.through

    def noted(self, *arguments):
        captured.append(self.graph is not None)
        return through(self, *arguments)

    def watched(function):
        def run(self, request, *arguments):
            first = request.round == request.plan.first_round  # slots are made and parts drawn then
            torch.cuda.set_sync_debug_mode("default" if first or request.job != "train" else "error")
            waiting.append(first)
            try:
                return function(self, request, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return run

    monkeypatch.setattr(Slots, "through", noted)
    monkeypatch.setattr(ClientLayout, "__call__", watched(ClientLayout.__call__))
    monkeypatch.setattr(Vector, "execute", watched(Vector.execute))
    settings = {**stable(method, "cnn+bn"), "rounds": 2, "participation": 1.0}
    simulate(method, network("cnn+bn", dropout=0.25), engine="vector", device="cuda", **settings)
    assert captured and all(captured) and not all(waiting)


def test_a_graph_that_is_forgotten_during_a_capture_does_not_spoil_it():
    """Of a run that is over, the garbage collector destroys graphs at any moment; in a capture CUDA refuses that."""
    old = [torch.cuda.CUDAGraph()]
    with torch.cuda.graph(old[0]):
        torch.zeros(1, device="cuda")
    counter, steps = torch.zeros(1, device="cuda"), []

    def step():
        steps.append(counter.add_(1))
        if len(steps) == 3:  # two steps warm up, the third is captured
            cycle = [old.pop()]
            cycle.append(cycle)
            del cycle
            steps.extend([] for _ in range(20 * gc.get_threshold()[0]))

    slots = SimpleNamespace(device=torch.device("cuda"), step=step, graph=None)
    Slots.capture(slots, None)
    slots.graph.replay()
    assert float(counter) == 3


@pytest.mark.parametrize("bounds", [{"DEVICE_SHARE": 0}, {"DEVICE_SHARE": 0, "HOST_BYTES": 0}])
@pytest.mark.parametrize("method", ["fedper", "fed3p2p"])
def test_what_clients_keep_may_lie_on_the_host_or_in_files(method, bounds, monkeypatch):
    settings = {**stable(method, "cnn+bn"), "participation": 0.5, "persist_optimizer_state": True}
    here = simulate(method, network("cnn+bn"), engine="vector", device="cuda", **settings)
    monkeypatch.setattr(store, "SMALLEST_SHEET", 1)
    for name, value in bounds.items():
        monkeypatch.setattr(store_memory, name, value)
    there = simulate(method, network("cnn+bn"), engine="vector", device="cuda", **settings)
    places = [{sheet.values.device.type for sheet in run.engine.store.sheets.values()} for run in (here, there)]
    assert places == [{"cuda"}, {"cpu"}]
    assert distance(here, there) < 1e-10


@pytest.mark.parametrize("method", ["fedper", "fedfcd", "fed3p2p"])
def test_seeds_side_by_side_equal_separate_runs(method):
    for one, other in zip(separately(prepared(method)), concatenated(prepared(method, device="cuda")), strict=True):
        assert distance(one, other) < 1e-10


@pytest.mark.parametrize("method", ["fedavg", "fedtc", "dualfed"])
def test_compiled_steps_are_the_same(method):
    settings = {**stable(method, "cnn"), "rounds": 2}
    plain, compiled = (
        simulate(method, network("cnn"), engine="vector", device="cuda", compile=compile, **settings)
        for compile in ("no", "yes")
    )
    assert distance(plain, compiled) < 1e-10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lower_precision_learns_as_float64_does(dtype):
    settings = {
        "data": "made",
        "clients": 8,
        "partition": "iid",
        "rounds": 12,
        "lr": 0.1,
        "batch": 16,
        "eval_every": 12,
    }
    exact = partwise.run("fedavg", **settings, dtype="float64", device="cuda")
    rough = partwise.run("fedavg", **settings, dtype=dtype, device="cuda")
    last = [result.metrics[-1]["received"]["acc_pooled"] for result in (exact, rough)]
    assert last[0] > 0.7
    assert abs(last[0] - last[1]) < 0.05


def test_fault_21_a_block_that_does_not_fit_is_halved_and_the_result_is_the_same():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:  # where nothing else reserves memory
        alone.submit(assert_halved).result()


def assert_halved():
    settings = {
        "data": "made",
        "clients": 24,
        "partition": "iid",
        "model": "resnet18-3x3",
        "image_size": 32,
        "rounds": 1,
    }
    settings |= {"device": "cuda", "dtype": "float64", "batch": 32, "lr": 1e-3}

    def peak(**more):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        result = partwise.run("fedavg", **settings, **more)
        return result, torch.cuda.max_memory_reserved()

    (narrow, little), (_, wide) = peak(block=2), peak()
    assert wide > 1.5 * little, "or there is nothing to halve"
    torch.cuda.set_per_process_memory_fraction((wide + little) / 2 / torch.cuda.get_device_properties(0).total_memory)
    halved, _ = peak()
    assert 2 <= halved.simulation.engine.caller.block < 24
    for name, copies in narrow.simulation.server.copies.items():
        assert torch.allclose(copies.values, halved.simulation.server.copies[name].values, rtol=0, atol=1e-7), name


def test_a_model_trained_on_cuda_predicts_on_the_cpu():
    result = partwise.run("fedper", data="made", clients=4, partition="iid", rounds=3, lr=0.1, batch=16, device="cuda")
    federation = result.simulation.federation
    x, y = federation.source.x[federation.test[1]], federation.source.y[federation.test[1]]
    accuracy = (result.models[1](x).argmax(1) == y).double().mean()
    assert float(accuracy) == pytest.approx(result.clients[1]["received"], abs=0.02)
