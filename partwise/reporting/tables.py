"""Results as tables of text: on a terminal and in Markdown. People read accuracy in percent, files hold fractions."""

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

NOTHING = "-"  # where there is no value

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
    """Two decimals; a dash where there is no value."""
    if fraction is None:
        return NOTHING
    return f"{100 * fraction:.2f}" if deviation is None else f"{100 * fraction:.2f} ± {100 * deviation:.2f}"


def title(summary: dict[str, Any]) -> str:
    """A run in one line."""
    return (
        f"{summary['method']} on {summary['data']}: {summary['clients']} clients, {summary['partition']}, "
        f"seed {summary['seed']}, {summary['rounds']} rounds in {summary['seconds']:.1f} s, "
        f"{summary['bytes_per_participant'] / 1e6:.3f} MB a round for each participant"
    )


def one_run(summary: dict[str, Any]) -> Cells:
    """Last and best of every moment of a run, side by side."""
    accuracy = summary["accuracy"]
    rows, notes = [], ["last: after the last round; best: the highest of all evaluated rounds, picked on test data"]
    for moment in ("received", "trained", "adapted"):
        if moment in accuracy:
            rows.append(moment_row(moment, accuracy[moment]["last"], accuracy[moment]["best"]))
            notes.append(f"{moment}: {MOMENTS[moment]}")
    if "chosen" in accuracy:
        rows.append(moment_row(f"round {accuracy['chosen']['round']}", accuracy["chosen"], {}))
        notes.append(f"round {accuracy['chosen']['round']}: {MOMENTS['chosen']}")
    if "global" in accuracy:
        last, best = accuracy["global"]["last"], accuracy["global"]["best"]
        rows.append(moment_row("G-Test", {"acc_pooled": last["g_test"]}, {**best, "acc_pooled": best["g_test"]}))
        rows.append(moment_row("P-Test", last["p_test"], {}))
        notes.append(f"G-Test, P-Test: {MOMENTS['global']}")
    notes.append("mean, std: over clients, last; balanced: the mean over classes, last")
    return Cells(["accuracy in %", "last", "best", "at round", "mean", "std", "balanced", "clients"], rows, notes)


def moment_row(name: str, last: dict[str, Any], best: dict[str, Any]) -> list[str]:
    pooled = [percent(last.get("acc_pooled")), percent(best.get("acc_pooled")), str(best.get("round", NOTHING))]
    spread = [percent(last.get(key)) for key in ("acc_mean", "acc_std", "balanced")]
    return [name, *pooled, *spread, str(last.get("clients", NOTHING))]


def leaderboard(standings: list[dict[str, Any]]) -> Cells:
    """Methods against each other: a row for each, the best first."""
    ranked = ["last", "best"]
    notes = [
        "last, best: accuracy in % over all test samples, after the last round and in the best one"
        + ("; ±: standard deviation over seeds" if any(row["seeds"] > 1 for row in standings) else "")
    ]
    notes += [f"{moment}: {MOMENTS[moment]}" for moment in ("received", "adapted") if moment in judged(standings)]
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
        cells += [percent(row[name]) for name in ("trained", "acc_mean", "acc_std", "g_test", "p_test")]
        rows.append([*cells, f"{row['bytes_per_participant'] / 1e6:.3f}", f"{row['seconds']:.1f}"])
    header = ["method", "judged", *ranked, "trained", "mean", "std", "G-Test", "P-Test", "MB", "s"]
    return Cells(header, rows, notes)


def judged(standings: list[dict[str, Any]]) -> set[str]:
    return {row["moment"] for row in standings}
