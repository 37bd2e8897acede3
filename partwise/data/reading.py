"""Settings for reading a data set from files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from partwise.data.rules import parse_test_after
from partwise.errors import ConfigError

OF_TEXTS = ("text_length", "tokens", "vocabulary", "min_token_count")  # settings that only texts have
TaskName = Literal["auto", "classes", "labels", "numbers", "places"]


@dataclass(frozen=True)
class Reading:
    """Settings of the loaders; each uses those that concern it."""

    root: str | Path | None = None  # the first folder to look in
    download: bool = False  # fetch what is missing
    image_size: int | None = None  # images are resized to squares of this many pixels a side
    label: str = "label"  # the column of a table that is to be predicted, or several, separated by commas
    task: TaskName = "auto"  # what a label is; auto: what it looks like
    drop: tuple[str, ...] = ()  # columns of a table that are no features
    column: str | None = None  # the column of a table by which samples are divided: no feature either
    missing: Literal["refuse", "mean"] = "refuse"  # what becomes of a table's empty cells
    categories: Literal["columns", "codes"] = "columns"  # what a table's texts become
    allow_nonfinite: bool = False  # NaN and infinity are let through
    split_by: str | None = None  # the column of a table whose equal values stay on one side of every split
    test_after: str | None = None  # COLUMN=FIRST: rows from this date or number on are for testing
    text: str | None = None  # the column of a table that is a text: it becomes tokens
    text_length: int | None = None  # tokens of a sample; unset: as many as the longest text has, at most LONGEST
    tokens: str = "words"  # what a text is divided into
    vocabulary: int = 10_000  # the largest number of tokens that have a number
    min_token_count: int = 2  # training samples that a token must occur in

    def no_features(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of a table that are no features, labels first; the clients' column is one more."""
        dated = [parse_test_after(self.test_after)[0]] if self.test_after else []
        return (*self.label_columns(columns), *self.drop, *([self.split_by] if self.split_by else []), *dated)

    def label_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the label columns; `columns` are those of the table, whose names may hold commas."""
        return (self.label,) if self.label in columns else tuple(name.strip() for name in self.label.split(","))

    def refuse_what_is_for_tables(self, what: str) -> None:
        """Refuse settings about columns for data that are not a table: they would have no effect."""
        usual = Reading()
        names = ("label", "drop", "missing", "categories", "split_by", "test_after", "text", *OF_TEXTS)
        given = [name for name in names if getattr(self, name) != getattr(usual, name)]
        if given:
            raise ConfigError(f"{', '.join(given)}: applies only to tables, and {what} is not one; remove it")

    def refuse_what_is_for_texts(self, what: str) -> None:
        """Refuse settings of texts where no column is one."""
        usual = Reading()
        given = [name for name in OF_TEXTS if getattr(self, name) != getattr(usual, name)]
        if given and self.text is None:
            raise ConfigError(f"{', '.join(given)}: applies only to texts; say which column of {what} is one: --text")
