"""Mini-batches as indices of samples, drawn outside the step from the client's own stream."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from partwise.client_settings import client_settings
from partwise.rounds.augment import UNCHANGED, Augmentation
from partwise.rounds.messages import ADAPTING, Request
from partwise.rounds.plan import MANY_TIMES, JobPlan, ResolvedPhase, adaptation
from partwise.rounds.state import BatchRows
from partwise.streams import stream, stream_key

if TYPE_CHECKING:
    from partwise.data.source import Federation
    from partwise.rounds.client import ClientProgram

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class PhaseBatches:
    """The mini-batches of one phase of one client, a row for each step. Padding repeats samples of the client's own.

    Its columns are those of `BatchRows`, one step's mini-batches as a client's functions take them.
    """

    samples: np.ndarray  # (steps, batches, rows) int64: numbers in the data set
    real: np.ndarray  # (steps,) int64: how many of the rows are real
    key: np.ndarray  # (steps,) int64: names the step, for dropout and what a method draws
    change: np.ndarray  # (steps, batches, rows, 5) float64: how each image is augmented; (..., 0): not at all

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.real)

    def rows(self, device: torch.device) -> Iterator[BatchRows]:
        """Yield the mini-batches of each step as they are, without padding."""
        samples, real, key, change = (torch.from_numpy(getattr(self, name)).to(device) for name in BatchRows._fields)
        for step, rows in enumerate(self.real):
            yield BatchRows(samples[step, :, :rows], real[step], key[step], change[step, :, :rows])


@dataclass(frozen=True)
class JobBatches:
    """The mini-batches of one client for one job."""

    prepare: list[PhaseBatches]
    phases: list[PhaseBatches]
    report: PhaseBatches | None
    predict: PhaseBatches | None

    @property
    def steps(self) -> int:
        """Return the number of steps in all phases except those of `prepare`."""
        return sum(batches.steps for batches in self.phases)


@dataclass(frozen=True)
class Recipe:
    """How epochs are cut into mini-batches."""

    size: int
    epochs: float
    steps: int | None = None  # this many steps instead of epochs
    batches: int = 1  # disjoint mini-batches a step
    smallest: int = 1  # smaller mini-batches are skipped: 2 where the network has batch-norm
    drop_last: bool = False
    augmentation: Augmentation | None = None


def samples_in_range(samples: np.ndarray, sample_range: tuple[float, float], seed: int, client: int) -> np.ndarray:
    """Return a range of a client's samples, in an order drawn once for all rounds and phases."""
    if sample_range == (0, 1):
        return samples
    begin, end = bounds(len(samples), sample_range)
    return samples[np.sort(stream(seed, "share", client).permutation(len(samples))[begin:end])]


def bounds(samples: int, sample_range: tuple[float, float]) -> tuple[int, int]:
    """Return where a range, given as shares, begins and ends among `samples` samples."""
    begin, end = (int(round(share * samples, 9) + 0.5) for share in sample_range)
    return begin, end


def shuffled(
    samples: np.ndarray, recipe: Recipe, seed: int, *names: str | int, labels: np.ndarray | None = None
) -> PhaseBatches:
    """Draw the mini-batches of a phase; `names` are the client, the round, train or adapt, and the phase.

    With the samples' `labels` they are drawn with replacement, every class as likely as the others.
    """
    chances = None if labels is None else equally_likely(labels)
    pieces = epoch(len(samples), recipe)
    steps = number_of_steps(len(samples), recipe)
    index = np.full((steps, recipe.batches, recipe.size), samples[0] if len(samples) else 0)
    count = np.zeros(steps, dtype=np.int64)
    change = np.tile(UNCHANGED if recipe.augmentation else (), (*index.shape, 1))
    for number in range(math.ceil(steps / max(1, len(pieces)))):  # epochs
        random = stream(seed, "shuffle", *names, number)
        if chances is None:
            order = samples[random.permutation(len(samples))]
        else:
            order = samples[random.choice(len(samples), len(samples), p=chances)]
        changes = None
        if recipe.augmentation:
            changes = recipe.augmentation.draw(stream(seed, "augment", *names, number), len(samples))
        begin = number * len(pieces)
        # All mini-batches of a size at once: thousands of steps, one by one, would cost more than the training of some.
        for rows, run in groupby(pieces[: steps - begin], key=lambda piece: piece[1]):
            starts = [start for start, _ in run]
            taken = slice(starts[0], starts[0] + rows * recipe.batches * len(starts))
            shape, end = (len(starts), recipe.batches, rows), begin + len(starts)
            index[begin:end, :, :rows] = order[taken].reshape(shape)
            if changes is not None:
                change[begin:end, :, :rows] = changes[taken].reshape(*shape, -1)
            count[begin:end] = rows
            begin = end
    first = stream_key(seed, "dropout", *names) & 0xFFFFFFFF
    return PhaseBatches(index, count, (first + np.arange(steps) * 0x9E3779B1) & 0xFFFFFFFF, change)


def equally_likely(labels: np.ndarray) -> np.ndarray:
    """Return (samples,) the probability of drawing each, if all classes present are equally likely."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return 1 / (counts[inverse] * max(1, len(counts)))


def epoch(samples: int, recipe: Recipe) -> list[tuple[int, int]]:
    """Return where each step of an epoch starts, and the rows of each of its mini-batches."""
    take, pieces = recipe.size * recipe.batches, []
    for start in range(0, samples, take):
        rows = min(take, samples - start) // recipe.batches
        incomplete = rows < recipe.size
        if rows >= recipe.smallest and not (incomplete and recipe.drop_last and start > 0):
            pieces.append((start, rows))
    return pieces


def sizes_of_epoch(samples: int, recipe: Recipe) -> tuple[int, int]:
    """Return how many steps of an epoch are whole, and the rows of its last one: the lengths of `epoch`, counted."""
    whole, rest = divmod(samples, recipe.size * recipe.batches)
    rows = rest // recipe.batches
    last = rows if rows >= max(1, recipe.smallest) and not (recipe.drop_last and whole) else 0
    return (whole if recipe.size >= recipe.smallest else 0), last


def number_of_steps(samples: int, recipe: Recipe) -> int:
    """Return the number of steps that a client with `samples` samples takes in a phase."""
    whole, last = sizes_of_epoch(samples, recipe)
    pieces = whole + (last > 0)
    if recipe.steps is not None:
        return recipe.steps if pieces else 0
    return math.ceil(round(recipe.epochs * pieces, 9))  # 0.28 x 25 is 7, whatever floats make of it


def number_of_samples(samples: int, recipe: Recipe) -> int:
    """Return the number of samples that a client uses in a phase, counted as often as they are used."""
    whole, last = sizes_of_epoch(samples, recipe)
    epochs, more = divmod(number_of_steps(samples, recipe), max(1, whole + (last > 0)))
    return recipe.batches * (epochs * (whole * recipe.size + last) + more * recipe.size)


def ordered(samples: np.ndarray, size: int) -> PhaseBatches:
    """Return every sample once, in order, for reports and predictions."""
    steps = math.ceil(len(samples) / size)
    index = np.full((steps, 1, size), samples[0] if len(samples) else 0)
    index.reshape(-1)[: len(samples)] = samples
    count = np.minimum(size, len(samples) - np.arange(steps) * size)
    return PhaseBatches(index, count, np.arange(steps), np.zeros((*index.shape, 0)))


def wider(batches: PhaseBatches, rows: int) -> PhaseBatches:
    """Return the same mini-batches, padded to more rows."""
    missing = rows - batches.samples.shape[-1]
    if not missing:
        return batches
    more = [(0, 0), (0, 0), (0, missing)]
    return replace(
        batches,
        samples=np.pad(batches.samples, more, "edge"),
        change=np.pad(batches.change, [*more, (0, 0)], "edge"),
    )


# ------------------------------------------------------------------------------------------------------------ a job


class Drawing:
    """Draws the mini-batches of clients' jobs, each from the client's own stream: they depend on no other client."""

    def __init__(
        self,
        program: "ClientProgram",
        federation: "Federation",
        seed: int,
        range_seed: int,
        augmentation: Augmentation | None = None,
    ):
        self.program, self.federation, self.augmentation = program, federation, augmentation  # of training images
        self.seed = seed
        self.range_seed = range_seed  # of the ranges that phases take of samples: the same whatever noise is drawn from
        self.labels = federation.source.bins.cpu().numpy()  # on the host, where mini-batches are drawn
        self.train = [index.numpy() for index in federation.train]
        self.tuned_on = [index.numpy() for index in federation.brought] or self.train
        self.adapt_phases = adaptation(program.method, program.parts)
        largest = max(map(len, self.train))
        tested = max(len(a) + len(b) for a, b in zip(federation.test, federation.validation, strict=True))
        self.own = client_settings(program.method.per_client, federation.names)
        self.sizes = [max(1, min(own.batch or program.method.batch, largest)) for own in self.own]
        self.batch = max(self.sizes)  # to which mini-batches are padded: of the client with the largest
        self.report_batch, self.predict_batch = (max(1, min(EVALUATION_BATCH, most)) for most in (largest, tested))

    def seed_of(self, request: Request) -> int:
        """Return the seed from which a request's clients draw."""
        return self.seed if request.seed is None else request.seed

    def job_plan(self, request: Request) -> JobPlan:
        """Return what a request's clients do."""
        return JobPlan.of(request.job, request.plan, self.adapt_phases)

    def phases(self, request: Request) -> Sequence[ResolvedPhase]:
        """Return the phases that a request's clients go through, those that prepare among them."""
        plan = self.job_plan(request)
        return [*plan.prepare, *plan.phases]

    def draw(self, request: Request, client: int) -> JobBatches:
        """Draw a client's mini-batches for a request."""
        plan, times, adapts = self.job_plan(request), request.times.get(client, 0), request.job in ADAPTING
        samples = (self.tuned_on if adapts else self.train)[client]
        balanced = self.program.method.sampling == "balanced"
        drawn: list[list[PhaseBatches]] = []
        for purpose, phases in (("prepare", plan.prepare), ("adapt" if adapts else request.job, plan.phases)):
            drawn.append([])
            for number, phase in enumerate(phases):
                own = samples_in_range(samples, phase.sample_range, self.range_seed, client)
                recipe, names = self.recipe(phase, client, times), (client, request.round, purpose, number)
                labels = self.labels[own] if balanced else None
                batches = shuffled(own, recipe, self.seed_of(request), *names, labels=labels)
                drawn[-1].append(wider(batches, self.batch))
        prepare, trained = drawn
        return JobBatches(
            prepare,
            trained,
            ordered(samples, self.report_batch) if self.reports(request) else None,
            ordered(self.tested(client).numpy(), self.predict_batch) if request.evaluate else None,
        )

    def key(self, request: Request, client: int) -> int:
        """Return the random key of a client's job: start, finish, report and predict draw from it, not steps."""
        return stream_key(self.seed_of(request), "draws", client, request.round, request.job) & 0xFFFFFFFF

    def reports(self, request: Request) -> bool:
        """Return whether a request's clients report."""
        return request.job == "report" or (
            request.job == "train" and request.plan.stage.report and self.program.has("report")
        )

    def recipe(self, phase: ResolvedPhase, client: int, times: int = MANY_TIMES) -> Recipe:
        """Return how a phase is cut into mini-batches, for a client that took part in `times` rounds before."""
        return self.program.recipe(phase, self.sizes[client], self.augmentation, times, self.own[client].epochs)

    def tested(self, client: int) -> Tensor:
        """Return the samples that evaluation predicts for a client: its test samples, then its validation samples."""
        return torch.cat([self.federation.test[client], self.federation.validation[client]])
