"""What all pictures share: quiet axes, looks in matplotlib's words, names that may be anything, files."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.errors import ConfigError, needed
from partwise.reporting.style import DASHES, MARKS, Look
from partwise.writing import write

Style = dict[str, Any]  # matplotlib's keywords

PICTURE_ENDINGS = (".png", ".svg", ".pdf")
DARK, GREY, LIGHT, PALE = "#404040", "#808080", "#e8e8e8", "#f6f6f6"
LINE_HEIGHT, LETTER = 0.138, 0.075  # inches: the height of a line of text, and the width of a letter
NAME_HEIGHT = 1.25 * LINE_HEIGHT  # the room of a name in a column of them
ROW_HEIGHT = 0.34  # inches of a row of boxes, bars or cells
TEXT_STYLE: Style = {"fontsize": 8, "color": DARK, "parse_math": False}  # names are texts, whatever signs they hold


def canvas(width: float, height: float, title: str = "", pad: float = 10) -> tuple[Any, Any]:
    """Return a figure and its axes, in inches; names and keys lie outside, and a tight box around all is saved."""
    Figure = needed("matplotlib.figure", "plots").Figure  # alone it needs no display and changes no user's setting
    figure = Figure((width, height))
    axes = quiet_axes(figure.add_axes((0, 0, 1, 1)))
    axes.set_title(short_text(title, 80), loc="left", pad=pad, **{**TEXT_STYLE, "fontsize": 10})
    return figure, axes


def named_rows(names: Sequence[str], width: float = 5.4) -> tuple[Any, Any]:
    """Return a figure and its axes with a row for every name, the first on top."""
    figure, axes = canvas(width, max(1.2, ROW_HEIGHT * len(names)))
    axes.set(ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names, **TEXT_STYLE)
    axes.grid(visible=False, axis="y")
    return figure, axes


def name_axes(axes: Any, across: str = "", up: str = "") -> None:
    """Write the names of the axes."""
    axes.set_xlabel(short_text(across, 80), **{**TEXT_STYLE, "fontsize": 9})
    axes.set_ylabel(short_text(up, 80), **{**TEXT_STYLE, "fontsize": 9})


def stroke(look: Look) -> Style:
    """Return colour and dash of a line."""
    return {"color": look.ink, "linestyle": DASHES[look.dash].matplotlib}


def mark(look: Look) -> str:
    """Return the mark of a point."""
    return MARKS[look.mark].matplotlib


def quiet_axes(axes: Any) -> Any:
    """Remove the frame of axes, put a pale grid behind the drawing, and return them."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=DARK)
    axes.grid(color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def save_figure(figure: Any, path: str | Path) -> Any:
    """Write a picture and return it; a letter that the font lacks becomes a box."""
    if Path(path).suffix.lower() not in PICTURE_ENDINGS:
        raise ConfigError(f"cannot draw '{path}': the name of a picture must end in {', '.join(PICTURE_ENDINGS)}")
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(drawn, format=Path(path).suffix.lower()[1:], dpi=200, bbox_inches="tight", pad_inches=0.2)
    write(path, drawn.getvalue())
    return figure


def short_text(name: object, most: int = 24) -> str:
    """Return a name on one line, not too long, with printable letters alone."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in str(name)).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def spread_out(wanted: Sequence[float], gap: float, high: float = 1.0) -> NDArray[np.float64]:
    """Return places near the wanted ones and in their order, `gap` apart at least, within 0 .. high if they fit."""
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
    """Write names below (and left of) places of `room` inches each; turned, or some left out, if they are too long."""
    texts = [short_text(name) for name in names]
    wide = LETTER * (max(map(len, texts), default=0) + 1.5)
    turned: Style = {}
    if wide > room and texts != [str(number) for number in range(len(texts))]:
        wide, turned = LINE_HEIGHT, {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    step = every(wide / room)
    axes.set_xticks(places[::step], texts[::step], **TEXT_STYLE, **turned)
    if both:
        axes.set_yticks(places[::step], texts[::step], **TEXT_STYLE)


def draw_legend(figure: Any, looks: Mapping[str, Look]) -> None:
    """Write names with their marks and colours right of everything, in as many columns as they need."""
    entries = list(looks.items())
    width, height = figure.get_size_inches()
    left, line = width + 0.2, 1.1 * LINE_HEIGHT
    rows = max(1, int(height / line))
    for start in range(0, len(entries), rows):
        column = entries[start : start + rows]
        wide = LETTER * (max(len(short_text(name, 40)) for name, _ in column) + 4)
        axes = figure.add_axes((left / width, 0, wide / width, 1))
        axes.set(xlim=(0, wide), ylim=(height, 0))
        axes.set_axis_off()
        for number, (name, look) in enumerate(column):
            axes.scatter(0.08, (number + 0.5) * line, 24, look.ink, marker=mark(look), lw=0, clip_on=False)
            axes.text(0.2, (number + 0.5) * line, short_text(name, 40), va="center_baseline", **TEXT_STYLE)
        left += wide


def every(places: float) -> int:
    """Return how many ticks share a label as wide as `places` of them: 1, 2, 5, 10, ..."""
    return next(step for step in round_numbers() if step >= places)


def round_numbers() -> list[int]:
    """Return 1, 2, 5, 10, 20, ..."""
    return [digit * 10**power for power in range(15) for digit in (1, 2, 5)]
