"""The accountant: what a run has spent of everybody's privacy, as Opacus counts it.

Two numbers are told of every mechanism. One counts on sampling (`client`, `record`): whoever looks does not know who
took part, or which records a mini-batch held, and each was drawn by itself, as Opacus' accountants take it. The other
counts on nothing (`..._unsampled`): a client's uploads, or a record's uses, one after another. It is what holds against
the server, which knows who took part, and for mini-batches that are cut from a shuffled order, as here.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partwise.errors import needed
from partwise.network.view import Tensors
from partwise.privacy.filters import class_indexed, has_numbers

Mechanism = Literal["rdp", "prv"]
StepCounts = Mapping[tuple[float, float], int]  # (noise, sampling rate) -> steps
MEMORY = "privacy"  # where the server remembers what was released
RELEASED = ("uploads", "told", "steps", "passes")  # of every client


def opacus(module: str = "") -> Any:
    """Opacus' accountants, or one of their modules; how it writes its log is not for others."""
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)  # as it is imported it gives the root a format, unless that has a handler
    try:
        return needed(f"opacus.accountants.{module}".rstrip("."), "privacy")
    finally:
        root.removeHandler(quiet)


def epsilon(mechanism: Mechanism, history: StepCounts, delta: float) -> float:
    """Epsilon of subsampled Gaussian mechanisms one after another, by Opacus' accountant."""
    steps = {pair: number for pair, number in history.items() if number}
    if not steps:
        return 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # it says where its bound could be tighter
        if mechanism == "rdp":
            total = sum(number * renyi_divergence(*pair) for pair, number in steps.items())
            orders = opacus().RDPAccountant.DEFAULT_ALPHAS
            return float(opacus("analysis.rdp").get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])
        accountant = opacus().PRVAccountant()
        accountant.history = [(*pair, number) for pair, number in steps.items()]
        return float(accountant.get_epsilon(delta))


@lru_cache
def renyi_divergence(noise: float, rate: float) -> NDArray[np.float64]:
    """(orders,) the Renyi divergence of one step: that of many is as many times as much."""
    orders = opacus().RDPAccountant.DEFAULT_ALPHAS
    return opacus("analysis.rdp").compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


@dataclass(frozen=True)
class Uses:
    """What a client's round does with a record, where gradients have noise."""

    steps: int  # with noise, of the smallest client
    rate: float  # the chance that one of them holds a record
    passes: int  # in which a record is used once


@dataclass(frozen=True)
class Accountant:
    """Counts releases in the server's memory, and says what they amount to."""

    delta: float
    mechanism: Mechanism = "rdp"
    upload_noise: float = 0.0  # standard deviation in clips: of one client's upload
    gradient_noise: float = 0.0  # the same of the sum of a mini-batch's gradients
    label_epsilon: float = 0.0  # of one telling of label counts
    uses: tuple[Uses, ...] = ()  # of each stage, where gradients have noise

    def note(
        self,
        memory: dict[str, Any],
        registered: Tensor,
        clients: Sequence[int],
        parts: Tensors,
        extras: Mapping[str, Any],
        stage: int | None,
    ) -> None:
        """Some clients answered; `registered` are everybody's samples, `stage` is that of a training."""
        before = memory.get(MEMORY) or {name: torch.zeros(len(registered), dtype=torch.long) for name in RELEASED}
        rates = before.get("rates", torch.zeros(0, dtype=torch.float64))
        now = {name: before[name].clone() for name in RELEASED}
        leaves = [*parts.values(), *tree_leaves(extras, is_leaf=class_indexed)]
        now["told"][clients] += sum(map(class_indexed, leaves))
        if any(map(has_numbers, leaves)):
            now["uploads"][clients] += 1
            rates = torch.cat([rates, rates.new_tensor([len(clients) / int((registered > 0).sum())])])
        if stage is not None and self.uses:
            now["steps"][clients] += self.uses[stage].steps
            now["passes"][clients] += self.uses[stage].passes
        memory[MEMORY] = {**now, "rates": rates}

    def spent(self, memory: Mapping[str, Any]) -> dict[str, float]:
        """Epsilon by what it is of, for the client that is worst off; nothing where nothing was released."""
        if MEMORY not in memory:
            return {}
        noted, result = memory[MEMORY], dict[str, float]()
        uploads, told, steps, passes = (int(noted[name].max()) for name in RELEASED)
        if self.upload_noise:
            sampled = Counter((self.upload_noise, rate) for rate in noted["rates"].tolist())
            result["client"] = epsilon(self.mechanism, sampled, self.delta)
            result["client_unsampled"] = epsilon(self.mechanism, {(self.upload_noise, 1.0): uploads}, self.delta)
        if self.gradient_noise:
            rate = max(use.rate for use in self.uses)
            result["record"] = epsilon(self.mechanism, {(self.gradient_noise, rate): steps}, self.delta)
            result["record_unsampled"] = epsilon(self.mechanism, {(self.gradient_noise, 1.0): passes}, self.delta)
        if self.label_epsilon:
            result["labels"] = told * self.label_epsilon
        return result
