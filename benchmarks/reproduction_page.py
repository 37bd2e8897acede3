"""docs/reproduction.md: what the papers print, what recorded runs give, and what that says of the papers' claims."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import choosing
from benchmarks.lines import lines
from partwise.papers.pages import layout, mean_and_deviation, printed_digits
from partwise.papers.recorded import TO_BE_RUN, RecordedRun, RecordedRuns, read_records, recorded_cells
from partwise.papers.reproduce import TableCell
from partwise.papers.tables import Paper, TableColumn, papers, read_paper, slug

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE, VERDICTS = "reproduction.md", "images/reproduction.png", "reproduction/verdicts.toml"
TITLES = {"dualfed": "DualFed", "fed3p2p": "Fed3+2p", "fedfcd": "FedFCD", "fedtc": "FedTC"}
TITLES |= {"scheduling": "Layer scheduling"}
OUTCOMES = ("holds", "holds if", "does not hold", "open")
PICTURES = {"schedules": "How far Vanilla and Anti lie above their host FedBABU, by the rounds of training"}
PICTURES |= {"fedtc/readings": "How far FedTC lies above FedPer, in each reading of what is left open"}
PICTURES |= {"scheduling/readings": "How far Vanilla and Anti lie above FedBABU, in each reading of what is left open"}
# Made in 15 epochs; 64 x 64 so that a 7 x 7 stem finds something to see.
WEIGHTS = """\
partwise run central --data cifar100 --clients 10 --partition iid --split original --model resnet18 --image-size 64 \\
    --normalise unit --augment flip,crop:8 --rounds 15 --batch 128 --lr 0.1 --lr-decay 0.8 --momentum 0.9 \\
    --weight-decay 5e-4 --eval-every 5 --out runs/weights"""

OPENING = """\
# What the papers claim, tried at full scale

This page says which claims of five papers hold when parts of their tables are run again at the papers' own settings.
It shows what they print, what we get, and a verdict on each claim.

**{filled} of {cells} cells** of the papers' tables and figures are recorded, {single} of them with one seed.
They belong to {entries} of {tables} tables and figures, some with a single recorded cell; {whole} have a column
with all of its rows. [Not run](#not-run) lists the rest.

{runs} runs are recorded, those of our own tables included, on {devices} (torch {torches}).{older} {on_gpu} of the
{runs} ran on the GPU and kept it busy for {busy:,.0f} seconds: {each:.0f} seconds a run, {hourly:.0f} runs an hour.
Seeds run side by side, and several processes share the GPU.

Where a paper leaves a choice open, the table's file (`partwise/papers`) states ours. Where a claim does not hold with
it, a table called `readings` tries other choices, one or two at a time. DualFed's table of readings shows what its
projector does. A number of one seed is one draw of the partition and of the initial weights, not a mean.

- `partwise reproduce scheduling/table2 --recorded` shows a table of this page without running it; without
  `--recorded` it runs it.
- The runs are in `partwise/papers/recorded`, a line each: settings, seed, numbers, device, and the command that runs it
  again.
- This page is made by `python -m benchmarks.reproduction`; the words of the verdicts are in
  `docs/reproduction/verdicts.toml`, their numbers come from the runs.
- DualFed's column PACS-96 is ours: PACS at 96 x 96, from a ResNet-18 that learned the training images of CIFAR-100
  (57 % on its test images) in place of ImageNet's. To make these weights, run the lines below and copy
  `runs/weights/models/global.safetensors` to `data/resnet18-cifar100.safetensors`:

<!-- not run: it needs CIFAR-100 and a GPU -->
```sh
{weights}
```

![Published numbers and ours, a dot each, beside the line on which they are equal]({picture})

A dot is a value of a cell in %, published and ours, the mean of its seeds. Hollow: the paper copied it from another
paper, whose network and protocol differ.
"""

VERDICTS_OPENING = """\
## Verdicts

Of {claims} claims {0} hold, {1} hold under a condition, {2} do not hold, and {3} are open. {single} of the {claims}
verdicts rest on one seed alone. No threshold decides: a verdict is our judgement of the numbers below it, and its text
names the gaps. A gap of about a point with one seed usually leaves a claim open; where many rows agree, smaller gaps
can decide. The script that makes this page refuses a verdict on cells that are not recorded, and any but `open` on runs
of older code.
"""


@dataclass(frozen=True)
class Table:
    """A table as recorded runs fill it."""

    paper: Paper
    cells: dict[tuple[str, str], TableCell]
    records: RecordedRuns

    def is_filled(self, row: str, column: str) -> bool:
        return any(self.cells[row, column].values.values())

    def is_older(self, row: str, column: str) -> bool:
        """Say whether a cell has a run, but of older code."""
        return (row, column) in self.cells and self.cells[row, column].missing == TO_BE_RUN

    def is_shown(self, row: str, column: str) -> bool:
        return self.is_filled(row, column) or self.is_older(row, column)

    def values(self, row: str, column: str, value: str, seed: int | None = None) -> list[float]:
        """What the runs of a cell gave, or the run of one seed."""
        cells = self.cells if seed is None else recorded_cells(self.paper, [seed], self.records)[0]
        return cells[row, column].values.get(value, []) if (row, column) in cells else []

    def whole_columns(self, rows: Iterable[str]) -> list[TableColumn]:
        """The columns that have all of these rows."""
        wanted = list(rows)
        return [column for column in self.paper.columns if all(self.is_filled(row, column.name) for row in wanted)]

    @property
    def is_whole(self) -> bool:
        """Whether some column has all of its rows."""
        return bool(self.whole_columns(row.label for row in self.paper.rows))

    @property
    def filled(self) -> int:
        return sum(map(bool, self.seeds))

    @property
    def seeds(self) -> list[int]:
        """How many seeds each cell has."""
        return [max(map(len, cell.values.values()), default=0) for cell in self.cells.values()]

    @property
    def narrowed(self) -> Paper:
        """The rows and columns that have a run."""
        rows, columns = self.paper.rows, self.paper.columns
        return replace(
            self.paper,
            rows=[row for row in rows if any(self.is_shown(row.label, column.name) for column in columns)],
            columns=[column for column in columns if any(self.is_shown(row.label, column.name) for row in rows)],
        )


def read_tables() -> dict[str, Table]:
    records = read_records()
    every = map(read_paper, papers())
    return {paper.name: Table(paper, recorded_cells(paper, paper.seeds, records)[0], records) for paper in every}


def read_words() -> dict[str, Any]:
    """The verdicts, and why some data were not to be had."""
    return tomllib.loads((DOCS / VERDICTS).read_text(encoding="utf-8"))


def page(tables: dict[str, Table], words: dict[str, Any]) -> str:
    records = [record for seeds in read_records().values() for record in seeds.values()]
    text = [opening(tables, records), *verdicts(tables, words["verdicts"]), *which_to_take(**words["choosing"])]
    text += ["## Tables\n", *(section(table) for table in tables.values() if table.filled)]
    return "\n".join([*text, *not_run(tables, words["missing"])])


def opening(tables: dict[str, Table], records: list[RecordedRun]) -> str:
    every, records = records, [record for record in records if not record.superseded]
    older = len(every) - len(records)
    on_gpu = [record for record in records if record.device != "cpu"]
    seconds = busy(on_gpu)
    of_papers = [table for table in tables.values() if not table.paper.ours]
    seeds = [count for table in of_papers for count in table.seeds if count]
    return OPENING.format(
        runs=len(records),
        older=f" {older} more are of older code and do not count ('{TO_BE_RUN}')." if older else "",
        filled=len(seeds),
        cells=sum(len(table.cells) for table in of_papers),
        single=seeds.count(1),
        on_gpu=len(on_gpu),
        entries=sum(bool(table.filled) for table in of_papers),
        tables=len(of_papers),
        whole=sum(table.is_whole for table in of_papers),
        devices=", ".join(sorted({record.device for record in records})),
        torches=", ".join(sorted({record.torch for record in records})),
        busy=seconds,
        each=seconds / len(on_gpu),
        hourly=3600 * len(on_gpu) / seconds,
        picture=PICTURE,
        weights=WEIGHTS,
    )


def busy(records: Iterable[RecordedRun]) -> float:
    """Seconds in which at least one run was under way: those side by side count once."""
    total, until = 0.0, None
    for begun, ended in sorted(map(span, records)):
        start = begun if until is None else max(begun, until)
        total += max(0.0, (ended - start).total_seconds())
        until = ended if until is None else max(ended, until)
    return total


def span(record: RecordedRun) -> tuple[datetime, datetime]:
    begun = datetime.fromisoformat(record.date)
    return begun, begun + timedelta(seconds=record.seconds)


# --------------------------------------------------------------------------------------------------- verdicts


def verdicts(tables: dict[str, Table], entries: list[dict[str, Any]]) -> Iterator[str]:
    """A block for every claim, paper by paper."""
    counts = {each: sum(entry["verdict"] == each for entry in entries) for each in OUTCOMES}
    single = sum(rests_on_one_seed(tables, entry["cells"]) for entry in entries)
    yield VERDICTS_OPENING.format(*counts.values(), claims=len(entries), single=single)
    by_paper = {title: [entry for entry in entries if entry["paper"] == paper] for paper, title in TITLES.items()}
    yield "| | claim | |\n|---|---|---|"
    for title, own in by_paper.items():
        yield from (f"| {title} | {entry['claim']} | {outcome(**entry)} |" for entry in own)
    yield ""
    for title, own in by_paper.items():
        if own:
            yield f"### {title}\n"
        yield from (block(tables, **entry) for entry in own)


def rests_on_one_seed(tables: dict[str, Table], cells: list[dict[str, Any]]) -> bool:
    """Whether no number behind a verdict is a mean over seeds."""
    return all(
        len(tables[cell["table"]].values(cell["row"], cell["column"], cell["value"], cell.get("seed"))) < 2
        for cell in cells
    )


def block(
    tables: dict[str, Table],
    paper: str,
    claim: str,
    verdict: str,
    evidence: str,
    cells: list[dict[str, Any]],
    condition: str = "",
    pictures: Sequence[str] = (),
) -> str:
    """A claim, what becomes of it, and the numbers that say so."""
    if verdict not in OUTCOMES or (verdict == "holds if") != bool(condition) or not (cells or verdict == "open"):
        raise ValueError(f"{paper}, '{claim}': a verdict is one of {OUTCOMES}; it has cells, and a condition with 'if'")
    if verdict != "open" and any(tables[cell["table"]].is_older(cell["row"], cell["column"]) for cell in cells):
        raise ValueError(f"{paper}, '{claim}': it rests on runs of older code: it is open until they are run again")
    lines = ["| | published | ours | seeds |", "|---|---:|---:|---:|"]
    lines += ["| " + " | ".join(looked_up(tables[cell["table"]], **cell)) + " |" for cell in cells]
    said = outcome(f"{verdict[:1].upper()}{verdict[1:]}", condition)
    shown = "".join(f"![{PICTURES[picture]}]({place_of(picture)})\n\n" for picture in pictures)
    return f"> {claim}\n\n{said}. {evidence}\n\n{shown}" + ("\n".join(lines) + "\n" if cells else "")


def outcome(verdict: str, condition: str = "", **_: Any) -> str:
    """What becomes of a claim, in a line."""
    return f"**{verdict}**" + (f" {condition}" if condition else "")


def looked_up(known: Table, table: str, row: str, column: str, value: str, seed: int | None = None) -> list[str]:
    """The place of a number, the published one, ours, and of how many seeds it is (where one is not chosen)."""
    where = f"{table}: {row}, {column}, {value}" + ("" if seed is None else f", seed {seed}")
    found = known.values(row, column, value, seed)
    if not found and not known.is_older(row, column):
        raise LookupError(f"a verdict rests on a cell that is not recorded: {where}")
    [printed] = [each.published.get((column, value)) for each in known.paper.rows if each.label == row]
    numbers = [known.paper.factor(value) * each for each in found]
    ours = mean_and_deviation(numbers, printed_digits(known.paper, (column, value))) or TO_BE_RUN
    return [where, printed.text if printed else "-", ours, str(len(numbers) or "-")]


def which_to_take(said: list[str]) -> Iterator[str]:
    """The user's own question, as far as there are runs that answer it."""
    yield "## Which should I take?\n"
    yield choosing.__doc__.split("\n\n")[1] + "\n"
    yield from choosing.section(lines(choosing.RUNS))
    yield "\nIn brackets: bytes of a participant in a round, down and up; the share of clients worse off than alone.\n"
    yield f"![Accuracy of every method in every situation]({place_of('choosing')})\n"
    yield "Green: above training alone, brown: below it, as it is at that moment; bold: the best.\n"
    yield "\n".join(f"- {each}" for each in said) + "\n"


# ----------------------------------------------------------------------------------------------------- tables


def section(table: Table) -> str:
    """A table as `partwise reproduce --recorded` shows it, without what is not recorded."""
    shown = layout(table.narrowed, table.cells, "full", table.paper.seeds)
    _, body = shown.to_markdown().split("\n\n", 1)
    picture = f"![{shown.title}]({place_of(table.paper.name)})\n\n" if is_drawn(table.paper) else ""
    return f"### {table.paper.name}\n\n{shown.title}.\n\n{picture}{body}"


def is_drawn(paper: Paper) -> bool:
    """Whether a picture of the table can be drawn from what is recorded."""
    return bool({"rounds", "bars"} & {*paper.pictures})


def place_of(picture: str) -> str:
    """The file of a table's picture, or of another one by its name."""
    return f"images/reproduction-{slug(picture)}.png"


def not_run(tables: dict[str, Table], missing: dict[str, str]) -> Iterator[str]:
    """What is left, and why."""
    yield "## Not run\n\n| table | cells recorded | not recorded |\n|---|---|---|"
    for table in tables.values():
        gaps = "; ".join(gap(table, missing))
        yield f"| {table.paper.name} | {table.filled} of {len(table.cells)} | {gaps or '-'} |"
    yield ""
    yield from (f"- **{name}**: {reason}." for name, reason in missing.items())
    yield ""


def gap(table: Table, missing: dict[str, str]) -> Iterator[str]:
    """The columns that lack rows."""
    rows = len(table.paper.rows)
    for column in table.paper.columns:
        left = sum(not table.is_filled(row.label, column.name) for row in table.paper.rows)
        settings = {**table.paper.settings, **column.settings}
        lacking = [settings[name] for name in ("data", "weights") if settings.get(name) in missing]
        older = left == sum(table.is_older(row.label, column.name) for row in table.paper.rows)
        why = f"no {' and no '.join(lacking)}" if lacking else f"{TO_BE_RUN} again" if older else "not yet"
        if left:
            yield f"{column.name}{'' if left == rows else f' ({left} of {rows} rows)'}: {why}"
