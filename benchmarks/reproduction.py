"""The papers' tables from runs at full scale: python -m benchmarks.reproduction --help

`--take DIR` adds the finished runs below a folder that `partwise reproduce --out DIR` wrote, a line each, to
partwise/papers/recorded (in the package, so that `partwise reproduce --recorded` has them wherever it is installed).
Then docs/reproduction.md and its picture are made from all lines and from docs/reproduction/verdicts.toml.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.reproduction_page import DOCS, PAGE, page, read_tables, read_words
from benchmarks.reproduction_picture import draw
from partwise.errors import Problems
from partwise.papers.recorded import (
    RECORDED,
    RecordedRun,
    command_of,
    key_of,
    read_lines,
    records_of,
    settings_that_count,
)
from partwise.papers.tables import papers, read_paper
from partwise.papers.values import read_rounds, value_of
from partwise.records.files import CONFIG, ENVIRONMENT, SUMMARY
from partwise.runs.config import make_config
from partwise.runs.toml import read_settings

MOMENTS = ("received", "trained", "adapted", "method_adapted")
SCORES = ("acc_pooled", "acc_mean", "acc_std")
POINTS = 60  # of a curve, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, metavar="DIR", help="add the finished runs of this folder")
    parser.add_argument("--commit", help="the code that ran them, as git describe tells it")
    arguments = parser.parse_args()
    if arguments.take:
        take(arguments.take, arguments.commit)
    tables = read_tables()
    (DOCS / PAGE).write_text(page(tables, read_words()), encoding="utf-8")
    draw(tables)


def take(out: Path, commit: str | None) -> None:
    """Add runs of today's methods; of two with the same settings keep the one with more numbers, else the earlier.

    A run of older code gives way to any.
    """
    for place in sorted({path.relative_to(out).parts[0] for path in out.glob(f"*/*/full/*/*/seed-*/{SUMMARY}")}):
        path = RECORDED / f"{place}.jsonl"
        lines = read_lines(path) if path.exists() else []
        known = {(key_of(line.run), line.seed): line for line in lines}
        before = len(known)
        for summary in sorted((out / place).glob(f"*/full/*/*/seed-*/{SUMMARY}")):
            record = record_of(summary.parent, commit)
            if not is_a_cell(record):
                print(f"left out, a cell of no table: {summary.parent}")
                continue
            if record.superseded:
                print(f"left out, of older code ({record.superseded.why}): {summary.parent}")
                continue
            same = known.get((key_of(record.run), record.seed))
            if same is None or same.superseded or size(record.numbers) > size(same.numbers):
                known[key_of(record.run), record.seed] = record
        path.write_text("".join(f"{as_line(line)}\n" for line in known.values()), encoding="utf-8")
        print(f"{path.name}: {len(known)} runs, {len(known) - before} of them new")


def record_of(folder: Path, commit: str | None) -> RecordedRun:
    """What is kept of a run."""
    problems = Problems()
    written = read_settings(folder / CONFIG, problems)
    problems.tell()
    config = make_config(str(written.method), written.settings)
    summary, environment = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (SUMMARY, ENVIRONMENT))
    run = settings_that_count(config)
    return RecordedRun(
        run=run,
        seed=config.run.seed,
        command=command_of(run, config.run.seed),
        numbers=numbers(folder),
        curve=curve(folder),
        seconds=summary["seconds"],
        rounds=summary["rounds"],
        version=environment["partwise"],
        commit=commit,
        device=environment["device"],
        torch=environment["torch"],
        date=environment["started"],
    )


def numbers(folder: Path) -> dict[str, Any]:
    """What tables ask for, as a tree, with six digits; nothing stands where a run has no number, or no such file."""
    tree: dict[str, Any] = {}
    for path in sorted({*usual_paths(), *asked_paths()}):
        try:
            value = value_of(folder, path)
        except (OSError, LookupError):
            continue
        if value is not None:
            *steps, last = path.split(".")
            branch = tree
            for step in steps:
                branch = branch.setdefault(step, {})
            branch[last] = value if isinstance(value, int) else float(f"{value:.6g}")
    return tree


def usual_paths() -> Iterator[str]:
    """What a table may want to know of any run."""
    for moment in MOMENTS:
        for score in SCORES:
            yield from (f"{moment}.last.{score}", f"{moment}.best.{score}")
        yield from (f"{moment}.best.round", f"{moment}.best_mean.acc_mean", f"{moment}.best_per_client_mean")
        yield from (f"clients.{which}.{moment}" for which in ("min", "median", "max"))
    for when in ("last", "best"):
        yield from (f"global.{when}.g_test", f"global.{when}.p_test.acc_mean")
    yield from ("cost.paper", "cost.flops", "cost.bytes")


def asked_paths() -> Iterator[str]:
    """What the tables do ask for."""
    for paper in map(read_paper, papers()):
        for path in (path for column in paper.columns for path in column.paths.values()):
            yield from (path.replace("judged", row.judged) for row in paper.rows)


def curve(folder: Path) -> list[tuple[int, float]]:
    """What clients received, at rounds that lie evenly; the last one is there."""
    points = [(row.round, row.at("received").accuracy) for row in read_rounds(folder) if "received" in row.moments]
    step = -(-len(points) // POINTS)
    return [(at, float(f"{value:.4g}")) for at, value in points[::-1][:: step or 1][::-1] if value is not None]


def is_a_cell(record: RecordedRun) -> bool:
    """Whether some table has it at full scale."""
    alone = {key_of(record.run): {record.seed: record}}
    return any(
        records_of(alone, paper, row, column)
        for paper in map(read_paper, papers())
        for row in paper.rows
        if row.method == record.run["method"]
        for column in paper.columns
    )


def size(tree: dict[str, Any]) -> int:
    return sum(size(each) if isinstance(each, dict) else 1 for each in tree.values())


def as_line(record: RecordedRun) -> str:
    return json.dumps(asdict(record), separators=(",", ":"))


if __name__ == "__main__":
    main()
