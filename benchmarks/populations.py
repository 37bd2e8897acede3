"""What a round costs where 100 or 100,000 clients stand behind a cohort of 20; `python -m benchmarks.speed` runs it.

The populations are measured side by side: a round of each in turn, so that all see the same machine.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.images import random_source
from partwise.data import Federation
from partwise.records.rounds import RoundRecord
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation

POPULATIONS = {f"population {clients:,}": clients for clients in (100, 1_000, 10_000, 100_000)}
COHORT, SAMPLES, TESTED, EVALUATED = 20, 64, 8, 1_000
IMAGES, TEST_IMAGES = 45_000, 5_000


class RoundByRound(threading.Thread):
    """A simulation in a thread of its own that waits after every round, until it is told to go on."""

    def __init__(self, simulation: Simulation):
        super().__init__(daemon=True)
        self.simulation = simulation
        self.begin, self.end = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        self.begin.acquire()
        try:
            self.simulation.run(self.wait)
        except BaseException as error:  # whatever it is, who waits for the round must hear of it
            self.error = error
        self.end.release()

    def wait(self, record: RoundRecord) -> None:
        self.end.release()
        self.begin.acquire()

    def round(self) -> None:
        """One round, while everybody else waits."""
        self.begin.release()
        self.end.acquire()
        if self.error is not None:
            raise self.error


def measured(only: str, rounds: int, warm_up: int, device: torch.device, **settings: Any) -> Iterator[dict[str, Any]]:
    """Seconds of a round at every population whose name begins so, and their ratio to those of the first."""
    names = [name for name in POPULATIONS if name.startswith(only.lower())]
    settings |= {"batch": 10, "lr": 0.01, "rounds": warm_up + rounds + 1, "eval_every": 10, "device": str(device)}
    settings |= {"model": "cnn-5x5" if device.type == "cuda" else "mlp-100", "clients_per_round": COHORT}
    everything, prepared = {}, {}
    for name in names:
        clients, begun = POPULATIONS[name], time.perf_counter()
        data = federation(clients, settings["model"])
        config = make_config("fedper", {**settings, "clients": clients, "eval_clients": min(EVALUATED, clients)})
        everything[name] = RoundByRound(prepare(config, data))
        prepared[name] = time.perf_counter() - begun
    seconds: dict[str, list[float]] = {name: [] for name in names}
    memory = dict.fromkeys(names, 0)
    for number in range(warm_up + rounds):
        for name, turns in everything.items():
            spent, peak = one(turns, device)
            if number >= warm_up:
                seconds[name].append(spent)
                memory[name] = max(memory[name], peak)
    for name in names:
        median = statistics.median(seconds[name])
        result = {"name": name, "method": "fedper", "model": settings["model"], "clients": POPULATIONS[name]}
        result |= {"cohort": COHORT, "batch": 10, "rounds": rounds, "prepared": round(prepared[name], 1)}
        result |= {"dtype": settings["dtype"], "engine": everything[name].simulation.notes[0]}
        result |= {"seconds": median, "samples_per_second": COHORT * SAMPLES / median}
        result |= {"seconds_with_evaluation": statistics.fmean(seconds[name])}
        result |= {"over_first": median / statistics.median(seconds[names[0]])}
        yield result | ({"gigabytes": memory[name] / 1e9} if device.type == "cuda" else {})


def one(turns: RoundByRound, device: torch.device) -> tuple[float, int]:
    """Seconds of a round, and the bytes of the device that it needs beside what lies there."""
    held = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    begun = time.perf_counter()
    turns.round()
    if device.type != "cuda":
        return time.perf_counter() - begun, 0
    torch.cuda.synchronize(device)
    return time.perf_counter() - begun, torch.cuda.max_memory_allocated(device) - held


def federation(clients: int, model: str) -> Federation:
    """Every client draws its samples with replacement from the same random images."""
    random = torch.Generator().manual_seed(0)
    number, source = IMAGES + TEST_IMAGES, random_source(model, IMAGES, TEST_IMAGES, random)
    train = torch.randint(0, IMAGES, (clients, SAMPLES), generator=random)
    test = torch.randint(IMAGES, number, (clients, TESTED), generator=random)
    return Federation(source, list(train.unbind()), list(test.unbind()), torch.arange(IMAGES, number))
