"""Run cells of the papers' tables that are not recorded, some at a time: python -m benchmarks.reproduction_runs --help

Runs of methods that have changed since (`partwise/papers/superseded.toml`) are run again, too.

Each run is a process of its own (`partwise reproduce TABLE --rows ROW --columns COLUMN`), several of which may share a
GPU (start CUDA's MPS for it: `nvidia-cuda-mps-control -d`). What was begun goes on from its checkpoint. `python -m
benchmarks.reproduction --take DIR` records what has ended.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from partwise.papers.recorded import RecordedRuns, key_of, read_records, settings_that_count
from partwise.papers.tables import narrow_table, read_paper, slug
from partwise.runs.config import make_config


@dataclass(frozen=True)
class Run:
    """A cell of a table with a seed."""

    table: str
    row: str
    column: str
    seed: int

    @property
    def name(self) -> str:
        return slug(f"{self.table} {self.row} {self.column} {self.seed}")

    def command(self, out: Path) -> list[str]:
        where = ["--rows", self.row, "--columns", self.column, "--seeds", str(self.seed), "--out", str(out), "--quiet"]
        return [sys.executable, "-m", "partwise", "reproduce", self.table, *where]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("columns", nargs="+", help="in this order: 'fedfcd/table2:Pat 100 clients', or a table alone")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--processes", type=int, default=4, help="runs at a time")
    parser.add_argument("--dry-run", action="store_true", help="only list them")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    runs = list(missing(arguments.columns, seeds, read_records()))
    if arguments.dry_run:
        print(*(run.name for run in runs), sep="\n")
    else:
        carry_out(runs, arguments.out, arguments.processes)


def missing(columns: Iterable[str], seeds: Iterable[int], records: RecordedRuns) -> Iterator[Run]:
    """Return the runs of these columns that are not recorded, or by older code; one of two tables once."""
    seen: set[tuple[str, int]] = set()
    for text in columns:
        table, _, chosen = text.partition(":")
        paper = narrow_table(read_paper(table), None, chosen or None)
        for column in paper.columns:
            for row in paper.rows:
                key = key_of(settings_that_count(make_config(row.method, paper.settings_of(row, column))))
                known = {seed for seed, record in records.get(key, {}).items() if not record.superseded}
                for seed in seeds:
                    if seed not in known and (key, seed) not in seen:
                        seen.add((key, seed))
                        yield Run(table, row.label, column.name, seed)


def carry_out(runs: list[Run], out: Path, processes: int) -> None:
    """So many at a time, in order, each with a log of its own; a line as one begins and ends."""
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()

    def work(run: Run) -> None:
        tell(begun, "begins", run)
        with open(logs / f"{run.name}.log", "ab") as log:
            code = subprocess.run(run.command(out), stdout=log, stderr=log).returncode
        tell(begun, f"ended with {code}", run)

    pool = ThreadPoolExecutor(processes)
    try:
        list(pool.map(work, runs))
    finally:  # Ctrl-C reaches those that run as well: they keep their checkpoints
        pool.shutdown(cancel_futures=True)


def tell(begun: float, what: str, run: Run) -> None:
    print(f"{time.perf_counter() - begun:7.0f} s  {what}: {run.name}", flush=True)


if __name__ == "__main__":
    main()
