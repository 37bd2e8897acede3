"""How samples are divided, as texts: `dir:0.1`, `pat:2`, `iid`, `column:hospital`, ... and `admitted=2020-01-01`."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from math import inf

from partwise.errors import ConfigError, unknown

RULE_PARAMETERS = {
    "dir": "dir:ALPHA with a finite ALPHA > 0, such as dir:0.1",
    "hsu": "hsu:ALPHA with a finite ALPHA > 0, such as hsu:1",
    "pat": "pat:K with K classes per client, 1 <= K <= the number of classes, such as pat:2",
    "quantity": "quantity:ALPHA with a finite ALPHA > 0, such as quantity:0.5",
    "iid": "iid, with nothing after it",
    "domain": "domain, with nothing after it",
    "column": "column:NAME with the name of a column, such as column:hospital",
    "file": "file:PATH with the path of a saved partition, such as file:partition.json",
}
RULE_KINDS = tuple(RULE_PARAMETERS)


@dataclass(frozen=True)
class Rule:
    """A kind of rule and its parameters; `domain` is short for the column of that name."""

    kind: str
    alpha: float = 0.0  # dir, hsu and quantity: the concentration of the Dirichlet distribution
    classes: int = 0  # pat: of each client
    column: str = ""  # column: a client for each of its values
    path: str = ""  # file: where the partition was saved


def parse_rule(text: str) -> Rule:
    """Return the partition rule of a text; whether it fits a data set is checked later."""
    kind, colon, value = text.partition(":")
    if kind not in RULE_KINDS:
        raise ConfigError(unknown("partition", kind, RULE_KINDS))
    try:
        if kind in ("dir", "hsu", "quantity") and 0 < float(value) < inf:
            return Rule(kind, alpha=float(value))
        if kind == "pat" and int(value) >= 1:
            return Rule(kind, classes=int(value))
    except ValueError:
        pass  # no number: refused below like a number out of range
    if kind == "iid" and not colon:
        return Rule(kind)
    if kind == "domain" and not colon:
        return Rule("column", column="domain")
    if kind == "column" and value:
        return Rule(kind, column=value)
    if kind == "file" and value:
        return Rule(kind, path=value)
    raise ConfigError(f"partition '{text}' is not allowed; it must be {RULE_PARAMETERS[kind]}")


def parse_test_after(text: str) -> tuple[str, float | datetime]:
    """Return the column of a text, and the first date or number whose rows are for testing."""
    column, _, first = text.rpartition("=")
    if column:
        with suppress(ValueError):
            if -inf < float(first) < inf:
                return column, float(first)
        with suppress(ValueError):
            return column, datetime.fromisoformat(first)
    raise ConfigError(
        f"test_after = '{text}' is not allowed; it must be COLUMN=DATE or COLUMN=NUMBER, such as admitted=2020-01-31 "
        "or year=2015"
    )
