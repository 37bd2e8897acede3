"""Every chart of some runs as a picture."""

from collections.abc import Iterable
from pathlib import Path

from partwise.reporting.figures import draw_view
from partwise.reporting.views.charts import Chart


def draw_all(charts: Iterable[Chart], out: Path, ending: str) -> list[Path]:
    """Write every picture of some charts into a folder, and return the files."""
    drawn = []
    for picture in (picture for chart in charts for picture in chart.pictures):
        drawn.append(out / f"{file_name(picture.file)}.{ending}")
        draw_view(picture.view, drawn[-1])
    return drawn


def file_name(name: str) -> str:
    """Return a name that may hold anything as that of a file."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name).split()) or "picture"
