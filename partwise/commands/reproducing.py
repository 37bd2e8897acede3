"""`partwise reproduce`: the tables of the papers."""

from pathlib import Path

import click

from partwise.commands.options import Command, complete, complete_file, debug_option
from partwise.errors import ConfigError, DataError, unknown
from partwise.papers import pages as reporting
from partwise.papers.pictures import Runs, draw
from partwise.papers.reproduce import SCALES, reproduce
from partwise.papers.tables import narrowed, papers, read_paper
from partwise.reporting import tables
from partwise.runs.compare import parse_seeds
from partwise.writing import write

OUT = "runs/reproduce"

EXAMPLES = """\b
Examples:
  partwise reproduce
  partwise reproduce fedtc/table2 --scale small --rows fedper,fedtc
  partwise reproduce scheduling/table2 --rows fedavg,anti --seeds 0 --out runs/scheduling"""


@click.command("reproduce", cls=Command, epilog=EXAMPLES)
@click.argument("name", metavar="[PAPER/TABLE]", required=False, shell_complete=complete(papers()))
@click.option(
    "--scale",
    default="full",
    metavar="NAME",
    help="full: the paper's setting (the default); small: a tenth of its rounds; smoke: a trial on made images.",
    shell_complete=complete(SCALES),
)
@click.option("--seeds", metavar="NUMBERS", help="Seeds, separated by commas; unset: the paper's, or 0 below full.")
@click.option(
    "--rows",
    metavar="NAMES",
    help="Only these rows, by name or method, separated by commas: the table has no others.",
)
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas.")
@click.option(
    "--out", default=OUT, metavar="DIR", help=f"Folder for the runs; unset: {OUT}.", shell_complete=complete_file
)
@click.option("--overwrite", is_flag=True, help="Run finished runs again; without it they are kept.")
@click.option("--quiet", is_flag=True, help="Show results alone, no progress.")
@debug_option
def reproduce_command(
    name: str | None,
    scale: str,
    seeds: str | None,
    rows: str | None,
    columns: str | None,
    out: str,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Run a table or figure of a paper again, or list them all.

    Each cell shows the published number, ours, and the difference. Runs that an earlier call finished are kept; a cell
    whose method or data are not here says so. Seeds of a cell run side by side where they can, as those of `compare`.
    """
    if scale not in SCALES:
        raise ConfigError(unknown("scale", scale, SCALES))
    if name is None:
        click.echo(reporting.overview())
        return
    paper = narrowed(read_paper(name), rows, columns)
    numbers = parse_seeds(seeds) if seeds is not None else paper.seeds if scale == "full" else (0,)
    place = Path(out, paper.name, scale)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write results into '{place}': {error.strerror}") from None
    cells = reproduce(paper, scale, numbers, Path(out), overwrite, quiet)
    refused = dict.fromkeys(cell.reason for cell in cells.values() if cell.mistake)
    if refused and not any(any(cell.values.values()) for cell in cells.values()):
        raise ConfigError(*refused)
    table = reporting.layout(paper, cells, scale, numbers)
    tables.show(table)
    files = {"txt": reporting.to_text(table), "md": table.to_markdown(), "tex": reporting.to_latex(paper, table)}
    for ending, content in files.items():
        write(place / f"table.{ending}", content.encode())
    try:
        for drawn in draw(Runs(paper, cells, scale, numbers, Path(out))):
            click.echo(f"picture: {drawn}")
    except DataError as error:  # without matplotlib the numbers are there all the same
        click.echo(f"no pictures: {error}")
    click.echo(f"results: {place}")
