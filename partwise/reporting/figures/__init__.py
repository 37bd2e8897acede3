"""Views as pictures for papers, by matplotlib: one drawer for each kind of view.

Names and keys stand outside the axes; what does not exist leaves a gap.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from partwise.reporting.drawing import save_figure
from partwise.reporting.figures.lines import draw_lines
from partwise.reporting.figures.places import draw_bars, draw_clouds, draw_counts, draw_matrix, draw_points
from partwise.reporting.figures.rows import draw_boxes, draw_groups, draw_shares, draw_stacks
from partwise.reporting.views import kinds

DRAWERS: dict[type[kinds.View], Callable[[Any], Any]] = {
    kinds.Curves: draw_lines,
    kinds.Boxes: draw_boxes,
    kinds.Stacks: draw_stacks,
    kinds.Sharing: draw_shares,
    kinds.GroupChanges: draw_groups,
    kinds.Points: draw_points,
    kinds.SampleCounts: draw_counts,
    kinds.Bars: draw_bars,
    kinds.Similarity: draw_matrix,
    kinds.Clouds: draw_clouds,
}


def figure_of(view: kinds.View) -> Any:
    """Return a view as a matplotlib figure."""
    return DRAWERS[type(view)](view)


def draw_view(view: kinds.View, path: str | Path) -> None:
    """Write a view as a .png, .svg or .pdf."""
    save_figure(figure_of(view), path)
