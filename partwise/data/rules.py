"""The text that says how samples are divided among clients: `dir:0.1`, `pat:2` or `iid`."""

from dataclasses import dataclass
from math import inf

from partwise.errors import ConfigError, unknown

KINDS = ("dir", "pat", "iid")


@dataclass(frozen=True)
class Rule:
    """`dir` with its concentration alpha, `pat` with its number of classes per client, or `iid`."""

    kind: str
    alpha: float = 0.0
    classes: int = 0


def parse_rule(text: str) -> Rule:
    """The rule that `text` stands for; whether it fits a data set is known when that is divided."""
    kind, colon, value = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(unknown("partition", kind, KINDS))
    try:
        if kind == "dir" and 0 < float(value) < inf:
            return Rule(kind, alpha=float(value))
        if kind == "pat" and int(value) >= 1:
            return Rule(kind, classes=int(value))
    except ValueError:
        pass  # no number: refused below like a number out of range
    if kind == "iid" and not colon:
        return Rule(kind)
    allowed = {
        "dir": "dir:ALPHA with a finite ALPHA > 0, such as dir:0.1",
        "pat": "pat:K with K classes per client, 1 <= K <= the number of classes, such as pat:2",
        "iid": "iid, with nothing after it",
    }
    raise ConfigError(f"partition '{text}' is not allowed; it must be {allowed[kind]}")
