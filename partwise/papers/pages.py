"""A paper's table with ours in it: as text, in Markdown and in LaTeX."""

import statistics
from itertools import groupby, product

from partwise.papers.reproduce import TableCell
from partwise.papers.scales import path_at_scale, shortened
from partwise.papers.tables import SCALES, Paper, PublishedNumber, TableColumn, TableRow
from partwise.reporting.latex import escaped, latex_row, latex_tabular
from partwise.reporting.tables import NOTHING, Cells

COPIED = "*"  # behind the name of a row
DIFFERENCE = "  difference"


def layout(paper: Paper, cells: dict[tuple[str, str], TableCell], scale: str, seeds: tuple[int, ...]) -> Cells:
    """Return three lines a row: published, ours, and the difference; for readings a line each, see below."""
    if paper.ours:
        return readings(paper, cells, scale, seeds)
    places = [(column.name, value) for column in paper.columns for value in column.paths]
    digits = {place: printed_digits(paper, place) for place in places}
    rows = []
    for row in paper.rows:
        texts = [row.published[place].text if place in row.published else NOTHING for place in places]
        rows.append([row.label + COPIED * row.copied, *texts])
        ours, apart = [], []
        for column, value in places:
            cell, printed = cells[row.label, column], row.published.get((column, value))
            numbers = [paper.factor(value) * each for each in cell.values[value]]
            some = f" ({len(numbers)} of {len(seeds)} seeds)" if 0 < len(numbers) < len(seeds) else ""
            ours.append((mean_and_deviation(numbers, digits[column, value]) or cell.missing or NOTHING) + some)
            compared = bool(numbers) and scale != "smoke"
            apart.append(
                ours_minus_published(numbers, printed, digits[column, value]) if printed and compared else NOTHING
            )
        rows.append(["  ours", *ours])
        if set(apart) != {NOTHING}:
            rows.append([DIFFERENCE, *apart])
    header = [""]
    for each in paper.columns:
        header += [f"{each.name} {value}" if len(each.paths) > 1 else each.name for value in each.paths]
    compared = any(row[0] == DIFFERENCE for row in rows)
    legend = ["difference: ours minus published, from unrounded means"] if compared else []
    return Cells(paper.title, header, rows, [*notes(paper, cells, scale, seeds), *legend])


def readings(paper: Paper, cells: dict[tuple[str, str], TableCell], scale: str, seeds: tuple[int, ...]) -> Cells:
    """Return a line for each column of a table that no paper has, or for each row where there is one column.

    There is nothing to compare with but the other lines.
    """
    values = list(dict.fromkeys(value for column in paper.columns for value in column.paths))

    def text(row: TableRow, column: TableColumn, value: str) -> str:
        cell = cells[row.label, column.name]
        numbers = [paper.factor(value) * each for each in cell.values.get(value, [])]
        return mean_and_deviation(numbers, printed_digits(paper, (column.name, value))) or cell.missing or NOTHING

    if len(paper.columns) == 1:
        header = ["", *values]
        lines = [[row.label, *(text(row, paper.columns[0], value) for value in values)] for row in paper.rows]
    else:
        places = list(product(paper.rows, values))
        header = ["", *(f"{row.label} {value}" for row, value in places)]
        lines = [[column.name, *(text(row, column, value) for row, value in places)] for column in paper.columns]
    return Cells(paper.title, header, lines, notes(paper, cells, scale, seeds))


def printed_digits(paper: Paper, place: tuple[str, str]) -> int:
    """Return the number of decimals that the paper prints there, or anywhere."""
    every = {where: number.decimals for row in paper.rows for where, number in row.published.items()}
    return every.get(place, max(every.values(), default=2))


def mean_and_deviation(numbers: list[float], digits: int) -> str:
    """Return the mean over seeds, and their sample deviation where there are several."""
    if not numbers:
        return ""
    mean = f"{statistics.fmean(numbers):.{digits}f}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.{digits}f}"


def ours_minus_published(numbers: list[float], printed: PublishedNumber, digits: int) -> str:
    """Return ours minus published."""
    return f"{statistics.fmean(numbers) - printed.value:+z.{digits}f}"


def notes(paper: Paper, cells: dict[tuple[str, str], TableCell], scale: str, seeds: tuple[int, ...]) -> list[str]:
    """Return notes: what the numbers are, what the paper leaves open, and why some are missing."""
    what = "not in the paper" if paper.ours else "first line: as published; ours"
    setting = "" if paper.ours and scale == "full" else f": {SCALES[scale]}"  # readings differ from the paper's setting
    which = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    means = ", mean ± standard deviation" if len(seeds) > 1 else ""
    means += ", without ±: one of them" if means and paper.ours else ""
    result = [f"{what}{setting}; {which}{means}"]
    own = [] if paper.ours else [column.name for column in paper.columns if column.ours]
    result += [f"{name}: a column of ours, which the paper's table does not have" for name in own]
    if scale == "smoke" and not paper.ours:
        result.append("published numbers are shown for the layout alone: there is nothing to compare")
    meanings: dict[str, None] = {}
    for column in paper.columns:
        whole = paper.common(column).rounds
        paths = {value: path_at_scale(path, whole, shortened(whole, scale)) for value, path in column.paths.items()}
        meanings |= dict.fromkeys(f"{value} = {path}" for value, path in paths.items())
    result.append(f"in the names of a run's files: {', '.join(meanings)}")
    judged = {row.judged for row in paper.rows}
    if "judged" in result[-1]:
        groups = (
            f"{moment} of {', '.join(r.label for r in paper.rows if r.judged == moment)}" for moment in sorted(judged)
        )
        how = "judged as the paper does, not all at one moment" if len(judged) > 1 else "judged"
        result.append(f"{how}: {'; '.join(groups)}")
    result += paper.notes
    result += [f"{row.label}: {row.note}" for row in paper.rows if row.note]
    if any(row.copied for row in paper.rows):
        result.append(
            f"rows with {COPIED}: the paper copied them from other papers, whose models and protocols differ: no target"
        )
    reasons: dict[str, dict[str, None]] = {}  # why, and in which columns
    for (label, name), cell in cells.items():
        if cell.reason:
            where = name if cell.missing == "no data" else f"{label}, {name}"
            reasons.setdefault(f"{cell.missing}: {cell.reason}", {})[where] = None
    if any(cell.missing == "not run" for cell in cells.values()):
        result.append("not run: more rows than this scale takes; --rows chooses")
    return [*result, *(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())]


def paper_latex(paper: Paper, cells: Cells) -> str:
    """Return LaTeX with the rules of booktabs; a first line of the head joins the values of a column."""
    single = paper.ours or all(len(column.paths) == 1 for column in paper.columns)
    head = [latex_row(cells.header)]
    if not single:
        sizes = [len(column.paths) for column in paper.columns]
        joined = [
            f"\\multicolumn{{{size}}}{{c}}{{{escaped(c.name)}}}" for c, size in zip(paper.columns, sizes, strict=True)
        ]
        starts = [2 + sum(sizes[:number]) for number in range(len(sizes))]
        rules = " ".join(f"\\cmidrule(lr){{{s}-{s + size - 1}}}" for s, size in zip(starts, sizes, strict=True))
        names = ["", *(value for column in paper.columns for value in column.paths)]
        head = [" & ".join(["", *joined]) + r" \\", rules, latex_row(names)]
    body: list[str] = []
    for first, lines in groupby(cells.rows, key=lambda row: not row[0].startswith("  ")):
        body += [*([r"\addlinespace"] if first and body else []), *map(latex_row, lines)]
    return latex_tabular(cells, head, body)
