"""What a silo allows: the [allow] table of its own file. What is not allowed there is refused, whoever asks."""

from collections.abc import Collection
from dataclasses import dataclass

from partwise.errors import ConfigError
from partwise.options import option
from partwise.privacy.histograms import FEWEST_ON_NODES
from partwise.runs.config import Config, label
from partwise.runs.simulation import Simulation

ANY = "*"


@dataclass(frozen=True)
class Allowed:
    """What a silo lets others do with it."""

    methods: tuple[str, ...] = option((ANY,), "Methods that may train here; '*': all that partwise brings.")
    files: tuple[str, ...] = option((), "Method files of one's own that may train here: they are code.")
    data: tuple[str, ...] = option((), "With `hosts`: files and folders that the server may name.")
    parts: tuple[str, ...] = option((ANY,), "Parts and extras that may leave, as 'body'; '*': all.")
    min_clients: int = option(2, "Fewest clients of a run, so that no mean is of this silo alone.", minimum=1)
    min_class_count: int = option(FEWEST_ON_NODES, "Fewest samples of a class of which anything is told.", minimum=1)
    most_clip: float | None = option(None, "Largest norm of an upload; unset: any.", minimum=0.0)
    least_noise: float = option(0.0, "Least noise on uploads, in clips.", minimum=0.0)

    def check(self, simulation: Simulation, who: str) -> None:
        """Refuse a run that would take more from here than is allowed."""
        config = simulation.config
        if simulation.federation.clients < self.min_clients:
            raise ConfigError(
                f"{who} wants {self.min_clients} clients at least, the run has {simulation.federation.clients}"
            )
        self.check_leaving({name.split(".")[0] for plan in simulation.server.plans for name in plan.up}, config, who)
        clip, noise = config.privacy.upload_clip, config.privacy.upload_noise
        if self.most_clip is not None and (clip is None or clip > self.most_clip):
            raise ConfigError(f"{who} wants upload_clip of at most {self.most_clip:g}, the run has {clip}")
        if noise < self.least_noise:
            raise ConfigError(f"{who} wants upload_noise from {self.least_noise:g} on, the run has {noise:g}")

    def check_leaving(self, leaving: Collection[str], config: Config, who: str) -> None:
        """Refuse parts and extras that may not leave."""
        more = sorted(set(leaving) - set(self.parts))
        if ANY not in self.parts and more:
            allowed = ", ".join(self.parts)
            raise ConfigError(f"{who} lets {allowed} leave, and {label(config.name)} uploads {', '.join(more)}")
