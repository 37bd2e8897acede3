"""The settings of a paper's table for a run of one's own: `--preset fed3p2p/table1 --data cifar10`."""

from collections.abc import Mapping
from dataclasses import Field

from partwise.errors import ConfigError, unknown
from partwise.method import Method
from partwise.options import as_written, convert, with_effect
from partwise.papers.tables import Paper, TableColumn, TableRow, read_paper
from partwise.runs.config import known_fields
from partwise.runs.settings import Settings

PHASES = ("rounds_1", "rounds_2")  # they would win over `rounds`


def preset_settings(name: str, called: str, method: type[Method], given: Settings) -> tuple[Settings, list[str]]:
    """Return a table's settings for a method, without those that are given, and a note that names their column and row.

    `name` is that of the table and, behind a colon, the names of a column or a row or both, separated by a comma.
    """
    table, _, names = name.partition(":")
    paper = read_paper(table)
    column, row = named_cell(paper, names)
    column = column or fitting_column(paper, given, known_fields(method))
    row = row or usual_row(paper, called)
    if row.method != called:
        raise ConfigError(f"preset '{name}': the row '{row.label}' is of {row.method}, not of {called}")
    known = known_fields(method.variant({**row.settings, **given}))
    hidden = {*given, *(PHASES if "rounds" in given else ())}
    every = {**paper.settings, **column.settings, **row.settings_in(column)}
    settings = {key: value for key, value in every.items() if key in known and key not in hidden}
    effective = with_effect(known, settings | {key: value for key, value in given.items() if key in known})
    others = sum(each.method == called for each in paper.rows) - 1
    note = f"preset {table}: column {column.name}, {f'row {row.label}' if row.label else f'no row of {called}'}"
    note += f" (of {others + 1} rows of {called}; '{table}:ROW' takes another)" if others > 0 else ""
    return {key: value for key, value in settings.items() if key in effective}, [note]


def named_cell(paper: Paper, names: str) -> tuple[TableColumn | None, TableRow | None]:
    """Return the column and the row of a table that are named."""
    columns, rows = {column.name: column for column in paper.columns}, {row.label: row for row in paper.rows}
    chosen = [name.strip() for name in names.split(",")] if names else []
    for name in chosen:
        if name not in columns and name not in rows:
            raise ConfigError(unknown(f"column or row of {paper.name}", name, [*columns, *rows]))
    return (
        next((columns[name] for name in chosen if name in columns), None),
        next((rows[name] for name in chosen if name in rows), None),
    )


def usual_row(paper: Paper, method: str) -> TableRow:
    """Return a method's first row that the paper prints; one without settings for a method that the table lacks."""
    own = [row for row in paper.rows if row.method == method]
    return next((row for row in own if row.published), own[0] if own else TableRow("", method))


def fitting_column(paper: Paper, given: Settings, known: Mapping[str, Field]) -> TableColumn:
    """Return the only column that does not contradict the given settings; refuse several or none, and list them.

    A column that the paper does not have is taken where none of the paper's fits.
    """

    def fits(column: TableColumn) -> bool:
        both = [key for key in column.settings if key in given and key in known]
        return all(convert(known[key], column.settings[key]) == convert(known[key], given[key]) for key in both)

    fitting = [column for column in paper.columns if fits(column)]
    found = [column for column in fitting if not column.ours] or fitting
    if len(found) == 1:
        return found[0]
    listed = found or paper.columns
    values = {key: {as_written(column.settings.get(key)) for column in listed} for key in listed[0].settings}
    alone = [[key] for key, each in values.items() if len(each) == len(listed)]  # tells every column from the others
    apart = alone[0] if alone else [key for key, each in values.items() if len(each) > 1]
    told = (f"{c.name} ({', '.join(f'{key} = {as_written(c.settings.get(key))}' for key in apart)})" for c in listed)
    what = f"{len(found)} columns fit" if found else "no column fits"
    raise ConfigError(
        f"preset '{paper.name}': {what} what is given; give what sets one apart, or name it as in "
        f"'{paper.name}:{listed[0].name}': {', '.join(told)}"
    )
