"""Privacy settings turned into filters, private gradients and an accountant; impossible ones are refused."""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from partwise.data import Federation
from partwise.engines.client_engine import ClientEngine
from partwise.errors import ConfigError
from partwise.privacy.accountant import MEMORY, Accountant, Uses, opacus
from partwise.privacy.filters import Filters
from partwise.privacy.gradients import PrivateGradients
from partwise.privacy.histograms import parse_histograms
from partwise.rounds.batches import epoch, number_of_steps
from partwise.rounds.client import ClientProgram
from partwise.rounds.plan import MANY_TIMES, Plan, ResolvedPhase
from partwise.runs.config import Config, label
from partwise.runs.observers import Observer, Seen
from partwise.tasks import Numbers

if TYPE_CHECKING:
    from partwise.rounds.server import Server
    from partwise.runs.simulation import Simulation

log = logging.getLogger(__name__)


def upload_filters(config: Config, engine: ClientEngine, stages: list[Plan], seed: int) -> Filters | None:
    """Return the filters of uploads; None if none is set."""
    settings, program = config.privacy, engine.program
    filters = Filters(
        seed,
        engine.federation.class_counts(),
        engine.store,
        settings.upload_clip,
        settings.upload_noise,
        settings.upload_bits,
        settings.upload_top,
        parse_histograms(settings.histograms, settings.min_class_count),
    )
    if not filters.of_vectors and filters.histograms.exact:
        return None
    uploads = any(plan.up for plan in stages) or any(map(program.has, ("finish", "report", "describe")))
    if config.method.pooled or not uploads:
        raise ConfigError(f"{label(config.name)} uploads nothing: filters of uploads and histograms have no effect")
    averaged = {name for plan in stages for name in plan.up} & program.parts.buffers
    if filters.of_vectors and averaged:
        raise ConfigError(
            "bn_buffers = average uploads running variances, which noise and rounding may make negative: leave them "
            "local, or upload without filters"
        )
    return filters


def private_gradients(
    config: Config, program: ClientProgram, stages: list[Plan], federation: Federation
) -> PrivateGradients | None:
    """Return how DP-SGD takes gradients; None without it."""
    settings, name, method = config.privacy, label(config.name), config.method
    if settings.dp_clip is None:
        return None
    if program.parts.batch_norm:
        raise ConfigError(
            "dp_clip: in batch-norm samples meet, so that none has a gradient of its own; use another norm"
        )
    unequal = program.task.unequal_shares(federation.source.y[torch.cat(federation.train)])
    if unequal:
        raise ConfigError(f"dp_clip takes classes, or numbers that are all known, but {unequal}; leave it out")
    for setting, plain in (("class_weights", "equal"), ("sampling", "shuffled")):
        if getattr(method, setting) != plain:
            raise ConfigError(
                f"dp_clip: {setting} = {getattr(method, setting)} depends on a client's labels; use {plain}"
            )
    if method.per_client is not None:
        raise ConfigError("dp_clip: with per_client epsilon would differ between clients; leave out one of the two")
    for move in (move for plan in stages for phase in trained(plan) for move in phase.moves):
        if move.gradient or move.update:
            function = move.move.gradient or move.move.update
            raise ConfigError(f"dp_clip: {name}'s move '{function}' is no gradient of a loss: no noise would cover it")
    return PrivateGradients(settings.dp_clip, settings.dp_noise)


def make_accountant(config: Config, engine: ClientEngine, stages: list[Plan]) -> Accountant | None:
    """Return the accountant of epsilon; None without noise."""
    settings = config.privacy
    told = parse_histograms(settings.histograms).epsilon
    if settings.upload_noise or settings.dp_noise:
        opacus()  # missing, it is said before round 1
    elif not told:
        return None
    uses = tuple(uses_of(engine, plan) for plan in stages) if settings.dp_noise else ()
    return Accountant(settings.delta, settings.accountant, settings.upload_noise, settings.dp_noise, told, uses)


def trained(plan: Plan) -> Iterator[ResolvedPhase]:
    """Return the phases of a client's round."""
    yield from (*plan.prepare, *plan.phases)


def uses_of(engine: ClientEngine, plan: Plan) -> Uses:
    """Return what a round does with a record of the smallest client, which is worst off.

    A mini-batch is the largest share of its samples.
    """
    client = min((k for k, own in enumerate(engine.train) if len(own)), key=lambda k: len(engine.train[k]))
    smallest = len(engine.train[client])
    steps = passes = 0
    rate = 0.0
    for phase in trained(plan):
        begin, end = phase.sample_range
        samples = max(1, math.floor((end - begin) * smallest))
        turns = sum(move.move.repeat for move in phase.moves)
        taken = 0
        for times in (0, MANY_TIMES):
            recipe = engine.drawing.recipe(phase, client, times)
            pieces = max(1, len(epoch(samples, recipe)))
            taken = max(taken, number_of_steps(samples, recipe))
        steps += turns * taken
        passes += turns * math.ceil(taken / pieces)
        rate = max(rate, min(1.0, recipe.size / samples))
    return Uses(steps, rate, passes)


class TellPrivacy(Observer):
    """Says what a run has spent of everybody's privacy."""

    def end(self, last: Seen | None) -> None:
        """Note and log the epsilon that was spent, and what it does not cover."""
        if last is None or last.record.epsilon is None:
            return
        simulation = last.simulation
        spent, delta = last.record.epsilon, simulation.config.privacy.delta
        for line in (*lines(spent, delta), uncovered(simulation, spent)):
            simulation.notes.append(line)
            log.warning(line)


def uncovered(simulation: "Simulation", spent: Mapping[str, float]) -> str:
    """Return a line that lists what leaves clients and has no part in epsilon."""
    server, federation, rounds = simulation.server, simulation.federation, simulation.history.rounds
    losses = any(each.train_loss is not None for each in rounds)
    beside = any(map(simulation.program.has, ("report", "describe")))
    left = {
        "uploads": not spent.keys() & {"client", "record"},
        "training losses": losses,
        "scores": any(simulation.history.scores.values()),
        "sample counts": True,
        "label counts (histograms = laplace:EPSILON adds noise)": "labels" not in spent and tells_counts(server),
        "feature statistics": federation.source.standardise,
        "label statistics": isinstance(federation.source.task, Numbers),
        "names of classes and columns": federation.holds == "none",
        f"for a record, what {label(simulation.config.name)} computes beside training": "record" in spent and beside,
    }
    return f"not covered by epsilon: {', '.join(name for name, leaves in left.items() if leaves)}"


def tells_counts(server: "Server") -> bool:
    """Return whether clients reported label counts."""
    return MEMORY in server.memory and bool(server.memory[MEMORY]["told"].any())


def lines(spent: dict[str, float], delta: float) -> Iterator[str]:
    """Return lines about epsilon."""
    for what, whose in (("client", "a client's data"), ("record", "one record")):
        if what in spent:
            yield (
                f"privacy of {whose}: (epsilon, delta) = ({spent[f'{what}_unsampled']:.4g}, {delta:g}), whatever was "
                f"sampled; ({spent[what]:.4g}, {delta:g}) where sampling is secret and as Opacus takes it to be"
            )
    if "labels" in spent:
        yield f"privacy of one record in label counts: epsilon = {spent['labels']:.4g}, of all tellings together"
