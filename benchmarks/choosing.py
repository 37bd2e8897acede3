"""Which method for which data? python -m benchmarks.choosing --help

The first situation is CIFAR-10 among 20 clients, dir:0.1, all of them in every round. Each of the others changes one
thing in it; `a tenth takes part` changes the 100 clients. Eight methods and `local` have the same budget: 40 rounds of
one local epoch (200 where a tenth takes part), plain SGD with gradients clipped at a norm of 10, batches of 64, three
learning rates (0.03, 0.1 and 0.3), and five epochs of fine-tuning at 0.01. They train Fed3+2p's small networks
(ResNet-18 on PACS-96) in bfloat16. For each moment the rate is chosen on validation data, a fifth of every client's
training samples, and methods are ranked on test data.

Every finished run is a line of docs/choosing.jsonl; the command runs what is missing there, several processes at a time
(for which CUDA's MPS helps: `nvidia-cuda-mps-control -d`), and docs/reproduction.md shows it (python -m
benchmarks.reproduction). A run is known by its settings: lines of others are not looked at. It needs a GPU, and for
PACS-96 the weights that docs/reproduction.md tells how to make.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.lines import DOCS, REFERENCE, Line, best_rate, changed, run_missing, scores
from partwise.papers.recorded import key_of, settings_that_count
from partwise.runs.config import Config, make_config
from partwise.runs.metrics import worse_off

RUNS = DOCS / "choosing.jsonl"
METHODS = ("fedavg", "fedper", "fedrod", "fed3p2p", "fedtc", "dualfed", "fedfcd", "anti")
RATES = (0.03, 0.1, 0.3)
MOMENTS = ("received", "adapted")
SHOWN = 3  # methods of a situation and moment
CENTRE: dict[str, Any] = {"data": "cifar10", "model": "convnet-c", "clients": 20, "partition": "dir:0.1", "batch": 64}
CENTRE |= {"rounds": 40, "epochs": 1, "validation": 0.2, "clip_norm": 10, "moment": "adapted", "eval_every": 40}
CENTRE |= {"finetune_lr": 0.01}  # at the rate of training, five epochs spoil some clients' models
CENTRE |= {"dtype": "bfloat16"}  # 270 runs, each of which is bound by what it writes and reads
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
        "data": "pacs",
        "partition": "domain",
        "clients": None,
        "image_size": 96,
        "train_samples": 500,
        "model": "resnet18",
        "weights": "data/resnet18-cifar100.safetensors",
        "normalise": "unit",
    },
}
# Five coordinators, as anywhere else, are more than there are clients.
OWN = {("PACS-96, a domain a client", "fed3p2p"): {"coordinators_a": 2, "coordinators_b": 2}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("situations", nargs="*", help="those that are run where runs are missing; none: all")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the runs' lines")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--commit", required=True, help="the code that runs, as git describe tells it")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = product(arguments.situations or SITUATIONS, (REFERENCE, *METHODS), RATES)
    # CUDA takes no forked processes.
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        begun = {case: pool.submit(run, *case, seeds, arguments.runs, arguments.commit) for case in cases}
    failed = [f"{', '.join(map(str, case))}: {error}" for case, end in begun.items() if (error := end.exception())]
    if failed:
        sys.exit("\n".join(failed))


def config_of(situation: str, method: str, rate: float, seed: int = 0) -> Config:
    settings = {**CENTRE, **SITUATIONS[situation], **OWN.get((situation, method), {}), "lr": rate, "seed": seed}
    return make_config(method, {name: value for name, value in settings.items() if value is not None})


def run(situation: str, method: str, rate: float, seeds: Sequence[int], path: Path, commit: str | None = None) -> None:
    """Run a method at a rate with the seeds that have no line yet, side by side."""
    configs = [config_of(situation, method, rate, seed) for seed in seeds]
    run_missing(configs, path, partial(scores, moments=MOMENTS), commit)


# ------------------------------------------------------------------------------------------------------- the choice


Runs = dict[str, dict[float, list[Line]]]  # of a situation: by method, then by rate, a line a seed


def whole_situations(every: Iterable[Line]) -> dict[str, Runs]:
    """The situations in which each method has each rate, for else budgets differ."""
    by_settings: dict[str, list[Line]] = defaultdict(list)
    for line in every:
        if not changed(line):
            by_settings[key_of(line["run"])].append(line)
    found: dict[str, Runs] = {name: defaultdict(dict) for name in SITUATIONS}
    for situation, method, rate in product(SITUATIONS, (REFERENCE, *METHODS), RATES):
        settings = settings_that_count(config_of(situation, method, rate))
        found[situation][method][rate] = by_settings.get(key_of(settings), [])
    return {
        name: here for name, here in found.items() if all(own for by_rate in here.values() for own in by_rate.values())
    }


def chosen(here: Runs, moment: str) -> dict[str, list[Line]]:
    """Return each method's runs at the rate that is best on validation data, the mean over seeds."""
    best = {method: best_rate(by_rate, moment) for method, by_rate in here.items()}
    return {method: here[method][rate] for method, rate in best.items() if rate is not None}


def accuracy(own: Iterable[Line], moment: str) -> float:
    """On test data, in %."""
    return 100 * statistics.fmean(line["test"][moment] for line in own)


def section(every: Iterable[Line]) -> Iterator[str]:
    """The best methods of every situation in which all were run, at both moments."""
    yield "| | " + " | ".join(f"{moment}: {place + 1}." for moment in MOMENTS for place in range(SHOWN)) + " |"
    yield "|---" * (1 + SHOWN * len(MOMENTS)) + "|"
    for situation, here in whole_situations(every).items():
        cells = [cell for moment in MOMENTS for cell in ranked(chosen(here, moment), moment)]
        yield "| " + " | ".join([situation, *cells]) + " |"


def ranked(best: Mapping[str, list[Line]], moment: str) -> list[str]:
    """A cell for each of the best methods of a situation: accuracy, bytes, and the share of clients worse off."""
    alone = {line["seed"]: line["clients"][moment] for line in best.get(REFERENCE, [])}
    cells = []
    for name in sorted(best, key=lambda name: -accuracy(best[name], moment))[:SHOWN]:
        own = best[name]
        worse = [worse_off(line["clients"][moment], alone.get(line["seed"], ())) for line in own]
        known = [share for share in worse if share is not None] if name != REFERENCE else []
        sent = statistics.fmean(line["bytes_per_participant"] for line in own)
        size = f"{sent / 1e6:.2g} MB" if not 0 < sent < 1e5 else f"{sent / 1e3:.2g} kB"
        off = f", {statistics.fmean(known):.0%} worse off" if known else ""
        cells.append(f"{name} {accuracy(own, moment):.1f} ({size}{off})")
    return [*cells, *["-"] * (SHOWN - len(cells))]


if __name__ == "__main__":
    main()
