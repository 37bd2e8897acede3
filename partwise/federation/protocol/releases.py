"""A silo's ledger of all that ever left it: one file in its own folder, over all runs and restarts.

It is written before an answer leaves. An answer that was written down and then lost counts as well.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partwise.errors import DataError, PartwiseError
from partwise.federation.protocol.leaving import Release
from partwise.federation.protocol.policy import Allowed
from partwise.privacy.accountant import Accountant, epsilon
from partwise.runs.config import Config, label
from partwise.writing import make_folder, write

FILE = "releases.json"  # in the silo's folder


class Releases:
    """What left a silo, by run."""

    def __init__(self, folder: Path, allow: Allowed, who: str):
        self.path, self.allow, self.who = folder / FILE, allow, who
        self.runs: dict[str, Any] = read(self.path)

    def check_run(self, run: str) -> None:
        """Refuse a run beyond those that this silo takes part in; one that began here may go on."""
        most = self.allow.most_runs
        if most is not None and run not in self.runs and len(self.runs) >= most:
            raise PartwiseError(f"{self.who} takes part in at most {most} runs (most_runs), and {len(self.runs)} began")

    def begin(self, run: str, config: Config, statistics: bool) -> None:
        """Note that a run begins; `statistics`: those of the features have left."""
        if run not in self.runs:
            entry = {
                "method": label(config.name),
                "settings": hashlib.sha256(config.to_toml().encode()).hexdigest(),
                "began": datetime.now(UTC).isoformat(timespec="seconds"),
                "left": {"feature statistics": 1} if statistics else {},
                "trainings": 0,
                "noise": {},
            }
            self.write({**self.runs, run: entry})

    def add(self, run: str, release: Release, accountant: Accountant | None) -> None:
        """Note what is about to leave; what this silo does not allow is refused."""
        runs = deepcopy(self.runs)
        entry = runs[run]
        for kind in release.kinds:
            entry["left"][kind] = entry["left"].get(kind, 0) + 1
        entry["trainings"] += release.trained
        for what, noise, number in noised(release, accountant):
            spent = entry["noise"].setdefault(what, {})
            spent[repr(noise)] = spent.get(repr(noise), 0) + number
        self.check(entry, runs, release, accountant)
        if runs != self.runs:
            self.write(runs)

    def check(
        self, entry: Mapping[str, Any], runs: Mapping[str, Any], release: Release, accountant: Accountant | None
    ) -> None:
        """Refuse an answer by which more would have left than this silo allows."""
        most, rounds = self.allow.most_epsilon, self.allow.most_rounds
        if rounds is not None and entry["trainings"] > rounds:
            raise PartwiseError(f"{self.who} trains at most {rounds} times in a run (most_rounds)")
        if most is None:
            return
        if release.tellings and not (accountant and accountant.label_epsilon):
            raise PartwiseError(
                f"{self.who} counts epsilon (most_epsilon), and label counts leave without noise: set "
                "histograms = laplace:EPSILON"
            )
        spent = spent_of(runs, self.allow.delta)
        if spent > most:
            before = spent_of(self.runs, self.allow.delta)
            raise PartwiseError(
                f"{self.who} has spent epsilon = {before:.4g} of {most:g} (most_epsilon) over {len(runs)} runs, and "
                f"this answer would make it {spent:.4g}"
            )

    def write(self, runs: dict[str, Any]) -> None:
        """Write the file, whole or not at all, and then hold the same."""
        make_folder(self.path.parent)
        write(self.path, (json.dumps({"runs": runs}, indent=1) + "\n").encode(), durable=True)
        self.runs = runs


def noised(release: Release, accountant: Accountant | None) -> list[tuple[str, float, int]]:
    """Return how often which noise covered an answer: on uploads, on gradients, on label counts."""
    if accountant is None:
        return []
    found = [
        ("uploads", accountant.upload_noise, release.uploads),
        ("gradients", accountant.gradient_noise, release.passes),
        ("label counts", accountant.label_epsilon, release.tellings),
    ]
    return [(what, noise, number) for what, noise, number in found if noise and number]


def spent_of(runs: Mapping[str, Any], delta: float) -> float:
    """Return the epsilon of all runs together: Gaussian noise composed in RDP, that of label counts added."""
    steps, labels = Counter[tuple[float, float]](), 0.0
    for noise in (entry["noise"] for entry in runs.values()):
        for what in ("uploads", "gradients"):
            steps.update({(float(each), 1.0): number for each, number in noise.get(what, {}).items()})
        labels += sum(float(each) * number for each, number in noise.get("label counts", {}).items())
    return epsilon("rdp", steps, delta) + labels


def read(path: Path) -> dict[str, Any]:
    """Return the runs of a ledger; a damaged one is named, for without it nothing can be counted."""
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        spent_noise = [entry["noise"] for entry in runs.values()]
        if not all(isinstance(noise, dict) for noise in spent_noise):
            raise ValueError
        return dict(runs)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise DataError(f"'{path}' is damaged: put it back, it says what left this silo") from None
