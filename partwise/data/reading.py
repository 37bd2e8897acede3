"""Settings for reading a data set from files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from partwise.data.rules import parse_test_after
from partwise.errors import ConfigError


@dataclass(frozen=True)
class Reading:
    """Settings of the loaders; each uses those that concern it."""

    root: str | Path | None = None  # the first folder to look in
    download: bool = False  # fetch what is missing
    image_size: int | None = None  # images are resized to squares of this many pixels a side
    label: str = "label"  # the column of a table that is to be predicted
    drop: tuple[str, ...] = ()  # columns of a table that are no features
    column: str | None = None  # the column of a table by which samples are divided: no feature either
    missing: Literal["refuse", "mean"] = "refuse"  # what becomes of a table's empty cells
    allow_nonfinite: bool = False  # NaN and infinity are let through
    split_by: str | None = None  # the column of a table whose equal values stay on one side of every split
    test_after: str | None = None  # COLUMN=FIRST: rows from this date or number on are for testing

    @property
    def no_features(self) -> tuple[str, ...]:
        """Return the columns of a table that are no features, the label first; the clients' column is one more."""
        dated = [parse_test_after(self.test_after)[0]] if self.test_after else []
        return (self.label, *self.drop, *([self.split_by] if self.split_by else []), *dated)

    def refuse_what_is_for_tables(self, what: str) -> None:
        """Refuse settings about columns for data that are not a table: they would have no effect."""
        usual = Reading()
        names = ("label", "drop", "missing", "split_by", "test_after")
        given = [name for name in names if getattr(self, name) != getattr(usual, name)]
        if given:
            raise ConfigError(f"{', '.join(given)}: applies only to tables, and {what} is not one; remove it")
