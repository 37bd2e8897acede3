"""The picture of docs/reproduction.md: published numbers and ours."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.reproduction_page import TITLES, Table
from partwise.reporting.drawing import COLOURS, GREY, MARKS, TEXT, canvas, key, save


def draw(tables: dict[str, Table], path: Path) -> None:
    """Published against ours: a dot a value, a colour and a mark a paper."""
    figure, axes = canvas(path, 5, 5, "published, and ours, in %")
    axes.plot((0, 100), (0, 100), color=GREY, lw=0.8, zorder=1)
    shown = list(dict.fromkeys(name.partition("/")[0] for name, table in tables.items() if table.filled))
    looks = {paper: (MARKS[at], COLOURS[at]) for at, paper in enumerate(TITLES)}
    for table in tables.values():
        mark, colour = looks[table.paper.name.partition("/")[0]]
        for published, ours, copied in dots(table):
            inside = "none" if copied else colour
            axes.scatter(published, ours, 16, inside, marker=mark, edgecolors=colour, lw=0.8, zorder=2)
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.set_xlabel("published", **TEXT)
    axes.set_ylabel("ours", **TEXT)
    axes.text(12, 14, "as published", rotation=45, rotation_mode="anchor", **TEXT)
    key(figure, [(TITLES[paper], *looks[paper]) for paper in shown])
    save(figure, path)


def dots(table: Table) -> Iterator[tuple[float, float, bool]]:
    """What is in percent, and no single client's: which client has which data is drawn by lot."""
    for row in table.paper.rows:
        for column in table.paper.columns:
            for value, path in column.show.items():
                found = table.cells[row.label, column.name].values[value]
                printed = row.published.get((column.name, value))
                if found and printed and table.paper.factor(value) == 100 and not path.startswith("clients."):
                    yield printed.value, 100 * sum(found) / len(found), row.copied
