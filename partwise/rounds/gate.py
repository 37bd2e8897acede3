"""The gate before mixing: updates that must not be mixed are left out, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partwise.errors import ConfigError, Diverged
from partwise.network.view import PerClient, Tensors
from partwise.rounds.messages import Request, Updates
from partwise.rounds.state import Tree

FEWEST_ACCEPTED = 0.5  # the run stops when a smaller share of a round's updates can be used


@dataclass(frozen=True)
class Refused:
    """An update that was left out, and why."""

    client: int
    round: int
    reason: str


def finite_rows(values: Tensor) -> Tensor:
    """(rows,) whether every number of a row is finite: then its smallest and its largest are; a nan is both."""
    rows = values[..., None].flatten(1)
    if not rows.is_floating_point() or not rows.shape[1]:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    on_cpu = rows.device.type == "cpu"  # where one after the other is many times faster than both at once
    smallest, largest = (rows.amin(1), rows.amax(1)) if on_cpu else torch.aminmax(rows, dim=1)
    return torch.isfinite(smallest) & torch.isfinite(largest)


def accept_updates(
    updates: Updates, request: Request, expected: Tensors, registered: Tensor
) -> tuple[Updates, list[Refused]]:
    """Leave out what must not be mixed: wrong tensors, numbers that are not finite, false sample counts, repeats.

    `expected` holds a tensor of the right shape and type for every name, `registered` every client's sample count.
    """
    reasons: dict[int, str] = {}
    if updates.round != request.round:
        reasons = dict.fromkeys(range(len(updates.clients)), f"belongs to round {updates.round}, not {request.round}")
    if set(updates.parts) != set(expected):
        wrong = sorted(set(updates.parts) ^ set(expected))
        reasons = dict.fromkeys(range(len(updates.clients)), f"missing or unexpected tensors: {', '.join(wrong)}")
    for name, value in updates.parts.items():
        if name in expected and (value.shape[1:] != expected[name].shape or value.dtype != expected[name].dtype):
            got = f"{tuple(value.shape[1:])} {value.dtype}, not {tuple(expected[name].shape)} {expected[name].dtype}"
            reasons = dict.fromkeys(range(len(updates.clients)), f"'{name}' is {got}")
    sent = [*updates.parts.values(), *tree_leaves(updates.extras)]
    whole = [value for value in sent if len(value) == len(updates.clients)]
    if len(whole) < len(sent):
        reasons = dict.fromkeys(range(len(updates.clients)), "came in a batch with a row too many or too few")
    finite = torch.stack([finite_rows(value) for value in (updates.steps, *whole)]).all(0)
    if updates.finite is not None:  # what stays with a client counts: one that diverged says so
        finite = finite & updates.finite.to(finite.device)
    allowed = set(request.clients)
    for row, (client, fine, samples) in enumerate(
        zip(updates.clients, finite.tolist(), updates.samples.tolist(), strict=True)
    ):
        if not fine:
            reasons.setdefault(row, "holds numbers that are not finite")
        if client not in allowed:
            reasons.setdefault(row, "was not asked, or answered before")
        elif not 0 < samples <= registered[client]:
            reasons.setdefault(row, f"counts {samples:g} samples, registered {int(registered[client])}")
        allowed.discard(client)
    rows = [row for row in range(len(updates.clients)) if row not in reasons]
    refused = [Refused(updates.clients[row], request.round, reason) for row, reason in sorted(reasons.items())]
    return (updates if not refused else updates.only(rows)), refused


def check_enough(accepted: int, asked: int, round: int, refused: list[Refused], new: int) -> None:
    """Stop with the last good model when too few usable updates came back; whoever was first refused is named.

    `refused` are those of the whole run, the last `new` of them those of this request.
    """
    if accepted < FEWEST_ACCEPTED * asked:
        why = ""
        if refused:
            first = refused[0]
            when = f", in round {first.round + 1}" if first.round < round else ""
            why = f", client {first.client} first{when}: {first.reason}"
        raise Diverged(f"diverged at round {round + 1}: {accepted} of {asked} updates can be used, {new} refused{why}")


def check_extras(extras: "Mapping[str, Tree | PerClient]", parts: Mapping[str, object]) -> None:
    """Refuse extras that are not made of tensors, or that are called as a part is."""
    if not isinstance(extras, Mapping):
        raise ConfigError(f"extras are a dict of tensors by name, not {type(extras).__name__}")
    for name, value in extras.items():
        leaves = tree_leaves(value.rows if isinstance(value, PerClient) else value)
        wrong = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        if wrong:
            raise ConfigError(f"the extra '{name}' must be made of tensors, not of {type(wrong[0]).__name__}")
    for name in extras.keys() & parts.keys():
        raise ConfigError(f"an extra cannot be called '{name}': there is a part of that name")
