"""`partwise keys`, `serve`, `node` and `launch`."""

import json
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partwise.commands.running import progress_of
from partwise.errors import ConfigError, PartwiseError, Problems, needed, printable, unknown
from partwise.federation.protocol.claims import parse_hosts
from partwise.federation.protocol.elsewhere import together
from partwise.federation.protocol.launch import Members, federated, on_server, write_models
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.nodes import POLL_INTERVAL
from partwise.federation.protocol.preview import check_here, preview
from partwise.federation.protocol.silo import read_silo
from partwise.records.lock import Lock
from partwise.records.rounds import MomentScores, RoundRecord
from partwise.records.summaries import RunSummary
from partwise.reporting import tables
from partwise.runs.config import Config, label, make_config
from partwise.runs.folder import RunFolder, folder_inside
from partwise.runs.pace import Interrupts, Pace
from partwise.runs.simulation import Progress, Simulation
from partwise.runs.toml import read_settings
from partwise.writing import make_folder, write

if TYPE_CHECKING:
    from partwise.federation.transport.link import FlowerLink

log = logging.getLogger(__name__)

NAMES_FILE = "federation.json"  # in a run's folder: what nodes call the run
LAUNCH = "launch"  # folder in that of the keys: the lock of the run that is launched
EMPTY = f"{tables.NOTHING}: not computed over all silos; clients.csv has each silo's own, if its scores leave"
NODE_SHUTDOWN_SECONDS = 3.5  # seconds for a node to end what it does


def make_keys(
    folder: str,
    server: tuple[str, ...],
    public: tuple[str, ...],
    silo: tuple[str, ...],
    own: str | None,
    handed_over: tuple[str, ...],
) -> None:
    """Make a federation's keys, those of further silos, or a silo's own; or remove those that were handed over."""
    needed("flwr", "flower")
    from partwise.federation.transport import keys

    if sum(map(bool, (server or public or silo, own, handed_over))) > 1:
        raise ConfigError("--own and --handed-over each stand alone: the one is for a silo, the other for later")
    place = Path(folder).expanduser()
    if own:
        made = keys.make_own_keys(place, own)
    elif handed_over:
        for path in keys.remove_handed_over(place, handed_over):
            click.echo(f"removed {path}")
        return
    else:
        hosts = [host for each in server for host in each.split(",") if host]
        made = keys.make_keys(place, hosts, silo, dict(silo_and_file(each) for each in public))
    for path in made:
        click.echo(path)


def silo_and_file(public: str) -> tuple[str, Path]:
    """Return the silo and the file of `NAME=FILE`."""
    name, equals, file = public.partition("=")
    if not (name and equals and file):
        raise ConfigError(f"--public {public}: NAME=FILE is needed, such as Graz=Graz.pub")
    return name, Path(file).expanduser()


def serve(folder: str, address: str, insecure: bool, plain: bool, debug: bool) -> None:
    """Serve a federation until Ctrl-C."""
    needed("flwr", "flower")
    from partwise.federation.transport import superlink

    def begun(where: str) -> None:
        click.echo(f"silos reach this server at {where}", err=True)

    superlink.serve_superlink(
        Path(folder).expanduser(), address, plain=plain, insecure=insecure, debug=debug, begun=begun
    )


def check_node(silo: str, task: str | None, **connection: str | bool | None) -> None:
    """Show what would leave a silo in runs of a task; None: of what the labels look like."""
    if given := sorted(f"--{name}" for name, value in connection.items() if value):
        raise ConfigError(f"--check connects to nobody: leave out {', '.join(given)}")
    for line in preview(read_silo(Path(silo)), task or "auto"):
        click.echo(printable(line))


def run_node(
    silo: str, server: str | None, ca: str | None, key: str | None, insecure: bool, plain: bool, debug: bool
) -> None:
    """Take part with a silo's data until Ctrl-C."""
    if server is None:
        raise ConfigError("--server is missing: HOST:PORT, by which the server is reached; --check goes without")
    needed("flwr", "flower")
    from partwise.federation.transport import supernode

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.INFO if debug else logging.WARNING)
    own = read_silo(Path(silo))
    check_here(own)
    node, stop = Node(own), threading.Event()

    def ending(*_: Any) -> None:
        """Say goodbye; a request that is carried out meanwhile is left, for all that was answered is on the disk."""
        if not stop.is_set():
            stop.set()
            timer = threading.Timer(NODE_SHUTDOWN_SECONDS, os._exit, [0])
            timer.daemon = True
            timer.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ending)
    click.echo(f"{own.name} will connect to {server}; its state and models lie in '{own.folder}'", err=True)
    supernode.run_supernode(
        lambda content, _: node.handle(content),
        server,
        own.name,
        own.folder / "flower",
        ca=None if ca is None else Path(ca).expanduser(),
        key=None if key is None else Path(key).expanduser(),
        plain=plain,
        insecure=insecure,
        most=own.limit.message,
        debug=debug,
        stop=stop,
    )


def launch(
    file: str,
    folder: str,
    out: str,
    silos: str | None,
    hosts: tuple[str, ...],
    most_samples: int | None,
    wait: float,
    timeout: float,
    grace: float,
    overwrite: bool,
    resume: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Run over the silos of a federation that is served here."""
    needed("flwr", "flower")
    config, may_host = on_server(read_config(Path(file))), parse_hosts(hosts)
    place = folder_inside(out)
    kept = RunFolder(place, config, overwrite, resume)
    if kept.complete:
        tables.print_table(silos_table(kept.summary()))
        return
    from partwise.federation.transport.over_flower import OverFlower

    interrupts = Interrupts()
    kept.checkpoints.keep_to(Pace(0.0, interrupts))  # after every round: nodes do not remember many
    deadline = time.monotonic() + wait
    with interrupts.noted(), connected(Path(folder).expanduser(), deadline, debug) as link:
        names = silos.split(",") if silos else []
        nodes = wait_for_silos(link, names, deadline)
        strange = [name for name in may_host if name not in nodes]
        if strange:
            raise ConfigError(f"--hosts: {unknown('silo', strange[0], nodes)}")
        members = Members(
            OverFlower(link), run_name(place, resume), config, nodes, timeout, grace, may_host, most_samples
        )
        simulation = federated(config, members, kept.made_with)
        for note in () if quiet else (*simulation.notes, *kept.notes):
            click.echo(note, err=True)
        titles = [label(config.name), *members.nodes]
        with progress_of(quiet)(titles, simulation.total, config.run.metric) as bars:
            result = kept.record(simulation, partial(advance, simulation, members, bars))
        written = write_models(simulation)
    tables.print_table(silos_table(result.summary))
    click.echo(f"results: {out}")
    click.echo(f"the run's id, by which silos call it: {members.run}")
    for node, number in written.items():
        click.echo(f"{node} wrote {number} model{'s' * (number != 1)} into its own folder")


def silos_table(summary: RunSummary) -> tables.Cells:
    """Return the table of a run over silos; it says why some cells are empty."""
    cells = tables.one_run(summary)
    return replace(cells, notes=[*cells.notes, EMPTY])


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let no other run be launched meanwhile: a node holds one at a time, and each would throw the other out."""
    lock = Lock(folder / LAUNCH)
    make_folder(lock.folder)
    try:
        lock.check()
    except ConfigError:
        raise ConfigError(f"'{folder}' runs a launch already: {lock.who()}; wait for its end") from None
    with lock.held():
        yield


@contextmanager
def connected(folder: Path, deadline: float, debug: bool) -> "Iterator[FlowerLink]":
    """Connect to a server, which may still be starting."""
    from partwise.federation.transport.superlink import Served

    while True:
        try:
            Served.of(folder)
            break
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL)
    from partwise.federation.transport.link import FlowerLink
    from partwise.federation.transport.session import stop_runs

    with alone(folder):
        stop_runs(folder)
        with FlowerLink(folder, debug) as link:
            yield link


def advance(simulation: Simulation, members: Members, bars: Sequence[Progress], record: RoundRecord) -> None:
    """Show a round: that of all, and how each silo's clients do."""
    bars[0](record)
    scores = simulation.history.scores.get("received", {}) if "received" in record.moments else {}
    for node, bar in zip(members.nodes, bars[1:], strict=True):
        own = [client for client, host in enumerate(members.hosts) if host == node]
        tested = [scores[client] for client in own if client in scores]
        score = together(tested, simulation.program.task.kind)
        moments = {} if score is None else {"received": MomentScores(len(tested), score)}
        participants = [client for client in record.participants if client in own]
        bar(RoundRecord(record.round, participants=participants, moments=moments, seconds=record.seconds))


def wait_for_silos(link: "FlowerLink", names: list[str], deadline: float) -> list[str]:
    """Wait for silos to be online: those that are named, or else all that have a key."""
    from partwise.federation.transport.keys import public_keys

    known = sorted(public_keys(link.folder).values())
    for name in names:
        if known and name not in known:
            raise ConfigError(unknown("silo", name, known))
    wanted = names or known
    while True:
        online = sorted(link.nodes())
        missing = [name for name in wanted if name not in online]
        if not missing and online:
            return wanted or online
        if time.monotonic() > deadline:
            raise PartwiseError(f"not online yet: {', '.join(missing) or 'any silo'}; --wait says how long to wait")
        time.sleep(POLL_INTERVAL)


def run_name(folder: Path, resume: bool) -> str:
    """Return the run's name on nodes; each new run has a new one, so that nodes do not mix it with an earlier run."""
    path = folder / NAMES_FILE
    if resume and path.is_file():
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["run"])
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"'{path}' is damaged; --overwrite begins again") from None
    name = secrets.token_hex(8)
    make_folder(folder)
    write(path, json.dumps({"run": name}).encode())
    return name


def read_config(path: Path) -> Config:
    """Return the configuration of a run from its file."""
    problems = Problems()
    written = read_settings(path, problems)
    if written.method is None:
        problems.add(f"'{path}': [method] must say its name, as name = \"fedper\"")
    problems.tell()
    assert written.method is not None
    return make_config(written.method, written.settings, written.places)
