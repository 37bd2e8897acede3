"""The accountant: the privacy that a run has spent, as Opacus counts it.

Every mechanism has two numbers. `client` and `record` use amplification by sampling: they assume that the adversary
does not know the participants, or a mini-batch's records, and that each was drawn independently, as Opacus does.
`..._unsampled` composes a client's uploads, or a record's uses, without it. That number holds against the server, which
knows the participants, and for mini-batches cut from a shuffled order, as here.
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
from partwise.network.view import Extras, Tensors
from partwise.privacy.filters import class_indexed, has_numbers

Mechanism = Literal["rdp", "prv"]
StepCounts = Mapping[tuple[float, float], int]  # (noise, sampling rate) -> steps
MEMORY = "privacy"  # key in the server's memory
RELEASED = ("uploads", "told", "steps", "passes")  # of every client


def opacus(module: str = "") -> Any:
    """Import Opacus' accountants, or one of their modules, without the format that it gives to the log."""
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)  # as it is imported it gives the root a format, unless that has a handler
    try:
        return needed(f"opacus.accountants.{module}".rstrip("."), "privacy")
    finally:
        root.removeHandler(quiet)


def epsilon(mechanism: Mechanism, history: StepCounts, delta: float) -> float:
    """Return epsilon of subsampled Gaussian mechanisms one after another, by Opacus' accountant."""
    steps = {pair: number for pair, number in history.items() if number}
    if not steps:
        return 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that its bound could be tighter
        if mechanism == "rdp":
            total = sum(number * renyi_divergence(*pair) for pair, number in steps.items())
            orders = opacus().RDPAccountant.DEFAULT_ALPHAS
            return float(opacus("analysis.rdp").get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])
        accountant = opacus().PRVAccountant()
        accountant.history = [(*pair, number) for pair, number in steps.items()]
        return float(accountant.get_epsilon(delta))


@lru_cache
def renyi_divergence(noise: float, rate: float) -> NDArray[np.float64]:
    """Return (orders,) Renyi divergences of one step; those of many steps are their sum."""
    orders = opacus().RDPAccountant.DEFAULT_ALPHAS
    return opacus("analysis.rdp").compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


@dataclass(frozen=True)
class Uses:
    """A client's uses of a record in a round, where gradients have noise."""

    steps: int  # with noise, of the smallest client
    rate: float  # the chance that one of them holds a record
    passes: int  # in which a record is used once


@dataclass(frozen=True)
class Accountant:
    """Counts releases in the server's memory, and turns them into epsilon."""

    delta: float
    mechanism: Mechanism = "rdp"
    upload_noise: float = 0.0  # standard deviation in clips: of one client's upload
    gradient_noise: float = 0.0  # the same of the sum of a mini-batch's gradients
    label_epsilon: float = 0.0  # of one report of label counts
    uses: tuple[Uses, ...] = ()  # of each stage, where gradients have noise

    def note(
        self,
        memory: dict[str, Tensors],
        registered: Tensor,
        clients: Sequence[int],
        parts: Tensors,
        extras: Extras,
        stage: int | None,
    ) -> None:
        """Count what some clients sent; `stage` is None except in training.

        `registered` is (all clients,): their numbers of samples.
        """
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

    def spent(self, memory: Mapping[str, Tensors]) -> dict[str, float]:
        """Return the epsilon of every mechanism for the client that is worst off; {} before anything was released."""
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
