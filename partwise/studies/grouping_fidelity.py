"""How much filters change a grouping: the groups that exact descriptions would have given, beside those of the run.

Only a simulation can know. Clients describe their samples once more, unfiltered, to a copy of the server that is thrown
away, and the method groups them by that.
"""

import copy
import logging
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partwise.errors import needed
from partwise.rounds.ledger import Ledger
from partwise.rounds.messages import Job, Updates
from partwise.rounds.mixing import checked_groups
from partwise.rounds.server import Server
from partwise.runs.observers import Observer, Seen

if TYPE_CHECKING:
    from torch import Tensor

    from partwise.runs.simulation import Simulation

log = logging.getLogger(__name__)


class TellAgreement(Observer):
    """Compare the run's groups with those that exact descriptions of clients' samples would have given."""

    def __init__(self) -> None:
        self.watches = False
        self.memory: dict[str, object] | None = None  # of a server that gets exact descriptions
        self.groups: Tensor | None = None  # those that were compared last
        self.found: dict[int, list[float]] = {}  # the index of every grouping, by stage

    def begin(self, simulation: "Simulation") -> None:
        """Watch a run whose clients describe their samples through filters."""
        self.watches = simulation.server.filters is not None and simulation.program.has("describe")

    def round(self, seen: Seen) -> None:
        """Compare groups that are new."""
        if not self.watches or seen.groups is None or seen.groups is self.groups:
            return
        self.groups, server = seen.groups, seen.simulation.server
        told = ToldExactly(server, self.memory)
        if self.memory is None:
            try:
                server.method.begin(told, told.run)
            except Trains:  # there is no second training to compare with
                self.watches = False
                return
            self.memory = told.memory
        cohort, who = server.plan.stage.cohort, server.eligible
        exact = checked_groups((server.method.groups if cohort is None else cohort.groups)(told), server.clients)
        index = needed("sklearn.metrics", "privacy").adjusted_rand_score(exact[who], seen.groups[who])
        self.found.setdefault(server.plan.number, []).append(float(index))

    def end(self, last: Seen | None) -> None:
        """Note the mean agreement of each stage."""
        for stage, indices in self.found.items():
            mean, where = statistics.mean(indices), f" of stage {stage + 1}"
            line = f"groups{where}: adjusted Rand index {mean:.3f} to those that exact descriptions give"
            if last is not None:
                last.simulation.notes.append(line)
                log.warning(line)


class Trains(Exception):
    """A method that trains before the first round."""


class ToldExactly(Server):
    """A copy of a server after the round just finished, which gets exact descriptions and counts nothing."""

    def __init__(self, server: Server, memory: dict[str, object] | None):
        vars(self).update(vars(server))
        self.filters = self.accountant = None
        self.memory = {} if memory is None else copy.deepcopy(memory)
        self.copies, self.asked, self.events, self.round = dict(server.copies), [], [], server.round - 1
        self.ledger = Ledger({name: copies.values for name, copies in server.copies.items()})

    def run(self, job: Job, who: Sequence[int] | str) -> Updates:
        """Ask clients for something that changes nothing at them."""
        if job == "train":
            raise Trains
        return super().run(job, who)
