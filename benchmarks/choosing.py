"""Which method for which data? python -m benchmarks.choosing --help

Around CIFAR-10 among 20 clients, dir:0.1, all of them in every round, one thing is another at a time. Eight methods and
`local` have the same budget: 40 rounds of one local epoch (200 where a tenth takes part), plain SGD with gradients
clipped at a norm of 10, batches of 64, on Fed3+2p's small network for CIFAR in bfloat16, three learning rates, 0.01,
0.03 and 0.1. For each moment the rate is chosen on validation data, a fifth of every client's training samples, and
methods are ranked on test data.

Every finished run is a line of docs/choosing.jsonl; the command runs what is missing there, several processes at a time
(for which CUDA's MPS helps: `nvidia-cuda-mps-control -d`), and docs/reproduction.md shows it (python -m
benchmarks.reproduction). It needs a GPU.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.leaderboard import DOCS, REFERENCE, lines
from partwise.runs.config import make_config
from partwise.runs.metrics import validation_at, worse_off
from partwise.runs.result import Result, summarise
from partwise.runs.seeds import PlannedRun, carry_out
from partwise.runs.simulation import Progress, Simulation

RUNS = DOCS / "choosing.jsonl"
METHODS = ("fedavg", "fedper", "fedrod", "fed3p2p", "fedtc", "dualfed", "fedfcd", "anti")
RATES = (0.01, 0.03, 0.1)
MOMENTS = ("received", "adapted")
SHOWN = 3  # methods of a situation and moment
CENTRE: dict[str, Any] = {"data": "cifar10", "model": "convnet-c", "clients": 20, "partition": "dir:0.1", "batch": 64}
CENTRE |= {"rounds": 40, "epochs": 1, "validation": 0.2, "clip_norm": 10, "moment": "adapted", "eval_every": 40}
CENTRE |= {"dtype": "bfloat16"}  # 240 runs, each of which is bound by what it writes and reads
SITUATIONS: dict[str, dict[str, Any]] = {
    "CIFAR-10, 20 clients, dir:0.1": {},
    "dir:0.05": {"partition": "dir:0.05"},
    "dir:0.5": {"partition": "dir:0.5"},
    "dir:5": {"partition": "dir:5"},
    "10 clients": {"clients": 10},
    "100 clients": {"clients": 100},
    "a tenth takes part": {"clients": 100, "participation": 0.1, "rounds": 200, "eval_every": 200},
    "Fashion-MNIST": {"data": "fashion-mnist", "model": "convnet-f"},
    "CIFAR-100": {"data": "cifar100"},
    "PACS-96, a domain a client": {
        **{"data": "pacs", "partition": "domain", "clients": None, "image_size": 96, "train_samples": 500},
        **{"model": "resnet18", "weights": "data/resnet18-cifar100.safetensors", "normalise": "unit"},
    },
}

Line = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("situations", nargs="*", help="those that are run where runs are missing; none: all")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the runs' lines")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = product(arguments.situations or SITUATIONS, (REFERENCE, *METHODS), RATES)
    # CUDA takes no forked processes.
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        list(pool.map(partial(run, seeds=seeds, path=arguments.runs), *zip(*cases, strict=True)))


def run(situation: str, method: str, rate: float, seeds: Sequence[int], path: Path) -> None:
    """Run a method at a rate with the seeds that have no line yet, side by side; one that diverges gets none."""
    known = {(line["situation"], line["method"], line["lr"], line["seed"]) for line in lines(path)}
    settings = {**CENTRE, **SITUATIONS[situation], "lr": rate}
    given = {name: value for name, value in settings.items() if value is not None}

    def work(simulation: Simulation, progress: Progress) -> None:
        simulation.run(progress)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line_of(situation, Result(simulation))) + "\n")

    configs = [
        make_config(method, {**given, "seed": seed}) for seed in seeds if (situation, method, rate, seed) not in known
    ]
    titles = (f"{situation}: {method}, rate {rate}, seed {config.run.seed}" for config in configs)
    for title, error in carry_out(
        [PlannedRun(title, config, work) for title, config in zip(titles, configs, strict=True)]
    ).items():
        print(f"{title}: {error}", flush=True)


def line_of(situation: str, result: Result) -> dict[str, Any]:
    """What is kept of a run: fractions, and bytes down and up of a participant in a round."""
    short, last = summarise(result), result.metrics[-1]
    return {
        "situation": situation,
        "method": short["method"],
        "lr": result.config.method.lr,
        "seed": short["seed"],
        "validation": {moment: last[validation_at(moment)]["acc_pooled"] for moment in MOMENTS},
        "test": {moment: last[moment]["acc_pooled"] for moment in MOMENTS},
        "clients": {moment: [row[moment] and round(row[moment], 4) for row in result.clients] for moment in MOMENTS},
        "bytes_per_participant": short["bytes_per_participant"],
    }


# ------------------------------------------------------------------------------------------------------- the choice


def chosen(own: Iterable[Line], moment: str) -> list[Line]:
    """Of one method in one situation the runs at the rate that is best on validation data, the mean over seeds."""
    by_rate: dict[float, list[Line]] = defaultdict(list)
    for line in own:
        by_rate[line["lr"]].append(line)
    most = max(map(len, by_rate.values()))  # a rate at which a seed diverged is none to choose
    whole = [each for each in by_rate.values() if len(each) == most]
    return max(whole, key=lambda each: statistics.fmean(line["validation"][moment] for line in each))


def section(every: Iterable[Line]) -> Iterator[str]:
    """The best methods of every situation in which all were run, at both moments."""
    every = list(every)
    yield "| | " + " | ".join(f"{moment}: {place + 1}." for moment in MOMENTS for place in range(SHOWN)) + " |"
    yield "|---" * (1 + SHOWN * len(MOMENTS)) + "|"
    for situation in SITUATIONS:
        here = [line for line in every if line["situation"] == situation]
        if {line["method"] for line in here} >= {REFERENCE, *METHODS}:
            yield "| " + " | ".join([situation, *(cell for moment in MOMENTS for cell in ranked(here, moment))]) + " |"


def ranked(here: list[Line], moment: str) -> list[str]:
    """A cell for each of the best methods of a situation: accuracy, bytes, and the share of clients worse off."""
    methods = dict.fromkeys(line["method"] for line in here)
    best = {name: chosen([line for line in here if line["method"] == name], moment) for name in methods}
    alone = {line["seed"]: line["clients"][moment] for line in best.get(REFERENCE, [])}
    accuracy = {name: statistics.fmean(line["test"][moment] for line in own) for name, own in best.items()}
    cells = []
    for name in sorted(accuracy, key=lambda name: -accuracy[name])[:SHOWN]:
        own = best[name]
        worse = [worse_off(line["clients"][moment], alone.get(line["seed"], ())) for line in own]
        known = [share for share in worse if share is not None] if name != REFERENCE else []
        sent = statistics.fmean(line["bytes_per_participant"] for line in own)
        size = f"{sent / 1e6:.2g} MB" if not 0 < sent < 1e5 else f"{sent / 1e3:.2g} kB"
        off = f", {statistics.fmean(known):.0%} worse off" if known else ""
        cells.append(f"{name} {100 * accuracy[name]:.1f} ({size}{off})")
    return [*cells, *["-"] * (SHOWN - len(cells))]


if __name__ == "__main__":
    main()
