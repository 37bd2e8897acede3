"""Run the loop in several processes of one thread each: on a CPU, small convolutions gain more from them than threads.

Every client's round is the loop's, and sums are taken here in the order of clients, so results are bit for bit the
loop's, however many workers there are.
"""

import ctypes
import math
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.code_files import load_file, network_files_in
from partwise.engines.engine import clients_named
from partwise.engines.loop import Loop
from partwise.engines.processes import Processes
from partwise.engines.shared_memory import Block, blocks, in_shared_memory, padded, read_tree
from partwise.engines.tracing import Traced
from partwise.errors import ConfigError, PartwiseError, located
from partwise.method import Method
from partwise.methods import find
from partwise.rounds import optim
from partwise.rounds.batches import JobBatches
from partwise.rounds.client import ClientProgram, client_job
from partwise.rounds.messages import Job, Request, Updates, concatenated
from partwise.rounds.plan import JobPlan, Plan, ResolvedPhase, adaptation, plans
from partwise.rounds.state import ClientState, Common, Outcome

MAIN = b"__main__"  # in what is sent: something that the user's script defines
AHEAD = 2  # jobs for each worker that are on their way: none waits, and not all clients are in memory at once
TRAINING_PASSES = 3  # forward passes that a sample costs in training: one forward, and the backward is about two
COMMON = 0  # the block of shared memory for what all clients of a request have in common
LITTLE = 2**16  # bytes for numbers, counts and small extras

Attributes = dict[str, Any]  # of a method, by name


class Workers(Loop):
    """Clients one at a time in each of several processes, which start when several clients are first trained."""

    def __init__(self, *arguments: Any, method_name: str, workers: int, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.method_name, self.workers = method_name, workers  # the name is what `find` knows the method by
        self.pool: Processes | None = None
        self.data: Sequence[Any] = ()  # the program and the samples, where all processes can read them
        self.memory: list[Block] = []  # shared by all processes: what clients have in common, then one for each job
        self.version = 0  # of the method, when processes were started
        self.renewed = False  # it has held something else since

    def run(self, request: Request) -> Updates:
        """Return the updates of a request's clients; the first training of several clients starts the processes."""
        if self.pool is None and request.job == "train" and len(request.clients) > 1:
            self.start()  # processes get ready while what the request runs is tried
        return super().run(request)

    def carry_out(self, request: Request) -> Updates:
        """Return the updates of a request's clients. The largest come first: no worker is left alone with one.

        Where several clients fail, the error is the loop's: that of the first of them.
        """
        if self.pool is None or len(request.clients) < 2:
            return super().carry_out(request)
        batches = {client: self.drawing.draw(request, client) for client in request.clients}
        waiting = sorted(request.clients, key=lambda client: (work(batches[client]), -client))  # from its end
        free, common = self.memory[COMMON + 1 :], self.lay_common(request, batches)
        running: dict[Future[Any], tuple[int, Block]] = {}
        pieces: dict[int, Updates] = {}
        failed: dict[int, Exception] = {}
        try:
            while waiting or running:
                while waiting and free:
                    client, block = waiting.pop(), free.pop()
                    running[self.submit(request, client, batches[client], common, block)] = client, block
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    client, block = running.pop(future)
                    free.append(block)
                    try:
                        pieces[client] = self.received(request, client, batches[client], future)
                    except BrokenExecutor:
                        raise
                    except Exception as error:
                        failed[client] = error
                        waiting = [other for other in waiting if other < min(failed)]
        except BrokenExecutor:
            self.release()
            raise PartwiseError(
                "a worker process died (out of memory?): lower workers, or run with --engine loop"
            ) from None
        except BaseException:
            self.release()  # or what still runs would write where the next request lays its tensors
            raise
        if failed:
            raise failed[min(failed)]
        return concatenated([pieces[client] for client in request.clients])

    def lay_common(self, request: Request, batches: dict[int, JobBatches]) -> Any:
        """Copy the tensors that all clients of a request share into memory, and return their places."""
        first, block = request.clients[0], self.memory[COMMON]
        block.clear()
        return tree_map(block.put, self.layout(request, [first], [batches[first]])[1].round)

    def submit(self, request: Request, client: int, batches: JobBatches, common: Any, block: Block) -> Future[Any]:
        """Send a client's job to a free process."""
        assert self.pool is not None
        block.clear()
        state, _ = self.layout(request, [client], [batches])
        # What a client adopted lies among what is common already.
        state = tree_map(lambda tensor: self.memory[COMMON].find(tensor) or block.put(tensor), state)
        self.renewed = self.renewed or self.program.version != self.version  # a worker may hold any of them since
        held = vars(self.program.method) if self.renewed else {}
        wanted = request.job, request.plan.number, request.models
        method = self.program.version, held
        return self.pool.submit(run_in_worker, *wanted, state, common, batches, block.number, method)

    def start(self) -> None:
        """Start processes that know the program and the samples."""
        sent = pickle.dumps(PackedProgram(self.program, self.method_name))
        self.version, self.renewed = self.program.version, False
        # In shared memory too: a process is not kept waiting until the one before has read what it is sent.
        tensors = torch.frombuffer(bytearray(sent), dtype=torch.uint8), self.x, self.y
        self.data, self.memory = tree_map(in_shared_memory, tensors), blocks(self.bytes_of_blocks())
        known = network_files_in(sent), self.version, *self.data, [block.memory for block in self.memory]
        with nullcontext() if MAIN in sent else hidden_main():
            self.pool = self.executor(self.workers, begin, known)

    executor = Processes

    def bytes_of_blocks(self) -> list[int]:
        """Return the size in bytes of each block of memory; a method with large extras may need more."""
        method = self.program.method
        model = sum(padded(value.nbytes) for value in self.program.parts.tensors().values())
        keep = sum(padded(value.nbytes) for value in self.store.keep.values())
        states = len(optim.initial_state(method.optimizer, method.momentum, torch.zeros(1)))
        tested = max(len(self.drawing.tested(client)) for client in range(len(self.train)))
        output = tested * math.prod(self.program.task.output_shape(self.y.shape[1:]))
        job = (2 + states) * model + keep + output * self.program.dtype.itemsize + LITTLE
        return [2 * model + LITTLE, *[job] * (AHEAD * self.workers)]

    def received(self, request: Request, client: int, batches: JobBatches, future: Future[Any]) -> Updates:
        """Return the update of a client whose process has answered."""
        with located(request.when), located(clients_named([client])):
            outcome: Outcome = read_tree(future.result(), [block.memory for block in self.memory], copied=True)
        with one_thread():  # the processors are the workers': a second thread here would wait for one of them
            return self.collect(request, [client], outcome, [batches])

    def release(self) -> None:
        """End the processes, and let go of the memory they share."""
        super().release()
        if self.pool is not None:
            self.pool.kill()
            self.pool, self.data, self.memory = None, (), []


def work(batches: JobBatches) -> int:
    """Return about how much a client's job is, in passes of a sample through the network."""
    trained = sum(int(phase.real.sum()) * phase.samples.shape[1] for phase in [*batches.prepare, *batches.phases])
    passed = sum(int(each.real.sum()) for each in (batches.report, batches.predict) if each)
    return TRAINING_PASSES * trained + passed


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread while entered."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide the user's script, which new processes would run again to find its definitions."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def processors() -> int:
    """Return the number of CPUs available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def unsendable(program: ClientProgram, name: str, asked: bool) -> str:
    """Return why this method and network cannot be sent to another process; '' if they can.

    A process finds the definitions of a user's script by running it again: only if workers were `asked` for.
    """
    try:
        sent = pickle.dumps(PackedProgram(program, name))
    except Exception:  # a user's network, or method, may hold anything
        return f"{first_unsendable(program)} cannot be sent to other processes (is a lambda or local class in it?)"
    return "" if asked or MAIN not in sent else "other processes would have to run your script to find its definitions"


def first_unsendable(program: ClientProgram) -> str:
    """Return the innermost layer that cannot be sent; if all can, the method."""
    layers = [item for part, module in program.parts.modules.items() for item in module.named_modules(prefix=part)]
    for name, layer in reversed(layers):  # inner ones come behind
        try:
            pickle.dumps(layer)
        except Exception:  # whatever pickling makes of it
            return f"the network's '{name}' ({type(layer).__name__})"
    return "the method"


# ------------------------------------------------------------------------------------------ what is sent, and how


class PackedProgram:
    """A program to be pickled. A method is sent by name: its class may be made anew, or come from a user's file."""

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


def restored(program: ClientProgram, name: str | None, state: Attributes) -> ClientProgram:
    """Return a program with its method made anew from name and attributes; without a name, the program itself."""
    if name is None:
        return program
    method_class = find(name).variant(state)
    method = method_class.__new__(method_class)
    vars(method).update(state)
    return replace(program, method=method)


# ----------------------------------------------------------------------------------------------------- in a worker


@dataclass
class WorkerState:
    """The state of a worker, made when it starts."""

    program: ClientProgram
    stages: list[Plan]
    adapting: Sequence[ResolvedPhase]
    x: Tensor
    y: Tensor
    memories: list[Tensor]  # of the blocks
    caller: Traced
    version: int  # of the method, in the process that asks

    def renew(self, version: int, held: Attributes) -> None:
        """Update the attributes of the method to those in the parent process."""
        if version != self.version:
            self.version = version
            vars(self.program.method).update(held)


worker_states: list[WorkerState] = []  # a worker's only one


def begin(*known: Any) -> None:
    """Prepare a process that has just started."""
    torch.set_num_threads(1)
    keep_memory()
    learn(*known)


def learn(files: dict[str, Path], version: int, sent: Tensor, x: Tensor, y: Tensor, memories: list[Tensor]) -> None:
    """Set the state that jobs need; the classes of a user's network are found in modules of these names."""
    for module, path in files.items():
        load_file(path, module)
    program = pickle.loads(sent.numpy().tobytes())
    method, parts = program.method, program.parts
    stages, adapting = plans(method, parts), adaptation(method, parts)
    worker_states[:] = [WorkerState(program, stages, adapting, x, y, memories, Traced(), version)]


def keep_memory() -> None:
    """Keep memory that a step frees in this process; the system would return it page by page."""
    with suppress(AttributeError, OSError, TypeError):  # another C library than Linux's usual one
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, as large as it may be


def run_in_worker(
    job: Job,
    stage: int,
    models: bool,
    client: Any,
    inputs: Any,
    batches: JobBatches,
    block: int,
    method: tuple[int, Attributes],
) -> Any:
    """Carry out a client's job. Its tensors, and those of the result, are in a block of shared memory."""
    [state] = worker_states
    state.renew(*method)
    with torch.no_grad(), located(""):
        common = Common(state.x, state.y, read_tree(inputs, state.memories, copied=False))
        own: ClientState = read_tree(client, state.memories, copied=True)  # what is returned will lie there
        plan = JobPlan.of(job, state.stages[stage], state.adapting)
        outcome = client_job(state.program, own, common, plan, [batches], state.caller)
    answer = Block(block, state.memories[block])
    return tree_map(answer.put, wanted_back(state.program.method, job, models, outcome))


def wanted_back(method: Method, job: Job, models: bool, outcome: Outcome) -> Outcome:
    """Return the part of an outcome that the parent process needs."""
    trained = outcome.trained
    if not method.persist_optimizer_state:
        trained = trained._replace(optimizer_state={})
    if job in ("predict", "report") and not models:
        return outcome._replace(trained=trained._replace(own={}), keep={})
    return outcome._replace(trained=trained)
