"""The leaderboard as cells: what stands in them, and what they are sorted by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partwise.records.metrics import FIELDS, RANKING, TITLES
from partwise.records.names import model_at
from partwise.records.rounds import MOMENTS
from partwise.reporting.amounts import amount, measured
from partwise.reporting.series import SeriesStanding
from partwise.reporting.tables import MOMENT_MEANINGS


class BoardCell(NamedTuple):
    """What stands in a cell."""

    text: str
    value: float | str = ""  # to sort by; empty: there is none
    below: str = ""
    top: bool = False  # the best of its column


@dataclass(frozen=True)
class BoardColumn:
    """A column of the leaderboard."""

    title: str
    about: str
    cell: Callable[[SeriesStanding], BoardCell]
    highest: bool | None = None  # whether the highest value is the best, or the lowest; None: neither

    def has(self, rows: Sequence[SeriesStanding]) -> bool:
        """Return whether a row has something here."""
        return any(self.cell(row).value != "" for row in rows)


def metric_cells(of: Callable[[SeriesStanding], float | None], metric: str) -> Callable[[SeriesStanding], BoardCell]:
    """Return a column of a metric's values."""
    return lambda row: number(of(row), metric)


def number(value: float | None, metric: str, deviation: float | None = None, more: str = "") -> BoardCell:
    """Return a metric's value; below it its deviation and remarks."""
    share = FIELDS[metric].percent
    below = [f"± {measured(deviation, share, value)}"] if deviation is not None else []
    return BoardCell(measured(value, share), "" if value is None else value, " ".join([*below, more]).strip())


def cost(of: Callable[[SeriesStanding], float | None], unit: str) -> Callable[[SeriesStanding], BoardCell]:
    """Return a column of bytes or operations."""

    def cell(row: SeriesStanding) -> BoardCell:
        value = of(row)
        return BoardCell("-") if value is None else BoardCell(amount(value, unit), value)

    return cell


def sent(row: SeriesStanding) -> BoardCell:
    """Return the bytes of a whole run; below them the bytes that clients download once."""
    cell = cost(lambda row: row.bytes, "B")(row)
    return cell._replace(below=f"down once: {amount(row.once)}") if row.once else cell


def name(row: SeriesStanding) -> BoardCell:
    """Return the name of a series; below it how far its seeds are."""
    seeds = f"{row.means.seeds} seeds" if row.means.seeds > 1 else ""
    chosen = "chosen" if row.series.tried and row.series.tried.chosen else ""
    below = ", ".join(filter(None, [chosen, row.series.state or seeds]))
    return BoardCell(row.series.name, row.series.name, below)


def ranked(row: SeriesStanding) -> BoardCell:
    """Return the number that ranks; below it its deviation over seeds, and an interval of the mean."""
    metric, last = row.means.metric, row.means.last
    ends = [measured(end, FIELDS[metric].percent, last, digits=1) for end in row.interval or ()]
    return number(last, metric, row.means.last_std, f"({' to '.join(ends)})" if ends else "")


def worse(row: SeriesStanding) -> BoardCell:
    """Return the share of clients that do worse than with local."""
    return BoardCell(measured(row.means.worse), "" if row.means.worse is None else row.means.worse)


def moment(which: str, metric: str) -> BoardColumn:
    """Return the column of a moment beside the one that is compared."""

    def cell(row: SeriesStanding) -> BoardCell:
        return number(None if which == row.series.runs[0].moment else row.means.moments[which], metric)

    model = "LM of" if which == "joined" else "Each client's own (local) model"
    about = f"{model} {MOMENT_MEANINGS[which]}."
    return BoardColumn(model_at(which).replace("_", " "), about, cell, not FIELDS[metric].lower)


def board_columns(metric: str) -> list[BoardColumn]:
    """Return the columns of runs that a metric ranks."""
    ranking = RANKING[FIELDS[metric].task]
    highest, highest_mean, over = not FIELDS[metric].lower, not FIELDS[ranking].lower, TITLES[ranking]
    return [
        BoardColumn("method", "", name),
        BoardColumn(
            "last",
            "What ranks, on test data after the last round: the mean over seeds, below it their standard deviation "
            "and, from three seeds on, where the mean lies by bootstrap (95 %).",
            ranked,
            highest,
        ),
        BoardColumn(
            "validation",
            "The same on validation data, by which a sweep chooses settings: the mean over seeds.",
            metric_cells(lambda row: row.validation, metric),
            highest,
        ),
        BoardColumn(
            "best",
            "Of all evaluated rounds, picked on test data.",
            metric_cells(lambda row: row.means.best, metric),
            highest,
        ),
        *(moment(which, metric) for which in MOMENTS),
        BoardColumn(
            "GM",
            "The global (server's) model on all test samples.",
            metric_cells(lambda row: row.means.g_test, metric),
            highest,
        ),
        BoardColumn(
            "over clients",
            f"Mean and standard deviation of {over} over clients.",
            lambda row: number(row.means.mean, ranking, row.means.std),
            highest_mean,
        ),
        BoardColumn(
            "worst 10 %",
            f"Mean {over} of the worst tenth of the clients.",
            metric_cells(lambda row: row.worst, ranking),
            highest_mean,
        ),
        BoardColumn("worse than alone", f"Clients whose {over} is worse than with local, in %.", worse, False),
        *COST_COLUMNS,
    ]


COST_COLUMNS = (
    BoardColumn(
        "sent a round",
        "Bytes down and up of one participant in one round, without what is sent once.",
        cost(lambda row: row.means.bytes_per_participant, "B"),
        False,
    ),
    BoardColumn(
        "sent in all",
        "Bytes down and up of all clients in all rounds, and up once; below it what they got once: initial or frozen "
        "parts that no round brings.",
        sent,
        False,
    ),
    BoardColumn("FLOPs", "Operations of local training.", cost(lambda row: row.flops, ""), False),
    BoardColumn(
        "time",
        "Seconds a run.",
        lambda row: BoardCell(f"{row.means.seconds:.1f} s", row.means.seconds),
        False,
    ),
)


class BoardRow(NamedTuple):
    """A row of the leaderboard."""

    number: int  # of its series
    cells: list[BoardCell]
    aside: bool  # a sweep tried its setting and did not choose it


def shown_columns(rows: Sequence[SeriesStanding]) -> list[BoardColumn]:
    """Return the columns in which a row has something."""
    columns = board_columns(rows[0].means.metric) if rows else []
    return [column for column in columns if column.has(rows)]


def board(rows: Sequence[SeriesStanding]) -> list[BoardRow]:
    """Return the cells of every row, the best of each column marked where there are several rows that it can be of.

    A setting that a sweep did not choose is never the best: nobody picks by test data here.
    """
    columns = shown_columns(rows)
    best = {}
    for column in columns:
        counted = [row for row in rows if not row.series.set_aside]
        values = [value for row in counted if isinstance(value := column.cell(row).value, float | int)]
        if column.highest is not None and len(values) > 1:
            best[column.title] = max(values) if column.highest else min(values)
    return [
        BoardRow(
            row.series.number,
            [
                cell._replace(top=cell.value == best.get(column.title) and not row.series.set_aside)
                for column in columns
                for cell in [column.cell(row)]
            ],
            row.series.set_aside,
        )
        for row in rows
    ]
