"""Noisy answers, stored in a silo's folder over all runs: a repeated question gets the same answer.

Fresh noise in every answer would go away in their mean. What a question is called, its run, round and number, does not
make it another one. An answer that was removed for want of room leaves an empty file, and its question is refused.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from partwise.code_files import file_digest, file_of
from partwise.errors import DataError, PartwiseError
from partwise.federation.protocol.commits import Kept, kept_of, take
from partwise.federation.protocol.software import software
from partwise.records.messages import Errand, Sent
from partwise.records.record import Record, read_record
from partwise.records.wire import copies_digest, pack_tree, unpack_tree
from partwise.rounds.messages import Request
from partwise.rounds.mixing import Copies
from partwise.runs.config import network_code_of
from partwise.runs.simulation import Simulation
from partwise.writing import make_folder, write

FOLDER = "answers"  # in the silo's folder
STORED_ANSWER_BYTES = 2**30  # bytes of answers that are kept
ASKED = ("job", "stage", "clients", "rate", "extras", "averaged")  # what of a request makes it another question
SETTINGS = ("method", "train", "model", "privacy")  # the tables of settings that change an answer, ...
NEUTRAL = ("rounds", "participation", "clients_per_round")  # ... but for these of them


@dataclass(frozen=True)
class StoredAnswer(Record):
    """The parts of an answer that stay the same when it is repeated."""

    updates: Sent
    number: int  # of the request to which it was given first


@dataclass(frozen=True)
class Repeat(Record):
    """An answer that was given, and what came of it."""

    answer: StoredAnswer
    before: str  # what tells the state of its clients before it from any other
    held: Kept  # what they kept after it


class Repeats:
    """The answers that a silo gave under noise."""

    def __init__(self, folder: Path, simulation: Simulation, who: str):
        self.folder, self.who, self.store = folder / FOLDER, who, simulation.engine.store
        config = simulation.config
        tables = config.as_tables()
        settings = {table: {k: v for k, v in tables[table].items() if k not in NEUTRAL} for table in SETTINGS}
        methods = [config.name, getattr(config.method, "host", None)]
        code = software(methods), file_digest(file_of(config.name))
        about = [code, settings, config.run.dtype, simulation.federation.fingerprint()]
        if network := network_code_of(config.model.model):
            about.append(network)
        self.about = hashlib.sha256(pack_tree(about)).hexdigest()

    def question(self, errand: Errand, request: Request) -> str:
        """Return what tells a question from others, whichever run, round or number it has.

        Copies count as its clients receive them: the server's word for what they are is not asked.
        """
        asked = [getattr(errand.request, name) for name in ASKED]
        received = {name: copies_digest(Copies(copies.of(request.clients))) for name, copies in request.copies.items()}
        return hashlib.sha256(pack_tree([self.about, asked, received, errand.method, errand.gone])).hexdigest()

    def known(self, question: str) -> Repeat | None:
        """Return what was kept of this question; None: it is a new one."""
        path = self.folder / question
        try:
            content = path.read_bytes()
            if content:
                return read_record(Repeat, unpack_tree(content), "an answer")
        except FileNotFoundError:
            return None
        except (OSError, PartwiseError):
            raise DataError(f"'{path}' is damaged: put it back, it is an answer that was given") from None
        raise PartwiseError(f"{self.who} answered this question before, and the answer is no longer kept")

    def again(self, known: Repeat, request: Request) -> Sent:
        """Return a known answer to this request.

        Clients that are where they were before it are brought to where they were after it: they need not train again.
        Others stay as they are.
        """
        if known.before == self.state(request.clients):
            take(self.store, known.held)
        return replace(known.answer.updates, round=request.round)

    def keep(self, question: str, sent: Sent, before: str, request: Request) -> None:
        """Keep an answer that is about to be sent, what its clients hold now, and what state they were in before."""
        make_folder(self.folder)
        held = kept_of(self.store, np.array(request.clients))
        repeat = Repeat(StoredAnswer(sent, request.number), before, held)
        write(self.folder / question, pack_tree(repeat), durable=True)
        kept = [(path.stat().st_mtime_ns, path.stat().st_size, path) for path in self.folder.iterdir()]
        size = sum(bytes for _, bytes, _ in kept)
        for _, bytes, path in sorted(kept)[:-1]:
            if size <= STORED_ANSWER_BYTES:
                break
            if bytes:
                write(path, b"", durable=True)
                size -= bytes

    def state(self, clients: list[int]) -> str:
        """Return what tells the state of clients from any other."""
        return hashlib.sha256(pack_tree(kept_of(self.store, np.array(clients)))).hexdigest()
