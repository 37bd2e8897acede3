"""All methods on CIFAR-10, untuned and tuned: python -m benchmarks.leaderboard --help

Two boards, three seeds each. Untuned: one learning rate for all. Tuned: of three rates each method has the one that is
best at seed 0 on validation data, a fifth of every client's training samples; with it the method then trains on all of
them. SphereFed's rates are ten times as large: its loss is a mean over classes too. A method's seeds run side by side.

Every finished run is a line of docs/leaderboard.jsonl, known by its settings: where the chosen rate is the untuned one,
both boards show the same runs. The command runs what is missing or of older code (partwise/papers/superseded.toml),
several methods at a time (for which CUDA's MPS helps: `nvidia-cuda-mps-control -d`), and writes docs/leaderboard.md. It
needs CIFAR-10 (see `partwise data`), and a GPU unless you have days.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.lines import (
    DOCS,
    REFERENCE,
    Found,
    Line,
    best_rate,
    by_settings,
    changed,
    counted,
    find_line,
    lines,
    run_missing,
    scores,
)
from partwise import methods
from partwise.papers.recorded import TO_BE_RUN, changes
from partwise.records.names import proper
from partwise.runs.config import Config, make_config
from partwise.runs.metrics import worse_off
from partwise.runs.result import Result

RUNS, PAGE = DOCS / "leaderboard.jsonl", DOCS / "leaderboard.md"
SETTINGS: dict[str, Any] = {"data": "cifar10", "clients": 20, "partition": "dir:0.1", "model": "cnn-5x5"}
SETTINGS |= {"batch": 64, "epochs": 1, "rounds": 60, "eval_every": 10, "moment": "adapted", "compile": "no"}
SETTINGS |= {"finetune_lr": 0.01}  # the same for all, whatever their rate of training
OWN = {"fedbn": {"batch_norm": True}}
BOARDS = ("untuned", "tuned")
RATES = (0.01, 0.03, 0.1)  # the first is that of the untuned board
TIMES = {"spherefed": 10}
SEEDS = (0, 1, 2)
VALIDATION = 0.2  # of each client's training samples, where a rate is chosen
MOMENTS = ("received", "adapted", "method_adapted")
RANKED = "adapted"  # exists for every method and treats all alike

OPENING = """\
# Leaderboards: untuned and tuned

This page ranks methods on one problem, at one learning rate for all and at a rate of their own. Each board says how
many methods are ranked; `to be run`: no run of today's code. The problem is CIFAR-10: 20 clients, dir:0.1, CNN-5x5,
batch 64, one local epoch, 60 rounds, all clients in every round. Means and standard deviations over the seeds {seeds},
in %.

- **GM**: the global (server's) model on all test samples. **LM**: each client's local model on its own test samples,
  pooled.
- **LM received**: right after download. **LM adapted**: after 5 epochs of plain fine-tuning at rate {finetune}, the
  same for all. **own adaptation**: after the adaptation that is part of the method; `-`: it has none.
- **worse off**: the fraction of clients below Local with the same seed at the same moment, as received and as adapted.
- **MB**: down and up per participant and round. **PFLOP**: local training, all clients and rounds.

Rows are ranked by **LM adapted**: only there do all methods' clients have models of their own, made in the same way.
`LM received` compares one model for all with personal models, and `own adaptation` compares different budgets.
Fine-tuning can also harm a model that is personal already: read `LM received` beside it.
"""
NOTES = """\
Read the rows with this in mind:

- Per-FedAvg's step takes two mini-batches: its epoch has half the steps of the others'.
- SCAFFOLD wants a higher rate than {rate}.
- SphereFed's rate is ten times the others', here {sphere}: its loss is a mean over classes too.
- FedBN's network has batch-norm; the others' has none.
- Central trains one model on all samples in one place: no federated method, but a reference.
"""
UNTUNED = """\
## Untuned

One learning rate, {rate}, for all. This is how methods start out of the box, not how good they can be: 60 rounds at one
rate are short for some.
"""
TUNED = """\
## Tuned

Each method has a **rate** of its own: the best of {rates} by `LM adapted` on validation data, a fifth of each
client's training samples, at seed 0. With it the method then trains on all of them. SphereFed's rates are ten times as
large.
"""
MADE = """\
## How it is made

`python -m benchmarks.leaderboard` runs what is missing in `leaderboard.jsonl` and writes this page. A line there is a
run: its settings and seed, the command that runs it again, numbers, device, versions and commit. The first 105 lines
have no torch version and no date. Their commit is the one that added them to the repository: the code that ran is that
one or a little older.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="those that are run where they are missing; none: all")
    parser.add_argument("--board", choices=BOARDS, help="the one whose runs are made; unset: both")
    parser.add_argument("--data-root", help="the folder with CIFAR-10")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", help="the code that runs, as git describe tells it")
    parser.add_argument("--processes", type=int, default=1, help="methods at a time")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the runs' lines")
    parser.add_argument("--page", type=Path, default=PAGE, help="the tables")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.table_only and not arguments.commit:
        parser.error('a line names its commit: give --commit "$(git describe --always)", or --table-only')
    where = {"data_root": arguments.data_root, "device": arguments.device}
    given = {name: value for name, value in where.items() if value}
    boards = [arguments.board] if arguments.board else BOARDS
    chosen = [] if arguments.table_only else arguments.methods or methods.names()
    work = partial(run, boards, where=given, path=arguments.runs, commit=arguments.commit)
    try:
        if arguments.processes == 1:
            for method in chosen:
                work(method)
        else:
            # CUDA takes no forked processes.
            with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
                list(pool.map(work, chosen))
    finally:
        arguments.page.write_text(page(lines(arguments.runs)), encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------ runs


def rates(method: str) -> list[float]:
    return [TIMES.get(method, 1) * rate for rate in RATES]


def config_of(method: str, rate: float, seed: int, where: dict[str, Any] | None = None) -> Config:
    return make_config(method, {**SETTINGS, **OWN.get(method, {}), "lr": rate, "seed": seed, **(where or {})})


def choosing_config(method: str, rate: float, where: dict[str, Any] | None = None) -> Config:
    """The run that says on validation data how good a rate is; it is tested after its last round alone."""
    return config_of(method, rate, 0, {"validation": VALIDATION, "eval_every": SETTINGS["rounds"], **(where or {})})


def rate_of(board: str, method: str, found: Found) -> float | None:
    """Return a method's rate on a board; None if it is not chosen yet, or each one diverged."""
    if board == "untuned":
        return rates(method)[0]
    tried = {rate: find_line(found, choosing_config(method, rate)) for rate in rates(method)}
    ended = {rate: [line] for rate, line in tried.items() if line is not None}
    return best_rate(ended, RANKED) if len(ended) == len(tried) else None


def run(boards: Iterable[str], method: str, where: dict[str, Any], path: Path, commit: str | None) -> None:
    """Run what a method lacks, one board after another: they may share runs."""
    for board in boards:
        if board == "tuned":
            for rate in rates(method):
                run_missing([choosing_config(method, rate, where)], path, outcome, commit)
        rate = rate_of(board, method, today(lines(path)))
        if rate is not None:
            run_missing([config_of(method, rate, seed, where) for seed in SEEDS], path, outcome, commit)


def outcome(result: Result) -> dict[str, Any]:
    """Return what is kept of a run: fractions, bytes and operations."""
    server = result.summary.global_model
    more = {"g_test": server and server.last.value("accuracy"), "training_flops": result.ledger["training_flops"]}
    return {**scores(result, MOMENTS), **more}


def today(every: Iterable[Line]) -> Found:
    return by_settings(line for line in every if not changed(line))


# ------------------------------------------------------------------------------------------------------------ page


def page(every: Sequence[Line]) -> str:
    """Return the page: both boards, and what moved since methods changed."""
    numbers = {"rate": RATES[0], "sphere": rates("spherefed")[0], "finetune": SETTINGS["finetune_lr"]}
    listed = {"seeds": ", ".join(map(str, SEEDS)), "rates": ", ".join(map(str, RATES))}
    texts = [text.format(**numbers, **listed) for text in (OPENING, UNTUNED, NOTES, TUNED, MADE)]
    opening, untuned, notes, tuned, made = texts
    parts = [opening, untuned, *board("untuned", every), notes, *moved(every), tuned, *board("tuned", every), made]
    return "\n".join(parts)


def board(name: str, every: Sequence[Line]) -> Iterator[str]:
    """Return the table of a board, where its runs were made, and what is to be run."""
    chosen = {method: rate_of(name, method, today(every)) for method in methods.names()}
    known = {method: runs_of(method, rate, every) for method, rate in chosen.items()}
    shown = {method: runs for method, runs in known.items() if any("test" in line for line in runs)}
    ranked = sum(mean(runs, RANKED) is not None for runs in known.values())
    empty = "" if shown else " This board is empty: nothing was run yet."
    yield f"**Ranked**: {ranked} of {len(known)} methods.{empty}\n"
    if shown:
        rate = ["rate"] if name == "tuned" else []
        head = ["method", *rate, "GM", "LM received", "LM adapted", "own adaptation", "worse off, received"]
        head += ["worse off, adapted", "MB", "PFLOP", "seeds"]
        alone = {line["seed"]: line for line in shown.get(REFERENCE, [])}
        order = sorted(shown, key=lambda method: -(mean(shown[method], RANKED) or 0))
        rows = [
            [proper(method), *[f"{chosen[method]:g}" for _ in rate], *cells(shown[method], alone)] for method in order
        ]
        yield table(head, rows)
        yield made_on([line for runs in shown.values() for line in runs])
    left = [method for method, runs in known.items() if len(runs) < len(SEEDS) or any(map(changed, runs))]
    if left:
        which = ", ".join(map(proper, left)) if shown else f"all {len(left)} methods"
        yield f"**{TO_BE_RUN.capitalize()}**: {which}.\n"


def runs_of(method: str, rate: float | None, every: Sequence[Line]) -> list[Line]:
    """Return a method's lines at a rate, as far as they count."""
    found = by_settings(counted(every))
    known = [] if rate is None else [find_line(found, config_of(method, rate, seed)) for seed in SEEDS]
    return [line for line in known if line is not None]


def cells(runs: Sequence[Line], alone: Mapping[int, Line]) -> list[str]:
    """Return a method's numbers; `alone` are the lines of `local`, by seed."""
    ended = [line for line in runs if "test" in line]
    diverged = f", {len(runs) - len(ended)} diverged" if len(runs) > len(ended) else ""
    return [
        spread(line["g_test"] for line in ended),
        *(accuracy(ended, moment) for moment in MOMENTS),
        *(worse(ended, alone, moment) for moment in ("received", "adapted")),
        f"{statistics.fmean(line['bytes_per_participant'] for line in ended) / 1e6:.3g}",
        f"{statistics.fmean(line['training_flops'] for line in ended) / 1e15:.3g}",
        f"{len(ended)}{diverged}",
    ]


def accuracy(runs: Sequence[Line], moment: str) -> str:
    """Return a cell: one moment of all runs."""
    return spread(line["test"][moment] for line in runs) if standing(runs, moment) else TO_BE_RUN


def standing(runs: Sequence[Line], moment: str) -> bool:
    """Say whether the runs' numbers at a moment count."""
    return all(moment in line["test"] for line in runs)


def mean(runs: Sequence[Line], moment: str) -> float | None:
    """Return the accuracy at a moment, in %."""
    values = [value for line in runs if (value := line.get("test", {}).get(moment)) is not None]
    return 100 * statistics.fmean(values) if values else None


def worse(runs: Sequence[Line], alone: Mapping[int, Line], moment: str) -> str:
    """Return the share of clients below `local` at the same moment."""
    if not standing(runs, moment):
        return TO_BE_RUN
    pairs = [(line, alone[line["seed"]]) for line in runs if line["seed"] in alone]
    shares = [worse_off(line["clients"][moment], other["clients"][moment]) for line, other in pairs if line != other]
    known = [share for share in shares if share is not None]
    return f"{statistics.fmean(known):.0%}" if known else "-"


def spread(values: Iterable[float | None]) -> str:
    """Return mean and standard deviation, in %."""
    found = [100 * value for value in values if value is not None]
    if not found:
        return "-"
    return f"{statistics.fmean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")


def made_on(runs: Sequence[Line]) -> str:
    """Say where runs were made, and by which code."""
    kept = {name: sorted({line[name] or "unknown" for line in runs}) for name in ("device", "torch", "commit")}
    device, torch, commit = (", ".join(values) for values in kept.values())
    return f"{len(runs)} runs on {device}; torch: {torch}; commits: {commit}.\n"


def moved(every: Sequence[Line]) -> Iterator[str]:
    """Return what the untuned board had of methods that changed, beside what it has now, and why."""
    rows = []
    for method, change in changes().items():
        rate = rates(method)[0]
        older = {line["seed"]: line for line in every if changed(line) and is_at(line, method, rate)}
        if older:
            now = runs_of(method, rate, every)
            before = {moment: mean(list(older.values()), moment) for moment in MOMENTS}
            apart = [step(before[moment], mean(now, moment)) for moment in MOMENTS]
            commits = ", ".join(sorted({line["commit"] for line in older.values()}))
            rows.append([proper(method), *apart, commits, change.why])
    if rows:
        yield "Methods that changed since their runs were recorded; these runs no longer count:\n"
        yield table(["method", "LM received", "LM adapted", "own adaptation", "recorded by", "what changed"], rows)


def is_at(line: Line, method: str, rate: float) -> bool:
    """Say whether a line is a method's run at a rate, trained on all samples."""
    run = line["run"]
    own = run["method"] == method and run.get("lr", methods.find(method).lr) == rate
    return own and "validation" not in run and "test" in line


def step(before: float | None, now: float | None) -> str:
    if before is None:
        return "-"
    return f"{before:.2f} → " + (TO_BE_RUN if now is None else f"{now:.2f}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
