"""The gate before mixing: leave out updates that must not be mixed, each with its reason.

References:
    Leys, Ley, Klein, Bernard, Licata: Detecting outliers: Do not use standard deviation around the mean, use absolute
    deviation around the median. J. Experimental Social Psychology 49, 2013 (three deviations: the conservative choice).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partwise.errors import ConfigError, Diverged
from partwise.network.view import PerClient, Tensors, Tree
from partwise.rounds.events import Event
from partwise.rounds.messages import Request, Updates
from partwise.rounds.robust import scale_updates, update_norms

FEWEST_ACCEPTED = 0.5  # the run stops when a smaller share of a round's updates can be used
FEWEST_COMPARED = 4  # updates that a search for outliers needs
MOST_DEVIATIONS = 3  # of a round's log norms, between their median and a usual update
DEVIATION = 1.4826  # the standard deviation of normal numbers, in median absolute deviations
NOT_FINITE = "holds numbers that are not finite"
LOSS_NOT_FINITE = "its training loss is not finite"


def finite_rows(values: Tensor) -> Tensor:
    """Return (rows,) whether all numbers of a row are finite: its minimum and maximum are, both nan if any is."""
    rows = values[..., None].flatten(1)
    if not rows.is_floating_point() or not rows.shape[1]:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    on_cpu = rows.device.type == "cpu"  # where one after the other is many times faster than both at once
    smallest, largest = (rows.amin(1), rows.amax(1)) if on_cpu else torch.aminmax(rows, dim=1)
    return torch.isfinite(smallest) & torch.isfinite(largest)


def wrong_tensors(sent: Mapping[str, tuple[torch.Size, torch.dtype]], expected: Tensors) -> str:
    """Return what is wrong with the names, shapes and types of a client's tensors, or ''. Nothing is broadcast."""
    if set(sent) != set(expected):
        return f"missing or unexpected tensors: {', '.join(sorted(set(sent) ^ set(expected)))}"
    for name, (shape, dtype) in sent.items():
        if shape != expected[name].shape or dtype != expected[name].dtype:
            return f"'{name}' is {tuple(shape)} {dtype}, not {tuple(expected[name].shape)} {expected[name].dtype}"
    return ""


def wrong_count(samples: float, registered: int) -> str:
    """Return what is wrong with a client's sample count, or ''. It may be below the registered number, never above."""
    return "" if 0 < samples <= registered else f"counts {samples:g} samples, registered {registered}"


def check_update(parts: Tensors, extras: Tree, samples: float, expected: Tensors, registered: int) -> str:
    """Return why one client's update must not be mixed, or ''.

    For updates that arrive one by one, before they are stacked; `accept_updates` gives the same answers for many.
    """
    wrong = wrong_tensors({name: (value.shape, value.dtype) for name, value in parts.items()}, expected)
    sent = [*parts.values(), *tree_leaves(extras)]
    finite = all(bool(finite_rows(value[None])[0]) for value in sent)
    return wrong or ("" if finite else NOT_FINITE) or wrong_count(samples, registered)


def accept_updates(
    updates: Updates, request: Request, expected: Tensors, registered: Tensor
) -> tuple[Updates, list[Event]]:
    """Leave out what must not be mixed: wrong tensors, numbers that are not finite, false sample counts, repeats.

    `expected` holds a tensor of the right shape and type for every name, `registered` every client's sample count.
    """
    every = ""  # what is wrong with all of them
    if updates.round != request.round:
        every = f"belongs to round {updates.round}, not {request.round}"
    every = wrong_tensors({n: (value.shape[1:], value.dtype) for n, value in updates.parts.items()}, expected) or every
    sent = [*updates.of_clients().values(), *tree_leaves(updates.extras)]
    whole = [value for value in sent if len(value) == len(updates.clients)]
    if len(whole) < len(sent):
        every = "belongs to a batch with a wrong number of rows"
    reasons = dict.fromkeys(range(len(updates.clients)), every) if every else {}
    finite = torch.stack([finite_rows(value) for value in (updates.steps, *whole)]).all(0)
    if updates.finite is not None:  # what stays with a client counts: one that diverged says so
        finite = finite & updates.finite.to(finite.device)
    if updates.mean is not None:
        finite = finite & in_sound_means(updates).to(finite.device)
    loss = finite_rows(updates.loss)
    if updates.withheld is not None:  # then `finite` speaks for the loss too
        loss = loss | updates.withheld.to(loss.device)
    sound = torch.stack([finite, loss], dim=1).tolist()
    allowed = set(request.clients)
    for row, (client, fine, samples) in enumerate(zip(updates.clients, sound, updates.samples.tolist(), strict=True)):
        if not all(fine):
            reasons.setdefault(row, LOSS_NOT_FINITE if fine[0] else NOT_FINITE)
        if client not in allowed:
            reasons.setdefault(row, "did not take part, or answered twice")
        elif wrong := wrong_count(samples, int(registered[client])):
            reasons.setdefault(row, wrong)
        allowed.discard(client)
    reasons |= spoilt(updates, reasons)
    rows = [row for row in range(len(updates.clients)) if row not in reasons]
    refused = [Event(request.round, updates.clients[row], "refused", why) for row, why in sorted(reasons.items())]
    return (updates if not refused else updates.only(rows)), refused


def in_sound_means(updates: Updates) -> Tensor:
    """Return (clients,) whether a client is part of a mean that is finite."""
    assert updates.mean is not None
    means = torch.stack([finite_rows(value) for value in updates.parts.values()]).all(0).cpu()
    return torch.cat([means, torch.tensor([False])])[updates.mean]  # the last one is that of no mean, -1


def spoilt(updates: Updates, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return the reasons to refuse clients whose mean contains a refused update, by row."""
    if updates.mean is None:
        return {}
    means = updates.mean.tolist()
    bad = {means[row] for row in reasons} - {-1}
    why = "is part of a mean with an update that cannot be used"
    return {row: why for row, mean in enumerate(means) if mean in bad and row not in reasons}


@dataclass(frozen=True)
class Outliers:
    """Find updates far longer than a request's others; log them, and leave them out or clip them on request.

    An outlier is longer than `factor` times the median norm, and its log norm is more than three deviations above their
    median: where norms spread widely, as those of clients with different data do, the limit rises. Fewer than four
    updates are not compared.
    """

    action: Literal["log", "leave-out", "clip"] = "log"
    factor: float = 7.0

    def times_median(self, norms: Tensor) -> float:
        """Return the multiple of the median norm above which an update is an outlier: `factor`, or more by the spread.

        `norms` are float64; clients whose update is 0 do not count for the spread.
        """
        logs = norms[norms > 0].log()
        deviation = DEVIATION * (logs - logs.quantile(0.5)).abs().quantile(0.5)
        return max(self.factor, float((MOST_DEVIATIONS * deviation).exp()))

    def judge(self, updates: Updates, request: Request) -> tuple[Updates, list[Event]]:
        """Return the updates that are left, and an event for each outlier."""
        names = [name for name in updates.of_clients() if name in request.copies]  # what has a copy to be compared with
        if len(updates.clients) < FEWEST_COMPARED or not names:
            return updates, []
        sent = {name: updates.parts[name] for name in names}
        received = {name: request.copies[name].of(updates.clients) for name in names}
        norms = update_norms(sent, received)
        median = float(norms.quantile(0.5))
        if median == 0:
            return updates, []
        limit = self.times_median(norms) * median
        rows = [row for row, norm in enumerate(norms.tolist()) if norm > limit]
        done = {"log": "", "leave-out": ", left out", "clip": ", clipped"}[self.action]
        events = [
            Event(
                request.round,
                updates.clients[row],
                "outlier",
                f"update norm {norms[row]:.3g}, {norms[row] / median:.3g} times the round's median{done}",
            )
            for row in rows
        ]
        if not rows or self.action == "log":
            return updates, events
        if self.action == "leave-out":
            return updates.only([row for row in range(len(norms)) if row not in rows]), events
        factors = torch.where(norms > limit, limit / norms, 1.0)
        return replace(updates, parts={**updates.parts, **scale_updates(sent, received, factors)}), events


def check_enough(accepted: int, answered: int, round: int, events: Sequence[Event], new: int) -> None:
    """Stop with the last good model if too few updates are usable, and name the first refused client.

    `events` are those of the whole run; `new` is the number of updates refused in this request.
    """
    if accepted < FEWEST_ACCEPTED * answered:
        why, first = "", next((event for event in events if event.what == "refused"), None)
        if first is not None:
            when = f", in round {first.round + 1}" if first.round < round else ""
            why = f", client {first.client} first{when}: {first.detail}"
        raise Diverged(
            f"diverged at round {round + 1}: {accepted} of {answered} updates can be used, {new} refused{why}"
        )


def check_extras(extras: "Mapping[str, Tree | PerClient]", parts: Mapping[str, object]) -> None:
    """Refuse extras that are not made of tensors, or that have the name of a part."""
    if not isinstance(extras, Mapping):
        raise ConfigError(f"extras must be a dict of tensors by name, not {type(extras).__name__}")
    for name, value in extras.items():
        leaves = tree_leaves(value.rows if isinstance(value, PerClient) else value)
        wrong = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        if wrong:
            raise ConfigError(f"the extra '{name}' must be made of tensors, not of {type(wrong[0]).__name__}")
    for name in extras.keys() & parts.keys():
        raise ConfigError(f"an extra cannot be called '{name}', the name of a part; rename it")
