"""`partwise reproduce`: the tables of the papers."""

from dataclasses import replace
from pathlib import Path

import click

from partwise.errors import ConfigError, DataError, Problems
from partwise.papers import pages, recorded
from partwise.papers.pictures import Runs, draw_pictures
from partwise.papers.reproduce import reproduce
from partwise.papers.tables import narrow_table, read_paper
from partwise.reporting import tables
from partwise.runs.folder import folder_inside
from partwise.studies.leaderboard import parse_seeds
from partwise.writing import make_folder, write


def reproduce_table(
    name: str,
    scale: str,
    seeds: str | None,
    rows: str | None,
    columns: str | None,
    out: str,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Run a table or figure of a paper again and show ours beside what was published."""
    paper = narrow_table(read_paper(name), rows, columns)
    numbers = parse_seeds(seeds) if seeds is not None else paper.seeds if scale == "full" else (0,)
    here = folder_inside(out)
    place = folder_inside(here, *Path(paper.name).parts, scale)
    make_folder(place)
    cells = reproduce(paper, scale, numbers, here, overwrite, quiet)
    refused = dict.fromkeys(cell.reason for cell in cells.values() if cell.mistake)
    if refused and not any(any(cell.values.values()) for cell in cells.values()):
        raise ConfigError(*refused)
    table = pages.layout(paper, cells, scale, numbers)
    tables.print_table(table)
    files = {"txt": table.to_text(), "md": table.to_markdown(), "tex": pages.paper_latex(paper, table)}
    for ending, content in files.items():
        write(place / f"table.{ending}", content.encode())
    try:
        for drawn in draw_pictures(Runs(paper, cells, scale, numbers, here)):
            click.echo(f"picture: {drawn}")
    except DataError as error:  # without matplotlib, show the numbers only
        click.echo(f"no pictures: {error}")
    click.echo(f"results: {place}")


def show_recorded(
    name: str | None,
    scale: str,
    out: str | None,
    seeds: str | None,
    rows: str | None,
    columns: str | None,
    overwrite: bool,
) -> None:
    """Show a table from the runs that were recorded, or how many cells of every table have some."""
    problems = Problems()
    if scale != "full":
        problems.add(f"--recorded shows runs at full scale: leave out --scale {scale}")
    for option, given in {"--out": out is not None, "--overwrite": overwrite}.items():
        if given:
            problems.add(f"--recorded neither runs nor writes anything: leave out {option}")
    problems.tell()
    if name is None:
        click.echo(recorded.recorded_overview())
        return
    paper = narrow_table(read_paper(name), rows, columns)
    numbers = parse_seeds(seeds) if seeds is not None else paper.seeds
    cells, used = recorded.recorded_cells(paper, numbers, recorded.read_records())
    table = pages.layout(paper, cells, scale, numbers)
    tables.print_table(replace(table, notes=[*table.notes, *recorded.where_recorded(used)]))
