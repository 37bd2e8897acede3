"""The loop in several processes, each with one thread: on a CPU, small convolutions gain more from that than from
threads. Every client's round is the loop's, and sums are taken here in the order of clients, so results are bit for bit
the loop's, however many workers there are.
"""

import ctypes
import os
import pickle
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context, resource_tracker
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.engines.engine import named
from partwise.engines.loop import Loop, one_client
from partwise.engines.tracing import Traced
from partwise.errors import ConfigError, PartwiseError, located
from partwise.method import Method
from partwise.methods import find
from partwise.rounds.client import ClientProgram, JobBatches, JobPlan
from partwise.rounds.messages import Job, Request, Updates, concatenated
from partwise.rounds.plan import Plan, ResolvedPhase, as_phases, plans, resolve
from partwise.rounds.state import Common, Outcome

MAIN = b"__main__"  # in what is sent: something that the user's script defines
AHEAD = 2  # jobs for each worker that are on their way: none waits, and not all clients are in memory at once


class Workers(Loop):
    """Clients one at a time in each of several processes, which start when several clients are first trained."""

    def __init__(self, *arguments: Any, method_name: str, workers: int, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.method_name, self.workers = method_name, workers  # the name is what `find` knows the method by
        self.pool: ProcessPoolExecutor | None = None
        self.data: Sequence[Any] = ()  # the samples, where all processes can read them
        self.main: Callable[[], AbstractContextManager[None]] = nullcontext  # in which processes are started
        self.version = 0  # of the method, when processes were started

    def carry_out(self, request: Request) -> Updates:
        if len(request.clients) < 2 or (self.pool is None and request.job != "train"):
            return super().carry_out(request)
        pieces: list[Updates] = []
        waiting: deque[tuple[int, JobBatches, Future[Any]]] = deque()
        try:
            for client in request.clients:
                batches = self.job_batches(request, client)
                waiting.append((client, batches, self.submit(request, client, batches)))
                while len(waiting) > AHEAD * self.workers:
                    pieces.append(self.received(request, *waiting.popleft()))
            pieces += [self.received(request, *one) for one in waiting]
        except BrokenProcessPool:
            self.release()
            raise PartwiseError(
                "a worker process died (out of memory?): lower workers, or run with --engine loop"
            ) from None
        return concatenated(pieces)

    def submit(self, request: Request, client: int, batches: JobBatches) -> Future[Any]:
        """Send a client's job to whichever process is free."""
        if self.pool is None:
            self.pool = self.started()
        state, common = self.layout(request, [client], [batches])
        held = vars(self.program.method) if self.program.version != self.version else {}
        job = request.job, request.plan.number, as_arrays(state), as_arrays(common.round), batches
        with self.main(), interrupts_blocked():  # a submission may start a process
            return self.pool.submit(run_in_worker, *job, (self.program.version, held))

    def started(self) -> ProcessPoolExecutor:
        """Return processes that know the program and the samples."""
        sent = pickle.dumps(Sent(self.program, self.method_name))
        self.version = self.program.version
        self.data = in_shared_memory(self.x), in_shared_memory(self.y)
        self.main = nullcontext if MAIN in sent else hidden_main
        return ProcessPoolExecutor(self.workers, get_context("spawn"), begin, (sent, self.version, *self.data))

    def received(self, request: Request, client: int, batches: JobBatches, future: Future[Any]) -> Updates:
        """Return the update of a client once its process has answered."""
        with located(request.when), located(named([client])):
            outcome: Outcome = as_tensors(future.result())
        with one_thread():  # the processors are the workers': a second thread here would wait for one of them
            return self.collect(request, [client], outcome, [batches])

    def release(self) -> None:
        super().release()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool, self.data = None, ()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def hidden_main() -> Iterator[None]:
    """New processes run the user's script again, to find what it defines. These need nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Ctrl-C comes here when this is over, and never in processes that are started meanwhile: those inherit it."""
    if sys.platform == "win32":  # it has no such signals
        yield
        return
    resource_tracker.ensure_running()  # a process that comes with the first worker, and that would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unsendable(program: ClientProgram, name: str, asked: bool) -> str:
    """Why another process cannot have this method and this network; empty: it can.

    What a user's script defines is found by running the script again: only where workers were `asked` for.
    """
    try:
        sent = pickle.dumps(Sent(program, name))
    except Exception:  # a user's network, or method, may hold anything
        return f"{first_unsendable(program)} cannot be sent to other processes (is a lambda in it, or a local class?)"
    return "" if asked or MAIN not in sent else "other processes would have to run your script to find what it defines"


def first_unsendable(program: ClientProgram) -> str:
    """The innermost layer that cannot be sent; where all can, the method."""
    layers = [item for part, module in program.parts.modules.items() for item in module.named_modules(prefix=part)]
    for name, layer in reversed(layers):  # inner ones come behind
        try:
            pickle.dumps(layer)
        except Exception:  # whatever pickling makes of it
            return f"the network's '{name}' ({type(layer).__name__})"
    return "the method"


# ------------------------------------------------------------------------------------------ what is sent, and how


class Sent:
    """A program on its way. A method goes by its name: its class may be made anew, or come from a user's file."""

    def __init__(self, program: ClientProgram, name: str):
        self.program, self.name = program, name

    def __reduce__(self) -> Any:
        method = self.program.method
        try:
            known = find(self.name).variant(vars(method)).__qualname__ == type(method).__qualname__
        except ConfigError:
            known = False
        if not known:
            return restored, (self.program, None, {})
        return restored, (replace(self.program, method=Method()), self.name, vars(method))


def restored(program: ClientProgram, name: str | None, state: dict[str, Any]) -> ClientProgram:
    if name is None:
        return program
    method_class = find(name).variant(state)
    method = method_class.__new__(method_class)
    vars(method).update(state)
    return replace(program, method=method)


class Mapped:
    """A tensor in a file, which other processes map into their memory. The file goes with it."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.file = tempfile.NamedTemporaryFile(prefix="partwise-")  # noqa: SIM115 - workers open it when they start
        tensor.numpy().tofile(self.file)
        self.file.flush()

    def __reduce__(self) -> Any:
        return opened, (self.file.name, self.shape, self.dtype)


def opened(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.from_file(name, size=shape.numel(), dtype=dtype).view(shape)


def in_shared_memory(tensor: Tensor) -> Any:
    """A tensor as other processes get it without a copy: in shared memory, or in a file where there is too little."""
    with suppress(RuntimeError):  # containers often have no more than 64 MB
        return tensor.share_memory_()
    try:
        return Mapped(tensor)
    except OSError as error:
        raise PartwiseError(
            f"no room for {tensor.nbytes / 1e9:.1f} GB of samples in shared memory nor in {tempfile.gettempdir()} "
            f"({error.strerror}): set TMPDIR, or run with --engine loop"
        ) from None


def as_arrays(tree: Any) -> Any:
    """Arrays in state of tensors: torch would open a file for each tensor that is sent."""
    return tree_map(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, tree)


def as_tensors(tree: Any) -> Any:
    return tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


# ----------------------------------------------------------------------------------------------------- in a worker


@dataclass
class WorkerState:
    """What a worker has from the beginning."""

    program: ClientProgram
    stages: list[Plan]
    adapting: Sequence[ResolvedPhase]
    x: Tensor
    y: Tensor
    caller: Traced
    version: int  # of the method, in the process that asks

    def plan(self, job: Job, stage: int) -> JobPlan:
        """Return what a client does."""
        plan = self.stages[stage]
        phases = {"train": plan.phases, "adapt": self.adapting, "finetune": [plan.finetuning]}.get(job, ())
        return JobPlan(phases, job == "train", plan.predict)

    def renew(self, version: int, held: dict[str, Any]) -> None:
        """Let the method hold what it holds in the process that asks."""
        if version != self.version:
            self.version = version
            vars(self.program.method).update(held)


worker_states: list[WorkerState] = []  # a worker's only one


def begin(sent: bytes, version: int, x: Tensor, y: Tensor) -> None:
    """Prepare a process that has just started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks; before this, it was blocked
    torch.set_num_threads(1)
    keep_memory()
    program = pickle.loads(sent)
    method, parts = program.method, program.parts
    adapting = [resolve(method, parts, phase) for phase in as_phases(method.adapt())]
    worker_states.append(WorkerState(program, plans(method, parts), adapting, x, y, Traced(), version))


def keep_memory() -> None:
    """What a step frees stays with this process: from the system, the next one would get it page by page."""
    with suppress(AttributeError, OSError, TypeError):  # another C library than Linux's usual one
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, as large as it may be


def run_in_worker(
    job: Job, stage: int, client: Any, inputs: Any, batches: JobBatches, method: tuple[int, dict[str, Any]]
) -> Any:
    """Carry out a client's job; trees come and go as arrays."""
    [state] = worker_states
    state.renew(*method)
    with torch.no_grad(), located(""):
        common = Common(state.x, state.y, as_tensors(inputs))
        outcome = one_client(state.program, as_tensors(client), common, state.plan(job, stage), batches, state.caller)
    return as_arrays(outcome)
