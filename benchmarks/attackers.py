"""Attackers among clients, against plain and robust means: python -m benchmarks.attackers --help

Prints a markdown table: for every method, attack and number of attackers the accuracy that clients reach with each way
of averaging, the alarms (updates far too long) and the updates that the gate refused. An attack changes what clients
send on its way to the server, by standing around the engine's `run`: the package knows nothing of it.
"""

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

import partwise
from partwise.engines.engine import Engine
from partwise.errors import PartwiseError, one_line
from partwise.network.view import ClassRows
from partwise.rounds.acceptance import check_update
from partwise.rounds.messages import Request, Updates

METHODS = ("fedavg", "fedtc", "fed3p2p", "fedfcd")
RULES = ("mean", "median", "trimmed", "krum", "clip")
NUMBERS = (1, 4)  # of 20
CLIENTS = 20


def not_a_number(updates: Updates, request: Request, rows: list[int]) -> Updates:
    """Everything that they send is NaN."""

    def spoiled(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[rows] = torch.nan
        return value

    parts, extras = tree_map(spoiled, (updates.parts, updates.extras))
    return replace(updates, parts=parts, extras=extras)


def backwards(updates: Updates, request: Request, rows: list[int]) -> Updates:
    """Their updates are ten times as long, in the opposite direction; so are class means, where those are sent."""

    def turned(value: torch.Tensor, origin: torch.Tensor | float) -> torch.Tensor:
        away = value - origin
        factor = torch.ones(len(value), dtype=value.dtype, device=value.device)
        factor[rows] = -10
        return origin + away * factor.view(-1, *[1] * (value.dim() - 1))

    parts = {name: turned(value, request.copies[name].of(updates.clients)) for name, value in updates.parts.items()}
    extras = {
        name: ClassRows(turned(value.sums, 0.0), value.counts) if isinstance(value, ClassRows) else value
        for name, value in updates.extras.items()
    }
    return replace(updates, parts=parts, extras=extras)


def lying(updates: Updates, request: Request, rows: list[int]) -> Updates:
    """They say that they have a billion samples."""
    samples = updates.samples.clone()
    samples[rows] = 1e9
    return replace(updates, samples=samples)


class Narrow:
    """They send one number for every tensor, which would be broadcast.

    It cannot be stacked with what the others sent: as real nodes are, clients are checked one by one before.
    """

    def __init__(self) -> None:
        self.refused = 0

    def __call__(self, updates: Updates, request: Request, rows: list[int]) -> Updates:
        expected = {name: value[0] for name, value in updates.parts.items()}
        left = []
        for row, samples in enumerate(updates.samples.tolist()):
            sent = {
                name: value[row].flatten()[:1] if row in rows else value[row] for name, value in updates.parts.items()
            }
            if check_update(sent, {}, samples, expected, int(samples)):
                self.refused += 1
            else:
                left.append(row)
        return updates.only(left)


ATTACKS: dict[str, Callable[[Updates, Request, list[int]], Updates]] = {
    "NaN": not_a_number,
    "x10 backwards": backwards,
    "a billion samples": lying,
    "broadcast shape": Narrow(),
}


@contextmanager
def attacked(attack: Callable[[Updates, Request, list[int]], Updates] | None, attackers: int) -> Iterator[None]:
    """While entered, the first clients attack in every training request."""
    run = Engine.run

    def changed(self: Engine, request: Request) -> Updates:
        updates = run(self, request)
        rows = [row for row, client in enumerate(updates.clients) if client < attackers]
        return attack(updates, request, rows) if attack and rows and request.job == "train" else updates

    with patch.object(Engine, "run", changed):
        yield


def cell(method: str, rule: str, attack: str, attackers: int, settings: dict[str, Any]) -> tuple[str, int, int]:
    """Accuracy in percent, alarms and refused updates of a run; why there is no accuracy, if there is none."""
    function = ATTACKS.get(attack)
    narrow = function if isinstance(function, Narrow) else Narrow()
    narrow.refused = 0
    robust = {} if rule == "mean" else {"robust": rule}
    try:
        with attacked(function, attackers):
            result = partwise.run(method, **settings, **robust)
    except PartwiseError as error:
        return one_line(error).partition(":")[0], 0, 0
    happened = [event.what for event in result.simulation.server.events]
    accuracy = f"{100 * result.summary.last('received').accuracy:.1f}"
    return accuracy, happened.count("outlier"), happened.count("refused") + narrow.refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="fashion-mnist", help="a data set that partwise knows")
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rules", nargs="+", default=RULES, help="of averaging: mean, and what --robust takes")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    given = parser.parse_args()
    settings = {name: getattr(given, name) for name in ("data", "partition", "rounds", "lr", "batch", "seed")}
    settings |= {"clients": CLIENTS, "eval_every": given.rounds}
    logging.disable(logging.WARNING)
    print(f"{given.data}, {given.partition}, {CLIENTS} clients, {given.rounds} rounds; in brackets: alarms / refused\n")
    print(f"| method | attack | attackers | {' | '.join(given.rules)} |")
    print("|---" * (3 + len(given.rules)) + "|")
    for method in given.methods:
        own = settings | ({"model": "mlp-100"} if method != "fed3p2p" else {"model": "tabular"})  # which cuts the body
        for attack, number in [("none", 0), *((each, number) for each in given.attacks for number in NUMBERS)]:
            cells = []
            for rule in given.rules:
                accuracy, alarms, refused = cell(method, rule, attack, number, own)
                cells.append(f"{accuracy} ({alarms} / {refused})" if alarms or refused else accuracy)
            print(f"| {method} | {attack} | {number or '-'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
