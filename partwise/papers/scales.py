"""A run of a table at a smaller scale: fewer rounds, and for a smoke run made images and a small network."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from partwise.data import CATALOGUE, Source, source
from partwise.options import with_effect
from partwise.papers.tables import TableRow
from partwise.records.setup import RunSettings
from partwise.runs.config import HANDED_IN
from partwise.runs.settings import Settings
from partwise.streams import stream

SMOKE_IMAGES = 200
SMOKE_CLASSES, SMOKE_SIDE = 8, 8  # so that 4 clients of 2 classes hold all classes; pixels
SMOKE = {"clients": 4, "model": "cnn-digits", "min_samples": 4, "epochs": 1, "batch": 100}
QUICK_AT_MOST = {"finetune_epochs": 1, "head_epochs": 1, "personal_rounds": 1, "coordinators_a": 2, "coordinators_b": 2}
SMOKE_UNUSED = ("image_size", "weights")  # they are for the real images and network


def shortened(rounds: int, scale: str) -> int:
    """Return how many rounds a run has in place of the paper's."""
    return {"full": rounds, "small": min(rounds, max(5, rounds // 10)), "smoke": 2}[scale]


def at_scale(row: TableRow, settings: Settings, scale: str) -> Settings:
    """Return a run's settings with its rounds, and all that counts in rounds, shortened; a smoke run is all small."""
    if scale == "full":
        return settings
    paper = RunSettings.from_json(settings)
    whole, rounds = paper.rounds, shortened(paper.rounds, scale)
    shorter = {name: shorten(settings[name], whole, rounds) for name, shorten in SHORTENED.items() if name in settings}
    result = {**settings, "rounds": rounds, **shorter}
    if scale == "small":
        return result
    few = {key: most for key, most in QUICK_AT_MOST.items() if key in row.known}
    useful = with_effect(row.known, {**few, **result})
    result |= SMOKE | {key: most for key, most in few.items() if key in useful}
    result |= {"data": f"{HANDED_IN} made images", "batch_norm": paper.model.startswith("resnet")}
    kind, _, number = paper.partition.partition(":")
    if kind == "pat":
        result |= {"partition": f"pat:{min(int(number), SMOKE_CLASSES)}"}
    return {key: value for key, value in result.items() if key not in SMOKE_UNUSED}


def scaled_round(at: int, whole: int, rounds: int) -> int:
    """Return a round of the paper's, `at` of `whole`, in a run of `rounds`; rounded up."""
    return -(-at * rounds // whole)


def scaled_rounds(at: Sequence[int], whole: int, rounds: int) -> list[int]:
    """Return several of the paper's rounds in a shortened run."""
    return sorted({scaled_round(each, whole, rounds) for each in at})


def scaled_starts(at: Sequence[int], whole: int, rounds: int) -> list[int]:
    """Return the rounds in which layers begin to train in a shortened run: all of them train in the end."""
    return [min(scaled_round(each, whole, rounds), rounds - 1) for each in at]


def scaled_interval(every: int, whole: int, rounds: int) -> int:
    """Return a number of rounds between two evaluations, in a shortened run."""
    return max(1, every * rounds // whole)


SHORTENED: dict[str, Callable[[Any, int, int], object]] = {
    "eval_at": scaled_rounds,
    "eval_every": scaled_interval,
    "unfreeze": scaled_starts,
    "rounds_1": scaled_round,
    "rounds_2": scaled_round,
}


def path_at_scale(path: str, whole: int, rounds: int) -> str:
    """Return where a shortened run keeps a value: `at-100` of 300 rounds is `at-10` of 30."""
    return re.sub(r"at-(\d+)", lambda found: f"at-{scaled_round(int(found[1]), whole, rounds)}", path)


@cache
def made_images(data: str) -> Source:
    """Make noisy patterns with as many channels as a data set's images, each of one of four domains, a tint each."""
    channels, draw, side = CATALOGUE[data].shape[0] or 3, stream(0, "smoke"), SMOKE_SIDE
    number = np.arange(SMOKE_IMAGES)
    label, domain = number % SMOKE_CLASSES, number // SMOKE_CLASSES % 4
    patterns, tints = (
        draw.standard_normal((SMOKE_CLASSES, channels, side, side)),
        draw.standard_normal((4, channels, 1, 1)),
    )
    noise = draw.standard_normal((SMOKE_IMAGES, channels, side, side))
    x = 127.5 + 30 * patterns[label] + 20 * tints[domain] + 30 * noise
    column = source.Column(("first", "second", "third", "fourth"), torch.from_numpy(domain))
    images, labels = torch.from_numpy(x.round().clip(0, 255).astype(np.uint8)), torch.from_numpy(label)
    train = SMOKE_IMAGES * 4 // 5
    return source.image_source("made images", images, labels, SMOKE_CLASSES, train, columns={"domain": column})
