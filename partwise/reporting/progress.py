"""What is seen of a run while it goes: a bar on a terminal or in a notebook, else a line for every evaluated round.

It is written to the standard error, so that the standard output holds results alone.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from partwise.records.metrics import FIELDS, RANKING, TITLES
from partwise.records.names import model_at
from partwise.records.rounds import MomentScores, RoundRecord
from partwise.runs import simulation
from partwise.runs.config import label as method_label
from partwise.runs.observers import Observer, Seen


def displays(labels: Sequence[str], rounds: int, metric: str) -> AbstractContextManager[list[simulation.Progress]]:
    """Show runs side by side: a callback for the rows of each, to be used in a `with` statement."""
    console = Console(stderr=True)
    movable = find_spec("ipywidgets") if console.is_jupyter else console.is_terminal and not console.is_dumb_terminal
    if movable:
        return progress_bars(labels, rounds, console, metric)
    return nullcontext([progress_lines(label, rounds, metric) for label in labels])


class Shown(Observer):
    """Show how far a run is."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def begin(self, simulation: simulation.Simulation) -> None:
        """Begin to show a run."""
        config = simulation.config
        title, metric = f"{method_label(config.name)} seed {config.run.seed}", config.run.metric
        [self.advance] = self.stack.enter_context(displays([title], simulation.total, metric))

    def round(self, seen: Seen) -> None:
        """Show a round."""
        self.advance(seen.record)

    def end(self, last: Seen | None) -> None:
        """Leave the display as it is, and give the terminal back."""
        self.stack.close()


@dataclass
class Speed:
    """How fast a run goes, over all rounds so far."""

    clients: int = 0
    seconds: float = 0.0

    def add(self, record: RoundRecord) -> float:
        """Add a round; return the clients per second so far, evaluation included."""
        self.clients += len(record.participants)
        self.seconds += record.seconds
        return self.clients / max(self.seconds, 1e-9)


@contextmanager
def progress_bars(
    labels: Sequence[str], rounds: int, console: Console, metric: str = "accuracy"
) -> Iterator[list[simulation.Progress]]:
    """Show runs one below the other: a terminal shows one thing at a time that moves."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[value]}", style="bold"),
        TextColumn("{task.fields[pace]}", style="cyan"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True) as progress:

        def bar(label: str) -> simulation.Progress:
            task, pace = progress.add_task(label, total=rounds, value="", pace=""), Speed()

            def advance(record: RoundRecord) -> None:
                shown = {"pace": f"{pace.add(record):.1f} clients/s"}
                if record.at("received").pooled is not None:
                    shown |= {"value": metric_text(record.at("received"), metric)}
                progress.update(task, advance=1, **shown)  # type: ignore[arg-type]  # every keyword is a field here

            return advance

        yield list(map(bar, labels))
        progress.refresh()  # a notebook does not draw the end by itself


def progress_lines(label: str, rounds: int, metric: str) -> simulation.Progress:
    """Return a callback that prints a line for every evaluated round, in ASCII: a log may be read anywhere."""
    pace, begun = Speed(), time.monotonic()

    def advance(record: RoundRecord) -> None:
        speed = pace.add(record)
        moments = [moment for moment, scores in record.moments.items() if moment != "trained" and scores.pooled]
        if moments:
            elapsed = time.monotonic() - begun
            words = [f"{label}: round {record.round}/{rounds}"]
            words += [f"{model_at(moment)} {metric_text(record.at(moment), metric)}" for moment in moments]
            words += [f"{speed:.1f} clients/s", f"elapsed {clock(elapsed)}"]
            words += [f"left {clock(elapsed / record.round * (rounds - record.round))}"]
            print(", ".join(words), file=sys.stderr, flush=True)

    return advance


def metric_text(scores: MomentScores, metric: str) -> str:
    """Return a metric, with its name where it is not accuracy; for other tasks their own stands for accuracy."""
    if scores.pooled is not None and FIELDS[metric].task != scores.pooled.task:
        metric = RANKING[scores.pooled.task]
    value, percent = scores.value(metric), FIELDS[metric].percent
    text = "-" if value is None else f"{100 * value:.2f} %" if percent else f"{value:.4g}"
    return text if metric == "accuracy" else f"{text} {TITLES[metric]}"


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
