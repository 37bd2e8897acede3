"""A run over nodes: they join, agree on what their data mean, and then the server runs as it does in simulation."""

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from partwise.data.standardise import centre_and_scale
from partwise.engines.remote import AGAIN, Failure, Remote
from partwise.errors import ConfigError, PartwiseError, one_line
from partwise.federation.agreement import Agreed, agree, merged_moments, stand_in
from partwise.federation.node import PROTOCOL, alike, network_of
from partwise.federation.software import software
from partwise.rounds.messages import Job
from partwise.rounds.wire import Limit, Question, packed, unpacked
from partwise.runs.config import HANDED_IN, Config, file_of
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation

LOOK = 0.5  # seconds between two looks whether a node is back
JOINING = Limit(1 << 20, 1 << 20)  # of an answer before the first round: names, numbers of samples, moments
LABELS_OF_CLIENT = 1 << 7  # bytes of it for each client of a simulation that is spread over nodes
REFUSAL = Limit(1 << 16, 1 << 10)  # of an answer that is one line

log = logging.getLogger(__name__)


class Link(Protocol):
    """A way to reach nodes by their names."""

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
    hosts: list[str] = field(default_factory=list)  # (clients,)
    agreed: Agreed | None = None
    began: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by node: the network that it drew

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        """Ask nodes. One that was started again joins the run first; one that was lost is asked again if it comes back.

        Whatever it had answered already it answers once more from its disk, so that asking twice changes nothing.
        """
        deadline = time.monotonic() + timeout
        answers = self.asked(messages, timeout)
        lost_at = time.monotonic()
        while lost := [node for node, answer in answers.items() if isinstance(answer, Failure) and not answer.told]:
            now = time.monotonic()
            if now > min(deadline, lost_at + self.grace):
                break
            time.sleep(LOOK)
            answers |= self.asked({node: messages[node] for node in lost}, max(LOOK, deadline - now))
        return answers

    def asked(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Failure]:
        """Ask once; who has forgotten the run joins again."""
        answers = dict(self.link.ask(messages, timeout))
        forgot = [node for node, answer in answers.items() if forgotten(answer)]
        if forgot and self.agreed is not None:
            refused = {node: why for node in forgot if (why := self.joins_again(node))}
            answers |= {node: packed({"refuses": why}) for node, why in refused.items()}
            answers |= self.link.ask({node: messages[node] for node in forgot if node not in refused}, timeout)
        return answers

    def every(self, nodes: list[str], **content: Any) -> dict[str, Any]:
        """Ask nodes the same before the first round, when nobody may be missing."""
        clients = LABELS_OF_CLIENT * (self.config.data.clients or 0)
        limit = replace(JOINING, labels=JOINING.labels + clients)
        message = Question(packed({**content, "run": self.run}), limit)
        answers = self.link.ask(dict.fromkeys(nodes, message), self.timeout)
        result = {}
        for node in nodes:
            answer = answers.get(node, Failure("no answer"))
            if isinstance(answer, Failure):
                raise PartwiseError(f"{node}: {answer.why}")
            result[node] = content_of(answer, limit)
            if "refuses" in result[node]:
                raise ConfigError(f"{node} refuses: {result[node]['refuses']}")
        return result

    def joining(self) -> dict[str, Any]:
        """Return what a node is told first: settings, versions, and of the method's code its SHA-256."""
        tables = self.config.as_tables()
        settings = {name: value for table in tables.values() for name, value in table.items() if value is not None}
        file = file_of(self.config.name)
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file else None
        own = software([self.config.name, settings.get("host")])
        first = {"protocol": PROTOCOL, "software": own, "silos": len(self.nodes)}
        return {**first, "method": self.config.name, "file": digest, "settings": settings}

    def joined(self) -> Agreed:
        """Let all nodes join and agree."""
        told = self.every(self.nodes, kind="join", **self.joining())
        agreed = agree(told)
        if agreed.standardise:
            answers = self.every(self.nodes, kind="moments", agreed=asdict(agreed))
            told = {node: answers[node].get("moments") for node in self.nodes}
            centre, scale = centre_and_scale(merged_moments(told, agreed))
            agreed = replace(agreed, centre=centre.tolist(), scale=scale.tolist())
        answers = self.every(self.nodes, kind="begin", agreed=asdict(agreed))
        self.began = {node: answer.get("network", {}) for node, answer in answers.items()}
        self.agreed, self.hosts = agreed, agreed.hosts
        return agreed

    def joins_again(self, node: str) -> str:
        """Let a node that was started again join, on what all have agreed on; return why it cannot, empty if it did."""
        assert self.agreed is not None
        why = ""
        for _ in range(AGAIN):  # it may be started again meanwhile
            try:
                self.every([node], kind="join", **self.joining())
                self.every([node], kind="begin", agreed=asdict(self.agreed))
                log.warning("%s joined again", node)
                return ""
            except PartwiseError as error:
                why = one_line(error)
                log.warning("%s", why)
        return f"cannot join again: {why}"


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
    own = network_of(simulation)
    for node, drawn in members.began.items():
        if not alike(drawn, own):
            raise ConfigError(f"{node} draws another network from the seed: is its torch or its partwise another?")
    return simulation


def write_models(simulation: Simulation) -> dict[str, int]:
    """Let every node write the models of its clients into its own folder; return how many each wrote."""
    engine, server = simulation.engine, simulation.server
    assert isinstance(engine, Remote)
    written: dict[str, int] = {}
    job: Job = "adapt" if engine.adapt_phases else "predict"
    request = server.request(job, simulation.clients)
    for node, own in engine.by_node(request).items():
        for _ in range(AGAIN):
            message = Question(packed(engine.content(node, own, "models")), REFUSAL)
            answers = engine.nodes.ask({node: message}, engine.nodes.timeout)
            answer = answers.get(node, Failure("no answer"))
            content: dict[str, Any] = (
                {"refuses": answer.why} if isinstance(answer, Failure) else content_of(answer, REFUSAL)
            )
            if "lacks" not in content:
                break
            engine.read(node, own, answer)
        if type(content.get("written")) is not int:
            log.warning("%s wrote no models: %s", node, content.get("refuses", "it lacks something"))
        else:
            written[node] = content["written"]
    return written
