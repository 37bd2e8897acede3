"""One page for a browser: everything that some runs left behind, in one file that asks the network for nothing."""

import json
from collections.abc import Sequence
from importlib import resources

from partwise.errors import needed
from partwise.reporting.amounts import amount
from partwise.reporting.methods import share_kind, share_words
from partwise.reporting.page import facts
from partwise.reporting.page.board import board, shown_columns
from partwise.reporting.page.headline import page_head
from partwise.reporting.page.swatches import swatch
from partwise.reporting.page.traces import chart_json, height
from partwise.reporting.reading import RunFiles
from partwise.reporting.series import ranked_series, series_of
from partwise.reporting.style import css
from partwise.reporting.views.charts import charts_of
from partwise.version import __version__

REFRESH = 10  # seconds after which a live page is loaded again


def render(runs: Sequence[RunFiles], live: bool = False) -> str:
    """Return the page of some runs as HTML; `live`: it loads itself again."""
    jinja2 = needed("jinja2", "report")
    library = needed("plotly.offline", "report").get_plotlyjs()
    Markup = needed("markupsafe", "report").Markup
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    series = series_of(runs)
    rows = ranked_series(series)
    charts = charts_of(series, rows)
    sharing = [picture.view for chart in charts.pop("sharing") for picture in chart.pictures]
    shown = {chart.key: chart_json(chart) for own in charts.values() for chart in own}
    return environment.from_string(asset("page.html")).render(
        live=REFRESH if live else 0,
        head=page_head(series, rows),
        series=series,
        columns=shown_columns(rows),
        board=board(rows),
        charts=charts,
        height=height,
        sharing=sharing,
        leaving=facts.leaving_rows(series),
        events=facts.events(series),
        facts=facts.facts(runs, series),
        swatch=lambda number: Markup(swatch(number)),
        kind=share_kind,
        words=share_words,
        amount=amount,
        version=__version__,
        css=Markup(asset("page.css") + css()),
        script=Markup(asset("page.js")),
        plotly=Markup(script_text(library)),
        data=Markup(embedded(shown)),
    )


def asset(name: str) -> str:
    """Return a file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def embedded(value: object) -> str:
    """Return JSON for a page: no name in it can end the element that holds it, or begin one."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode("utf-8", "replace").decode()


def script_text(library: str) -> str:
    """Return a script for a page: nothing in its texts ends the element."""
    return library.replace("</script", "<\\/script")
