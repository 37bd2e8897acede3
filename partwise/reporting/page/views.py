"""What charts show, as plain numbers: the page and the pictures draw the same."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from partwise.records.rounds import MOMENTS
from partwise.reporting.page.records import Point, Run
from partwise.reporting.page.series import Series, Standing


@dataclass(frozen=True)
class Curve:
    """A number over rounds: its mean over seeds, and how far a standard deviation reaches."""

    series: Series
    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    stages: list[int]  # rounds in which a stage begins, but for the first
    label: str = ""  # what it is of, where a series has several

    @property
    def name(self) -> str:
        return f"{self.series.name} {self.label}".strip()


def curve(series: Series, values: Sequence[dict[int, float]], label: str = "") -> Curve | None:
    """The curve of some seeds' values by round; None where there are none."""
    rounds = sorted({number for own in values for number in own})
    if not rounds:
        return None
    means, deviations = [], []
    for number in rounds:
        found = [own[number] for own in values if not math.isnan(own.get(number, math.nan))]
        means.append(statistics.fmean(found) if found else math.nan)
        deviations.append(statistics.stdev(found) if len(found) > 1 else 0.0)
    low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
    high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
    return Curve(series, rounds, means, low, high, stage_changes(series.runs), label)


def stage_changes(runs: Sequence[Run]) -> list[int]:
    """The rounds in which a stage begins, but for the first stage."""
    rounds = max((run.rounds for run in runs), key=len, default=[])
    return [after.round for before, after in pairwise(rounds) if after.stage != before.stage]


def accuracy_curves(series: Sequence[Series], moment: str) -> list[Curve]:
    found = (curve(each, [run.over_rounds(moment) for run in each.runs]) for each in series)
    return [each for each in found if each is not None]


def moments_over_rounds(series: Sequence[Series]) -> list[str]:
    """The moment that is compared, and the others that were measured more than once."""
    compared = [run.moment for each in series for run in each.runs]
    often = [
        moment
        for moment in (*MOMENTS, "global")
        if any(len(run.over_rounds(moment)) > 1 for each in series for run in each.runs)
    ]
    return list(dict.fromkeys([*compared[:1], *often]))


@dataclass(frozen=True)
class Clients:
    """The accuracies of a series' clients at the moment that is compared."""

    series: Series
    ranked: list[float]  # ascending; over seeds the mean of each rank: a seed has clients of its own
    every: list[float]  # of all seeds
    names: list[str]  # of the clients in `ranked`, where there is one seed

    @property
    def quartiles(self) -> list[float]:
        """Least, lower quartile, median, upper quartile, greatest."""
        own = sorted(self.every)
        cuts = statistics.quantiles(own, n=4, method="inclusive") if len(own) > 1 else own * 3
        return [own[0], *cuts, own[-1]]


def client_accuracies(series: Sequence[Series]) -> list[Clients]:
    found = []
    for each in series:
        seeds = [
            sorted((value, own.name) for own in run.clients if (value := own.accuracy(run.moment)) is not None)
            for run in each.counted
        ]
        seeds = [own for own in seeds if own]
        if seeds:
            alike = [own for own in seeds if len(own) == len(seeds[0])]
            ranked = [statistics.fmean(value for value, _ in rank) for rank in zip(*alike, strict=True)]
            names = [name for _, name in seeds[0]] if len(seeds) == 1 else []
            found.append(Clients(each, ranked, [value for own in seeds for value, _ in own], names))
    return found


@dataclass(frozen=True)
class Cost:
    """What a series costs, and how well it does."""

    series: Series
    cost: float
    value: float
    std: float | None


def costs(rows: Sequence[Standing], of: str) -> list[Cost]:
    """Every row's `bytes` or `flops`, but for settings that a sweep did not choose."""
    return [
        Cost(row.series, getattr(row, of), row.last, row.std)
        for row in rows
        if getattr(row, of) is not None and row.last is not None and not row.series.set_aside
    ]


def frontier(points: Sequence[Cost]) -> list[Cost]:
    """Those that no other beats: whatever costs no more does worse."""
    best: list[Cost] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.value)):
        if not best or point.value > best[-1].value:
            best.append(point)
    return best


@dataclass(frozen=True)
class Partition:
    """How many training samples of each class every client has."""

    title: str
    clients: list[str]
    classes: list[str]
    counts: list[list[int]]  # client x class


def partitions(series: Sequence[Series]) -> list[Partition]:
    """Each division of the data that runs had, once; its title says in what it differs from the others."""
    found: list[tuple[str, str, Partition]] = []
    for run in (run for each in series for run in each.runs):
        setup = run.setup
        if setup.get("counts") and all(setup["counts"] != known.counts for _, _, known in found):
            what, seed = f"{setup['data']}, {setup['partition']}", f"seed {run.seed}"
            found.append((what, seed, Partition(what, setup["clients"], setup["classes"], setup["counts"])))
    alike = len({what for what, _, _ in found}) == 1 < len(found)
    return [replace(own, title=seed if alike else f"{what}, {seed}") for what, seed, own in found]


@dataclass(frozen=True)
class Sharing:
    """Who shares each part, a row for every series and stage."""

    parts: list[str]
    rows: list[tuple[Series, str, list[str]]]  # the stage in words; the share of each part, empty where there is none


def sharing(series: Sequence[Series]) -> Sharing:
    """Parts as far apart as one of the runs tells them apart: `body`, or `body.conv1` and so on.

    Stages in a row that share alike are one.
    """
    stages = {each.name: each.runs[0].setup.get("stages", []) for each in series}
    shares = [stage["share"] for own in stages.values() for stage in own]
    divided = {part for share in shares for part, kinds in kinds_of(share, 1).items() if len(kinds) > 1}
    parts: dict[str, None] = {}
    rows = []
    for each in series:
        numbered = [(number, by_part(stage["share"], divided)) for number, stage in enumerate(stages[each.name], 1)]
        alike = [(own, [number for number, _ in found]) for own, found in groupby(numbered, lambda one: one[1])]
        for own, numbers in alike:
            parts |= dict.fromkeys(own)
            which = f"stages {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"stage {numbers[0]}"
            lengths = [stage["rounds"] for stage in stages[each.name]]
            first, last = sum(lengths[: numbers[0] - 1]) + 1, sum(lengths[: numbers[-1]])
            span = f"rounds {first} to {last}" if last > first else f"round {first}"
            rows.append((each, f"{which}, {span}" if len(alike) > 1 else "", own))
    return Sharing(list(parts), [(each, words, [own.get(part, "") for part in parts]) for each, words, own in rows])


def by_part(share: dict[str, str], divided: set[str]) -> dict[str, str]:
    """The share of each part, of a divided one that of each of its layers."""
    whole, layers = kinds_of(share, 1), kinds_of(share, 2)
    found = {part: kinds for part, kinds in whole.items() if part not in divided}
    found |= {layer: kinds for layer, kinds in layers.items() if layer.split(".")[0] in divided}
    return {part: " + ".join(kinds) for part, kinds in found.items()}


def kinds_of(share: dict[str, str], depth: int) -> dict[str, list[str]]:
    """The shares that the tensors of each part have, or of each layer (`depth` 2)."""
    found: dict[str, list[str]] = {}
    for name, kind in share.items():
        *path, _ = name.split(".")
        own = found.setdefault(".".join(path[:depth]), [])
        if kind not in own:
            own.append(kind)
    return found


@dataclass(frozen=True)
class Groups:
    """The group of every client, whenever groups changed; of the first seed that has some."""

    series: Series
    clients: list[str]
    changes: list[tuple[int, list[int]]]  # the round, and the groups after it


def groups(series: Sequence[Series]) -> list[Groups]:
    found = []
    for each in series:
        for run in each.runs:
            changes = [(each.round, each.groups) for each in run.rounds if each.groups is not None]
            if any(len({*own}) > 1 for _, own in changes):
                names = run.setup.get("clients") or list(map(str, range(len(changes[0][1]))))
                found.append(Groups(each, names, changes))
                break
    return found


@dataclass(frozen=True)
class Representation:
    """How alike clients' features are and how far apart classes lie in them; of the first seed that measured it."""

    series: Series
    name: str
    cka: dict[int, float]  # by round, as the next
    separation: dict[int, float]
    clients: list[str]
    matrix: list[list[float | None]]  # the CKA of every two clients in the end
    points: list[Point]  # samples on a plane
    classes: list[str]


def representations(series: Sequence[Series]) -> list[Representation]:
    found = []
    for each in series:
        run = next((run for run in each.runs if any("representations" in own.noted for own in run.rounds)), None)
        if run is None:
            continue
        noted = {own.round: own.noted["representations"] for own in run.rounds if "representations" in own.noted}
        for name, last in list(noted.values())[-1].items():
            cka, separation = (
                {number: math.nan if own[name][key] is None else own[name][key] for number, own in noted.items()}
                for key in ("cka_mean", "separation_mean")
            )
            clients, classes = list(map(str, last["clients"])), run.setup.get("classes", [])
            points = run.planes.get(name, [])
            found.append(Representation(each, name, cka, separation, clients, last["cka"], points, classes))
    return found


@dataclass(frozen=True)
class Sent:
    """Bytes of a series by part, the mean over seeds; what is sent once is called so, `head, once`."""

    series: Series
    down: dict[str, float]
    up: dict[str, float]


def ledgers(series: Sequence[Series]) -> list[Sent]:
    found = []
    for each in series:
        own = [run.ledger for run in each.runs if run.ledger]
        if own:
            ways = [Counter[str](), Counter[str]()]
            for ledger in own:
                for total, way in zip(ways, ("down", "up"), strict=True):
                    total.update(ledger["total"].get(way, {}))
                    total.update({f"{part}, once": sent for part, sent in ledger["once"].get(way, {}).items()})
            down, up = ({part: number / len(own) for part, number in total.items()} for total in ways)
            found.append(Sent(each, down, up))
    return found


def leaving(series: Sequence[Series]) -> list[tuple[Series, str, dict[str, Any], float | None]]:
    """What leaves a client: what it is, its size, and the bytes that one client sends of it in all; of the first seed.

    A series of which nothing leaves has a row with an empty name.
    """
    found: list[tuple[Series, str, dict[str, Any], float | None]] = []
    for each in series:
        run = each.runs[0]
        if not run.rounds or not run.setup:  # it was made before runs wrote this down
            continue
        sent = Counter(run.ledger.get("total", {}).get("up", {})) + Counter(run.ledger.get("once", {}).get("up", {}))
        clients = max(1, len({client for own in run.rounds for client in own.participants}))
        for name, entry in run.leaves.items():
            found.append((each, name, entry, sent[name] / clients if run.ledger else None))
        if not run.leaves:
            found.append((each, "", {}, None))
    return found
