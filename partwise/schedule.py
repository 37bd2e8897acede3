"""Layer schedules: a method made from a host method, whose base layers unfreeze one after the other.

`Schedule(FedBABU, "backwards")` is a class like any method. It cuts every stage of its host where layers unfreeze; a
base layer is FROZEN until then, neither trained nor sent. Moves, heads, losses, hooks and adaptation are the host's.
With unfreezing points (0, 0, 0) it is the host.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from partwise.errors import ConfigError
from partwise.method import FROZEN, Method, Stage
from partwise.network.parts import Parts
from partwise.options import option

log = logging.getLogger(__name__)


def Schedule(method: type[Method], order: Literal["forwards", "backwards"]) -> type[Method]:
    """Make a schedule of a host that unfreezes base layers from input to output (`forwards`) or `backwards`."""
    variants: dict[tuple[type[Method], type[Method]], type[Method]] = {}  # on other hosts

    class Scheduled(method):  # type: ignore[misc, valid-type]
        """The host, in stages that unfreeze its base layers one after the other."""

        unfreeze: tuple[int, ...] | None = option(
            None,
            "Rounds, counted from 0, at which to unfreeze the next base layers; unset: evenly spaced.",
            minimum=0,
        )
        layers: str | None = option(
            None,
            "Base layers from input to output, with commas, as in 'body.conv1 body.bn1, body.layer1'; unset: all.",
        )
        host: str = option(method.__module__.rpartition(".")[2], "Method to schedule.")
        base = tuple[str, ...]()  # selectors of the base layers in the order in which they wake, once they are known

        @classmethod
        def variant(cls, settings: Mapping[str, object]) -> type[Method]:
            """Return the same schedule on the host that the settings name."""
            from partwise.methods import find  # which finds this file's users

            wanted = settings.get("host")
            if wanted is None or wanted == cls.host:
                return cls
            other = find(str(wanted))
            if hasattr(other, "unfreeze"):
                raise ConfigError(f"host = '{wanted}' is itself a schedule; name the method to schedule")
            if (cls, other) not in variants:  # one class for all who ask for it: equal settings are equal
                named = {"__module__": cls.__module__, "__doc__": cls.__doc__, "host": wanted}
                variants[cls, other] = type(cls.__name__, (Schedule(other, order),), named)
            return variants[cls, other]

        def build(self, parts: Parts, sizes: Any) -> Parts:
            """Return the host's parts, and find their base layers."""
            parts = super().build(parts, sizes)
            named = tuple(group.strip() for group in self.layers.split(",")) if self.layers else base_layers(parts)
            for group in named:
                parts.select(group)  # refuses what matches nothing
            self.base = named[:: 1 if order == "forwards" else -1]
            return parts

        def stages(self) -> Iterable[Stage]:
            """Return the host's stages, cut where layers unfreeze."""
            stages = list(super().stages())
            return cut_stages(stages, wake(self.base, self.unfreeze, sum(stage.rounds for stage in stages)))

    return Scheduled


def base_layers(parts: Parts) -> tuple[str, ...]:
    """Return the layers with parameters of all parts of the chain but the head, from input to output.

    Normalisation wakes with the layer before it.
    """
    result: list[str] = []
    for part in parts.chain[:-1]:
        for layer in (name for name in parts.layers(part) if parts.has_parameters(part, name)):
            selector = f"{part}.{layer}"
            if layer in parts.trained_layers(part):
                result.append(selector)
            else:
                result[-1] += f" {selector}"
    return tuple(result)


def wake(base: tuple[str, ...], points: tuple[int, ...] | None, rounds: int) -> dict[str, int]:
    """Return the round at which each base layer unfreezes; with fewer points, consecutive layers do so together."""
    if not base:  # asked before there is a network
        return {}
    if points is None:
        points = tuple(number * rounds // len(base) for number in range(len(base)))
    if len(points) > len(base) or points[0] != 0 or list(points) != sorted(points):
        raise ConfigError(
            f"unfreeze = {','.join(map(str, points))} is not allowed: it must begin with 0 and rise, at most one round "
            f"for each of the base layers {', '.join(base)}"
        )
    together = np.array_split(np.array(base), len(points))
    late = [layer for layers, point in zip(together, points, strict=True) for layer in layers if point >= rounds]
    if late:
        log.warning("unfreeze: %s never train, because the run has only %d rounds", ", ".join(late), rounds)
    return {str(layer): point for layers, point in zip(together, points, strict=True) for layer in layers}


def cut_stages(stages: list[Stage], wakes: dict[str, int]) -> Iterator[Stage]:
    """Cut every stage of a host at the rounds at which layers unfreeze."""
    start = 0
    for stage in stages:
        end = start + stage.rounds
        cuts = sorted({start, end, *(point for point in wakes.values() if start < point < end)})
        for begin, stop in pairwise(cuts):
            sleeping = {layer: FROZEN for layer, point in wakes.items() if point > begin}
            first, last = begin == start, stop == end
            yield replace(
                stage,
                share={**stage.share, **sleeping},
                rounds=stop - begin,
                fresh=stage.fresh if first else "",
                restart_lr=first and stage.restart_lr,
                snapshot=stage.snapshot if last else "",
            )
        start = end
