"""The table of methods: who is listed here passes every test of a method.

- tests/parity/test_engines.py: every engine agrees in float64, padded rows change nothing, nor does evaluating
- tests/parity/test_workers.py, test_shared_seeds.py: workers agree bit for bit, seeds side by side agree
- tests/parity/test_hooks.py, tests/gpu: no host sync in the step; on a GPU captured as a graph
- tests/laws/test_resume.py: it resumes: killed twice, it ends bit for bit as if nothing had happened
- tests/federation: nodes agree with the simulation (in one process, and over Flower: `make test-federation`), and
  nothing personal is in any message
- tests/laws/test_joining.py, tests/inference/test_newcomers.py: it joins: held out, and from a finished run's folder
- tests/laws/test_listed.py: finite on a one-class client, the same twice, bytes as serialised, nothing personal
  uploaded; it learns
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Listed:
    """What a method promises on digits (10 clients, dir:0.3, 15 rounds, lr 0.05, batch 16, seed 0)."""

    moment: str  # its headline, at which it gains at least 20 points over its start
    personal: bool = False  # then it is not more than 5 points below Local there
    settings: dict[str, Any] = field(default_factory=dict)  # where it needs other ones, and why


def one_model(moment: str = "received", **settings: Any) -> Listed:
    return Listed(moment, settings=settings)


def personal(moment: str = "received", **settings: Any) -> Listed:
    return Listed(moment, personal=True, settings=settings)


LONGER, LONGEST = {"rounds": 40}, {"rounds": 80}  # slower at first: Local has as many rounds beside it
LISTED = {
    "anti": personal("method_adapted", **LONGEST),  # its first layers sleep for two thirds of the rounds
    "apfl": personal(),
    "central": one_model(),
    "cfl": personal(),
    "ditto": personal(),
    "dualfed": personal(clip_norm=5.0),  # at this rate its contrast needs it, as in the demo
    "fed3p2p": personal(coordinators_a=2, coordinators_b=2, **LONGER),  # its second phase has half of the rounds
    "fedala": personal(),
    "fedamp": personal(**LONGER),  # the pull slows training
    "fedavg": one_model(),
    "fedbabu": personal("method_adapted", **LONGER),  # its head learns nothing before
    "fedbn": one_model(batch_norm=True),
    "fedclust": personal(),
    "feddyn": one_model(),
    "fedetf": personal("method_adapted", personal_rounds=2),  # twenty turns take minutes
    "fedfcd": personal(),
    "fedfomo": personal(),
    "fedgh": personal("method_adapted"),
    "fedpac": personal(),
    "fedper": personal(),
    "fedproto": personal(),
    "fedprox": one_model(),
    "fedrep": personal(),
    "fedrod": personal(),
    "fedtc": personal(**LONGEST),  # the received classifier teaches slowly at one rate for both
    "gpfl": personal(**LONGER),  # the valve's shift hides small features at first
    "lg_fedavg": personal(),
    "local": personal(),
    "moon": one_model(),
    "pacfl": personal(),
    "per_fedavg": personal("method_adapted", epochs=2),  # a step takes two mini-batches: as many gradients as others
    "pfedme": personal(),
    "scaffold": one_model(),
    "spherefed": one_model(),
    "vanilla": personal("method_adapted", **LONGEST),  # its last layers do
}
