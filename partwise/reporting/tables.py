"""Results as tables: on a terminal, in Markdown, in a notebook. People read percent, files hold fractions."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from partwise.errors import printable
from partwise.records.metrics import FIELDS, METRICS_OF, RANKING, TITLES, metrics_legend
from partwise.records.names import LM, WHICH_MODEL, model_at, proper
from partwise.records.rounds import NOBODY, MomentScores, keys_over_clients
from partwise.records.summaries import RunSummary
from partwise.reporting.amounts import measured
from partwise.runs.metrics import CHANGED_AT_END
from partwise.studies.leaderboard import Standing

NOTHING = "-"  # where there is no value
FEWER = "*"  # behind a method that lacks seeds
GAP = 2  # between two columns on a terminal
NAMED = 20  # clients that are spelled out
WIDTH = 160  # of a file or a pipe, which have no edge at which a table would have to break

MOMENT_MEANINGS = {
    "received": "after download, before training",
    "trained": "after local training, before the last averaging (participants)",
    "adapted": "after the same fine-tuning for all, tested once at the end unless --eval-at, so that best is last",
    "method_adapted": "after the method's own adaptation",
    "joined": "clients that were held out and joined at the end",
    "chosen": "received, in the round that is best on validation data",
}


@dataclass(frozen=True)
class Cells:
    """A table as text: names of rows in the first column, then numbers; `notes` explain the columns."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    above: Sequence[str] = ()  # lines between the title and the table
    ranked: Mapping[str, int] = field(default_factory=dict)  # columns with a best number: 1 the highest, -1 the lowest

    def __post_init__(self) -> None:
        for name in ("header", "notes", "above"):
            object.__setattr__(self, name, list(map(printable, getattr(self, name))))
        object.__setattr__(self, "title", printable(self.title))
        object.__setattr__(self, "rows", [list(map(printable, row)) for row in self.rows])

    def to_rich(self, width: int) -> RenderableType:
        """Return the table for a terminal; columns that do not fit go below, with the first one repeated."""
        columns = [list(column) for column in zip(self.header, *self.rows, strict=True)]
        blocks = cut(columns, width)
        if len(blocks) > 1:  # of even width: no column stands alone because one was too many
            narrow = min(limit for limit in range(width + 1) if len(cut(columns, limit)) == len(blocks))
            blocks = cut(columns, narrow)
        notes = [Text(note, style="dim") for note in self.notes]
        return Group(Text(self.title, style="bold"), *map(Text, self.above), *map(block_table, blocks), *notes)

    def to_text(self) -> str:
        """Return the table for a file, as on a terminal."""
        console = Console(file=io.StringIO(), width=WIDTH, highlight=False, markup=False, emoji=False)
        with console.capture() as captured:
            console.print(self.to_rich(WIDTH))
        return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"

    def marked(self, best: tuple[str, str], second: tuple[str, str], safe: Callable[[str], str]) -> list[list[str]]:
        """Return the rows in another notation: signs stand around the best and second best, as far as digits tell."""
        rows = [list(map(safe, row)) for row in self.rows]
        for name, sign in self.ranked.items() if len(rows) > 1 else ():
            column = self.header.index(name)
            shown = [leading_number(row[column]) for row in self.rows]
            order = sorted({number for number in shown if number is not None}, key=lambda number: -sign * number)
            for row, number in zip(rows, shown, strict=True):
                for place, (before, after) in zip(order, (best, second), strict=False):
                    if number == place:
                        row[column] = f"{before}{row[column]}{after}"
        return rows

    def to_html(self) -> str:
        """Return the table for a notebook, in the page's own colours, so that it reads on light and on dark."""
        rows = [html_row("th", self.header), *(html_row("td", row) for row in self.rows)]
        notes = "<br>".join(map(escape, self.notes))
        above = "".join(f"<br>{escape(line)}" for line in self.above)
        return (
            f"<div><strong>{escape(self.title)}</strong>{above}<table>{''.join(rows)}</table>"
            f'<small style="opacity: 0.7">{notes}</small></div>'
        )

    def to_markdown(self) -> str:
        """Return the table in Markdown: the best of each ranked column bold, the second best underlined."""
        rows = self.marked(("**", "**"), ("<u>", "</u>"), lambda text: text.replace("|", r"\|"))
        lines = [f"# {self.title}", "", *([*(f"- {line}" for line in self.above), ""] if self.above else [])]
        rows = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *rows]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]) + "\n"


def leading_number(cell: str) -> float | None:
    """Return the number with which a cell begins, `91.20 ± 0.30` say; None where it is text."""
    try:
        return float(cell.split(" ")[0])
    except ValueError:
        return None


def cut(columns: list[list[str]], width: int) -> list[list[list[str]]]:
    """Return columns in blocks that fit into a width, each beginning with the first column."""
    first, *others = columns
    blocks = [[first]]
    for column in others:
        if sum(GAP + max(map(len, each)) for each in [*blocks[-1], column]) > width and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def html_row(tag: str, cells: list[str]) -> str:
    """Return a row in HTML, the first cell aligned left."""
    sides = ["left", *["right"] * (len(cells) - 1)]
    aligned = zip(sides, map(escape, cells), strict=True)
    return "<tr>" + "".join(f'<{tag} style="text-align: {side}">{cell}</{tag}>' for side, cell in aligned) + "</tr>"


def block_table(columns: list[list[str]]) -> Table:
    """Return some columns as a table of rich."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column[0], justify="right" if number else "left", no_wrap=True)
    for row in list(zip(*columns, strict=True))[1:]:
        table.add_row(*row)
    return table


def print_table(cells: Cells) -> None:
    """Print a table on the standard output, with the signs that its encoding has."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    if not console.encoding.lower().startswith("utf"):
        plain = [[cell.replace("±", "+-") for cell in row] for row in (cells.notes, *cells.rows)]
        cells = replace(cells, rows=plain[1:], notes=plain[0])
    console.print(cells.to_rich(console.width))


def percent(fraction: float | None, deviation: float | None = None) -> str:
    """Return a fraction in percent with two decimals; a dash where there is no value."""
    if fraction is None:
        return NOTHING
    return f"{100 * fraction:.2f}" if deviation is None else f"{100 * fraction:.2f} ± {100 * deviation:.2f}"


def metric_cell(value: float | None, metric: str, deviation: float | None = None) -> str:
    """Return the value of a metric: a share in percent, another number plainly; a dash where there is none."""
    share, behind = FIELDS[metric].percent, ""
    if value is not None and deviation is not None:
        behind = f" ± {measured(deviation, share, value)}"
    return measured(value, share) + behind


def in_unit(metric: str) -> str:
    """Return the title of a metric with its unit."""
    return f"{TITLES[metric]} in %" if FIELDS[metric].percent else TITLES[metric]


def problem_line(summary: RunSummary) -> str:
    """Return the problem that a run was about."""
    return f"{summary.data}, {summary.clients} clients, {summary.partition}"


def some(names: Sequence[str]) -> str:
    """Return names of clients, not too many of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def held_out(summary: RunSummary) -> list[str]:
    """Return a line that says which clients a run held out, if it did."""
    return [f"held out with seed {summary.seed}: {some(summary.held_out)}"] if summary.held_out else []


def megabytes(run: RunSummary | Standing) -> str:
    """Return the megabytes down and up per participant and round."""
    return f"{run.bytes_per_participant / 1e6:.3f}"


def one_run(summary: RunSummary) -> Cells:
    """Return last and best of every moment of a run, side by side."""
    metric, server = summary.metric, summary.global_model
    names = METRICS_OF[summary.task]
    others = [TITLES[name].removesuffix(" accuracy") for name in names if name != metric]
    rows, remarks, tested = [], held_out(summary), []
    if summary.rounds > (restored := summary.restored or summary.rounds):
        remarks.append(f"the run went back to round {restored}, the best on validation data: last shows that round")
    if summary.changed_at_end:
        remarks.append(f"{proper(summary.method)} {CHANGED_AT_END}")
    for moment, headline in summary.moments.items():
        rows.append(scores_row(model_at(moment), headline.last, headline.best, metric))
        tested.append(moment)
    if not rows:
        remarks.append("no scores: no silo lets scores of its test samples leave; see scores in its [allow] table")
    if summary.chosen is not None:
        row = scores_row(model_at("chosen"), summary.chosen, summary.chosen, metric)
        rows.append([row[0], NOTHING, *row[2:]])
        tested.append("chosen")
    if server is not None:
        everywhere = MomentScores(pooled=server.last.everywhere)
        best = MomentScores(pooled=server.best.everywhere, round=server.best.round)
        rows.append([*scores_row("GM", everywhere, best, metric)[:-1], NOTHING])
        rows.append(scores_row("GM/client", server.last.clients, NOBODY, metric))
    remarks += [f"{model_at(moment)}: {line}" for moment, line in not_finite(summary).items()]
    remarks.append(f"{megabytes(summary)} MB down and up per participant and round; {summary.seconds:.1f} s")
    legend = [
        WHICH_MODEL if server is not None else LM,
        explain_moments(tested),
        "last, best: after the last round, in the best on test data; mean, std: "
        f"{TITLES[RANKING[summary.task]]} over clients; {metrics_legend(names, summary.positive)}",
    ]
    titles = ["last", "best", "at round", "mean", "std", *others, "clients"]
    title = f"{proper(summary.method)}: {problem_line(summary)}, {summary.rounds} rounds, seed {summary.seed}"
    return Cells(title, [in_unit(metric), *titles], rows, [*filter(None, legend), *remarks])


def explain_moments(names: Sequence[str]) -> str:
    """Return the line of a legend that explains moments."""
    return "; ".join(f"{name}: {MOMENT_MEANINGS[name]}" for name in names)


def not_finite_words(number: float, metric: str) -> str:
    """Return a remark on answers that were not finite."""
    follows = "and count as wrong" if FIELDS[metric].percent else f"and leave no {TITLES[metric]}"
    return f"{number:g} answers were not finite {follows}"


def not_finite(summary: RunSummary) -> dict[str, str]:
    """Return a remark on a run's last answers that were not finite, for every moment that has some."""
    last = {moment: (own.last.nonfinite, own.last.diverged or []) for moment, own in summary.moments.items()}
    if summary.global_model is not None:
        last |= {"global": (summary.global_model.last.nonfinite, [])}
    lines = {}
    for moment, (number, diverged) in last.items():
        gone = f"; clients {', '.join(map(str, diverged))} diverged" if diverged else ""
        if number or gone:
            lines[moment] = f"{not_finite_words(number, summary.metric)}{gone}"
    return lines


def scores_row(name: str, last: MomentScores, best: MomentScores, metric: str) -> list[str]:
    """Return the row of a moment in the table of one run."""
    names = METRICS_OF[FIELDS[metric].task]
    at = str(best.round) if best.value(metric) is not None else NOTHING
    beside = [metric_cell(value, names[0]) for value in (last.mean, last.std)]
    beside += [metric_cell(last.value(other), other) for other in names if other != metric]
    clients = NOTHING if last is NOBODY else str(last.clients)
    return [
        name,
        metric_cell(last.value(metric), metric),
        metric_cell(best.value(metric), metric),
        at,
        *beside,
        clients,
    ]


def leaderboard(
    standings: Sequence[Standing], example: RunSummary, differences: Sequence[str] = (), seeds: int = 1
) -> Cells:
    """Return methods against each other: a row for each, the best first.

    `example` is the summary of one of the runs, `differences` are the settings in which rows differ, `seeds` is how
    many every row should have.
    """
    metric, moment, ranked = standings[0].metric, standings[0].moment, ["last", "best"]
    ranking = RANKING[example.task]
    mean, std, _ = keys_over_clients(example.task).values()
    remarks = [f"{proper(own.method)} {CHANGED_AT_END}" for own in standings if own.changed_at_end]
    if any(own.seeds < seeds for own in standings):
        remarks.append(f"{FEWER}: not all of the {seeds} seeds came to an end, so the row is the mean of fewer")
    tested = [moment]
    if any(own.chosen is not None for own in standings):
        ranked.append("chosen")
        tested.append("chosen")
    rows = [own.as_row() for own in standings]
    columns = {}
    for other in MOMENT_MEANINGS:
        if other not in (moment, "chosen") and any(row[other] is not None for row in rows):
            columns[other] = model_at(other)
            tested.append(other)
    remarks += held_out(example)
    if metric != ranking:
        columns |= {ranking: TITLES[ranking]}
    if example.positive is not None and metric != "auroc":
        columns |= {"auroc": "AUROC"}
    columns |= {mean: "mean", std: "std"}
    if any(own.worse is not None for own in standings):
        columns |= {"worse": "worse"}
    remarks += [
        f"{proper(own.method)}, after the last round: {not_finite_words(own.nonfinite, metric)}"
        for own in standings
        if own.nonfinite
    ]
    columns |= {"g_test": "GM", "p_test": "GM/client"}
    explained = metrics_legend({metric, *columns} & TITLES.keys(), example.positive)
    legend = [
        WHICH_MODEL,
        f"last, best: {TITLES[metric]} of {model_at(moment)}{' in %' * FIELDS[metric].percent}, after the last round "
        "and in the best"
        + ("; ±: std over seeds" if any(own.seeds > 1 for own in standings) else "")
        + f"; mean, std: {TITLES[ranking]} over clients"
        + ("; worse: % of clients that do worse than with Local" if "worse" in columns else "")
        + (f"; {explained}" if explained else ""),
        f"{explain_moments(tested)}; MB: per participant and round; s: seconds per run",
    ]
    lengths = {own.rounds for own in standings}
    counted = [name for name, shown in (("rounds", len(lengths) > 1), ("seeds", seeds > 1)) if shown]
    held = dict.fromkeys((*ranked, *columns), metric) | {name: name for name in columns if name in FIELDS}
    held |= {mean: ranking, std: ranking}  # the metric whose values a column holds
    lines = []
    for own, row in zip(standings, rows, strict=True):
        cells = [proper(own.method) + FEWER * (own.seeds < seeds), *(f"{row[name]:g}" for name in counted)]
        cells += [metric_cell(row[name], metric, row[f"{name}_std"]) for name in ranked]
        cells += [percent(row[name]) if name == "worse" else metric_cell(row[name], held[name]) for name in columns]
        lines.append([*cells, megabytes(own), f"{own.seconds:.1f}"])
    header = ["method", *counted, *ranked, *columns.values(), "MB", "s"]
    by = "" if metric == ranking else f" by {TITLES[metric]}"
    of = "" if len(lengths) > 1 else f", {example.rounds} rounds"
    signs = {columns.get(name, name): FIELDS[own].sign for name, own in held.items() if name not in (std, "worse")}
    title = f"Leaderboard{by}: {problem_line(example)}{of}, {model_at(moment)}"
    return Cells(title, header, lines, [*legend, *remarks], differences, signs)
