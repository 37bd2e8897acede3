"""Faults 46 and 47: whatever ends a run, its workers end with it, soon, and nobody is left waiting."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 240  # seconds until a test gives up: a slow machine, not a slow end
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")

# A step never ends, and each worker that has begun one leaves a file.
ENDLESS = """
import multiprocessing, os, pathlib
from partwise import ALL, Method, Move, Phase

class Endless(Method):
    share = {"*": ALL}

    def phases(self):
        return Phase(Move("*", "loss_of_time"))

    def loss_of_time(self, net, b, me):
        if multiprocessing.parent_process():
            pathlib.Path(f"begun-{os.getpid()}").touch()
            while True:
                b.x.sum()
        return b.ce(net(b.x))
"""
# Each worker stays where it has just been started, before any of the engine's code is there.
SLEEPING = """
import os, pathlib, signal, sys
if "--multiprocessing-fork" in sys.orig_argv:
    pathlib.Path(f"begun-{os.getpid()}").touch()
    while True:
        signal.pause()
"""
DATA = ("--data", "made", "--clients", "4")
COMMAND = ("run", "endless.py", *DATA, "--rounds", "2", "--engine", "workers", "--workers", "2")


def until(condition):
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def members(session):
    """The processes of a session; those that are dead and not fetched yet are none."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended meanwhile
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def begun(tmp_path):
    """Start a run in a session of its own, and wait until it has left so many files of a name."""
    runs = []

    def begin(command, pattern, number):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "partwise", *command]
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **pipes)
        runs.append(run)
        until(lambda: len(list(tmp_path.glob(pattern))) == number or run.poll() is not None)
        assert run.poll() is None, run.communicate()
        assert len(members(run.pid)) >= 3
        return run

    yield begin
    for run in runs:
        for pid in members(run.pid):
            os.kill(pid, signal.SIGKILL)
        run.communicate()


@pytest.mark.parametrize(
    ("times", "workers", "out"),
    [(1, "", ()), (2, "", ("--out", "x")), (5, "", ("--out", "x")), (5, SLEEPING, ("--out", "x"))],
    ids=["once", "twice", "five times", "five times as they start"],
)
def test_fault_46_ctrl_c_any_number_of_times_ends_a_run_and_its_workers(times, workers, out, begun, tmp_path):
    """A terminal sends it to every process; where there is a folder, the first one asks for an end of the round."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    (tmp_path / "sitecustomize.py").write_text(workers)
    run = begun([*COMMAND, *out], "begun-*", 2)
    for _ in range(times):
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGINT)
        time.sleep(0.1)  # as fast as somebody types: signals that come together are one
    _, told = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130
    assert told.splitlines()[-1] == "error: interrupted" and "Traceback" not in told
    until(lambda: not members(run.pid))
    assert not (tmp_path / "x" / ".lock").exists()


def test_fault_47_workers_end_by_themselves_when_the_main_process_is_killed(begun, tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    run = begun(COMMAND, "begun-*", 2)
    run.kill()
    run.communicate(timeout=PATIENCE)  # a pipe ends when nobody holds it open
    until(lambda: not members(run.pid))


def test_workers_leave_it_to_the_main_process_when_all_of_them_are_asked_to_end(begun, tmp_path):
    """Schedulers of clusters send SIGTERM to every process of a job."""
    rounds = ("--rounds", "100000", "--checkpoint-every", "0", "--out", "x")
    run = begun(["run", "fedavg", *DATA, *rounds, "--engine", "workers", "--workers", "2"], "x/checkpoints", 1)
    os.killpg(run.pid, signal.SIGTERM)
    _, told = run.communicate(timeout=PATIENCE)
    assert run.returncode == 143 and "continue with --resume" in told.splitlines()[-1]
    until(lambda: not members(run.pid))
