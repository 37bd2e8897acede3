"""Results against each other, in Python: a leaderboard, and their curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from partwise.errors import ConfigError, needed
from partwise.records.record import Json
from partwise.records.rounds import RoundRecord
from partwise.runs.result import Result
from partwise.studies.jobs import KeptRun
from partwise.studies.leaderboard import differences, standings

if TYPE_CHECKING:
    from partwise.reporting.tables import Cells

SHARED = ("data", "clients", "partition", "moment", "metric")  # in runs that can be compared


class Comparison:
    """Finished runs of several methods, each with one seed or several, on the same problem."""

    def __init__(self, results: Sequence[Result | KeptRun]):
        self.results = list(results)
        self.summaries = [result.summary for result in self.results]
        if not self.results:
            raise ConfigError("a comparison needs at least one result")
        first, named = self.summaries[0], set[tuple[str, int]]()
        for summary in self.summaries:
            for name in SHARED:
                here, there = getattr(first, name), getattr(summary, name)
                if here != there:
                    raise ConfigError(f"results of {name} = {here} and {there} cannot be compared")
            if (summary.method, summary.seed) in named:
                raise ConfigError(
                    f"two results have the method '{summary.method}' and seed {summary.seed}; leave one out"
                )
            named.add((summary.method, summary.seed))

    @property
    def standings(self) -> list[Json]:
        """Return a row for every method, the best first, as in leaderboard.csv."""
        return [standing.as_row() for standing in standings(self.summaries)]

    def to_pandas(self) -> Any:
        """Return the standings as a pandas DataFrame."""
        return needed("pandas", "tables").DataFrame(self.standings)

    def plot(self, moment: str | None = None, axes: Any = None) -> Any:
        """Draw every method's metric over rounds, the mean of its seeds in a band of their deviation; the axes.

        `moment` is `received`, `trained` or another; unset: the one at which the methods are compared.
        """
        from partwise.reporting.curves import draw_curves  # needs matplotlib; a comparison does not

        runs: dict[str, list[list[RoundRecord]]] = {standing.method: [] for standing in standings(self.summaries)}
        for result in self.results:
            runs[result.summary.method].append(result.rounds)
        first = self.summaries[0]
        return draw_curves(runs, moment or first.moment, first.metric, axes)

    def __repr__(self) -> str:
        methods = [standing.method for standing in standings(self.summaries)]
        return f"<Comparison of {', '.join(methods)}: {len(self.results)} runs>"

    def __str__(self) -> str:
        """Return the leaderboard as text."""
        return self.leaderboard().to_text()

    def _repr_html_(self) -> str:
        """Return the leaderboard as HTML, for notebooks."""
        return self.leaderboard().to_html()

    def leaderboard(self) -> "Cells":
        """Return the leaderboard as a table."""
        from partwise.reporting.tables import leaderboard  # needs rich; a comparison does not

        seeds = len({summary.seed for summary in self.summaries})
        settings = differences([result.config for result in self.results])
        return leaderboard(standings(self.summaries), self.summaries[0], settings, seeds)
