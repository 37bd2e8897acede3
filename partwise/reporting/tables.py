"""Results as tables of text: on a terminal and in Markdown. People read accuracy in percent, files hold fractions."""

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

NOTHING = "-"  # where there is no value
GAP = 2  # between two columns on a terminal

MOMENTS = {
    "received": "what a client holds after download, nothing trained; every client",
    "trained": "after the last round's local training; its participants only",
    "adapted": "after fine-tuning on a copy, at the rounds of --eval-at (unset: the last); every client",
    "chosen": "received, at the round that is best on validation data",
    "global": "the server's model on all test samples, and on each client's own",
}


@dataclass(frozen=True)
class Cells:
    """A table as text: the first column names its rows, the others are numbers; `notes` say what the columns mean."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]

    def to_rich(self, width: int) -> RenderableType:
        """For a terminal; columns that do not fit beside each other go below, with the first one repeated."""
        first, *others = [list(column) for column in zip(self.header, *self.rows, strict=True)]
        blocks = [[first]]
        for column in others:
            if sum(GAP + max(map(len, each)) for each in [*blocks[-1], column]) > width and len(blocks[-1]) > 1:
                blocks.append([first])
            blocks[-1].append(column)
        notes = [Text(note, style="dim") for note in self.notes]
        return Group(Text(self.title, style="bold"), *map(block_table, blocks), *notes)

    def to_markdown(self) -> str:
        lines = [f"# {self.title}", ""]
        lines += ["| " + " | ".join(row) + " |" for row in (self.header, ["---", *["---:"] * (len(self.header) - 1)])]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]) + "\n"


def block_table(columns: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column[0], justify="right" if number else "left", no_wrap=True)
    for row in list(zip(*columns, strict=True))[1:]:
        table.add_row(*row)
    return table


def show(cells: Cells) -> None:
    """Print a table on the standard output, with the signs that its encoding has."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 160  # a file or a pipe has no edge at which a table would have to break
    if not console.encoding.lower().startswith("utf"):
        plain = [[cell.replace("±", "+-") for cell in row] for row in (cells.notes, *cells.rows)]
        cells = Cells(cells.title, cells.header, plain[1:], plain[0])
    console.print(cells.to_rich(console.width))


def percent(fraction: float | None, deviation: float | None = None) -> str:
    """Two decimals; a dash where there is no value."""
    if fraction is None:
        return NOTHING
    return f"{100 * fraction:.2f}" if deviation is None else f"{100 * fraction:.2f} ± {100 * deviation:.2f}"


def setting(summary: dict[str, Any]) -> str:
    """The problem that a run was about."""
    return f"{summary['data']}, {summary['clients']} clients, {summary['partition']}, {summary['rounds']} rounds"


def megabytes(row: dict[str, Any]) -> str:
    return f"{row['bytes_per_participant'] / 1e6:.3f}"


def one_run(summary: dict[str, Any]) -> Cells:
    """Last and best of every moment of a run, side by side."""
    accuracy = summary["accuracy"]
    rows, notes = [], ["last: after the last round; best: the highest of all evaluated rounds, picked on test data"]
    for moment in ("received", "trained", "adapted"):
        if moment in accuracy:
            rows.append(moment_row(moment, accuracy[moment]["last"], accuracy[moment]["best"]))
            notes.append(f"{moment}: {MOMENTS[moment]}")
    if "chosen" in accuracy:
        chosen = accuracy["chosen"]
        rows.append(moment_row("chosen", {**chosen, "acc_pooled": None}, chosen))
        notes.append(f"chosen: {MOMENTS['chosen']}")
    if "global" in accuracy:
        last, best = accuracy["global"]["last"], accuracy["global"]["best"]
        rows.append(moment_row("G-Test", {"acc_pooled": last["g_test"]}, {**best, "acc_pooled": best["g_test"]}))
        rows.append(moment_row("P-Test", last["p_test"], {}))
        notes.append(f"G-Test, P-Test: {MOMENTS['global']}")
    notes.append("mean, std: over clients; balanced: the mean over classes; both after the last (the chosen) round")
    notes.append(f"{megabytes(summary)} MB down and up for one participant in one round; {summary['seconds']:.1f} s")
    header = ["accuracy in %", "last", "best", "at round", "mean", "std", "balanced", "clients"]
    return Cells(f"{summary['method']}: {setting(summary)}, seed {summary['seed']}", header, rows, notes)


def moment_row(name: str, last: dict[str, Any], best: dict[str, Any]) -> list[str]:
    pooled = [percent(last.get("acc_pooled")), percent(best.get("acc_pooled")), str(best.get("round", NOTHING))]
    spread = [percent(last.get(key)) for key in ("acc_mean", "acc_std", "balanced")]
    return [name, *pooled, *spread, str(last.get("clients", NOTHING))]


def leaderboard(standings: list[dict[str, Any]], example: dict[str, Any]) -> Cells:
    """Methods against each other: a row for each, the best first. `example` is the summary of one of the runs."""
    ranked = ["last", "best"]
    notes = [
        "last, best: accuracy in % over all test samples, after the last round and in the best one"
        + ("; ±: standard deviation over seeds" if any(row["seeds"] > 1 for row in standings) else "")
    ]
    notes += [f"{moment}: {MOMENTS[moment]}" for moment in ("received", "adapted")]
    if any(row["chosen"] is not None for row in standings):
        ranked.append("chosen")
        notes.append(f"chosen: {MOMENTS['chosen']}")
    notes += [
        f"trained: {MOMENTS['trained']}; mean, std: of last, over clients",
        f"G-Test, P-Test: {MOMENTS['global']}",
        "MB: sent down and up by one participant in one round, without what is sent once; s: seconds a run",
    ]
    rows = []
    for row in standings:
        cells = [row["method"], row["moment"], *(percent(row[name], row[f"{name}_std"]) for name in ranked)]
        cells += [percent(row[name]) for name in ("received", "trained", "acc_mean", "acc_std", "g_test", "p_test")]
        rows.append([*cells, megabytes(row), f"{row['seconds']:.1f}"])
    header = ["method", "judged", *ranked, "received", "trained", "mean", "std", "G-Test", "P-Test", "MB", "s"]
    return Cells(f"Leaderboard: {setting(example)}", header, rows, notes)
