"""The data that leave a silo: losses and scores as its file allows, means instead of many updates, and their count."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partwise.data.source import Source
from partwise.federation.protocol.policy import Telling
from partwise.privacy.accountant import Accountant
from partwise.privacy.filters import class_indexed, has_numbers
from partwise.records.metrics import FIELDS, METRICS_OF, WEIGHT
from partwise.rounds.acceptance import accept_updates, finite_rows
from partwise.rounds.events import events_in_words
from partwise.rounds.messages import Measured, Request, Updates
from partwise.rounds.mixing import mixed
from partwise.rounds.server import Server
from partwise.runs.evaluation import Evaluation
from partwise.runs.metrics import Scores, measure_all

log = logging.getLogger(__name__)

REPORTED_DIGITS = 3  # of a score that is a share, those after the point; of others and of a loss, the significant ones


def with_loss(updates: Updates, telling: Telling, covered: bool) -> Updates:
    """Return updates whose losses are as they leave; `finite` says what the server would read from an exact loss.

    `covered`: noise covers that too. A client that diverged uploads noise alone, or its gradients were noise alone.
    """
    sound = finite_rows(updates.loss).cpu() | covered
    finite = sound if updates.finite is None else (updates.finite & sound) | covered
    loss = torch.full_like(updates.loss, torch.nan) if telling == "no" else updates.loss
    loss = round_losses(loss) if telling == "rounded" else loss
    return replace(updates, loss=loss, finite=finite, withheld=torch.full_like(sound, telling == "no"))


def round_losses(loss: Tensor) -> Tensor:
    """Return losses of three significant digits."""
    return loss.new_tensor(list(map(significant, loss.tolist())))


def significant(value: float) -> float:
    """Return a number of three significant digits."""
    return float(f"{value:.{REPORTED_DIGITS}g}")


def scored(updates: Updates, evaluation: Evaluation, telling: Telling, fewest: int) -> Measured:
    """Return clients' scores on their own test and validation samples; a set of fewer than `fewest` has no score.

    Samples whose labels are unknown do not count.
    """
    if not updates.logits or telling == "no":
        return {}
    judged = [evaluation.judged(updates.logits), evaluation.judged(updates.logits, validation=True)]
    test, validation = measure_all(judged, evaluation.program.task)
    source, federation = evaluation.federation.source, evaluation.federation
    named = {"test": reported_scores(test, federation.test, source, telling, fewest)}
    if validation.each:
        named["validation"] = reported_scores(validation, federation.validation, source, telling, fewest)
    return named


def reported_scores(
    scores: Scores, held: Sequence[Tensor], source: Source, telling: Telling, fewest: int
) -> dict[int, dict[str, float | None]]:
    """Return the numbers of each client's score, where enough samples have known labels."""
    result: dict[int, dict[str, float | None]] = {}
    for client, score in scores.each.items():
        y = source.y[held[client]]
        if source.task.enough_known(y, fewest):
            result[client] = {"samples": float(len(y))}
            if not source.task.of_classes:
                result[client][WEIGHT] = float(source.task.weight(y))
            result[client] |= {name: reported(name, score.value(name), telling) for name in METRICS_OF[score.task]}
    return result


def reported(metric: str, value: float | None, telling: Telling) -> float | None:
    """Return the value of a metric as it leaves; None where it is infinite, as the perplexity of a diverged model."""
    if value is None or not math.isfinite(value):
        return None
    if telling != "rounded":
        return float(value)
    return float(round(value, REPORTED_DIGITS)) if FIELDS[metric].percent else significant(value)


def averaged(server: Server, request: Request, updates: Updates) -> Updates:
    """Return the mean of what clients upload in place of all of it, without those that the server would refuse."""
    expected = {name: server.copies[name].values[0] for name in request.plan.up}
    accepted, refused = accept_updates(updates, request, expected, server.samples)
    accepted, outliers = server.safeguards.outliers.judge(accepted, request)
    if refused or outliers:
        log.warning("round %d: %s", request.round + 1, events_in_words([*refused, *outliers]))
    if not accepted.clients:
        return updates
    weights = server.weights(accepted)
    mean = {n: mixed((weights / weights.sum())[None], value, value[:1]) for n, value in accepted.parts.items()}
    among = set(accepted.clients)
    rows = torch.tensor([0 if client in among else -1 for client in updates.clients])
    return replace(updates, parts=mean, mean=rows)


# ---- for the silo's ledger


@dataclass(frozen=True)
class Release:
    """The data that leave with one answer."""

    kinds: tuple[str, ...]  # parts and extras by name, and losses, scores and label counts
    trained: bool = False
    uploads: int = 0  # covered by noise on uploads
    passes: int = 0  # over the samples, covered by noise on gradients
    tellings: int = 0  # of label counts


def release_of(updates: Updates, request: Request, accountant: Accountant | None) -> Release:
    """Return what an answer lets go of, as it is about to leave."""
    leaves = [*updates.parts.values(), *tree_leaves(updates.extras, is_leaf=class_indexed)]
    tellings = sum(map(class_indexed, leaves))
    trained = request.job == "train"
    kinds = [*dict.fromkeys(name.split(".")[0] for name in updates.parts), *updates.extras]
    told_loss = updates.withheld is not None and not updates.withheld.all()
    kinds += ["losses"] * (trained and told_loss) + ["scores"] * any(updates.scores.values())
    kinds += ["label counts"] * (tellings > 0)
    uploads = passes = 0
    if accountant is not None and accountant.upload_noise:  # it covers all that the client has
        uploads = int(any(map(has_numbers, leaves)))
    elif accountant is not None and accountant.gradient_noise and trained:
        passes = accountant.uses[request.plan.number].passes
    return Release(tuple(kinds), trained, uploads, passes, tellings)
