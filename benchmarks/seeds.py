"""What a round of one seed costs where several run side by side; `python -m benchmarks.speed` runs it."""

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.images import random_source
from partwise.data import Federation
from partwise.runs.config import make_config
from partwise.runs.simulation import Progress, Simulation
from partwise.studies.seeds import PlannedRun, run_seeds

SEEDS = {f"seeds {number}": number for number in (1, 3, 10)}
CLIENTS, BATCH, IMAGES, TESTED = 20, 10, 45_000, 5_000


def measured(only: str, rounds: int, warm_up: int, device: torch.device, **settings: Any) -> Iterator[dict[str, Any]]:
    """Seconds of a round and seed for every number of seeds whose name begins so, and their ratio to one alone."""
    settings |= {"batch": BATCH, "lr": 0.01, "rounds": warm_up + rounds, "eval_every": warm_up + rounds}
    settings |= {"model": "cnn-5x5" if device.type == "cuda" else "mlp-100", "device": str(device), "engine": "vector"}
    data, alone = federation(settings["model"]), None
    for name in (name for name in SEEDS if name.startswith(only.lower())):
        ends: dict[int, float] = {}  # by round: when the last seed was through with it

        def work(simulation: Simulation, progress: Progress, ends: dict[int, float] = ends) -> None:
            simulation.run(lambda record: ends.__setitem__(record.round, time.perf_counter()))

        configs = [make_config("fedavg", {**settings, "clients": CLIENTS, "seed": n}) for n in range(SEEDS[name])]
        run_seeds([PlannedRun(f"seed {n}", config, work, data) for n, config in enumerate(configs)])
        last = warm_up + rounds - 1  # the one after it is evaluated
        seconds = (ends[last] - ends[warm_up]) / (last - warm_up) / SEEDS[name]
        alone = seconds if alone is None else alone
        result = {"name": name, "method": "fedavg", "model": settings["model"], "clients": CLIENTS, "batch": BATCH}
        result |= {"dtype": settings["dtype"], "engine": f"vector on {device.type}", "rounds": last - warm_up}
        yield result | {"seconds": seconds, "samples_per_second": IMAGES / seconds, "over_first": seconds / alone}


def federation(model: str) -> Federation:
    """Equal clients on random images."""
    source = random_source(model, IMAGES, TESTED, torch.Generator().manual_seed(0))
    train = list(torch.arange(IMAGES).chunk(CLIENTS))
    test = list((IMAGES + torch.arange(TESTED)).chunk(CLIENTS))
    return Federation(source, train, test, torch.cat(test))
