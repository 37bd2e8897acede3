"""The charts of runs: which views there are, in which order, and what is said of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from partwise.records.names import capital, model_at
from partwise.reporting.series import Series, SeriesStanding
from partwise.reporting.views import measured
from partwise.reporting.views.kinds import Curves, Line, View
from partwise.reporting.views.sharing import sharing
from partwise.tasks import TASKS, Classes


@dataclass(frozen=True)
class Picture:
    """One of the views that a chart can show."""

    file: str  # the name of its file, where it is drawn alone
    name: str  # what it is called beside the chart's other views
    view: View


@dataclass(frozen=True)
class Chart:
    """Views of one kind; the page shows one at a time."""

    key: str
    title: str
    about: str  # how to read it
    pictures: Sequence[Picture]

    @property
    def spoken(self) -> str:
        """Return the text for screen readers."""
        return f"{self.title}. {self.about} The numbers are in the table below the chart."


def charts_of(series: Sequence[Series], rows: Sequence[SeriesStanding]) -> dict[str, list[Chart]]:
    """Return the charts of each section of the page, in its order; those without anything to show are left out."""
    found = {
        "rounds": [rounds_chart(series)],
        "clients": client_charts(series),
        "costs": [cost_chart(rows, "bytes", "B"), cost_chart(rows, "flops", "FLOP")],
        "partition": [partition_chart(series)],
        "sharing": [sharing_chart(series)],
        "groups": [groups_chart(series)],
        "representations": representation_charts(series),
        "ledger": [ledger_chart(series)],
    }
    return {section: [chart for chart in charts if chart.pictures] for section, charts in found.items()}


def rounds_chart(series: Sequence[Series]) -> Chart:
    """Return the metric over rounds, a view for every moment."""
    views = {moment: measured.metric_lines(series, moment) for moment in measured.moments_over_rounds(series)}
    metric = measured.metric_of(series)
    return Chart(
        "rounds",
        f"{capital(metric.title)} over rounds",
        "The mean over seeds; a band of one standard deviation; a diamond where a stage begins.",
        [Picture(f"rounds {moment}", model_at(moment), view) for moment, view in views.items() if view.lines],
    )


def client_charts(series: Sequence[Series]) -> list[Chart]:
    """Return how clients differ: in ascending order, and as distributions."""
    ranked, boxes = measured.client_lines(series), measured.client_boxes(series)
    return [
        Chart(
            "clients",
            "Clients in ascending order",
            f"How {'high' if measured.metric_of_clients(series).lower else 'low'} the worst clients are, and how many "
            "are well off.",
            [Picture("clients", "", ranked)] if ranked.lines else [],
        ),
        Chart(
            "distribution",
            "Distribution over clients",
            "The box holds the middle half of the clients of all seeds, the line in it is their median.",
            [Picture("distribution", "", boxes)] if boxes.boxes else [],
        ),
    ]


def cost_chart(rows: Sequence[SeriesStanding], of: str, unit: str) -> Chart:
    """Return what ranks against cost, empty where nothing can be compared."""
    across, title = ("bytes sent in the whole run", "bytes") if of == "bytes" else ("FLOPs", "FLOPs")
    view = measured.cost_points(rows, of, across, unit)
    compared = len(view.points) > 1 and any(point.cost for point in view.points)
    return Chart(
        of,
        f"{capital(view.quantity)} against {title}",
        f"{'Down' if view.lower else 'Up'} and to the left is better; {'above' if view.lower else 'below'} the dashed "
        "line another method does better for no more.",
        [Picture(of, "", view)] if compared else [],
    )


def partition_chart(series: Sequence[Series]) -> Chart:
    """Return who has what, a view for every division of the data."""
    task = next((TASKS[run.task] for each in series for run in each.runs), Classes)
    bins = f" A {task.bin_word}: {task.bins_are}." if task.bins_are else ""
    return Chart(
        "partition",
        "Who has what",
        f"The area of a bubble is the number of training samples.{bins}",
        [Picture(f"partition {view.title}", view.title, view) for view in measured.partitions(series)],
    )


def sharing_chart(series: Sequence[Series]) -> Chart:
    """Return who shares each part."""
    view = sharing(series)
    about = "A row for every method and stage, a column for every part."
    return Chart("sharing", "Who shares what", about, [Picture("sharing", "", view)] if view.rows else [])


def groups_chart(series: Sequence[Series]) -> Chart:
    """Return the groups of clients, a view for every method that has some."""
    return Chart(
        "groups",
        "Groups that were found",
        "A column is a client, a row a round after which groups were others than before; a colour is a group.",
        [Picture(f"groups {name}", name, view) for name, view in measured.groups_by_series(series).items()],
    )


def representation_charts(series: Sequence[Series]) -> list[Chart]:
    """Return the similarity of clients' features, and the separation of classes in them."""
    found = measured.measured_representations(series)
    of_maps = [each.similarity for each in found]
    of_clouds = [each.clouds for each in found if each.clouds]
    return [
        measure_chart(
            "cka", "CKA between clients", "the features of every two clients are alike.", [e.cka for e in found]
        ),
        measure_chart(
            "separation",
            "class separation",
            "samples of a class lie together, and those of others elsewhere.",
            [each.separation for each in found],
        ),
        Chart(
            "similarity",
            "CKA of every two clients",
            "The darker, the more alike, in the end.",
            [Picture(f"similarity {view.title}", view.title, view) for view in of_maps],
        ),
        Chart(
            "t-sne",
            "Samples on a plane (t-SNE)",
            "Test samples of all clients, near each other where their features are; a colour and mark is a class.",
            [Picture(f"t-sne {name}", name, view) for view in of_clouds for name in view.panels],
        ),
    ]


def measure_chart(key: str, quantity: str, of_one: str, lines: Sequence[Line | None]) -> Chart:
    """Return a number of representations over rounds; `of_one` says what 1 means."""
    known = [line for line in lines if line is not None]
    view = Curves(known, quantity, quantity=quantity, percent=False)
    about = f"1: {of_one} Of the first seed."
    return Chart(key, capital(quantity), about, [Picture(key, "", view)] if known else [])


def ledger_chart(series: Sequence[Series]) -> Chart:
    """Return bytes by part."""
    view = measured.ledgers(series)
    return Chart(
        "ledger",
        "Bytes by part",
        "Plain bars went down to the clients, hatched ones up to the server; what is sent once is apart.",
        [Picture("ledger", "", view)] if view.parts else [],
    )
