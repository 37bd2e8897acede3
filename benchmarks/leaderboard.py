"""All methods on CIFAR-10, untuned: python -m benchmarks.leaderboard --help

20 clients, dir:0.1, CNN-5x5, batch 64, one local epoch, 60 rounds, one learning rate for all (SphereFed's loss is a
mean over classes too, and needs a larger one). A method's seeds run side by side. Every finished run is a line of
docs/leaderboard.jsonl; the command runs what is missing there and writes docs/leaderboard.md. It needs CIFAR-10 (see
`partwise data`), and a GPU unless you have a day.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partwise import methods
from partwise.runs.config import make_config
from partwise.runs.metrics import worse_off
from partwise.runs.result import Result, summarise
from partwise.runs.seeds import PlannedRun, carry_out
from partwise.runs.simulation import Progress, Simulation

DOCS = Path(__file__).parents[1] / "docs"
SETTINGS: dict[str, Any] = {"data": "cifar10", "clients": 20, "partition": "dir:0.1", "model": "cnn-5x5"}
SETTINGS |= {"batch": 64, "epochs": 1, "lr": 0.01, "rounds": 60, "eval_every": 10, "moment": "adapted", "compile": "no"}
OWN = {"spherefed": {"lr": 0.1}, "fedbn": {"batch_norm": True}}
SEEDS = (0, 1, 2)
REFERENCE = "local"
MOMENTS = ("received", "adapted", "method_adapted")

OPENING = """\
# Leaderboard: untuned

All methods with the same settings, none of them tuned: CIFAR-10, 20 clients, dir:0.1, CNN-5x5, batch 64, one local
epoch, 60 rounds, all clients in every round, learning rate 0.01 for all but SphereFed (0.1: its loss is a mean over
classes too); FedBN's network has batch-norm, for there it is FedBN. It says how methods start out of the box, not how
good they can be: 60 rounds at one rate are short for some of them, and PACFL's default threshold puts all clients into
one group here, so that it is FedAvg. Means and standard deviations over the seeds {seeds}.

- **GM**: the server's model on all test samples. **LM**: a client's own model on its own test samples, as tables of the
  Fed3+2p paper have it: what the method adapts in its own way where it has one, else what is received.
- **received**: right after download; **adapted**: after 5 epochs of fine-tuning, the same for all.
- **worse off**: the share of clients that do worse than with `local`, at LM.
- **MB**: down and up, a participant and round. **PFLOP**: local training, all clients and rounds.

Made by `python -m benchmarks.leaderboard`, which runs what is missing in `leaderboard.jsonl`: a line for every run.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="those that are run where they are missing; none: all")
    parser.add_argument("--data-root", help="the folder with CIFAR-10")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=DOCS / "leaderboard.jsonl", help="the runs' lines")
    parser.add_argument("--page", type=Path, default=DOCS / "leaderboard.md", help="the table")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    where = {"data_root": arguments.data_root, "device": arguments.device}
    for method in () if arguments.table_only else arguments.methods or methods.names():
        present = {(line["method"], line["seed"]) for line in lines(arguments.runs)}
        missing = [seed for seed in SEEDS if (method, seed) not in present]
        if missing:
            run(method, missing, {name: value for name, value in where.items() if value}, arguments.runs)
            write(arguments.runs, arguments.page)
    write(arguments.runs, arguments.page)


def lines(path: Path) -> list[dict[str, Any]]:
    """The runs that are finished."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run(method: str, seeds: list[int], where: dict[str, Any], path: Path) -> None:
    """Run a method with some seeds side by side, and add a line for each that ended."""

    def work(simulation: Simulation, progress: Progress) -> None:
        simulation.run(progress)
        line = json.dumps(line_of(Result(simulation)))
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    settings = {**SETTINGS, **OWN.get(method, {}), **where}
    configs = [make_config(method, {**settings, "seed": seed}) for seed in seeds]
    diverged = carry_out([PlannedRun(f"{method}, seed {config.run.seed}", config, work) for config in configs])
    for title, error in diverged.items():
        print(f"{title}: {error}", flush=True)


def line_of(result: Result) -> dict[str, Any]:
    """What is kept of a run: fractions, bytes and operations."""
    short, clients = summarise(result), result.clients
    accuracy = {moment: values["last"].get("acc_pooled") for moment, values in short["accuracy"].items()}
    return {
        "method": short["method"],
        "seed": short["seed"],
        **{moment: accuracy.get(moment) for moment in MOMENTS},
        "g_test": short["accuracy"].get("global", {}).get("last", {}).get("g_test"),
        "bytes_per_participant": short["bytes_per_participant"],
        "training_flops": result.ledger["training_flops"],
        "seconds": short["seconds"],
        "clients": {moment: [row[moment] and round(row[moment], 4) for row in clients] for moment in MOMENTS},
    }


def write(runs: Path, page: Path) -> None:
    """Write the table of all runs that are finished, the best LM first."""
    every = lines(runs)
    by_method = {name: [line for line in every if line["method"] == name] for name in methods.names()}
    alone = {line["seed"]: line["clients"]["received"] for line in by_method.get(REFERENCE, [])}
    ranked = sorted((name for name in by_method if by_method[name]), key=lambda name: -local(by_method[name]))
    head = ["method", "GM", "LM", "received", "adapted", "worse off", "MB", "PFLOP", "seeds"]
    rows = [row(name, by_method[name], alone) for name in ranked]
    table = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    left = [name for name in by_method if len(by_method[name]) < len(SEEDS)]
    missing = f"\nNot all seeds have been run yet of: {', '.join(left)}.\n" if left else ""
    opening = OPENING.format(seeds=", ".join(map(str, SEEDS)))
    page.write_text(opening + "\n".join(table) + "\n" + missing, encoding="utf-8")


def local(own: list[dict[str, Any]]) -> float:
    return statistics.fmean(line[moment_of(line)] or 0 for line in own)


def moment_of(line: dict[str, Any]) -> str:
    """Where LM stands."""
    return "received" if line["method_adapted"] is None else "method_adapted"


def row(name: str, own: list[dict[str, Any]], alone: dict[int, list[float]]) -> list[str]:
    """A method's cells."""
    worse = [worse_off(line["clients"][moment_of(line)], alone.get(line["seed"], ())) for line in own]
    shares = [share for share in worse if share is not None] if name != REFERENCE else []
    return [
        name,
        spread(line["g_test"] for line in own),
        spread(line[moment_of(line)] for line in own),
        spread(line["received"] for line in own),
        spread(line["adapted"] for line in own),
        f"{statistics.fmean(shares):.0%}" if shares else "-",
        f"{statistics.fmean(line['bytes_per_participant'] for line in own) / 1e6:.3g}",
        f"{statistics.fmean(line['training_flops'] for line in own) / 1e15:.3g}",
        str(len(own)),
    ]


def spread(values: Iterable[float | None]) -> str:
    """Mean and standard deviation in per cent."""
    found = [100 * value for value in values if value is not None]
    if not found:
        return "-"
    return f"{statistics.fmean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")


if __name__ == "__main__":
    main()
