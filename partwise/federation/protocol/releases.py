"""A silo's ledger of all its releases: one file in its own folder, over all runs and restarts.

It is written before an answer leaves. An answer that was written down and then lost counts as well.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from partwise.errors import DataError, PartwiseError
from partwise.federation.protocol.leaving import Release
from partwise.federation.protocol.policy import Allowed
from partwise.privacy.accountant import Accountant, epsilon
from partwise.records.record import Record, WrongForm, fields_of, read_record
from partwise.runs.config import Config, label
from partwise.writing import make_folder, write

RELEASES_FILE = "releases.json"  # in the silo's folder


@dataclass(frozen=True)
class Released(Record):
    """The releases of a silo in one run."""

    method: str = ""
    settings: str = ""  # the SHA-256
    began: str = ""
    left: dict[str, int] = field(default_factory=dict)  # by kind: answers that held it
    trainings: int = 0
    noise: dict[str, dict[str, int]] = field(default_factory=dict)  # by what it covered and its size: how often

    def with_release(self, release: Release, accountant: Accountant | None) -> "Released":
        """Return the same with one more release."""
        left, noise = dict(self.left), {what: dict(spent) for what, spent in self.noise.items()}
        for kind in release.kinds:
            left[kind] = left.get(kind, 0) + 1
        for what, size, number in noise_counts(release, accountant):
            spent = noise.setdefault(what, {})
            spent[repr(size)] = spent.get(repr(size), 0) + number
        return replace(self, left=left, trainings=self.trainings + release.trained, noise=noise)


class ReleaseLedger:
    """The releases of a silo, by run."""

    def __init__(self, folder: Path, allow: Allowed, who: str):
        self.path, self.allow, self.who = folder / RELEASES_FILE, allow, who
        self.runs = read_ledger(self.path)

    def check_run(self, run: str) -> None:
        """Refuse a run beyond those that this silo takes part in; one that began here may go on."""
        most = self.allow.most_runs
        if most is not None and run not in self.runs and len(self.runs) >= most:
            raise PartwiseError(f"{self.who} takes part in at most {most} runs (most_runs), and {len(self.runs)} began")

    def begin(self, run: str, config: Config, statistics: bool) -> None:
        """Note that a run begins; `statistics`: those of the features have left."""
        if run not in self.runs:
            begun = Released(
                method=label(config.name),
                settings=hashlib.sha256(config.to_toml().encode()).hexdigest(),
                began=datetime.now(UTC).isoformat(timespec="seconds"),
                left={"feature statistics": 1} if statistics else {},
            )
            self.write({**self.runs, run: begun})

    def add(self, run: str, release: Release, accountant: Accountant | None) -> None:
        """Note what is about to leave; refuse what this silo does not allow."""
        runs = {**self.runs, run: self.runs[run].with_release(release, accountant)}
        self.check(runs[run], runs, release, accountant)
        if runs != self.runs:
            self.write(runs)

    def check(
        self, now: Released, runs: Mapping[str, Released], release: Release, accountant: Accountant | None
    ) -> None:
        """Refuse an answer by which more would have left than this silo allows."""
        most, rounds = self.allow.most_epsilon, self.allow.most_rounds
        if rounds is not None and now.trainings > rounds:
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

    def write(self, runs: dict[str, Released]) -> None:
        """Write the file, whole or not at all, and then hold the same."""
        content = {run: fields_of(released) for run, released in runs.items()}
        make_folder(self.path.parent)
        write(self.path, (json.dumps({"runs": content}, indent=1) + "\n").encode(), durable=True)
        self.runs = runs


def noise_counts(release: Release, accountant: Accountant | None) -> list[tuple[str, float, int]]:
    """Return how often which noise covered an answer: on uploads, on gradients, on label counts."""
    if accountant is None:
        return []
    found = [
        ("uploads", accountant.upload_noise, release.uploads),
        ("gradients", accountant.gradient_noise, release.passes),
        ("label counts", accountant.label_epsilon, release.tellings),
    ]
    return [(what, noise, number) for what, noise, number in found if noise and number]


def spent_of(runs: Mapping[str, Released], delta: float) -> float:
    """Return the epsilon of all runs together: Gaussian noise composed in RDP, that of label counts added."""
    steps, labels = Counter[tuple[float, float]](), 0.0
    for noise in (released.noise for released in runs.values()):
        for what in ("uploads", "gradients"):
            steps.update({(float(each), 1.0): number for each, number in noise.get(what, {}).items()})
        labels += sum(float(each) * number for each, number in noise.get("label counts", {}).items())
    return epsilon("rdp", steps, delta) + labels


def read_ledger(path: Path) -> dict[str, Released]:
    """Return the runs of a ledger; a damaged one is named, for without it nothing can be counted."""
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return {run: read_record(Released, released, run) for run, released in runs.items()}
    except FileNotFoundError:
        return {}
    except (OSError, WrongForm, ValueError, LookupError, TypeError, AttributeError):
        raise DataError(f"'{path}' is damaged: put it back, it says what left this silo") from None
