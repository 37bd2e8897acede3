"""Is the rule for threads right here? python -m benchmarks.threads --help

Steps of several sizes with one thread and with all, in turn, alone and beside a process that keeps a processor busy.
The rule is right where its choice takes no more than a tenth longer than the other. It knows the step, and not what
else the machine does: beside other work one thread is faster for larger steps, too.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F

from partwise.engines.workers import TRAINING_PASSES
from partwise.network.layers import LayerScope
from partwise.network.models import build
from partwise.rounds.client import ClientProgram
from partwise.runs.choose import THREADS_PAY, forward_operations
from partwise.runs.config import make_config


class Case(NamedTuple):
    model: str
    shape: tuple[int, int, int]
    batch: int


DIGITS, COLOURED = (1, 8, 8), (3, 32, 32)
CASES = [Case(model, DIGITS, batch) for model in ("mlp-100", "cnn-digits") for batch in (16, 64)]
CASES += [Case("cnn-5x5", COLOURED, batch) for batch in (10, 64, 256)] + [Case("resnet18", COLOURED, 10)]


def made(case: Case) -> tuple[Callable[[], None], float]:
    """Return a step of SGD, and its operations as the rule counts them."""
    parts, x = build(case.model, case.shape, 10), torch.randn(case.batch, *case.shape)
    body, head = parts.modules["body"], parts.modules["head"]
    y = torch.randint(0, 10, (case.batch,))
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.01)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(head(body(x)), y).backward()
        optimiser.step()

    scope = LayerScope()
    method, centre = make_config("fedavg", {}).method, torch.zeros(1)
    program = ClientProgram(method, parts.prepared(scope), scope, 10, centre, centre + 1, torch.float32)
    return step, TRAINING_PASSES * case.batch * forward_operations(program, x)


def measured(step: Callable[[], None], threads: list[int], repetitions: int, seconds: float) -> list[float]:
    """Return the median seconds of a step with each number of threads; they take turns."""
    times: dict[int, list[float]] = {number: [] for number in threads}
    begun = time.perf_counter()
    while len(times[threads[-1]]) < repetitions and time.perf_counter() - begun < seconds:
        for number in threads:
            torch.set_num_threads(number)
            step()  # threads that were asleep wake up
            start = time.perf_counter()
            step()
            times[number].append(time.perf_counter() - start)
    return [statistics.median(times[number]) for number in threads]


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process computes meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="at most, for a size alone or beside the process")
    arguments = parser.parse_args()
    threads = [1, torch.get_num_threads()]
    for case in CASES:
        step, operations = made(case)
        small = operations < THREADS_PAY
        alone = measured(step, threads, arguments.repetitions, arguments.seconds)
        with busy_process():
            beside = measured(step, threads, arguments.repetitions, arguments.seconds)
        told = [f"{case.model}, batch {case.batch}: {operations / 1e6:,.0f} million operations"]
        for where, (one, several) in (("alone", alone), ("beside a busy process", beside)):
            right = one <= 1.1 * several if small else several <= 1.1 * one
            told.append(
                f"{where} {1e3 * one:.2f} ms with 1 thread, {1e3 * several:.2f} with {threads[-1]}: "
                f"{'right' if right else 'wrong'}"
            )
        print("; ".join([*told, f"the rule: {threads[0] if small else threads[-1]}"]), flush=True)


if __name__ == "__main__":
    main()
