"""What checkpoints cost: python -m benchmarks.checkpoints --help

Seconds and megabytes of a checkpoint of some runs, and the share of the time that one a minute takes; then a population
of 100,000 clients of whom 20 train in a round: a checkpoint writes what changed.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from partwise.data.source import Federation, image_source
from partwise.runs.checkpoints import Checkpoints
from partwise.runs.config import make_config
from partwise.runs.observers import Seen
from partwise.runs.pace import Pace
from partwise.runs.prepare import prepare

A_MINUTE = 60.0


class Timed(Checkpoints):
    """Notes how long every checkpoint took, and how much it wrote."""

    def __init__(self, folder: Path):
        super().__init__(folder, Pace(0))
        self.seconds: list[float] = []
        self.megabytes: list[float] = []

    def round(self, seen: Seen) -> None:
        before = {path.name for path in self.folder.glob("*")}
        begun = time.perf_counter()
        super().round(seen)
        self.seconds.append(time.perf_counter() - begun)
        new = [path.stat().st_size for path in self.folder.glob("*") if path.name not in before]
        self.megabytes.append(sum(new) / 1e6)


def divided(clients: int, each: int, shape: tuple[int, int, int]) -> Federation:
    """Clients with some random images, the last of which is to be tested on."""
    numbers = torch.arange(clients * each).view(clients, each)
    x = torch.randint(0, 255, (clients * each, *shape), dtype=torch.uint8)
    source = image_source("random", x, numbers.flatten() % 10, 10, len(x))
    return Federation(source, [own[:-1] for own in numbers], [own[-1:] for own in numbers], numbers[:, -1])


def measure(title: str, method: str, data: Federation, **settings: Any) -> None:
    usual = {"clients": data.clients, "rounds": 4, "eval_every": 4, "engine": "vector", "batch": 8, "device": "cpu"}
    config = make_config(method, {**usual, **settings})
    with tempfile.TemporaryDirectory() as folder:
        simulation, timed = prepare(config, data), Timed(Path(folder, "checkpoints"))
        simulation.run(observers=[timed])
    seconds, megabytes = min(timed.seconds[1:]), timed.megabytes[-2]
    print(f"| {title} | {seconds:.3f} | {megabytes:.1f} | {100 * seconds / A_MINUTE:.2f} % |", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    few, more = (divided(clients, 25, (3, 32, 32)) for clients in (20, 100))
    most = divided(100_000, 3, (1, 8, 8))
    print("| run | seconds | MB written | of a minute |\n| --- | --- | --- | --- |")
    measure("FedAvg, CNN-5x5, 20 clients", "fedavg", few, model="cnn-5x5")
    measure("FedPer, CNN-5x5, 20 clients", "fedper", few, model="cnn-5x5")
    measure("FedFCD, CNN-5x5, 20 clients: each keeps a network", "fedfcd", few, model="cnn-5x5")
    measure("Local, CNN-5x5, 100 clients: each keeps a network", "local", more, model="cnn-5x5")
    many = {"model": "mlp-100", "clients_per_round": 20, "eval_clients": 20, "rounds": 8}
    measure("FedPer, MLP-100, 20 of 100,000 clients a round", "fedper", most, **many)
    measure("Local, MLP-100, 20 of 100,000 clients a round", "local", most, **many)


if __name__ == "__main__":
    main()
