"""A run over nodes: they join, agree on what their data mean, and then the server runs as it does in simulation."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from partwise.data.standardise import centre_and_scale
from partwise.engines.remote import AGAIN, AT_WORK, LINE, Failure, Remote
from partwise.errors import ConfigError, PartwiseError, one_line
from partwise.federation.protocol.claims import admitted, check_participants, fewest_silos
from partwise.federation.protocol.handshake import Agreed, agree, merged_moments, stand_in
from partwise.federation.protocol.node import PROTOCOL, alike, network_of
from partwise.federation.protocol.software import software
from partwise.records.wire import Limit, Question, packed, unpacked
from partwise.rounds.cohort import share_of
from partwise.rounds.messages import Job
from partwise.runs.config import HANDED_IN, Config, file_of
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation

LOOK = 0.5  # seconds between two looks whether a node is back
JOINING = Limit(1 << 20, 1 << 20)  # of an answer before the first round: names, numbers of samples, moments
LABELS_OF_CLIENT = 1 << 7  # bytes of it for each client of a simulation that is spread over nodes
REFUSAL = Limit(1 << 16, 1 << 10)  # of an answer that is one line

log = logging.getLogger(__name__)


class Link(Protocol):
    """A way to reach nodes by their names.

    One that is known to be offline is a failure at once. As soon as one has forgotten the run the others may be
    `AT_WORK`, so that nobody waits for them before it joins again; the same message then goes on waiting for them.
    """

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]: ...


@dataclass
class Members:
    """The nodes of a run, as its engine sees them."""

    link: Link
    run: str
    config: Config
    nodes: list[str]
    timeout: float = 600.0
    grace: float = 0.0  # seconds for a node that was lost to come back and be asked again, before the timeout is over
    may_host: Mapping[str, int] = field(default_factory=dict)  # clients of a node that may host others than itself
    most_samples: int | None = None  # that a silo counts in a mean
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    hosts: list[str] = field(default_factory=list)  # (clients,)
    agreed: Agreed | None = None
    min_silos: int = 1  # behind every mean: the most that a silo demands
    away: set[str] = field(default_factory=set)  # lost in the last request, their grace spent
    began: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by node: the network that it drew

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Failure]:
        """Ask nodes, and return what each answered within `timeout` seconds, all that follows included.

        One that was started again joins the run first. One that is lost is asked again if it comes back within `grace`,
        which is spent once for each absence: where enough others are there, no later request waits for it. Whatever a
        node had answered already it answers once more from its disk: asking twice changes nothing.
        """
        deadline = self.clock() + timeout
        answers, asked = dict[str, bytes | Failure](), list(messages)
        lost, joined = list[str](), set[str]()  # who has joined again since it was last lost
        until = dict[str, float]()  # when the grace of a lost one is over
        while asked and self.clock() < deadline:
            answers |= self.once({node: messages[node] for node in asked}, deadline)
            forgot = [node for node in asked if forgotten(answers[node]) and node not in joined]
            answers |= self.join_again(forgot, deadline)
            again = [node for node in forgot if forgotten(answers[node])]
            lost = [node for node, answer in answers.items() if is_lost(answer)]
            joined = joined.union(again).difference(lost)
            asked = [*again, *(node for node, answer in answers.items() if answer is AT_WORK)]
            if not asked:
                few = len(set(self.nodes) - self.away - set(lost)) < self.min_silos  # no round could go on without them
                waited_for = [node for node in lost if few or node not in self.away]
                until = {node: until.get(node, self.clock() + self.grace) for node in waited_for}
                asked = [node for node, end in until.items() if self.clock() < min(end, deadline)]
                if asked:
                    self.wait(LOOK)
        self.away = self.away.difference(messages).union(lost)
        return {node: FORGETS if forgotten(answer) else answer for node, answer in answers.items()}

    def once(self, messages: Mapping[str, bytes], deadline: float) -> dict[str, bytes | Failure]:
        """Ask nodes; one of which nothing is heard has given no answer."""
        left = deadline - self.clock()
        heard = self.link.ask(messages, left) if messages and left > 0 else {}
        return {node: heard.get(node, Failure(f"no answer within {self.timeout:g} s")) for node in messages}

    def join_again(self, nodes: Sequence[str], deadline: float) -> dict[str, Failure]:
        """Let nodes that were started again join, on what all have agreed on; return why some could not."""
        failed: dict[str, Failure] = {}
        for content in ({"kind": "join", **self.joining()}, {"kind": "begin", **self.beginning()}) if nodes else ():
            failed |= self.told_by([node for node in nodes if node not in failed], deadline, content)[1]
        for node in nodes:
            log.warning("%s %s", node, f"cannot join again: {failed[node].why}" if node in failed else "joined again")
        return {node: Failure(f"cannot join again: {failure.why}", failure.told) for node, failure in failed.items()}

    def told_by(
        self, nodes: Sequence[str], deadline: float, content: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Failure]]:
        """Ask nodes the same, outside of rounds; return what each tells, and why others do not."""
        clients = LABELS_OF_CLIENT * (self.config.data.clients or 0)
        limit = replace(JOINING, labels=JOINING.labels + clients)
        message = Question(packed({**content, "run": self.run}), limit)
        answers = self.once(dict.fromkeys(nodes, message), deadline)
        while at_work := [node for node in nodes if answers[node] is AT_WORK and self.clock() < deadline]:
            answers |= self.once(dict.fromkeys(at_work, message), deadline)
        told, failed = dict[str, dict[str, Any]](), dict[str, Failure]()
        for node in nodes:
            answer = answers[node]
            if isinstance(answer, Failure):
                failed[node] = answer
                continue
            told[node] = content_of(answer, limit)
            if "refuses" in told[node]:
                failed[node] = Failure(f"{node} refuses: {one_line(str(told.pop(node)['refuses'])[:LINE])}", told=True)
        return told, failed

    def every(self, deadline: float, **content: Any) -> dict[str, dict[str, Any]]:
        """Ask all nodes the same before the first round, when nobody may be missing."""
        told, failed = self.told_by(self.nodes, deadline, content)
        for failure in failed.values():
            if failure.told:
                raise ConfigError(failure.why)
        if failed:
            raise PartwiseError("; ".join(f"{node}: {failure.why}" for node, failure in failed.items()))
        return told

    def joining(self) -> dict[str, Any]:
        """Return what a node is told first: settings, versions, and of the method's code its SHA-256."""
        tables = self.config.as_tables()
        settings = {name: value for table in tables.values() for name, value in table.items() if value is not None}
        file = file_of(self.config.name)
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file else None
        own = software([self.config.name, settings.get("host")])
        first = {"protocol": PROTOCOL, "software": own, "silos": len(self.nodes)}
        return {**first, "method": self.config.name, "file": digest, "settings": settings}

    def beginning(self) -> dict[str, Any]:
        """Return what a node is told once all have agreed."""
        assert self.agreed is not None
        return {"agreed": asdict(self.agreed), "min_clients": self.min_silos}

    def joined(self) -> Agreed:
        """Let all nodes join and agree, within one deadline."""
        deadline = self.clock() + self.timeout
        told = admitted(self.every(deadline, kind="join", **self.joining()), self.may_host)
        self.nodes, self.min_silos = list(told), fewest_silos(told)
        agreed = agree(told)
        participants = self.config.method.clients_per_round or share_of(
            len(agreed.hosts), self.config.method.participation
        )
        check_participants(told, participants)
        if agreed.standardise:
            answers = self.every(deadline, kind="moments", agreed=asdict(agreed))
            own = {node: answers[node].get("moments") for node in self.nodes}
            centre, scale = centre_and_scale(merged_moments(own, agreed))
            agreed = replace(agreed, centre=centre.tolist(), scale=scale.tolist())
        self.agreed, self.hosts = agreed, agreed.hosts
        answers = self.every(deadline, kind="begin", **self.beginning())
        self.began = {node: answer.get("network", {}) for node, answer in answers.items()}
        return agreed


FORGETS = Failure("it has joined again, and says once more that it knows nothing of the run")


def is_lost(answer: bytes | Failure) -> bool:
    """Whether nothing was heard of a node."""
    return isinstance(answer, Failure) and not answer.told and answer is not AT_WORK


def forgotten(answer: bytes | Failure) -> bool:
    """Whether a node says that it knows nothing of the run."""
    short = not isinstance(answer, Failure) and len(answer) <= REFUSAL.message
    return short and "forgot" in content_of(answer, REFUSAL)  # type: ignore[arg-type]


def content_of(answer: bytes, limit: Limit) -> dict[str, Any]:
    """What a node's answer says; one that cannot be read is a refusal."""
    try:
        content = unpacked(answer, limit)
    except PartwiseError as error:
        return {"refuses": str(error)}
    return content if isinstance(content, dict) else {"refuses": "its answer is none"}


def on_server(config: Config) -> Config:
    """The settings of a run as its server has them; what cannot be had of nodes is refused."""
    if config.run.patience is not None:
        raise ConfigError("patience: nodes do not go back to an earlier round; leave it out")
    if config.run.metric != "accuracy":
        raise ConfigError(f"metric = {config.run.metric} over all clients needs their answers, which stay on nodes")
    if config.model.model.startswith(HANDED_IN):
        raise ConfigError("a network that is handed in from Python does not reach nodes; name one")
    return replace(config, run=replace(config.run, device="cpu", save_models=False))


def federated(config: Config, members: Members, before: Any = None) -> Simulation:
    """A run over nodes, ready for round 0."""
    config = on_server(config)
    agreed = members.joined()
    simulation = prepare(config, stand_in(agreed, config.run.seed), before=before, nodes=members)
    server = simulation.server
    server.safeguards = replace(
        server.safeguards, min_silos=members.min_silos, silos=members.hosts, most_samples=members.most_samples
    )
    own = network_of(simulation)
    for node, drawn in members.began.items():
        if not alike(drawn, own):
            raise ConfigError(f"{node} draws another network from the seed: is its torch or its partwise another?")
    return simulation


def write_models(simulation: Simulation) -> dict[str, int]:
    """Let every node write the models of its clients into its own folder; return how many each wrote."""
    engine, server = simulation.engine, simulation.server
    assert isinstance(engine, Remote)
    job: Job = "adapt" if engine.drawing.adapt_phases else "predict"
    own = engine.by_node(server.request(job, simulation.clients))
    waiting, contents = list(own), dict[str, dict[str, Any]]()
    deadline = engine.nodes.clock() + engine.nodes.timeout
    for _ in range(AGAIN):
        messages = {node: Question(packed(engine.content(node, own[node], "models")), REFUSAL) for node in waiting}
        for node, answer in engine.nodes.ask(messages, deadline - engine.nodes.clock()).items():
            contents[node] = {"refuses": answer.why} if isinstance(answer, Failure) else content_of(answer, REFUSAL)
            if "lacks" in contents[node]:
                engine.read(node, own[node], answer)
        waiting = [node for node in waiting if "lacks" in contents.get(node, {})]
    written = {node: content["written"] for node, content in contents.items() if type(content.get("written")) is int}
    for node in (node for node in own if node not in written):
        why = contents.get(node, {"refuses": "no answer"}).get("refuses", "it lacks something")
        log.warning("%s wrote no models: %s", node, one_line(str(why)[:LINE]))
    return written
