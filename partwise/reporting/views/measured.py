"""What runs left, as views."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from partwise.records.metrics import FIELDS, RANKING, Metric
from partwise.records.names import model_at
from partwise.records.rounds import MOMENTS
from partwise.reporting.amounts import existing
from partwise.reporting.series import Series, SeriesStanding
from partwise.reporting.style import look
from partwise.reporting.views.kinds import (
    Box,
    Boxes,
    Clouds,
    Curves,
    GroupChanges,
    Line,
    Point,
    Points,
    SampleCounts,
    Similarity,
    Stack,
    Stacks,
    mean_line,
    ranked_line,
    ranked_lines,
)
from partwise.tasks import TASKS

ANYWHERE = "mean over seeds of this rank"  # what stands for a client's name where every seed has clients of its own


def metric_of(series: Sequence[Series]) -> Metric:
    """Return the metric that ranks."""
    return FIELDS[next((run.metric for each in series for run in each.runs), "accuracy")]


def metric_of_clients(series: Sequence[Series]) -> Metric:
    """Return the metric of single clients: what ranks by default."""
    return FIELDS[RANKING[metric_of(series).task]]


def moments_over_rounds(series: Sequence[Series]) -> list[str]:
    """Return the moment that is compared, and further moments that were measured more than once."""
    compared = [run.moment for each in series for run in each.runs]
    often = [
        moment
        for moment in (*MOMENTS, "global")
        if any(len(run.over_rounds(moment)) > 1 for each in series for run in each.runs)
    ]
    return list(dict.fromkeys([*compared[:1], *often]))


def metric_lines(series: Sequence[Series], moment: str) -> Curves:
    """Return the metric over rounds, the mean over seeds, with a mark where a stage begins."""
    found = []
    for each in series:
        starts = max(each.runs, key=lambda run: len(run.rounds)).stage_starts
        found.append(mean_line(each.name, look(each.number), [run.over_rounds(moment) for run in each.runs], starts))
    metric = metric_of(series)
    title = f"{metric.title}, {model_at(moment)}"
    return Curves([own for own in found if own is not None], title, quantity=metric.title, percent=metric.percent)


def client_lines(series: Sequence[Series]) -> Curves:
    """Return the scores of clients in ascending order; over seeds the mean of each rank."""
    found = []
    for each in series:
        seeds = [own for run in each.counted if (own := run.client_scores)]
        if seeds:
            alike = [own for own in seeds if len(own) == len(seeds[0])]
            ranked = [statistics.fmean(value for value, _ in rank) for rank in zip(*alike, strict=True)]
            names = [f"client {name}" for _, name in seeds[0]] if len(seeds) == 1 else [ANYWHERE] * len(ranked)
            found.append(ranked_line(each.name, look(each.number), ranked, names))
    metric = metric_of_clients(series)
    return ranked_lines(found, quantity=metric.title, percent=metric.percent)


def client_boxes(series: Sequence[Series]) -> Boxes:
    """Return the distribution of scores over the clients of all seeds."""
    every = {each.name: [v for run in each.counted for v, _ in run.client_scores] for each in series}
    boxes = [Box(each.name, look(each.number), every[each.name]) for each in series if every[each.name]]
    metric = metric_of_clients(series)
    return Boxes(boxes, f"{metric.title} of clients", metric.percent)


def cost_points(rows: Sequence[SeriesStanding], of: str, across: str, unit: str) -> Points:
    """Return every row's `bytes` or `flops`, but for settings that a sweep did not choose."""
    metric = metric_of([row.series for row in rows])
    return Points(
        [
            Point(row.series.name, look(row.series.number), getattr(row, of), row.means.last, row.means.last_std)
            for row in rows
            if getattr(row, of) is not None and row.means.last is not None and not row.series.set_aside
        ],
        across,
        unit,
        metric.title,
        metric.percent,
        metric.lower,
    )


def partitions(series: Sequence[Series]) -> list[SampleCounts]:
    """Return each partition of the data once; its title names the settings in which it differs from the rest."""
    found: list[tuple[str, str, SampleCounts]] = []
    for run in (run for each in series for run in each.runs):
        setup = run.setup
        if setup.counts and all(setup.counts != known.counts for _, _, known in found):
            own = SampleCounts(setup.clients, setup.classes, setup.counts, what=TASKS[setup.task].bin_word)
            found.append((f"{setup.data}, {setup.partition}", f"seed {run.seed}", own))
    alike = len({what for what, _, _ in found}) == 1 < len(found)
    return [replace(own, title=seed if alike else f"{what}, {seed}") for what, seed, own in found]


def groups_by_series(series: Sequence[Series]) -> dict[str, GroupChanges]:
    """Return the groups of clients by the name of a series, of the first seed that has some."""
    found = {}
    for each in series:
        for run in each.runs:
            changes = run.group_changes
            if any(len({*own}) > 1 for own in changes.values()):
                names = run.setup.clients or list(map(str, range(len(next(iter(changes.values()))))))
                found[each.name] = GroupChanges(names, changes)
                break
    return found


def ledgers(series: Sequence[Series]) -> Stacks:
    """Return bytes by part, the mean over seeds; one-off transfers have names of their own, `head, once`."""
    found = []
    for each in series:
        own = [run.ledger for run in each.runs if run.ledger]
        if own:
            down, up = Counter[str](), Counter[str]()
            for ledger in own:
                for way, total, once in (
                    (down, ledger.total.down, ledger.once.down),
                    (up, ledger.total.up, ledger.once.up),
                ):
                    way.update(total)
                    way.update({f"{part}, once": sent for part, sent in once.items()})
            means = ({part: number / len(own) for part, number in way.items()} for way in (down, up))
            found.append(Stack(each.name, look(each.number), *means))
    return Stacks(found)


@dataclass(frozen=True)
class Representation:
    """What is known of a representation, of the first seed that measured it."""

    cka: Line | None  # over rounds, as the next; None where there are no numbers
    separation: Line | None
    similarity: Similarity  # in the end
    clouds: Clouds | None


def measured_representations(series: Sequence[Series]) -> list[Representation]:
    """Return the representations that runs measured, series by series."""
    found = []
    for each in series:
        run = next((run for run in each.runs if run.features), None)
        if run is None:
            continue
        noted = run.features
        for name, last in list(noted.values())[-1].items():
            title, own = f"{each.name} {name}", look(each.number)
            plane = run.planes.get(name)
            found.append(
                Representation(
                    mean_line(title, own, [{at: existing(each[name].cka_mean) for at, each in noted.items()}]),
                    mean_line(title, own, [{at: existing(each[name].separation_mean) for at, each in noted.items()}]),
                    Similarity([list(map(existing, row)) for row in last.cka], list(map(str, last.clients)), title),
                    None if plane is None or not len(plane) else Clouds({title: plane}, run.setup.classes),
                )
            )
    return found
