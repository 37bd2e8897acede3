"""Tables for a paper: with the rules of booktabs, and names that may hold any sign."""

from collections.abc import Sequence

from partwise.reporting.tables import Cells

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def to_latex(cells: Cells) -> str:
    """Return a table whose best value in each ranked column is bold and whose second best is underlined."""
    rows = cells.marked((r"\textbf{", "}"), (r"\underline{", "}"), escaped)
    return latex_tabular(cells, [latex_row(cells.header)], [" & ".join(row) + r" \\" for row in rows])


def latex_tabular(cells: Cells, head: Sequence[str], body: Sequence[str]) -> str:
    """Return a head and a body between the rules; title and notes are comments above."""
    comments = [f"% {line}" for line in (cells.title, *cells.above, *cells.notes, r"needs \usepackage{booktabs}")]
    table = ["\\begin{tabular}{l" + "r" * (len(cells.header) - 1) + "}", r"\toprule", *head, r"\midrule", *body]
    return "\n".join([*comments, *table, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_row(cells: Sequence[str]) -> str:
    """Return a line of a table; a name that is indented stays so."""
    first = ("\\quad " if cells[0].startswith("  ") else "") + escaped(cells[0].strip())
    return " & ".join([first, *map(escaped, cells[1:])]) + r" \\"


def escaped(text: str) -> str:
    """Return a text in which no letter is a command."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
