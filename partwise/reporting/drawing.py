"""What all pictures share: quiet axes, colours that everybody can tell apart, names that may be anything, files."""

import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partwise.errors import ConfigError, needed
from partwise.writing import write

ENDINGS = (".png", ".svg", ".pdf")
DARK, GREY, LIGHT, PALE = "#404040", "#808080", "#e8e8e8", "#f6f6f6"
LINE, LETTER = 0.138, 0.075  # inches: the height of a line of text, and the width of a letter
NAME = 1.25 * LINE  # the room of a name in a column of them
TEXT: dict[str, Any] = {"fontsize": 8, "color": DARK, "parse_math": False}  # names are texts, whatever signs they hold

# Okabe and Ito's colours and Tol's muted ones: all kinds of eyes tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#404040")
STYLES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # the first, second and third time that a colour is used
MUTED = ("#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499", "#808080")
MARKS = ("o", "^", "s", "D", "v", "P")  # likewise


def canvas(path: str | Path, width: float, height: float, title: str, pad: float = 10) -> tuple[Any, Any]:
    """A figure and its axes, in inches; names and keys lie outside, and a tight box around all of it is saved."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ConfigError(f"cannot draw '{path}': the name of a picture must end in {', '.join(ENDINGS)}")
    Figure = needed("matplotlib.figure", "plots").Figure  # alone it needs no display and changes no user's setting
    figure = Figure((width, height))
    axes = quiet(figure.add_axes((0, 0, 1, 1)))
    axes.set_title(shown(title, 80), loc="left", pad=pad, **{**TEXT, "fontsize": 10})
    return figure, axes


def quiet(axes: Any) -> Any:
    """Axes without lines but a pale grid behind what is drawn."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=DARK)
    axes.grid(color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def save(figure: Any, path: str | Path) -> Any:
    """Write a picture and return it; a letter that the font lacks becomes a box."""
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(drawn, format=Path(path).suffix.lower()[1:], dpi=200, bbox_inches="tight", pad_inches=0.2)
    write(path, drawn.getvalue())
    return figure


def shown(name: object, most: int = 24) -> str:
    """A name on one line, not too long, without what cannot be printed."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in str(name)).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Line(NamedTuple):
    """A line of a picture: its look, its points as far as they exist, and the number that is told of it, or NaN."""

    name: str
    look: dict[str, Any]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    told: float


def name_lines(axes: Any, lines: Sequence[Line], what: str, digits: int) -> None:
    """Names at the right of the axes, each as high as the number that is told: at a line's end, if it is its last."""
    width, height = axes.figure.get_size_inches()
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    lines = sorted(lines, key=lambda line: -math.inf if math.isnan(line.told) else line.told)
    wanted = [0.0 if math.isnan(line.told) else (line.told - bottom) / (top - bottom) for line in lines]
    places = spread(wanted, NAME / height, 1 - NAME / height)
    column = 1.09 + LETTER * (max((len(shown(line.name)) for line in lines), default=0) + 6) / width
    beside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    text: dict[str, Any] = {"transform": axes.transAxes, "va": "center_baseline", **TEXT}
    for line, at, place in zip(lines, wanted, places, strict=True):
        if line.told in line.y[-1:]:
            across, colour = (line.x[-1] - left) / (right - left), line.look["color"]
            axes.plot((across, 1.03), (at, place), color=colour, lw=0.6, alpha=0.5, zorder=1, **beside)
        axes.plot((1.03, 1.075), (place, place), lw=1.6, **line.look, **beside)
        axes.text(1.09, place, shown(line.name), **text)
        axes.text(column, place, "-" if math.isnan(line.told) else f"{line.told:.{digits}f}", ha="right", **text)
    axes.text(column, max(places, default=1) + NAME / height, what, ha="right", **{**text, "color": GREY})


def spread(wanted: Sequence[float], gap: float, high: float = 1.0) -> NDArray[np.float64]:
    """Places in the order of the wanted ones and near them, `gap` apart at least, within 0 .. high if they fit."""
    order = np.argsort(wanted, kind="stable")
    offsets = gap * np.arange(len(order))
    blocks: list[list[float]] = []  # less their offsets, places must not decrease: those that would meet at their mean
    for value in np.asarray(wanted, dtype=np.float64)[order] - offsets:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    flat = np.array([np.mean(block) for block in blocks for _ in block])
    places = np.empty(len(order))
    places[order] = np.clip(flat, 0, max(0.0, high - gap * (len(order) - 1))) + offsets
    return places


def tick_names(axes: Any, places: Sequence[float], names: Sequence[object], room: float, both: bool = False) -> None:
    """Names below (and left of) what they belong to, `room` inches each; turned, or some left out, if too long."""
    texts = [shown(name) for name in names]
    wide = LETTER * (max(map(len, texts), default=0) + 1.5)
    turned: dict[str, Any] = {}
    if wide > room and texts != [str(number) for number in range(len(texts))]:
        wide, turned = LINE, {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    step = every(wide / room)
    axes.set_xticks(places[::step], texts[::step], **TEXT, **turned)
    if both:
        axes.set_yticks(places[::step], texts[::step], **TEXT)


def key(figure: Any, entries: Sequence[tuple[str, str, str]]) -> None:
    """Names with their marks and colours, right of everything, in as many columns as they need."""
    width, height = figure.get_size_inches()
    left, line = width + 0.2, 1.1 * LINE
    rows = max(1, int(height / line))
    for start in range(0, len(entries), rows):
        column = entries[start : start + rows]
        wide = LETTER * (max(len(name) for name, _, _ in column) + 4)
        axes = figure.add_axes((left / width, 0, wide / width, 1))
        axes.set(xlim=(0, wide), ylim=(height, 0))
        axes.set_axis_off()
        for number, (name, mark, colour) in enumerate(column):
            axes.scatter(0.08, (number + 0.5) * line, 24, colour, marker=mark, lw=0, clip_on=False)
            axes.text(0.2, (number + 0.5) * line, name, va="center_baseline", **TEXT)
        left += wide


def every(places: float) -> int:
    """Which ticks have a label where a label needs the room of so many places: each, every second, fifth, tenth, ..."""
    return next(step for step in round_numbers() if step >= places)


def round_numbers() -> list[int]:
    return [digit * 10**power for power in range(15) for digit in (1, 2, 5)]
