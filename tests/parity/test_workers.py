"""Workers are the loop, bit for bit: for every method, however many there are, from any script."""

import os
import re
import subprocess
import sys
import tempfile

import pytest
import torch
from torch import nn

from partwise import ALL, ConfigError, Method, Move, PartwiseError, Phase, methods
from partwise.engines import loop, shared_memory, tracing, workers
from partwise.engines.tracing import Traced
from partwise.engines.workers import Workers
from partwise.runs import choose
from tests.support.engines import InThisProcess
from tests.support.parity import CLUSTERED, DEEPER, TASK_CASES, stable
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance


@pytest.fixture
def in_this_process(monkeypatch):
    """Jobs of workers run here, after all that would cross processes was pickled: starting some takes seconds."""
    monkeypatch.setattr(Workers, "executor", InThisProcess)


def assert_workers_are_the_loop(method, net, workers=2, task="classes", **settings):
    data, engines = awkward_federation(validated=2, task=task), {"loop": {}, "workers": {"workers": workers}}
    runs = [
        simulate(method, network(net, dropout=0.25, task=task), data, engine, **settings, **own)
        for engine, own in engines.items()
    ]
    assert [run.notes[0] for run in runs] == ["engine: loop on cpu", "engine: workers on cpu"]
    assert distance(*runs) == 0


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("method", [*methods.names(), CLUSTERED])
def test_workers_are_the_loop(method):
    net = "cnn+bn" if method == "fedbn" else "mlp of two layers" if method in {*DEEPER, CLUSTERED} else "mlp"
    rounds = 5 if method == CLUSTERED else 2  # it has two stages
    assert_workers_are_the_loop(method, net, **{**stable(method, net), "rounds": rounds})


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("task", "method", "net"), TASK_CASES)
def test_workers_are_the_loop_in_other_tasks(task, method, net):
    assert_workers_are_the_loop(method, net, **{**stable(method, net, task), "task": task, "rounds": 2})


@pytest.mark.parametrize("method", methods.names())
def test_steps_that_workers_trace_are_the_loops(method, monkeypatch):
    net = "cnn+bn" if method in ("fedbn", "fedavg") else "mlp of two layers"
    settings = {**stable(method, net), "rounds": 2}
    untraced = simulate(method, network(net, dropout=0.25), awkward_federation(validated=2), **settings)
    caller = traces_at_once(monkeypatch)
    traced = simulate(method, network(net, dropout=0.25), awkward_federation(validated=2), **settings)
    assert distance(untraced, traced) == 0
    assert caller.traced.keys() == caller.taken.keys() != set()


def traces_at_once(monkeypatch):
    """Let the loop trace every step, and return what does it."""
    caller = Traced()
    monkeypatch.setattr(tracing, "TRACING_PAYS", 1)
    monkeypatch.setattr(loop, "OneClient", lambda: caller)
    return caller


@pytest.mark.parametrize(
    "number",
    [
        lambda loss, y: float(loss.detach()) > 1,
        lambda loss, y: y.tolist()[0],
        lambda loss, y: len(y.unique()),
    ],
)
def test_a_loss_that_looks_at_numbers_does_not_see_those_of_another_step(number, monkeypatch):
    class Looking(Method):
        share = {"*": ALL}

        def phases(self):
            return Phase(Move("*", "looking"))

        def looking(self, net, b, me):
            loss = b.ce(net(b.x))
            return loss * (1 + number(loss, b.y))

    untraced = simulate(Looking, network("mlp"), rounds=1)
    caller = traces_at_once(monkeypatch)
    assert distance(untraced, simulate(Looking, network("mlp"), rounds=1)) == 0
    assert caller.taken


@pytest.mark.usefixtures("in_this_process")
def test_what_a_method_holds_may_change(tmp_path, monkeypatch):
    (tmp_path / "fickle.py").write_text(
        "from partwise import ALL, Method, Move, Phase\n"
        "class Fickle(Method):\n"
        "    share = {'*': ALL}\n"
        "    def phases(self):\n"
        "        return Phase(Move('*', 'weighted'))\n"
        "    def round(self, server, run):\n"
        "        self.weight = float(server.round % 2)\n"
        "        super().round(server, run)\n"
        "    def weighted(self, net, b, me):\n"
        "        return self.weight * b.ce(net(b.x))\n"
    )
    monkeypatch.setattr(tracing, "TRACING_PAYS", 1)
    one_by_one, workers, auto = (
        simulate(str(tmp_path / "fickle.py"), network("cnn"), engine=engine, rounds=2)
        for engine in ("loop", "workers", "auto")
    )
    assert [row["train_loss"] > 0 for row in one_by_one.history.rows] == [False, True]
    assert auto.engine.caller.traced and distance(one_by_one, workers) == 0 and distance(one_by_one, auto) == 0
    vector = simulate(str(tmp_path / "fickle.py"), network("cnn"), engine="vector", rounds=2)
    assert distance(one_by_one, vector) < 1e-10


@pytest.mark.usefixtures("in_this_process")
def test_samples_are_in_a_file_where_shared_memory_is_too_small(tmp_path, monkeypatch):
    def full(tensor):
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert_workers_are_the_loop("fedper", "cnn", rounds=2)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(PartwiseError, match=r"no room for 0.0 GB of samples in shared memory nor in .*/gone \(No such"):
        simulate("fedavg", network("mlp"), engine="workers", workers=2)


@pytest.mark.usefixtures("in_this_process")
def test_what_finds_no_room_in_shared_memory_is_sent(monkeypatch):
    monkeypatch.setattr(workers, "blocks", lambda sizes: shared_memory.blocks([size // 3 for size in sizes]))
    assert_workers_are_the_loop("fedrep", "cnn+bn", rounds=2, momentum=0.5)


@pytest.mark.usefixtures("in_this_process")
def test_what_a_client_adopted_is_laid_down_once(monkeypatch):
    """Matrices of 64 x 100 and 100 x 4: common to 8 clients that train, then adapt, and bring them back."""
    laid, put = [], shared_memory.Block.put
    monkeypatch.setattr(
        shared_memory.Block, "put", lambda self, tensor: laid.append(tensor.nbytes) or put(self, tensor)
    )
    simulate("fedavg", network("mlp"), engine="workers", workers=2, rounds=1)
    assert sum(size >= 8 * 100 * 4 for size in laid) == 2 * (1 + 8 + 1 + 8)


class Picky(Method):
    """Fails at clients with more than 6 samples."""

    share = {"*": ALL}

    def phases(self):
        return Phase(Move("*", "picky"))

    def picky(self, net, b, me):
        if me.samples > 6:
            raise ValueError("too many")
        return b.ce(net(b.x))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("engine", ["loop", "workers"])
def test_the_error_is_that_of_the_first_client_that_fails(engine):
    """Client 2 has 7 samples; client 7, which workers begin with, has 20."""
    with pytest.raises(PartwiseError, match=r"\(round 1, client 2, phase 1, step 1\): ValueError: too many"):
        simulate(Picky, network("mlp"), engine=engine, rounds=1)


@pytest.mark.parametrize(("workers", "processes"), [(1, False), (3, True)])
def test_nothing_depends_on_their_number(workers, processes, request):
    if not processes:
        request.getfixturevalue("in_this_process")
    assert_workers_are_the_loop("fedrep", "cnn+bn", workers, rounds=2, momentum=0.5, augment="flip,crop:1")


@pytest.mark.usefixtures("in_this_process")
def test_a_schedule_of_another_host_is_made_anew_there():
    assert_workers_are_the_loop("anti", "cnn", host="fedper", unfreeze=(0, 1, 2), rounds=3)


class Odd(nn.Module):
    """A network that holds what cannot be sent."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Flatten()
        self.head = nn.Linear(awkward_federation().source.x[0].numel(), 4)
        self.activation = lambda x: x.tanh()

    def forward(self, x):
        return self.head(self.activation(self.flat(x)))


def test_a_network_that_cannot_be_sent_is_refused_by_its_layer_where_workers_were_asked_for(monkeypatch):
    why = "the network's 'body' (Odd) cannot be sent to other processes"
    with pytest.raises(
        ConfigError, match=rf"^engine = workers cannot run this: {re.escape(why)} \(is a lambda or local class in it"
    ):
        simulate("fedavg", Odd(), engine="workers", rounds=1)
    odd = nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1), Odd()))  # with a convolution, for which workers are chosen
    monkeypatch.setattr(choose, "WORKERS_PAY", 0)
    run = simulate("fedavg", odd, engine="auto", workers=2, rounds=1)
    assert run.notes[0].startswith("engine: loop, because the network's '0.1' (Odd) cannot be sent")


def test_a_worker_that_dies_ends_the_run_with_one_line(tmp_path):
    (tmp_path / "deadly.py").write_text(
        "import multiprocessing, os\n"
        "from partwise import ALL, Method, Move, Phase\n"
        "class Deadly(Method):\n"
        "    share = {'*': ALL}\n"
        "    def phases(self):\n"
        "        return Phase(Move('*', 'die'))\n"
        "    def die(self, net, b, me):\n"
        "        if multiprocessing.parent_process():\n"
        "            os._exit(1)\n"
        "        return b.ce(net(b.x))\n"
    )
    with pytest.raises(PartwiseError, match="a worker process died"):
        simulate(str(tmp_path / "deadly.py"), network("mlp"), engine="workers", workers=2)


def test_a_script_is_not_run_again_and_ctrl_c_while_workers_start_is_for_it_alone(tmp_path):
    """A terminal sends it to every process; here each worker gets it as soon as Python runs in it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif '--multiprocessing-fork' in sys.argv:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "script.py").write_text(
        "import partwise\n"
        "print('here')\n"
        "result = partwise.run('fedavg', data='made', clients=4, rounds=1, engine='workers', workers=2)\n"
        "print(result.notes[0])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.stdout, done.stderr) == ("here\nengine: workers on cpu\n", "")
