"""Law D2 for real: a server and three nodes as processes of their own, TLS and node keys between them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from partwise import load_model
from partwise.federation.protocol.launch import Members, federated, write_models
from partwise.federation.transport.keys import make_keys
from partwise.federation.transport.link import FlowerLink
from partwise.federation.transport.over_flower import OverFlower
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.result import Result
from tests.support.listed import LISTED
from tests.support.nodes import OPEN

HOSTS = ["0-1", "2-3", "4-5"]
SETTINGS = {"data": "digits", "clients": 6, "partition": "dir:0.3", "rounds": 3, "lr": 0.05, "batch": 16}
SETTINGS |= {"dtype": "float64", "model": "tabular", "threads": 1, "eval_every": 3}
OWN = {"fed3p2p": {"coordinators_a": 2, "coordinators_b": 2}, "fedbn": {"model": "cnn-digits", "batch_norm": True}}
OWN |= {"fedetf": {"personal_rounds": 1}, "dualfed": {"clip_norm": 5.0}}
TASKS = {"numbers": {"bins": [-0.5, 0.5]}, "labels": {}}  # which the server names, and nodes read from files
PATIENCE = 240  # seconds for all to be there, on a busy machine


@dataclass
class Running:
    """A federation of processes."""

    folder: Path
    address: str
    processes: dict[str, subprocess.Popen]
    host: str = "127.0.0.1"  # on which the server listens

    def node(self, number: int, address: str | None = None, within: Sequence[str] = ()) -> None:
        """Start a node, or start it again; `within` begins its command."""
        name, keys = f"n{number}", self.folder / "keys"
        allowed = {**OPEN, "data": [f"{task}.npz" for task in TASKS]}
        allow = "\n".join(f"{key} = {json.dumps(value)}" for key, value in allowed.items())
        text = f'name = "{name}"\nhosts = "{HOSTS[number]}"\n[run]\nthreads = 1\n[allow]\n{allow}\n'
        (self.folder / f"{name}.toml").write_text(text)
        command = ["node", f"{name}.toml", "--server", address or self.address]
        command += ["--ca", f"{keys / 'ca.pem'}", "--key", f"{keys / 'silos' / name}.key"]
        self.start(name, *command, within=within)

    def start(self, name: str, *arguments: str, within: Sequence[str] = ()) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            command = [*within, sys.executable, "-m", "partwise", *arguments]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def serve(self) -> None:
        """Start the server, or start it again where it was."""
        self.start("serve", "serve", "keys", "--address", self.address or f"{self.host}:0")

    def begun(self) -> None:
        """Start the server for the first time, and note where it is."""
        self.serve()
        until(lambda: "at " in (self.folder / "serve.log").read_text(), "the server has begun", self)
        self.address = (self.folder / "serve.log").read_text().split("at ")[-1].split()[0]

    def end(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def members(self, link: FlowerLink, config, run: str) -> Members:
        several = {f"n{number}": 2 for number in range(len(HOSTS))}
        return Members(OverFlower(link), run, config, self.online(link), PATIENCE, PATIENCE, several)

    def online(self, link: FlowerLink) -> list[str]:
        names = [f"n{number}" for number in range(len(HOSTS))]
        until(lambda: set(names) <= set(link.nodes()), "all nodes are online", self)
        return names

    def logs(self) -> str:
        logs = sorted([*self.folder.glob("*.log"), *self.folder.glob("*-state/flower/*.log")])
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in logs)


def until(true, what: str, running: Running) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        ended = [name for name, process in running.processes.items() if process.poll() is not None]
        assert not ended, f"{ended} ended while waiting until {what}\n{running.logs()}"
        assert time.monotonic() < deadline, f"not in time: {what}\n{running.logs()}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    make_keys(folder / "keys", ["localhost"], [f"n{number}" for number in range(len(HOSTS))])
    for task in TASKS:
        write_task(folder, task)
    running = Running(folder, "", {})
    try:
        running.begun()
        for number in range(len(HOSTS)):
            running.node(number)
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def link(running):
    with ExitStack() as stack:
        until(lambda: (running.folder / "keys" / "state" / "superlink.json").exists(), "it is served", running)
        yield stack.enter_context(FlowerLink(running.folder / "keys"))


def assert_equals_the_simulation(method, running, link):
    config, run = make_config(method, {**SETTINGS, **OWN.get(method, {})}), f"run-{method}"
    here = Result(prepare(config).run())
    there = federated(config, running.members(link, config, run)).run()
    assert_same_copies(here.simulation, there)
    assert write_models(there) == dict.fromkeys(there.engine.nodes.nodes, 2)
    assert_models(here, running, run)
    assert not there.server.events


def assert_same_copies(here, there):
    for name, copies in here.server.copies.items():
        theirs = there.server.copies[name].values
        assert torch.allclose(copies.values, theirs, rtol=0, atol=1e-10), name


def write_task(folder, task):
    """Write made-up samples with two numbers or labels, some of them unknown."""
    random = np.random.default_rng(5)
    x = random.normal(size=(240, 6)).astype(np.float32)
    y = x[:, :2] + x[:, 2:4]
    y = (y > 0).astype(np.float64) if task == "labels" else y.astype(np.float64)
    y[::7, 0] = np.nan
    np.savez(folder / f"{task}.npz", x=x, y=y)


def assert_models(here, running, run):
    """The models that nodes have written are those of the simulation, and nodes can load them."""
    for client, model in here.models.items():
        node = running.folder / f"n{client // 2}-state"
        loaded = load_model(node / "runs" / run, client).personal
        for name, value in model.own.items():
            assert torch.allclose(value, loaded.own[name], rtol=0, atol=1e-10), (client, name)
        x = here.federation.source.x[here.federation.test[client]]
        assert torch.allclose(model(x), loaded(x), rtol=0, atol=1e-10), client


def test_law_d2_fedavg_and_a_relay_over_flower(running, link):
    for method in ("fedavg", "fed3p2p"):
        assert_equals_the_simulation(method, running, link)


@pytest.mark.parametrize("method", sorted(set(LISTED) - {"central", "fedavg", "fed3p2p"}))
def test_law_d2_every_method_over_flower(method, running, link):
    assert_equals_the_simulation(method, running, link)


@pytest.mark.parametrize("task", TASKS)
def test_law_d2_a_task_over_flower(task, running, link):
    data = {"data": f"{running.folder / f'{task}.npz'}", "task": task, "partition": "iid", **TASKS[task]}
    config = make_config("fed3p2p", {**SETTINGS, **OWN["fed3p2p"], **data})
    here = prepare(config).run()
    there = federated(config, running.members(link, config, f"run-{task}")).run()
    assert_same_copies(here, there)
    assert not there.server.events
    mine, theirs = (each.history.rounds[-1].at("received").mean for each in (here, there))
    assert theirs == pytest.approx(mine, rel=1e-9)


# ---- processes that are killed at random moments


class Restless(threading.Thread):
    """Kills a process again and again, and starts it at once, until it has been enough."""

    def __init__(self, times: int, kill):
        super().__init__(daemon=True)
        self.times, self.kill, self.done, self.over = times, kill, 0, threading.Event()

    def run(self) -> None:
        random = np.random.default_rng(0)
        while self.done < self.times and not self.over.wait(float(random.uniform(1, 6))):
            self.kill()
            self.done += 1


def assert_calm(config, run, running, killing, times):
    """A run of which somebody is killed meanwhile ends as the simulation does."""
    here = Result(prepare(config).run())
    with FlowerLink(running.folder / "keys") as link:
        simulation = federated(config, running.members(link, config, run))
        restless = Restless(times, killing)
        restless.start()
        simulation.run()
        restless.over.set()
        restless.join()
        assert restless.done
        assert not simulation.server.events
        write_models(simulation)
    assert_models(here, running, run)
    for name, copies in here.simulation.server.copies.items():
        assert torch.allclose(copies.values, simulation.server.copies[name].values, rtol=0, atol=1e-10), name


def test_fault_33_nodes_that_are_killed_come_back_with_their_clients(running):
    def killing() -> None:
        running.kill("n1")
        running.node(1)

    assert_calm(make_config("fedper", {**SETTINGS, "rounds": 12}), "killed-nodes", running, killing, 3)


def test_fault_41_a_server_that_is_killed_and_started_again_goes_on(running):
    def killing() -> None:
        running.kill("serve")
        running.serve()

    assert_calm(make_config("scaffold", {**SETTINGS, "rounds": 12}), "killed-server", running, killing, 2)


def test_fault_41_a_run_that_is_killed_goes_on_bit_for_bit(running, tmp_path):
    settings = {key: value for key, value in SETTINGS.items() if key != "eval_every"}
    config = make_config("fedper", {**settings, "rounds": 8})
    here = Result(prepare(config).run())
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = [sys.executable, "-m", "partwise", "launch", f"{tmp_path / 'run.toml'}", "--folder", "keys", "--resume"]
    command += ["--out", f"{tmp_path / 'out'}", "--wait", f"{PATIENCE}", "--timeout", f"{PATIENCE}"]
    command += [word for number in range(len(HOSTS)) for word in ("--hosts", f"n{number}=2")]
    metrics, kills = tmp_path / "out" / "metrics.jsonl", 0

    def rounds() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    for target in (2, 5):  # rounds after which it is killed
        with (
            open(tmp_path / "launch.log", "ab") as log,
            subprocess.Popen(command, cwd=running.folder, stdout=log, stderr=log) as process,
        ):
            while rounds() < target and process.poll() is None:
                time.sleep(0.02)
            process.kill()
            kills += process.wait() == -signal.SIGKILL
    with open(tmp_path / "launch.log", "ab") as log:
        code = subprocess.run(command, cwd=running.folder, stdout=log, stderr=log).returncode
    assert code == 0 and kills == 2, (tmp_path / "launch.log").read_text()[-3000:]
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, 9))
    for row, other in zip(here.metrics, rows, strict=True):
        assert row["received"]["acc_mean"] == pytest.approx(other["received"]["acc_mean"], abs=1e-12)
    assert_models(here, running, json.loads((tmp_path / "out" / "federation.json").read_text())["run"])


# ---- nodes with a network of their own


def commands(*lines: str) -> None:
    for line in lines:
        subprocess.run(line.split(), check=True, capture_output=True)


@pytest.fixture
def networks():
    """A namespace for each node, joined to this one by a cable; skipped where the machine does not allow it."""
    names = [f"partwise-{os.getpid()}-{number}" for number in range(len(HOSTS))]
    made = []
    try:
        for number, name in enumerate(names):
            here, there = f"198.51.100.{4 * number + 1}", f"198.51.100.{4 * number + 2}"  # addresses for documentation
            cable = f"pw{os.getpid() % 10000}-{number}"
            try:
                commands(f"ip netns add {name}")
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("no network namespaces on this machine")
            made.append(name)
            commands(
                f"ip link add {cable} type veth peer name node netns {name}",
                f"ip addr add {here}/30 dev {cable}",
                f"ip link set {cable} up",
                f"ip netns exec {name} ip addr add {there}/30 dev node",
                f"ip netns exec {name} ip link set node up",
                f"ip netns exec {name} ip link set lo up",
            )
        yield names
    finally:
        for name in made:
            commands(f"ip netns del {name}")


def test_law_d2_nodes_in_networks_of_their_own(networks, tmp_path):
    hosts = [f"198.51.100.{4 * number + 1}" for number in range(len(HOSTS))]
    make_keys(tmp_path / "keys", ["localhost", *hosts], [f"n{number}" for number in range(len(HOSTS))])
    running = Running(tmp_path, "", {}, "0.0.0.0")
    try:
        running.begun()
        port = running.address.rpartition(":")[2]
        for number, (name, host) in enumerate(zip(networks, hosts, strict=True)):
            running.node(number, f"{host}:{port}", ["ip", "netns", "exec", name])
        with FlowerLink(tmp_path / "keys") as link:
            assert_equals_the_simulation("fedper", running, link)
    finally:
        running.end()
