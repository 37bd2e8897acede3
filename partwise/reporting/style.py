"""How everything that is drawn looks: one list of colours, dashes and marks for the page, for pictures and notebooks.

Okabe and Ito's colours and Tol's muted ones: all kinds of eyes tell them apart.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Colour(NamedTuple):
    """A colour in two shades."""

    light: str  # on a light page and in print
    dark: str  # on a dark page


class Dash(NamedTuple):
    """A kind of line."""

    matplotlib: Any
    svg: str  # lengths of strokes and gaps in a swatch


class Mark(NamedTuple):
    """The mark of a point."""

    matplotlib: str
    svg: str  # in a swatch of 26 x 12


# By the names of the page's CSS variables; `c` colours are those of series, `m` ones of classes, groups and parts.
COLOURS = {
    "c0": Colour("#0072B2", "#4FA8DE"),
    "c1": Colour("#D55E00", "#F08748"),
    "c2": Colour("#009E73", "#2FC79C"),
    "c3": Colour("#CC79A7", "#E5A3C8"),
    "c4": Colour("#56B4E9", "#9BD7FA"),
    "c5": Colour("#E69F00", "#F4BC42"),
    "c6": Colour("#404040", "#CDD3DC"),
}
MUTED = {
    "m0": Colour("#332288", "#8E86E0"),
    "m1": Colour("#DDCC77", "#E8DA90"),
    "m2": Colour("#117733", "#4FB56F"),
    "m3": Colour("#CC6677", "#E08A98"),
    "m4": Colour("#88CCEE", "#A5DCF5"),
    "m5": Colour("#882255", "#D0669E"),
    "m6": Colour("#44AA99", "#6CCBBD"),
    "m7": Colour("#999933", "#C4C45C"),
    "m8": Colour("#AA4499", "#D47BCB"),
    "m9": Colour("#808080", "#B0B0B0"),
}
PALE_MUTED = ("m1", "m4")  # on which white letters cannot be read

# By plotly's names.
DASHES = {
    "solid": Dash("-", ""),
    "dash": Dash((0, (4, 1.5)), "5 3"),
    "dot": Dash((0, (1, 1.2)), "1.5 3"),
    "dashdot": Dash((0, (4, 1.5, 1, 1.5)), "5 2 1.5 2"),
    "longdash": Dash((0, (8, 2)), "9 3"),
}
MARKS = {
    "circle": Mark("o", '<circle cx="13" cy="6" r="3.6"/>'),
    "triangle-up": Mark("^", '<path d="M13 1.8 17.2 9.6H8.8Z"/>'),
    "square": Mark("s", '<rect x="9.6" y="2.6" width="6.8" height="6.8"/>'),
    "diamond": Mark("D", '<path d="M13 1.4 17.6 6 13 10.6 8.4 6Z"/>'),
    "triangle-down": Mark("v", '<path d="M13 10.2 8.8 2.4H17.2Z"/>'),
    "cross": Mark("P", '<path d="M11.4 1.8h3.2v2.6h2.6v3.2h-2.6v2.6h-3.2V7.6H8.8V4.4h2.6Z"/>'),
}

# Who shares a part: the background and the letters; whatever has none of these is pale.
SHARES = {
    "all": ("#0072B2", "#FFFFFF"),
    "group": ("#006F51", "#FFFFFF"),
    "mix": ("#8A3F70", "#FFFFFF"),
    "server": ("#9A4300", "#FFFFFF"),
    "guide": ("#56B4E9", "#06273B"),
}


class Look(NamedTuple):
    """A colour, a dash and a mark, by their names above."""

    colour: str
    dash: str = "solid"
    mark: str = "circle"
    series: int | None = None  # the number of the series that it belongs to; None: of no series

    @property
    def ink(self) -> str:
        """Return the colour in print."""
        return (COLOURS | MUTED)[self.colour].light


def look(series: int) -> Look:
    """Return how a series looks: as many looks as there are combinations of colours, dashes and marks."""
    return Look(nth(COLOURS, series), nth(DASHES, series), nth(MARKS, series), series)


def muted(number: int) -> Look:
    """Return how a class, a group or a part looks: a colour, and another mark once all colours are used."""
    return Look(nth(MUTED, number), mark=nth(MARKS, number // len(MUTED)))


def nth(names: Mapping[str, object], number: int) -> str:
    """Return a name of a table, going round."""
    return list(names)[number % len(names)]


def css() -> str:
    """Return the colours as CSS: variables for light and dark pages, and the classes of shares."""
    light, dark = (
        " ".join(f"--{name}: {colour[theme]};" for name, colour in (COLOURS | MUTED).items()) for theme in (0, 1)
    )
    shares = (f".share.{name} {{ background: {back}; color: {ink}; }}" for name, (back, ink) in SHARES.items())
    return "\n".join([f":root {{ {light} }}", f':root[data-theme="dark"] {{ {dark} }}', *shares]) + "\n"
