"""Results as tables of text: on a terminal and in Markdown. People read accuracy in percent, files hold fractions."""

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Cells:
    """A table as text: the first column names its rows, the others are numbers; `notes` say what the columns mean."""

    header: list[str]
    rows: list[list[str]]
    notes: list[str]

    def to_rich(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, header_style="bold")
        for number, name in enumerate(self.header):
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return Group(table, *(Text(note, style="dim") for note in self.notes))

    def to_markdown(self) -> str:
        lines = ["| " + " | ".join(row) + " |" for row in (self.header, ["---", *["---:"] * (len(self.header) - 1)])]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]) + "\n"


def show(cells: Cells) -> None:
    """Print a table on the standard output, with the signs that its encoding has."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)  # a file or a pipe has no edge at which cells would have to break
    if not console.encoding.lower().startswith("utf"):
        plain = [[cell.replace("±", "+-") for cell in row] for row in (cells.notes, *cells.rows)]
        cells = Cells(cells.header, plain[1:], plain[0])
    console.print(cells.to_rich())


def percent(fraction: float | None, deviation: float | None = None) -> str:
    """Two decimals; `-` where there is no value."""
    if fraction is None:
        return "-"
    return f"{100 * fraction:.2f}" if deviation is None else f"{100 * fraction:.2f} ± {100 * deviation:.2f}"


def one_run(summary: dict[str, Any]) -> Cells:
    """Last and best of every moment of a run."""
    accuracy = summary["accuracy"]
    rows = []
    for moment in ("received", "trained", "adapted"):
        if moment in accuracy:
            last, best = accuracy[moment]["last"], accuracy[moment]["best"]
            rows.append([moment, percent(last["acc_pooled"]), *at_best(best["acc_pooled"], best)])
            rows[-1] += [percent(last["acc_mean"]), percent(last["acc_std"]), percent(last["balanced"])]
            rows[-1] += [str(last["clients"])]
    if "chosen" in accuracy:
        chosen = accuracy["chosen"]
        rows.append([f"chosen: round {chosen['round']}", percent(chosen["acc_pooled"]), "", ""])
        rows[-1] += [percent(chosen["acc_mean"]), percent(chosen["acc_std"]), percent(chosen["balanced"])]
        rows[-1] += [str(chosen["clients"])]
    if "global" in accuracy:
        last, best = accuracy["global"]["last"], accuracy["global"]["best"]
        rows.append(["global, G-Test", percent(last["g_test"]), *at_best(best["g_test"], best), "", "", "", ""])
        own = last["p_test"]
        rows.append(["global, P-Test", percent(own.get("acc_pooled")), "", "", percent(own.get("acc_mean"))])
        rows[-1] += [percent(own.get("acc_std")), percent(own.get("balanced")), str(own["clients"])]
    header = ["accuracy in %", "last", "best", "at round", "mean", "std", "balanced", "clients"]
    return Cells(header, rows, [f"{name}: {MEANINGS[name]}" for name in meant(accuracy)])


def leaderboard(standings: list[dict[str, Any]]) -> Cells:
    """Methods against each other: a row for each, the best first."""
    chosen = any(row["chosen"] is not None for row in standings)
    header = ["method", "judged", "last", "best", *(["chosen"] if chosen else [])]
    header += ["trained", "mean", "std", "G-Test", "P-Test", "MB", "s"]
    rows = []
    for row in standings:
        ranked = ["last", "best", *(["chosen"] if chosen else [])]
        cells = [row["method"], row["moment"], *(percent(row[name], row[f"{name}_std"]) for name in ranked)]
        cells += [percent(row[name]) for name in ("trained", "acc_mean", "acc_std", "g_test", "p_test")]
        rows.append([*cells, f"{row['bytes_per_participant'] / 1e6:.3g}", f"{row['seconds']:.1f}"])
    return Cells(header, rows, [])
