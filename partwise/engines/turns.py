"""Runs that differ in their seed alone, side by side.

Each run is a coroutine, made of a thread that works only while it is its turn. When it wants a request carried out, it
hands it over and waits. Once all wait, the requests that agree become one, in the main thread, where all blocks are.
"""

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from partwise.engines.engine import Engine
from partwise.engines.shared import Shared, joint_key, remembers_the_same
from partwise.engines.vector import Vector
from partwise.rounds.messages import ADAPTING, Request, Updates

# What a round asks for, in turn: evaluations after a round carry the number of the next. A run that is behind another
# goes first, so that their requests meet again.
JOBS = ("predict", *ADAPTING, "report", "train")

Result = TypeVar("Result")


class Turns(Generic[Result]):
    """A run as a coroutine. `request` is what it waits for, None once it has ended."""

    def __init__(self, engine: Vector, work: Callable[[], Result]):
        self.engine, self.work = engine, work
        self.request: Request | None = None
        self.result: Result | Exception
        self.answers: SimpleQueue[Updates | BaseException | None] = SimpleQueue()
        self.asked: SimpleQueue[Request | BaseException | None] = SimpleQueue()
        self.seconds, self.begun = 0.0, 0.0  # its own turns and its share of common blocks; since when it is its turn
        self.thread = threading.Thread(target=self.life, name="partwise run", daemon=True)

    # ---- in its own thread

    def life(self) -> None:
        last: BaseException | None = None
        self.engine.hand_over, self.engine.clock = self.ask, self.clock
        try:
            self.wait()
            self.result = self.work()
        except Exception as error:
            self.result = error
        except BaseException as error:  # the end of all runs, not of this one alone
            last = error
        finally:
            del self.engine.hand_over, self.engine.clock
            self.asked.put(last)

    def ask(self, request: Request) -> Updates:
        self.asked.put(request)
        return self.wait()

    def wait(self) -> Any:
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def clock(self) -> float:
        """The seconds that this run has taken: where several share a block, each an equal part of it."""
        return self.seconds + time.perf_counter() - self.begun

    # ---- in the main thread

    def go_on(self, answer: Updates | Exception | None = None) -> None:
        """Its turn, until it wants a request carried out or has ended."""
        self.begun = time.perf_counter()
        self.answers.put(answer)
        asked = self.asked.get()
        self.seconds = self.clock()
        if isinstance(asked, BaseException):
            raise asked
        self.request = asked

    def end(self) -> None:
        """Whatever it is doing: it leaves its `with` blocks, and its thread is gone."""
        if self.thread.ident is not None:
            self.thread.join()


def side_by_side(engines: Sequence[Any], works: Sequence[Callable[[], Result]]) -> list[Result | Exception]:
    """Carry out works, each a run on one of the engines, which can share blocks: what each returns or raises."""
    shared = Shared(engines)
    runs = [Turns(engine, work) for engine, work in zip(engines, works, strict=True)]
    try:
        for run in runs:
            run.thread.start()
            run.go_on()
        while waiting := {number: run.request for number, run in enumerate(runs) if run.request is not None}:
            for requests in agreeing(shared, waiting):
                begun = time.perf_counter()
                answers = answered(shared, requests)
                seconds = time.perf_counter() - begun
                for number, answer in answers.items():
                    runs[number].seconds += seconds / len(requests)
                    runs[number].go_on(answer)
    finally:
        for run in runs:  # all are told before one is waited for, or another Ctrl-C would leave some waiting
            run.answers.put(KeyboardInterrupt())
        for run in runs:
            run.end()
        shared.release()
    return [run.result for run in runs]


def answered(shared: Shared, requests: dict[int, Request]) -> dict[int, Updates] | dict[int, Exception]:
    """What each run gets for its request. What goes wrong in a block goes wrong for all whose clients are in it."""
    try:
        if len(requests) > 1:
            return shared.carry_out_all(requests)
        [(number, request)] = requests.items()
        return {number: Engine.carry_out(shared.engines[number], request)}
    except Exception as error:
        return dict.fromkeys(requests, error)


def agreeing(shared: Shared, waiting: dict[int, Request]) -> list[dict[int, Request]]:
    """The requests that are next, those together that can be carried out in common blocks."""

    def progress(request: Request) -> tuple[int, int]:
        return request.round, JOBS.index(request.job)

    behind = min(map(progress, waiting.values()))
    groups: dict[Any, dict[int, Request]] = {}
    for number, request in waiting.items():
        if progress(request) == behind:
            same = remembers_the_same(shared.engines[number].program, shared.program)
            groups.setdefault(joint_key(request) if same else number, {})[number] = request
    return list(groups.values())
