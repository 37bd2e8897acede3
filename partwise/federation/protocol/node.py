"""A node: it joins a run, agrees on the data, trains its clients, and answers."""

import logging
import re
import time

from partwise.data.schema import part_of
from partwise.data.source import Federation
from partwise.errors import ConfigError, DataError, PartwiseError, one_line
from partwise.federation.protocol.data_description import (
    check_classes,
    check_text,
    describe_data,
    kept_here,
    log_unnamed_texts,
    reported_moments,
)
from partwise.federation.protocol.handshake import schema_of
from partwise.federation.protocol.network import network_of
from partwise.federation.protocol.rehearsal import rehearsed
from partwise.federation.protocol.releases import ReleaseLedger
from partwise.federation.protocol.reported_data import ReportedData, check_ranges, standardised_names
from partwise.federation.protocol.run_on_node import RunOnNode, private_seed
from partwise.federation.protocol.silo import Silo
from partwise.federation.protocol.size import check_size
from partwise.federation.protocol.software import NETWORK_FILE, check_same, software
from partwise.records.messages import (
    KIND_OF,
    Ask,
    Begin,
    Begun,
    Errand,
    Export,
    Join,
    Joined,
    Message,
    Moments,
    Refusal,
    Sums,
)
from partwise.records.wire import decode_message, encode_message
from partwise.rounds.messages import METHOD_JOBS
from partwise.runs.config import Config, make_config
from partwise.runs.prepare import prepare
from partwise.writing import write

log = logging.getLogger(__name__)

RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
FINGERPRINT = "data.sha256"  # in a run's folder: of the data with which it began here


class Forgotten(PartwiseError):
    """A run that this node knows nothing of."""


class Node:
    """A silo, or a machine with simulated clients. It outlives runs, and holds one at a time."""

    def __init__(self, silo: Silo):
        self.silo = silo
        self.joining: tuple[str, Config, Federation] | None = None  # a run that is not agreed on yet, and its data here
        self.run: RunOnNode | None = None

    @property
    def releases(self) -> ReleaseLedger:
        """Return the ledger as it lies on the disk."""
        return ReleaseLedger(self.silo.folder, self.silo.allow, self.silo.name)

    def handle(self, content: bytes) -> bytes:
        """Answer a message; whatever goes wrong is a line of the answer."""
        try:
            message = decode_message(content, self.silo.limit)
            begun = time.monotonic()
            answer = self.answer(message)
            sizes = f"{len(content):,} bytes in, {len(answer):,} out"
            log.info("%s, %s, %.1f s", titled(message), sizes, time.monotonic() - begun)
            return answer
        except PartwiseError as error:
            log.warning("refused: %s", one_line(error))
            return encode_message(Refusal(one_line(error), forgot=isinstance(error, Forgotten)))

    def answer(self, message: Message) -> bytes:
        """Return the answer to a message."""
        match message:
            case Join():
                return encode_message(self.join(message))
            case Sums():
                return encode_message(self.moments(message))
            case Begin():
                return encode_message(self.begin(message))
            case Ask():
                return self.running(message.run).answers(message)
            case Export():
                return encode_message(self.running(message.run).write_models(message))

    # ---- before the first round

    def join(self, message: Join) -> Joined:
        """Look whether a run is allowed here, all of it, and only then say what the data are."""
        run, settings, host = message.run, message.settings, message.settings.get("host")
        check_same(message.software, software([message.method, host]), self.silo.name)
        if not RUN.fullmatch(run):
            raise ConfigError("a run's name is made of letters, digits, _ and -: it is that of a folder here")
        self.releases.check_run(run)
        name = self.silo.method(message.method, message.file, host)
        self.silo.check_settings(settings)
        settings = self.silo.with_network(settings, message.software.get(NETWORK_FILE))
        config = self.silo.config(make_config(name, settings))
        with kept_here(self.silo):
            federation = self.silo.federation(config)
        self.check_data(run, federation)
        self.silo.check_task(config, federation.source)
        self.silo.check_sizes(federation)
        check_ranges(self.silo, federation.source)
        check_text(federation.source, self.silo.name)
        with kept_here(self.silo):
            record = ReportedData(self.silo, federation, config) if self.silo.hosts is None else None
            joined = describe_data(federation, record, self.silo.allow)
        self.silo.allow.check_silos(message.silos, self.silo.name)
        check_size(config, federation.source, self.silo.most_bytes, self.silo.name)
        self.silo.allow.check(rehearsed(config, joined, message.silos), self.silo.name)
        if record is not None:
            if config.data.bins is not None:
                record.check_bins(config.data.bins)
            record.write()
        self.joining = run, config, federation
        return joined

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

    def moments(self, message: Sums) -> Moments:
        """Return the moments of this node's training samples by which features and labels are standardised."""
        _, config, federation = self.joined(message.run)
        with kept_here(self.silo):
            moments = reported_moments(federation, message.agreed, self.silo, config)
        self.releases.begin(message.run, config, True)
        return moments

    def begin(self, message: Begin) -> Begun:
        """Prepare a run on which all have agreed, or find it as it was left."""
        agreed = message.agreed
        run, config, federation = self.joined(message.run)
        self.silo.allow.check_company(agreed.hosts, message.min_clients, self.silo.name)
        check_classes(federation, agreed, self.silo)
        log_unnamed_texts(federation.source, agreed, self.silo)
        with kept_here(self.silo, but=ConfigError):  # also what a method says of samples that do not fit it
            part = part_of(
                federation, schema_of(agreed, config.data.bins), self.silo.name, fill=config.data.missing == "mean"
            )
            check_size(config, part.source, self.silo.most_bytes, self.silo.name)
            simulation = prepare(config, part, secret=private_seed() if self.silo.hides(config) else None)
        self.silo.allow.check(simulation, self.silo.name)
        releases = self.releases
        releases.begin(run, config, bool(standardised_names(part.source)))
        self.run = RunOnNode(run, simulation, self.silo, releases)
        kept = self.run.folder / FINGERPRINT
        if not kept.is_file():
            write(kept, federation.fingerprint().encode(), durable=True)
        return Begun(network_of(simulation))

    def joined(self, run: str) -> tuple[str, Config, Federation]:
        """Return the run that is not agreed on yet, its settings, and its data here."""
        if self.joining is None or self.joining[0] != run:
            raise PartwiseError("this node has not joined the run")
        return self.joining

    def running(self, run: str) -> RunOnNode:
        """Return the run that goes on here."""
        if self.run is None or self.run.name != run:
            raise Forgotten("this node was started again: it must join the run first")
        return self.run


def titled(message: Message) -> str:
    """Return what a message is about, for the node's log, where somebody answers for the data."""
    if not isinstance(message, Errand) or isinstance(message, Export):
        return KIND_OF[type(message)]
    asked = message.request
    when = "before round 1" if asked.before else f"round {asked.round + (asked.job in METHOD_JOBS)}"
    return f"{when}: {asked.job} of {len(asked.clients)} clients"
