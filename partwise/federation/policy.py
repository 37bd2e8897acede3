"""What a silo allows: the [allow] table of its own file. What is not allowed there is refused, whoever asks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from partwise.errors import ConfigError
from partwise.options import option
from partwise.privacy.histograms import FEWEST_ON_NODES
from partwise.rounds.plan import hands_on
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
    min_clients: int = option(2, "Fewest silos behind every mean that this silo takes part in.", minimum=1)
    relay: bool = option(False, "Let other silos receive this silo's own model: relays, mixes, small groups.")
    min_class_count: int = option(FEWEST_ON_NODES, "Fewest samples of a class or text that is told.", minimum=1)
    names: tuple[str, ...] = option((), "Class names and texts of columns that are public, however rare they are.")
    min_train_samples: int = option(20, "Fewest training samples behind anything that leaves.", minimum=1)
    min_test_samples: int = option(20, "Fewest test samples behind a score that leaves.", minimum=1)
    loss: Literal["no", "rounded", "exact"] = option("no", "Training losses: kept here, three digits, or exact.")
    scores: Literal["no", "rounded", "exact"] = option("rounded", "Scores on test samples: likewise.")
    min_batch: int = option(8, "Smallest mini-batch of a run.", minimum=1)
    most_clip: float | None = option(None, "Largest upload_clip of a run; unset: any, or none.", minimum=0.0)
    least_noise: float = option(0.0, "Smallest upload_noise of a run, in clips.", minimum=0.0)
    most_dp_clip: float | None = option(None, "Largest dp_clip of a run (DP-SGD); unset: any, or none.", minimum=0.0)
    least_dp_noise: float = option(0.0, "Smallest dp_noise of a run (DP-SGD), in dp_clips.", minimum=0.0)
    most_epsilon: float | None = option(None, "Largest epsilon of all runs together; unset: any.", above=0.0)
    most_rounds: int | None = option(None, "Most rounds of a run; unset: any number.", minimum=1)
    most_runs: int | None = option(None, "Most runs that this silo takes part in; unset: any number.", minimum=1)

    def check(self, simulation: Simulation, who: str) -> None:
        """Refuse a run that would take more from here than is allowed."""
        config = simulation.config
        robust = simulation.server.safeguards.robust
        krum = f"robust = {robust} may take one client's model for the mean" if robust and robust.kind == "krum" else ""
        if not self.relay and (what := krum or hands_on(config.method, simulation.server.plans)):
            raise ConfigError(
                f"{who} allows no {label(config.name)}, where {what}: its [allow] does not say relay = true"
            )
        self.check_leaving({name.split(".")[0] for plan in simulation.server.plans for name in plan.up}, config, who)
        clip, noise = config.privacy.upload_clip, config.privacy.upload_noise
        if self.most_clip is not None and (clip is None or clip > self.most_clip):
            raise ConfigError(f"{who} wants upload_clip of at most {self.most_clip:g}, the run has {clip}")
        if noise < self.least_noise:
            raise ConfigError(f"{who} wants upload_noise from {self.least_noise:g} on, the run has {noise:g}")

    def check_company(self, hosts: Sequence[str], kept: Any, who: str) -> None:
        """Refuse a run with too few silos, and a server that makes means over fewer.

        `hosts` is the silo of each client, `kept` the fewest silos of a mean, as the server says.
        """
        silos = len(set(hosts))
        if silos < self.min_clients:
            raise ConfigError(f"{who} wants {self.min_clients} silos at least, the run has {silos}")
        if type(kept) is not int or kept < self.min_clients:
            raise ConfigError(f"{who} wants {self.min_clients} silos behind every mean, the server keeps to {kept}")

    def check_leaving(self, leaving: Collection[str], config: Config, who: str) -> None:
        """Refuse parts and extras that may not leave."""
        more = sorted(set(leaving) - set(self.parts))
        if ANY not in self.parts and more:
            allowed = ", ".join(self.parts)
            raise ConfigError(f"{who} lets {allowed} leave, and {label(config.name)} uploads {', '.join(more)}")
