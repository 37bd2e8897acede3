"""Worker processes that carry out jobs and end with their parent process, however that ends."""

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pickle import PickleError
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from partwise.errors import PartwiseError, one_line

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


class Processes(ThreadPoolExecutor):
    """A pool of processes, each with its own pipe to a thread that sends it one job at a time.

    No process waits for another, so each can be killed in the middle of anything: its thread finds the pipe at its end.
    """

    def __init__(self, workers: int, begin: Callable[..., None], known: tuple[Any, ...]):
        """Start processes that call `begin` with `known`."""
        super().__init__(workers)
        self.free: SimpleQueue[Connection] = SimpleQueue()
        self.pipes: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        atexit.register(self.kill)  # where nobody else does; Python's own way is a signal, and those are blocked
        context = get_context("spawn")
        with signals_blocked():
            for _ in range(workers):
                here, there = context.Pipe()
                process = context.Process(target=serve_jobs, args=(there, begin, known), daemon=True)
                process.start()
                there.close()  # or the pipe would not end with the process
                self.processes.append(process)
                self.pipes.append(here)
                self.free.put(here)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Send a call to the process that is free first."""
        return super().submit(self.asked, function, arguments, keywords)

    def asked(self, *job: Any) -> Any:
        """Return a process's answer; if it has died, raise the error of Python's own process pool."""
        pipe = self.free.get()
        try:
            pipe.send(job)
            answer, error = pipe.recv()
        except (EOFError, OSError):
            raise BrokenExecutor("a process has died") from None
        finally:
            self.free.put(pipe)
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        """End all processes, whatever they do."""
        atexit.unregister(self.kill)
        for process in self.processes:
            process.kill()
        self.shutdown(cancel_futures=True)
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            pipe.close()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Delay signals while entered, also for processes that are started meanwhile.

    They inherit the mask: only the parent decides whether to stop, and they end with it.
    """
    if sys.platform == "win32":  # it has no such signals
        yield
        return
    resource_tracker.ensure_running()  # a process that comes with the first worker, and that would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---------------------------------------------------------------------------------------------------- in a process


def serve_jobs(pipe: Connection, begin: Callable[..., None], known: tuple[Any, ...]) -> None:
    """Carry out one job after another, until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    threading.Thread(target=exit_with_parent, daemon=True).start()
    _, not_begun = outcome(begin, known, {})
    while True:
        try:
            job = pipe.recv()
            answer, error = (None, not_begun) if not_begun else outcome(*job)
            try:
                pipe.send((answer, error))
            except (AttributeError, TypeError, PickleError) as unsendable:
                pipe.send((None, PartwiseError(f"a worker's answer cannot be sent: {one_line(error or unsendable)}")))
        except (EOFError, OSError):  # nobody is there
            return


def outcome(function: Callable[..., Any], arguments: Any, keywords: Any) -> tuple[Any, Exception | None]:
    """Return a function's result, or the error with which it fails."""
    try:
        return function(*arguments, **keywords), None
    except Exception as error:
        error.add_note(traceback.format_exc())  # what --debug shows: the traceback itself does not cross
        return None, error


def exit_with_parent() -> None:
    """End this process when its parent ends: a killed parent cannot send a message, and a job may take hours."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
