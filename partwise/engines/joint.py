"""Run several seeds side by side: their clients share blocks.

Each run is a coroutine, made of a thread that works only while it is its turn. When it wants a request carried out, it
hands it over and waits. Once all wait, the requests that agree become one, in the main thread, where all blocks are.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch.utils._pytree import tree_map

from partwise.engines.client_engine import ClientEngine
from partwise.engines.laying_out import ClientLayout
from partwise.engines.side_by_side import shapes
from partwise.engines.vector import Vector
from partwise.network.view import PerClient
from partwise.rounds.batches import Drawing, JobBatches, wider
from partwise.rounds.client import ClientProgram
from partwise.rounds.messages import ADAPTING, Request, Updates, concatenated
from partwise.rounds.state import ClientState, Common, Outcome, RoundInputs
from partwise.trees import tensors_of

if TYPE_CHECKING:
    from partwise.rounds.plan import Plan

# What a round asks for, in turn: evaluations after a round carry the number of the next. A run that is behind another
# goes first, so that their requests meet again.
JOBS = ("predict", *ADAPTING, "report", "train")

Ended = TypeVar("Ended")


class JointRuns:
    """Runs that share blocks: client k of run r has the number r x `most` + k there."""

    def __init__(self, engines: Sequence[Vector]):
        self.engines = engines
        self.most = max(engine.federation.clients for engine in engines)
        self.requests: dict[int, Request] = {}  # those that are carried out now, by run

    def begin(self, requests: dict[int, Request]) -> list[int]:
        """Begin to carry out a request of each run; return the numbers of their clients."""
        self.requests = requests
        return [run * self.most + client for run, request in requests.items() for client in request.clients]

    def of(self, client: int) -> tuple[int, int]:
        """Return a client's run, and its number there."""
        return divmod(client, self.most)

    def each(self, clients: list[int]) -> "Iterator[tuple[int, list[int], slice[int, int, None]]]":
        """Yield every run, its clients by their own numbers, and their rows, among clients sorted by number."""
        begin = 0
        for run, own in groupby(clients, key=lambda client: client // self.most):
            numbers = [client % self.most for client in own]
            yield run, numbers, slice(begin, begin + len(numbers))
            begin += len(numbers)


class JointDrawing(Drawing):
    """Draws each client's mini-batches as its own run does, padded to the widest run's."""

    def __init__(self, runs: JointRuns):
        first, every = runs.engines[0].drawing, [engine.drawing for engine in runs.engines]
        super().__init__(first.program, first.federation, first.seed, first.range_seed, first.augmentation)
        self.runs = runs
        self.batch, self.report_batch, self.predict_batch = (
            max(getattr(own, name) for own in every) for name in ("batch", "report_batch", "predict_batch")
        )

    def draw(self, request: Request, client: int) -> JobBatches:
        """Draw the mini-batches of a client of any run, padded to the widest run's."""
        run, number = self.runs.of(client)
        own = self.runs.engines[run].drawing.draw(self.runs.requests[run], number)
        return JobBatches(
            [wider(batches, self.batch) for batches in own.prepare],
            [wider(batches, self.batch) for batches in own.phases],
            own.report and wider(own.report, self.report_batch),
            own.predict and wider(own.predict, self.predict_batch),
        )


class JointLayout(ClientLayout):
    """Lays out each run's clients as its own engine does; what is common within a run becomes a row for each client."""

    def __init__(self, runs: JointRuns, drawing: Drawing):
        first = runs.engines[0]
        super().__init__(first.program, first.federation, first.store, drawing, first.device)
        self.runs = runs

    def __call__(
        self, request: Request, clients: list[int], batches: Sequence[JobBatches]
    ) -> tuple[ClientState, Common]:
        """Return what clients of all runs hold after download (a row for each), and what they have in common."""
        layouts = []
        for run, numbers, rows in self.runs.each(clients):
            client, common = self.runs.engines[run].layout(self.runs.requests[run], numbers, batches[rows])
            layouts.append(in_rows(client, common, len(numbers)))
        joined = tree_map(lambda *rows: torch.cat(rows), *layouts)
        return joined, common._replace(round=common.round._replace(frozen={}, got={}, extras={}))


class JointVector(Vector):
    """The clients of several runs in one engine."""

    def __init__(self, engines: Sequence[Vector]):
        first = engines[0]  # its program, its phases and its data serve all; what is of a run alone is asked of its own
        super().__init__(
            first.program,
            first.federation,
            first.store,
            first.drawing.seed,
            first.device,
            first.drawing.augmentation,
            compiles=first.caller.compiles,
            block=first.caller.block,
        )
        self.runs = JointRuns(engines)
        self.drawing = JointDrawing(self.runs)
        self.layout = JointLayout(self.runs, self.drawing)
        for engine in engines:
            engine.store.memory.share(len(engines))
        self.plans: dict[int, Plan] = {}  # by stage: that of the run that came first, also when it has ended
        self.stage: int | None = None

    def carry_out_all(self, requests: dict[int, Request]) -> dict[int, Updates]:
        """Return the updates of each run's request; the requests agree."""
        first = next(iter(requests.values()))
        plan = self.plans.setdefault(first.plan.number, first.plan)
        if plan.number != self.stage:
            self.release()  # another stage has other steps
            self.stage = plan.number
        every = self.carry_out(replace(first, plan=plan, clients=self.runs.begin(requests)))
        return {
            run: with_client_numbers(every.only(list(range(rows.start, rows.stop))), numbers)
            for run, numbers, rows in self.runs.each(every.clients)
        }

    def attempt(self, request: Request, clients: list[int], batches: dict[int, JobBatches]) -> Updates | None:
        """Carry out a block in which the clients of a run stand together."""
        return super().attempt(request, sorted(clients), batches)

    def halved(self, clients: list[int]) -> int:
        """Return the size of the next blocks; if one client alone does not fit, its own run raises the error."""
        if len(clients) == 1:
            run, client = self.runs.of(clients[0])
            return self.runs.engines[run].halved([client])  # which knows it by its name
        return super().halved(clients)

    def collect(self, request: Request, clients: list[int], outcome: Outcome, batches: Sequence[JobBatches]) -> Updates:
        """Let each run keep the state of its clients, and return the uploads of all."""
        pieces = []
        for run, numbers, rows in self.runs.each(clients):
            own = tree_map(lambda tensor, rows=rows: tensor[rows], outcome._replace(logits=[]))
            own = own._replace(logits=outcome.logits[rows])
            updates = self.runs.engines[run].collect(self.runs.requests[run], numbers, own, batches[rows])
            pieces.append(with_client_numbers(updates, clients[rows]))
        return concatenated(pieces)


def in_rows(client: ClientState, common: Common, clients: int) -> ClientState:
    """Return what some clients hold, with what they have in common repeated in a row for each of them."""
    shared: RoundInputs = tree_map(lambda tensor: tensor.expand(clients, *tensor.shape), common.round)
    return client._replace(
        frozen=shared.frozen, got={**shared.got, **client.got}, extras={**shared.extras, **client.extras}
    )


def with_client_numbers(updates: Updates, clients: list[int]) -> Updates:
    """Return the same updates under other client numbers."""
    new = dict(zip(updates.clients, clients, strict=True))
    logits = {new[client]: value for client, value in updates.logits.items()}
    models = {new[client]: value for client, value in updates.models.items()}
    return replace(updates, clients=clients, logits=logits, models=models)


# ------------------------------------------------------------------------------------ what can be put together


def joint_key(request: Request) -> Hashable:
    """Return a key: requests of several runs with the same one, round and job can be carried out as one."""
    extras = {
        name: value.rows if isinstance(value, PerClient) else tree_map(lambda tensor: tensor[None], value)
        for name, value in request.extras.items()
    }
    in_common = frozenset(name for name, copies in request.copies.items() if copies.row is None)
    return request.plan.number, request.evaluate, request.models, shapes(extras), in_common


def can_share(engines: Sequence[ClientEngine]) -> bool:
    """Return whether runs can share blocks: the same data, and programs that do not depend on the seed."""
    first = engines[0]
    return all(
        isinstance(engine, Vector)
        and engine.x is first.x
        and all(torch.equal(*pair) for pair in zip(constants(engine.program), constants(first.program), strict=True))
        for engine in engines
    )


def constants(program: ClientProgram) -> list[torch.Tensor]:
    """Return the tensors that steps hold fast (normalisation, whole numbers): runs share steps if they are equal."""
    buffers = (buffer for module in program.parts.modules.values() for buffer in module.buffers())
    return [
        *tensors_of(program.centre),
        *tensors_of(program.scale),
        *(buffer for buffer in buffers if not buffer.is_floating_point()),
    ]


def remembers_the_same(one: ClientProgram, two: ClientProgram) -> bool:
    """Return whether two methods have equal attributes; one may hold more than its settings."""
    try:
        return bool(vars(one.method) == vars(two.method))
    except (RuntimeError, ValueError):  # tensors and arrays, which nobody can say to be equal in one word
        return False


# ------------------------------------------------------------------------------------------------- runs as coroutines


class RunThread(Generic[Ended]):
    """A run as a coroutine. `request` is what it waits for, None once it has ended."""

    def __init__(self, engine: Vector, work: Callable[[], Ended], joint: JointVector):
        self.engine, self.work, self.joint = engine, work, joint
        self.request: Request | None = None
        self.result: Ended | Exception
        self.answers: SimpleQueue[Updates | BaseException | None] = SimpleQueue()
        self.asked: SimpleQueue[Request | BaseException | None] = SimpleQueue()
        self.seconds, self.begun = 0.0, 0.0  # its own turns and its share of common blocks; since when it is its turn
        self.thread = threading.Thread(target=self._run, name="partwise run", daemon=True)

    # ---- in its own thread

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            with self.engine.joined(self.ask, self.clock, self.joint.caller):
                self.wait()
                self.result = self.work()
        except Exception as error:
            self.result = error
        except BaseException as error:  # the end of all runs, not of this one alone
            last = error
        finally:
            self.asked.put(last)

    def ask(self, request: Request) -> Updates:
        """Send a request to the main thread and return its answer."""
        self.asked.put(request)
        answer = self.wait()
        assert answer is not None
        return answer

    def wait(self) -> Updates | None:
        """Wait for the main thread's answer; raise it if it is an error."""
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def clock(self) -> float:
        """Return the seconds of this run; runs that share a block divide its time equally."""
        return self.seconds + time.perf_counter() - self.begun

    # ---- in the main thread

    def go_on(self, answer: Updates | Exception | None = None, seconds: float = 0.0) -> None:
        """Let the run go on until its next request or its end; `seconds` is its part of common blocks."""
        self.seconds += seconds
        self.begun = time.perf_counter()
        self.answers.put(answer)
        asked = self.asked.get()
        self.seconds = self.clock()
        if isinstance(asked, BaseException):
            raise asked
        self.request = asked

    def end(self) -> None:
        """Wait until the run's thread has ended, after it was sent a KeyboardInterrupt."""
        if self.thread.ident is not None:
            self.thread.join()


def side_by_side(engines: Sequence[Vector], works: Sequence[Callable[[], Ended]]) -> list[Ended | Exception]:
    """Carry out works, each a run on one of the engines, which can share blocks: what each returns or raises."""
    joint = JointVector(engines)
    runs = [RunThread(engine, work, joint) for engine, work in zip(engines, works, strict=True)]
    try:
        for run in runs:
            run.thread.start()
            run.go_on()
        while waiting := {number: run.request for number, run in enumerate(runs) if run.request is not None}:
            for requests in agreeing(joint, waiting):
                begun = time.perf_counter()
                answers = answers_by_run(joint, requests)
                seconds = time.perf_counter() - begun
                for number, answer in answers.items():
                    runs[number].go_on(answer, seconds / len(requests))
    finally:
        for run in runs:  # all are told before one is waited for, or another Ctrl-C would leave some waiting
            run.answers.put(KeyboardInterrupt())
        for run in runs:
            run.end()
        joint.release()
    return [run.result for run in runs]


def answers_by_run(joint: JointVector, requests: dict[int, Request]) -> dict[int, Updates] | dict[int, Exception]:
    """Return each run's answer to its request. An error in a block is an error of all runs with clients in it."""
    try:
        if len(requests) > 1:
            return joint.carry_out_all(requests)
        [(number, request)] = requests.items()
        return {number: joint.runs.engines[number].carry_out(request)}
    except Exception as error:
        return dict.fromkeys(requests, error)


def agreeing(joint: JointVector, waiting: dict[int, Request]) -> list[dict[int, Request]]:
    """Group the next requests by what can be carried out in common blocks."""

    def progress(request: Request) -> tuple[int, int]:
        return request.round, JOBS.index(request.job)

    behind = min(map(progress, waiting.values()))
    groups: dict[Hashable, dict[int, Request]] = {}
    for number, request in waiting.items():
        if progress(request) == behind:
            same = remembers_the_same(joint.runs.engines[number].program, joint.program)
            groups.setdefault(joint_key(request) if same else number, {})[number] = request
    return list(groups.values())
