"""What stands below the charts: what leaves a client, events, and how the runs were made."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from partwise.options import as_written
from partwise.records.setup import Leaving
from partwise.reporting.reading import RunFiles
from partwise.reporting.series import Series
from partwise.rounds.events import Event
from partwise.runs.metrics import CHANGED_AT_END

MOST_EVENTS = 200
SHOWN_FACTS = ("partwise", "python", "torch", "numpy", "platform", "device", "threads", "started")  # of an environment


@dataclass(frozen=True)
class LeavingRow:
    """Something that leaves a client, of a series' first seed; nothing where `what` is None."""

    series: Series
    name: str = ""
    what: Leaving | None = None
    sent: float | None = None  # bytes that one client sends of it in all; None: the run is not finished


def leaving_rows(series: Sequence[Series]) -> list[LeavingRow]:
    """Return what leaves a client; a series of which nothing leaves has a row that says so."""
    found = []
    for each in series:
        run = each.runs[0]
        if not run.rounds or not run.setup.stages:  # it was made before runs wrote this down
            continue
        sent = Counter(run.traffic.up) + Counter(run.traffic.once_up) if run.traffic else None
        clients = max(1, len(run.participants))
        for name, what in run.leaves.items():
            found.append(LeavingRow(each, name, what, None if sent is None else sent[name] / clients))
        if not run.leaves:
            found.append(LeavingRow(each))
    return found


@dataclass(frozen=True)
class EventRow:
    """An event in a run of a series."""

    series: Series
    seed: int
    event: Event


@dataclass(frozen=True)
class Events:
    """The first events of all runs."""

    rows: Sequence[EventRow]
    words: str  # how many of each kind
    more: bool  # there are others


def events(series: Sequence[Series]) -> Events:
    """Return what was unusual."""
    found = [EventRow(each, run.seed, event) for each in series for run in each.runs for event in run.events]
    kinds = Counter(row.event.what for row in found)
    words = ", ".join(f"{number:,} {what}" for what, number in kinds.most_common())
    return Events(found[:MOST_EVENTS], words, len(found) > MOST_EVENTS)


@dataclass(frozen=True)
class Facts:
    """How the runs were made."""

    environment: Sequence[tuple[str, str]]
    commands: Sequence[str]
    settings: Sequence[tuple[str, str]]  # that all runs have in common
    notes: Sequence[str]  # decisions that runs took by themselves
    folders: Sequence[str]


def facts(runs: Sequence[RunFiles], series: Sequence[Series]) -> Facts:
    """Return environment, commands, and the settings that all runs have in common."""
    environment = []
    for name in SHOWN_FACTS:
        values = sorted({str(value) for run in runs if (value := getattr(run.environment, name)) not in ("", None)})
        if values:
            environment.append((name, values[0] if name == "started" else ", ".join(values)))
    again = f"partwise run --config {runs[0].folder.name}/config.toml --out again"
    common = [own for own in series[0].settings.items() if all(own in each.settings.items() for each in series)]
    notes = [note for run in runs for note in run.environment.notes]
    notes += [f"{run.method} {CHANGED_AT_END}" for run in runs if run.standing.changed_at_end]
    return Facts(
        environment,
        list(dict.fromkeys(run.environment.command for run in runs if run.environment.command)) or [again],
        [(name, as_written(value)) for name, value in sorted(common)],
        list(dict.fromkeys(notes)),
        [str(run.folder) for run in runs],
    )
