"""Who shares each part, stage by stage."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from partwise.reporting.series import Series
from partwise.reporting.style import look
from partwise.reporting.views.kinds import ShareRow, Sharing


def sharing(series: Sequence[Series]) -> Sharing:
    """Return the shares of parts as far apart as one of the runs tells them apart: `body`, or `body.conv1` and so on.

    Stages in a row that share alike are one.
    """
    stages = {each.name: each.runs[0].setup.stages for each in series}
    shares = [stage.share for own in stages.values() for stage in own]
    divided = {part for share in shares for part, kinds in kinds_of(share, 1).items() if len(kinds) > 1}
    parts: dict[str, None] = {}
    rows = []
    for each in series:
        lengths = [stage.rounds for stage in stages[each.name]]
        numbered = [(number, by_part(stage.share, divided)) for number, stage in enumerate(stages[each.name], 1)]
        alike = [(own, [number for number, _ in found]) for own, found in groupby(numbered, lambda one: one[1])]
        for own, numbers in alike:
            parts |= dict.fromkeys(own)
            which = f"stages {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"stage {numbers[0]}"
            first, last = sum(lengths[: numbers[0] - 1]) + 1, sum(lengths[: numbers[-1]])
            span = f"rounds {first} to {last}" if last > first else f"round {first}"
            rows.append((each, f"{which}, {span}" if len(alike) > 1 else "", own))
    return Sharing(
        list(parts),
        [
            ShareRow(each.name, look(each.number), stage, [own.get(part, "") for part in parts])
            for each, stage, own in rows
        ],
    )


def by_part(share: Mapping[str, str], divided: set[str]) -> dict[str, str]:
    """Return the share of each part, of a divided one that of each of its layers."""
    whole, layers = kinds_of(share, 1), kinds_of(share, 2)
    found = {part: kinds for part, kinds in whole.items() if part not in divided}
    found |= {layer: kinds for layer, kinds in layers.items() if layer.split(".")[0] in divided}
    return {part: " + ".join(kinds) for part, kinds in found.items()}


def kinds_of(share: Mapping[str, str], depth: int) -> dict[str, list[str]]:
    """Return the shares that the tensors of each part have, or of each layer (`depth` 2)."""
    found: dict[str, list[str]] = {}
    for name, kind in share.items():
        *path, _ = name.split(".")
        own = found.setdefault(".".join(path[:depth]), [])
        if kind not in own:
            own.append(kind)
    return found
