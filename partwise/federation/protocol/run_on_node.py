"""A run on a node: its clients carry out requests, and their state is written down."""

import logging
import secrets
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partwise.errors import ConfigError, PartwiseError
from partwise.federation.protocol.commits import Commits, Turn
from partwise.federation.protocol.leaving import averaged, release_of, scored, with_loss
from partwise.federation.protocol.relays import next_hop
from partwise.federation.protocol.releases import ReleaseLedger
from partwise.federation.protocol.repeats import Repeats
from partwise.federation.protocol.silo import Silo
from partwise.records.messages import Answer, Ask, AskedRequest, Errand, Export, Exported, Lacks, Sent
from partwise.records.wire import decode_reply, encode_message, question_of, read_request, sent_of
from partwise.rounds.messages import METHOD_JOBS, Request, Updates
from partwise.rounds.server import filtered
from partwise.runs.result import personal_model
from partwise.runs.saving import ModelFiles, code_copies
from partwise.runs.simulation import Simulation, switches
from partwise.writing import make_folder, write

if TYPE_CHECKING:
    from partwise.rounds.mixing import Copies

log = logging.getLogger(__name__)

CLIENTS_FOR_MEAN = (
    16  # clients of an answer whose mean travels in place of all; fewer are cheap, and the server can judge each
)


class RunOnNode:
    """One run, restricted to this node's clients."""

    def __init__(self, name: str, simulation: Simulation, silo: Silo, releases: ReleaseLedger):
        self.name, self.simulation, self.silo = name, simulation, silo
        self.folder = silo.folder / "runs" / name
        self.commits = Commits(self.folder / "state", simulation.engine.store)
        self.releases = releases
        people = silo.hosts is None and silo.hides(simulation.config)  # simulated clients need no protection
        self.repeats = Repeats(silo.folder, simulation, silo.name) if people else None
        self.method = dict(vars(simulation.config.method))  # what it holds before the server tells of changes
        self.copies: dict[str, Copies] = {}  # the newest that came
        self.digests: dict[str, str] = {}

    def answers(self, ask: Ask) -> bytes:
        """Answer a request, and those that will follow it in a relay as long as the model stays on this node."""
        first = answer = self.answer(ask)
        ahead: dict[str, Tensor] = {}
        for hop in ask.onward:
            following = next_hop(ask, self.copies, decode_reply(Answer, answer), hop)
            if following is None:
                break
            ask, answer = following, self.answer(following)
            ahead[question_of(ask)] = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
        whole = decode_reply(Answer, first) if ahead else None
        return encode_message(replace(whole, ahead=ahead)) if isinstance(whole, Answer) else first

    def answer(self, ask: Ask) -> bytes:
        """Carry out a request, or answer again what was answered before."""
        keeps, turn, question = ask.request.job in METHOD_JOBS, turn_of(ask.request), question_of(ask)
        if keeps and (answer := self.commits.answered(turn, question)) is not None:
            self.take(ask)
            return answer
        (self.commits.go_back if keeps else self.commits.stand)(turn)
        try:
            request = self.read(ask, turn)
            if request is None:
                return encode_message(Lacks(self.commits.stages))
            lost = [k for k in request.clients if request.times.get(k) and self.simulation.engine.store.row[k] < 0]
            answer = encode_message(Answer(self.made(ask, request), request.number, lost if keeps else []))
            if keeps:
                self.commits.put(turn, question, answer)
        except Exception:
            self.commits.rebuild(self.commits.files())  # who trained and could not be written down has not trained
            raise
        return answer

    def made(self, errand: Errand, request: Request) -> Sent:
        """Return the answer to a request, once the ledger has it: the one that was given to it before, or a new one."""
        repeats = self.repeats if request.job in METHOD_JOBS else None
        if repeats is None:
            return self.noted(errand, request)
        question = repeats.question(errand, request)
        if (known := repeats.known(question)) is not None:
            return repeats.again(known, request)
        before, sent = repeats.state(request.clients), self.noted(errand, request)
        if sent.parts or sent.extras:  # else nothing is drawn that could be averaged
            repeats.keep(question, sent, before, request)
        return sent

    def noted(self, errand: Errand, request: Request) -> Sent:
        """Carry out a request, and note in the ledger what is about to leave."""
        updates, accountant = self.carried_out(errand, request), self.simulation.server.accountant
        self.releases.add(self.name, release_of(updates, request, accountant), accountant)
        return sent_of(updates)

    def read(self, errand: Errand, turn: Turn) -> Request | None:
        """Return the request of a message, once its stages have begun; None: the server must tell more."""
        if not self.take(errand) or errand.begun != self.commits.stages:
            self.copies, self.digests = {}, {}
            return None
        self.commits.enter(turn, errand.stages)
        copies = {name: self.copies[name] for name in errand.digests}
        return read_request(errand.request, copies, self.simulation.server.plans)

    def take(self, errand: Errand) -> bool:
        """Keep the copies that came; return False where some that the server believes to be here are not."""
        device = self.simulation.engine.device
        for name, copies in errand.copies.items():
            self.copies[name] = replace(copies, values=copies.values.to(device))
            self.digests[name] = errand.digests[name]
        return all(self.digests.get(name) == digest for name, digest in errand.digests.items())

    def carried_out(self, errand: Errand, request: Request) -> Updates:
        """Train, filter and score."""
        simulation, filters = self.simulation, self.simulation.server.filters
        config, told = simulation.config, request.job in METHOD_JOBS
        if told and self.silo.hides(config):  # a server that asks the same twice could take equal noise away
            seed = private_seed()
            request, filters = replace(request, seed=seed), filters and replace(filters, seed=seed)
        updates = self.run(errand, request)
        self.silo.allow.check_leaving(updates.extras, config, self.silo.name)
        if filters is not None and told:
            updates = filtered(filters, request, updates, simulation.server.copies)
        allow, privacy = self.silo.allow, config.privacy
        scores = scored(updates, simulation.evaluation, allow.telling("scores", privacy), allow.min_test_samples)
        noisy = bool(privacy.upload_noise or privacy.dp_noise)
        leaving = with_loss(updates, allow.telling("loss", privacy), covered=noisy)
        leaving = replace(leaving, scores=scores, logits={}, models={})
        several = request.averaged and len(updates.clients) >= CLIENTS_FOR_MEAN
        return averaged(simulation.server, request, leaving) if several else leaving

    def run(self, errand: Errand, request: Request) -> Updates:
        """Let the engine carry out a request, by the method as the server has it."""
        self.renew_method(errand.method, errand.gone)
        with switches(self.simulation.config.run.deterministic, self.simulation.threads):
            return self.simulation.engine.run(request)

    def renew_method(self, changed: dict[str, Any], gone: list[str]) -> None:
        """Give the method the attributes that it has on the server; of agreed settings only numbers may change."""
        agreed = {spec.name for spec in fields(self.simulation.config.method)}
        for name in agreed & {*changed, *gone}:
            if name in gone or not isinstance(changed[name], int | float):
                raise ConfigError(f"'{name}' was agreed on as the run began: no request changes it")
        method = vars(self.simulation.config.method)
        method.clear()  # what an earlier request brought may have gone back, and is not told again
        method.update({name: value for name, value in (self.method | changed).items() if name not in gone})

    def write_models(self, export: Export) -> Exported | Lacks:
        """Write the model of every client that the request names."""
        if export.request.job in METHOD_JOBS:
            raise PartwiseError("models are written as they are: nothing is trained for it")
        turn = turn_of(export.request)
        self.commits.stand(turn)
        request = self.read(export, turn)
        if request is None:
            return Lacks(self.commits.stages)
        updates = self.run(export, replace(request, models=True))
        make_folder(self.folder)
        files = ModelFiles(self.folder, self.simulation)
        moment = "method_adapted" if request.job == "adapt" else "received"
        for client, tensors in updates.models.items():
            files.write(client, personal_model(self.simulation, request, client, tensors), moment)
        files.describe()
        for name, source in code_copies(self.simulation.config).items():
            write(self.folder / name, source)
        log.info("wrote %d model%s into '%s'", len(updates.models), "s" * (len(updates.models) != 1), self.folder)
        return Exported(len(updates.models))


def turn_of(asked: AskedRequest) -> Turn:
    """Return where a request stands in the run; an evaluation comes after a round, and has the number of the next."""
    if min(asked.round, asked.number) < 0:  # files are named after them
        raise PartwiseError("rounds and requests are numbered from 0")
    turn = Turn(asked.round, not asked.before, asked.number)
    return turn if asked.job in METHOD_JOBS or not turn.begun else Turn(turn.round, False, 0)


def private_seed() -> int:
    """Return a seed that no other machine knows."""
    return secrets.randbits(63)
