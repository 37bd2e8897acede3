"""What a node does with a message: it joins a run, agrees on what the data mean, trains its clients, and answers."""

import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from partwise.data.schema import part_of
from partwise.data.source import Federation
from partwise.errors import ConfigError, DataError, PartwiseError, one_line
from partwise.federation.protocol.commits import Commits, Turn
from partwise.federation.protocol.handshake import Agreed, schema_of
from partwise.federation.protocol.leaving import averaged, release_of, scored, with_loss
from partwise.federation.protocol.record import Record, check_ranges
from partwise.federation.protocol.rehearsal import rehearsed
from partwise.federation.protocol.relays import next_hop
from partwise.federation.protocol.releases import Releases
from partwise.federation.protocol.repeats import Repeats
from partwise.federation.protocol.silo import Silo
from partwise.federation.protocol.size import check_size
from partwise.federation.protocol.software import check_same, software
from partwise.federation.protocol.told import check_classes, describe, kept_here, log_unnamed_texts, told_moments
from partwise.records.wire import packed, question_of, read_request, unpacked, updates_content
from partwise.rounds.messages import METHOD_JOBS, Request, Updates
from partwise.rounds.mixing import Copies
from partwise.rounds.server import filtered
from partwise.runs.config import Config, make_config
from partwise.runs.prepare import prepare
from partwise.runs.result import personal_model
from partwise.runs.saving import ModelFiles
from partwise.runs.simulation import Simulation, switches
from partwise.version import __version__
from partwise.writing import make_folder, write

log = logging.getLogger(__name__)

PROTOCOL = 5
MANY = 16  # clients of an answer whose mean travels in place of all; fewer are cheap, and the server can judge each
RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
FINGERPRINT = "data.sha256"  # in a run's folder: of the data with which it began here


class Forgotten(PartwiseError):
    """A run that this node knows nothing of."""


class Node:
    """A silo, or a machine with simulated clients. It outlives runs, and holds one at a time."""

    def __init__(self, silo: Silo):
        self.silo = silo
        self.joining: tuple[str, Config, Any] | None = None  # a run that is not agreed on yet, and the data for it
        self.run: RunOnNode | None = None

    @property
    def releases(self) -> Releases:
        """Return the ledger as it lies on the disk."""
        return Releases(self.silo.folder, self.silo.allow, self.silo.name)

    def handle(self, message: bytes) -> bytes:
        """Answer a message; whatever goes wrong is a line of the answer."""
        try:
            content = unpacked(message, self.silo.limit)
            kinds: dict[str, Callable[[dict[str, Any]], bytes]] = {
                "join": self.join,
                "moments": self.moments,
                "begin": self.begin,
                "request": self.request,
                "models": self.models,
            }
            kind = content["kind"]
            if kind not in kinds:
                raise PartwiseError(f"partwise {__version__} on this node does not know messages of the kind '{kind}'")
            begun = time.monotonic()
            answer = kinds[kind](content)
            log.info("%s", told(content, len(message), len(answer), time.monotonic() - begun))
            return answer
        except PartwiseError as error:
            log.warning("refused: %s", one_line(error))
            forgot = {"forgot": True} if isinstance(error, Forgotten) else {}
            return packed({"refuses": one_line(error), **forgot})

    # ---- before the first round

    def join(self, content: dict[str, Any]) -> bytes:
        """Look whether a run is allowed here, all of it, and only then say what the data are."""
        if content["protocol"] != PROTOCOL:
            raise ConfigError(f"the server speaks protocol {content['protocol']}, partwise {__version__} {PROTOCOL}")
        methods = [content["method"], content["settings"].get("host")]
        check_same(content["software"], software(methods), self.silo.name)
        run, settings = content["run"], content["settings"]
        if not RUN.fullmatch(run):
            raise ConfigError("a run's name is made of letters, digits, _ and -: it is that of a folder here")
        self.releases.check_run(run)
        name = self.silo.method(content["method"], content["file"], settings.get("host"))
        config = self.silo.config(make_config(name, settings))
        with kept_here(self.silo):
            federation = self.silo.federation(config)
        self.check_data(run, federation)
        self.silo.check_sizes(federation)
        check_ranges(self.silo, federation.source)
        with kept_here(self.silo):
            record = Record(self.silo, federation, config) if self.silo.hosts is None else None
            told = describe(federation, record, self.silo.allow.names)
        silos = content.get("silos", 1)
        self.silo.allow.check_silos(silos, self.silo.name)
        check_size(config, federation.source, self.silo.most_bytes, self.silo.name)
        self.silo.allow.check(rehearsed(config, told, silos), self.silo.name)
        if record is not None:
            record.write()
        self.joining = run, config, federation
        return packed({**told, "min_clients": self.silo.allow.min_clients})

    def check_data(self, run: str, federation: Federation) -> None:
        """Refuse other data than those with which a run began here: training samples could now be test samples.

        The server learns that they differ, not how; this node's own log says what to do.
        """
        path = self.silo.folder / "runs" / run / FINGERPRINT
        if path.is_file() and path.read_bytes() != federation.fingerprint().encode():
            log.warning(
                "the data, or their division into training, validation and test samples, changed since run %s began "
                "here. Put them back as they were, or have the server begin a new run. Their former SHA-256 is in '%s'",
                run,
                path,
            )
            raise DataError(f"the data of {self.silo.name} are not those with which the run began")

    def moments(self, content: dict[str, Any]) -> bytes:
        """Tell the moments of this node's training samples by which features are standardised, and nothing finer."""
        _, config, federation = self.joined(content["run"])
        with kept_here(self.silo):
            told = told_moments(federation, Agreed(**content["agreed"]), self.silo, config)
        self.releases.begin(content["run"], config, True)
        return packed({"moments": told})

    def begin(self, content: dict[str, Any]) -> bytes:
        """All is agreed on: prepare the run, or find it as it was left."""
        run, config, federation = self.joined(content["run"])
        agreed = Agreed(**content["agreed"])
        self.silo.allow.check_company(agreed.hosts, content["min_clients"], self.silo.name)
        check_classes(federation, agreed, self.silo)
        log_unnamed_texts(federation.source, agreed, self.silo)
        with kept_here(self.silo, but=ConfigError):  # also what a method says of samples that do not fit it
            part = part_of(federation, schema_of(agreed), self.silo.name, fill=config.data.missing == "mean")
            check_size(config, part.source, self.silo.most_bytes, self.silo.name)
            simulation = prepare(config, part, secret=unknown() if self.silo.hides(config) else None)
        self.silo.allow.check(simulation, self.silo.name)
        releases = self.releases
        releases.begin(run, config, part.source.standardise)
        self.run = RunOnNode(run, simulation, self.silo, releases)
        kept = self.run.folder / FINGERPRINT
        if not kept.is_file():
            write(kept, federation.fingerprint().encode(), durable=True)
        return packed({"network": network_of(simulation)})

    def joined(self, run: str) -> tuple[str, Config, Any]:
        if self.joining is None or self.joining[0] != run:
            raise PartwiseError("this node has not joined the run")
        return self.joining

    # ---- rounds

    def request(self, content: dict[str, Any]) -> bytes:
        return self.running(content).answers(content)

    def models(self, content: dict[str, Any]) -> bytes:
        """The run is over: write every client's model into this node's own folder."""
        return self.running(content).write_models(content)

    def running(self, content: dict[str, Any]) -> "RunOnNode":
        if self.run is None or self.run.name != content["run"]:
            raise Forgotten("this node was started again: it must join the run first")
        return self.run


class RunOnNode:
    """One run, as far as this node's clients go."""

    def __init__(self, name: str, simulation: Simulation, silo: Silo, releases: Releases):
        self.name, self.simulation, self.silo = name, simulation, silo
        self.folder = silo.folder / "runs" / name
        self.commits = Commits(self.folder / "state", simulation.engine.store)
        self.releases = releases
        people = silo.hosts is None and silo.hides(
            simulation.config
        )  # whom noise protects; simulated clients need none
        self.repeats = Repeats(silo.folder, simulation, silo.name) if people else None
        self.method = dict(vars(simulation.config.method))  # what it holds before the server tells of changes
        self.copies: dict[str, Copies] = {}  # the newest that came
        self.digests: dict[str, str] = {}

    def answers(self, content: dict[str, Any]) -> bytes:
        """Answer a request, and those that will follow it in a relay as long as the model stays on this node."""
        first = answer = self.answer(content)
        ahead: dict[str, Tensor] = {}
        for hop in content["onward"]:
            following = next_hop(content, self.copies, unpacked(answer), hop)
            if following is None:
                break
            content, answer = following, self.answer(following)
            ahead[question_of(content)] = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
        return packed({**unpacked(first), "ahead": ahead}) if ahead else first

    def answer(self, content: dict[str, Any]) -> bytes:
        """Carry out a request, or answer again what was answered before."""
        keeps, turn, question = content["request"]["job"] in METHOD_JOBS, turn_of(content), question_of(content)
        if keeps and (answer := self.commits.answered(turn, question)) is not None:
            self.take(content)
            return answer
        (self.commits.go_back if keeps else self.commits.stand)(turn)
        try:
            request = self.read(content, turn)
            if request is None:
                return packed({"lacks": self.commits.stages})
            lost = [k for k in request.clients if request.times.get(k) and self.simulation.engine.store.row[k] < 0]
            answer = packed({**self.made(content, request), "lost": lost if keeps else []})
            if keeps:
                self.commits.put(turn, question, answer)
        except Exception:
            self.commits.rebuild(self.commits.files())  # whoever trained and could not be written down has not trained
            raise
        return answer

    def made(self, content: dict[str, Any], request: Request) -> dict[str, Any]:
        """Return the answer to a request, once the ledger has it: the one that was given to it before, or a new one."""
        repeats = self.repeats if request.job in METHOD_JOBS else None
        if repeats is None:
            return self.noted(content, request)
        question = repeats.question(content, request)
        if (known := repeats.known(question)) is not None:
            return repeats.again(known, request)
        before, answer = repeats.state(request.clients), self.noted(content, request)
        if answer["updates"]["parts"] or answer["updates"]["extras"]:  # else nothing is drawn that could be averaged
            repeats.keep(question, answer, before, request.clients)
        return answer

    def noted(self, content: dict[str, Any], request: Request) -> dict[str, Any]:
        """Carry out a request, and note in the ledger what is about to leave."""
        updates, accountant = self.carried_out(content, request), self.simulation.server.accountant
        self.releases.add(self.name, release_of(updates, request, accountant), accountant)
        return {"updates": updates_content(updates), "number": request.number}

    def read(self, content: dict[str, Any], turn: Turn) -> Request | None:
        """The request of a message, once its stages have begun; None: the server must tell more."""
        if not self.take(content) or content["begun"] != self.commits.stages:
            self.copies, self.digests = {}, {}
            return None
        self.commits.enter(turn, content["stages"])
        copies = {name: self.copies[name] for name in content["digests"]}
        return read_request(content["request"], copies, self.plans)

    @property
    def plans(self) -> Any:
        return self.simulation.server.plans

    def take(self, content: dict[str, Any]) -> bool:
        """Keep the copies that came; False: some that the server thinks are here are not."""
        device = self.simulation.engine.device
        for name, copies in content["copies"].items():
            self.copies[name] = replace(copies, values=copies.values.to(device))
            self.digests[name] = content["digests"][name]
        return all(self.digests.get(name) == digest for name, digest in content["digests"].items())

    def carried_out(self, content: dict[str, Any], request: Request) -> Updates:
        """Train, filter and score."""
        simulation = self.simulation
        if self.silo.hides(simulation.config) and request.job in METHOD_JOBS:
            self.renew_noise()
        updates = self.run(content, request)
        self.silo.allow.check_leaving(updates.extras, simulation.config, self.silo.name)
        if simulation.server.filters is not None and request.job in METHOD_JOBS:
            updates = filtered(simulation.server.filters, request, updates, simulation.server.copies)
        allow, privacy = self.silo.allow, simulation.config.privacy
        scores = scored(updates, simulation.evaluation, allow.telling("scores", privacy), allow.min_test_samples)
        noisy = bool(privacy.upload_noise or privacy.dp_noise)
        told = with_loss(updates, allow.telling("loss", privacy), covered=noisy)
        told = replace(told, scores=scores, logits={}, models={})
        return averaged(simulation.server, request, told) if request.averaged and len(updates.clients) >= MANY else told

    def run(self, content: dict[str, Any], request: Request) -> Updates:
        """Let the engine carry out a request, by the method as the server has it."""
        self.renew_method(content["method"], content["gone"])
        with switches(self.simulation.config.run.deterministic, self.simulation.threads):
            return self.simulation.engine.run(request)

    def renew_method(self, changed: dict[str, Any], gone: list[str]) -> None:
        """Let the method hold what it holds on the server. Its settings were agreed on: a number may be another one."""
        agreed = {spec.name for spec in fields(self.simulation.config.method)}
        for name in agreed & {*changed, *gone}:
            if name in gone or not isinstance(changed[name], int | float):
                raise ConfigError(f"'{name}' was agreed on as the run began: no request changes it")
        method = vars(self.simulation.config.method)
        method.clear()  # what an earlier request brought may have gone back, and is not told again
        method.update({name: value for name, value in (self.method | changed).items() if name not in gone})

    def renew_noise(self) -> None:
        """Draw from another number than ever before: a server that asks the same twice could take equal noise away.

        Whoever asks again because an answer was lost gets it from the disk.
        """
        simulation, seed = self.simulation, unknown()
        simulation.engine.drawing.draw_from(seed)
        if simulation.server.filters is not None:
            simulation.server.filters = replace(simulation.server.filters, seed=seed)

    def write_models(self, content: dict[str, Any]) -> bytes:
        """Write the model of every client that the request names."""
        if content["request"]["job"] in METHOD_JOBS:
            raise PartwiseError("models are written as they are: nothing is trained for it")
        turn = turn_of(content)
        self.commits.stand(turn)
        request = self.read(content, turn)
        if request is None:
            return packed({"lacks": self.commits.stages})
        updates = self.run(content, replace(request, models=True))
        make_folder(self.folder)
        files = ModelFiles(self.folder, self.simulation)
        moment = "method_adapted" if request.job == "adapt" else "received"
        for client, tensors in updates.models.items():
            files.write(client, personal_model(self.simulation, request, client, tensors), moment)
        files.describe()
        log.info("wrote %d model%s into '%s'", len(updates.models), "s" * (len(updates.models) != 1), self.folder)
        return packed({"written": len(updates.models)})


def turn_of(content: Mapping[str, Any]) -> Turn:
    """Where a request stands in the run; an evaluation is asked after a round, and has the number of the next."""
    asked = content["request"]
    turn = Turn(whole(asked["round"]), not asked["before"], whole(asked["number"]))
    return turn if asked["job"] in METHOD_JOBS or not turn.begun else Turn(turn.round, False, 0)


def whole(number: Any) -> int:
    """A number of rounds or requests: files are named after it, so that it must be one."""
    if type(number) is not int or number < 0:
        raise PartwiseError("rounds and requests have whole numbers")
    return number


def unknown() -> int:
    """A number that no other machine knows."""
    return secrets.randbits(63)


def told(content: Mapping[str, Any], received: int, sent: int, seconds: float) -> str:
    """A message in a line of the node's log, for whoever answers for the data."""
    what = content["kind"]
    if what == "request":
        asked = content["request"]
        when = "before round 1" if asked["before"] else f"round {asked['round'] + (asked['job'] in METHOD_JOBS)}"
        what = f"{when}: {asked['job']} of {len(asked['clients'])} clients"
    return f"{what}, {received:,} bytes in, {sent:,} out, {seconds:.1f} s"


def network_of(simulation: Simulation) -> dict[str, list[float]]:
    """What tells a network, as it was drawn, from others: of every tensor its size, its sum and its norm."""
    result = {}
    for name, copies in sorted(simulation.server.copies.items()):
        value = copies.values.detach().cpu().double()
        result[name] = [float(value.numel()), float(value.sum()), float(value.norm())]
    return result


def alike(one: Any, other: Mapping[str, list[float]]) -> bool:
    """Whether a network that somebody told of is the same, but for what another processor rounds otherwise."""
    try:
        pairs = [pair for name in other for pair in zip(one[name], other[name], strict=True)]
        return one.keys() == other.keys() and all(math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-5) for pair in pairs)
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
