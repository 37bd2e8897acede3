"""A run over nodes: they join and agree on the data, and then the server runs as in simulation."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from partwise.client_settings import check_names
from partwise.code_files import file_digest, file_of
from partwise.errors import ConfigError, PartwiseError, one_line
from partwise.federation.protocol.claims import admitted, check_participants, fewest_silos
from partwise.federation.protocol.elsewhere import ScoredElsewhere
from partwise.federation.protocol.handshake import agree, stand_in, with_standardisation
from partwise.federation.protocol.network import network_of, same_network
from partwise.federation.protocol.nodes import AT_WORK, POLL_INTERVAL, REFUSAL_LETTERS, Failure, Link
from partwise.federation.protocol.remote import AGAIN, Remote
from partwise.federation.protocol.software import NETWORK_FILE, software
from partwise.records.codec import Limit
from partwise.records.messages import (
    PROTOCOL,
    Agreed,
    Begin,
    Begun,
    Export,
    Exported,
    Join,
    Joined,
    Lacks,
    Message,
    Moments,
    NetworkSums,
    Refusal,
    Sums,
)
from partwise.records.metrics import RANKING
from partwise.records.record import AnyRecord
from partwise.records.wire import Question, decode_reply, encode_message
from partwise.rounds.cohort import share_of
from partwise.runs.config import HANDED_IN, Config, network_code_of
from partwise.runs.evaluation import Evaluation
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from partwise.tasks import Classes, Numbers

if TYPE_CHECKING:
    from partwise.rounds.messages import Job

JOINING = Limit(1 << 20, 1 << 20)  # of an answer before the first round: names, numbers of samples, moments
JOIN_LABEL_BYTES_PER_CLIENT = 1 << 7  # bytes of it for each client of a simulation that is spread over nodes
REFUSAL = Limit(1 << 16, 1 << 10)  # of an answer that is one line

log = logging.getLogger(__name__)


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
    began: dict[str, NetworkSums] = field(default_factory=dict)  # by node: the network that it drew

    @property
    def evaluates(self) -> type[Evaluation]:
        """Return the evaluation of such a run: nodes send scores in place of answers."""
        return ScoredElsewhere

    @property
    def engine(self) -> Callable[..., Remote]:
        """Return what makes the engine of a run whose clients these nodes host."""
        return partial(Remote, nodes=self)

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
                    self.wait(POLL_INTERVAL)
        self.away = self.away.difference(messages).union(lost)
        return {node: FORGETS if forgotten(answer) else answer for node, answer in answers.items()}

    def once(self, messages: Mapping[str, bytes], deadline: float) -> dict[str, bytes | Failure]:
        """Return each node's answer, or a failure where it gave none in time."""
        left = deadline - self.clock()
        heard = self.link.ask(messages, left) if messages and left > 0 else {}
        return {node: heard.get(node, Failure(f"no answer within {self.timeout:g} s")) for node in messages}

    def join_again(self, nodes: Sequence[str], deadline: float) -> dict[str, Failure]:
        """Let nodes that were started again join, on what all have agreed on; return why some could not."""
        failed: dict[str, Failure] = {}
        if nodes:
            failed |= self.replies(Joined, nodes, deadline, self.joining())[1]
            failed |= self.replies(Begun, [node for node in nodes if node not in failed], deadline, self.beginning())[1]
        for node in nodes:
            log.warning("%s %s", node, f"cannot join again: {failed[node].why}" if node in failed else "joined again")
        return {
            node: Failure(f"cannot join again: {failure.why}", failure.from_node) for node, failure in failed.items()
        }

    def replies(
        self, kind: type[AnyRecord], nodes: Sequence[str], deadline: float, message: Message
    ) -> tuple[dict[str, AnyRecord], dict[str, Failure]]:
        """Ask nodes the same, outside of rounds; return what each replies, and why others do not."""
        clients = JOIN_LABEL_BYTES_PER_CLIENT * (self.config.data.clients or 0)
        limit = replace(JOINING, labels=JOINING.labels + clients)
        question = Question(encode_message(message), limit)
        answers = self.once(dict.fromkeys(nodes, question), deadline)
        while at_work := [node for node in nodes if answers[node] is AT_WORK and self.clock() < deadline]:
            answers |= self.once(dict.fromkeys(at_work, question), deadline)
        replies, failed = dict[str, AnyRecord](), dict[str, Failure]()
        for node in nodes:
            answer = answers[node]
            if isinstance(answer, Failure):
                failed[node] = answer
                continue
            try:
                reply = decode_reply(kind, answer, limit)
            except PartwiseError as error:
                failed[node] = Failure(f"{node}: {one_line(error)[:REFUSAL_LETTERS]}", from_node=True)
                continue
            match reply:
                case Refusal():
                    failed[node] = Failure(
                        f"{node} refuses: {one_line(reply.refuses[:REFUSAL_LETTERS])}", from_node=True
                    )
                case Lacks():
                    failed[node] = Failure(f"{node}: lacks something that it was not sent", from_node=True)
                case _:
                    replies[node] = reply
        return replies, failed

    def every(self, kind: type[AnyRecord], deadline: float, message: Message) -> dict[str, AnyRecord]:
        """Return the replies of all nodes to a message before the first round; refuse to go on without one of them."""
        replies, failed = self.replies(kind, self.nodes, deadline, message)
        for failure in failed.values():
            if failure.from_node:
                raise ConfigError(failure.why)
        if failed:
            raise PartwiseError("; ".join(f"{node}: {failure.why}" for node, failure in failed.items()))
        return replies

    def joining(self) -> Join:
        """Return the first message to a node: settings, versions, and the SHA-256 of the method's code."""
        tables = self.config.as_tables()
        settings = {name: value for table in tables.values() for name, value in table.items() if value is not None}
        network = network_code_of(self.config.model.model)
        code = software([self.config.name, getattr(self.config.method, "host", None)])
        return Join(
            run=self.run,
            protocol=PROTOCOL,
            software=code if network is None else {**code, NETWORK_FILE: network},
            method=self.config.name,
            file=file_digest(file_of(self.config.name)),
            settings=settings,
            silos=len(self.nodes),
        )

    def beginning(self) -> Begin:
        """Return the message that begins the run, once all nodes have agreed."""
        assert self.agreed is not None
        return Begin(self.run, self.agreed, self.min_silos)

    def joined(self) -> Agreed:
        """Let all nodes join and agree, within one deadline."""
        deadline, method = self.clock() + self.timeout, self.config.method
        joined = admitted(self.every(Joined, deadline, self.joining()), self.may_host)
        self.nodes, self.min_silos = list(joined), fewest_silos(joined)
        agreed = agree(joined)
        check_participants(joined, method.clients_per_round or share_of(len(agreed.hosts), method.participation))
        if agreed.standardise or agreed.task == Numbers.kind:
            agreed = with_standardisation(agreed, self.every(Moments, deadline, Sums(self.run, agreed)))
        self.agreed, self.hosts = agreed, agreed.hosts
        begun = self.every(Begun, deadline, self.beginning())
        self.began = {node: reply.network for node, reply in begun.items()}
        return agreed


FORGETS = Failure("it has joined again, and says once more that it knows nothing of the run")


def is_lost(answer: bytes | Failure) -> bool:
    """Return whether nothing was heard of a node."""
    return isinstance(answer, Failure) and not answer.from_node and answer is not AT_WORK


def forgotten(answer: bytes | Failure) -> bool:
    """Return whether a node says that it knows nothing of the run."""
    if isinstance(answer, Failure) or len(answer) > REFUSAL.message:
        return False
    try:
        reply = decode_reply(Refusal, answer, REFUSAL)
    except PartwiseError:
        return False
    return isinstance(reply, Refusal) and reply.forgot


def on_server(config: Config) -> Config:
    """Return the settings of a run as its server has them; what cannot be had of nodes is refused."""
    if config.run.patience is not None:
        raise ConfigError("patience: nodes do not go back to an earlier round; leave it out")
    data, metric = config.data, config.run.metric
    task = Classes.kind if data.task == "auto" else data.task
    if metric not in ("accuracy", RANKING[task]):
        raise ConfigError(
            f"metric = {metric} over all clients needs their answers, which stay on nodes; leave it out: task {task} "
            f"ranks by {RANKING[task]}"
        )
    if data.bins is not None and task != Numbers.kind:
        raise ConfigError("bins are edges between numbers; set task = numbers, or leave out bins")
    if config.model.model.startswith(HANDED_IN):
        raise ConfigError("a network that is handed in from Python does not reach nodes; name one")
    return replace(config, run=replace(config.run, device="cpu", save_models=False))


def federated(config: Config, members: Members, before: Any = None) -> Simulation:
    """Return a run over nodes, ready for round 0."""
    if config.data.categories == "codes":
        raise ConfigError("categories = codes works in simulations only so far; over nodes, texts are columns")
    config = on_server(config)
    agreed = members.joined()
    check_names(config.method.per_client, agreed.names)
    simulation = prepare(config, stand_in(agreed, config.run.seed, config.data.bins), before=before, nodes=members)
    server = simulation.server
    server.safeguards = replace(
        server.safeguards, min_silos=members.min_silos, silos=members.hosts, most_samples=members.most_samples
    )
    own = network_of(simulation)
    for node, drawn in members.began.items():
        if not same_network(drawn, own):
            raise ConfigError(f"{node} draws another network from the seed; compare the torch and partwise versions")
    return simulation


def write_models(simulation: Simulation) -> dict[str, int]:
    """Let every node write the models of its clients into its own folder; return how many each wrote."""
    engine, server = simulation.engine, simulation.server
    assert isinstance(engine, Remote)
    job: Job = "adapt" if engine.drawing.adapt_phases else "predict"
    own = engine.by_node(server.request(job, simulation.clients))
    waiting, written, failed = list(own), dict[str, int](), dict[str, str]()
    deadline = engine.nodes.clock() + engine.nodes.timeout
    for _ in range(AGAIN):
        messages = {node: Question(encode_message(engine.errand(Export, node, own[node])), REFUSAL) for node in waiting}
        answers, waiting = engine.nodes.ask(messages, deadline - engine.nodes.clock()), []
        for node, answer in answers.items():
            match exported_by(answer):
                case Exported() as reply:
                    written[node] = reply.written
                case Refusal() as reply:
                    failed[node] = reply.refuses
                case Lacks() as reply:
                    engine.lacks(node, reply)
                    waiting.append(node)
    for node in (node for node in own if node not in written):
        why = "it lacks something" if node in waiting else failed.get(node, "no answer")
        log.warning("%s wrote no models: %s", node, one_line(why[:REFUSAL_LETTERS]))
    return written


def exported_by(answer: bytes | Failure) -> Exported | Lacks | Refusal:
    """Return a node's reply to `Export`; a node without an answer counts as refusing."""
    if isinstance(answer, Failure):
        return Refusal(answer.why)
    try:
        return decode_reply(Exported, answer, REFUSAL)
    except PartwiseError as error:
        return Refusal(str(error))
