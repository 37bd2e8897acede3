"""A silo's policy: the [allow] table of its own file. Requests beyond it are refused."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from partwise.errors import ConfigError, nearest, short
from partwise.options import option
from partwise.privacy.histograms import FEWEST_ON_NODES
from partwise.rounds.batches import bounds
from partwise.rounds.plan import MANY_TIMES, ResolvedPhase, hands_on
from partwise.runs.config import Config, label
from partwise.runs.privacy import trained
from partwise.runs.settings import Privacy, Settings
from partwise.runs.simulation import Simulation

ANY = "*"
MOST_SILOS = 100_000  # of a run: a larger number is made up
Telling = Literal["no", "rounded", "exact"]

# What a node with simulated clients allows unless its file says otherwise: there is nobody to protect.
SIMULATED: Settings = {"min_clients": 1, "relay": True, "min_train_samples": 1, "min_test_samples": 1}
SIMULATED |= {"loss": "exact", "scores": "exact", "min_batch": 1}


@dataclass(frozen=True)
class Allowed:
    """The permissions that a silo grants."""

    methods: tuple[str, ...] = option((ANY,), "Methods that may train here; '*': all that partwise brings.")
    files: tuple[str, ...] = option((), "Method and network files of one's own that may train here: they are code.")
    data: tuple[str, ...] = option((), "With `hosts`: files and folders that the server may name.")
    parts: tuple[str, ...] = option((ANY,), "Parts and extras that may leave, as 'body'; '*': all.")
    min_clients: int = option(2, "Fewest silos behind every mean that this silo takes part in.", minimum=1)
    relay: bool = option(False, "Let other silos receive this silo's own model: relays, mixes, small groups.")
    min_class_count: int = option(FEWEST_ON_NODES, "Fewest samples of a class or text that is told.", minimum=1)
    names: tuple[str, ...] = option((), "Class names and texts of columns that are public, however rare they are.")
    min_train_samples: int = option(20, "Fewest training samples behind anything that leaves.", minimum=1)
    min_test_samples: int = option(20, "Fewest test samples behind a score that leaves.", minimum=1)
    loss: Literal["no", "rounded", "exact"] = option("no", "Training losses: kept here, three digits, or exact.")
    scores: Literal["no", "rounded", "exact"] | None = option(
        None, "Scores on test samples: likewise; unset: rounded, and no under noise."
    )
    min_batch: int = option(8, "Smallest mini-batch of a run.", minimum=1)
    most_clip: float | None = option(None, "Largest upload_clip of a run; unset: any, or none.", minimum=0.0)
    least_noise: float = option(0.0, "Smallest upload_noise of a run, in clips.", minimum=0.0)
    most_dp_clip: float | None = option(None, "Largest dp_clip of a run (DP-SGD); unset: any, or none.", minimum=0.0)
    least_dp_noise: float = option(0.0, "Smallest dp_noise of a run (DP-SGD), in dp_clips.", minimum=0.0)
    most_epsilon: float | None = option(None, "Largest epsilon of all runs together; unset: any.", above=0.0)
    delta: float = option(1e-5, "Delta at which this silo counts that epsilon.", above=0.0, below=1.0)
    most_rounds: int | None = option(None, "Most rounds of a run; unset: any number.", minimum=1)
    most_runs: int | None = option(None, "Most runs that this silo takes part in; unset: any number.", minimum=1)

    @property
    def demands_noise(self) -> bool:
        """Return whether no run without noise may train here."""
        return bool(self.least_noise or self.least_dp_noise or self.most_epsilon)

    def telling(self, what: Literal["loss", "scores"], privacy: Privacy) -> Telling:
        """Return how losses or scores leave in a run: no noise covers them, so not where noise is demanded."""
        if self.demands_noise:
            return "no"
        usual: Telling = "no" if privacy.upload_noise or privacy.dp_noise else "rounded"
        chosen: Telling | None = getattr(self, what)
        return usual if chosen is None else chosen

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
        self.check_noise(simulation, who)
        self.check_scores(config, who)
        self.check_training(simulation, who)

    def check_noise(self, simulation: Simulation, who: str) -> None:
        """Refuse a run with less clipping or noise than this silo demands."""
        privacy = simulation.config.privacy
        for name, most, least in (
            ("upload", self.most_clip, self.least_noise),
            ("dp", self.most_dp_clip, self.least_dp_noise),
        ):
            clip, noise = getattr(privacy, f"{name}_clip"), getattr(privacy, f"{name}_noise")
            if most is not None and (clip is None or clip > most):
                raise ConfigError(f"{who} wants {name}_clip of at most {most:g}, the run has {clip}")
            if noise < least:
                raise ConfigError(f"{who} wants {name}_noise from {least:g} on, the run has {noise:g}")
        if self.most_epsilon is not None and not (privacy.upload_noise or privacy.dp_noise):
            raise ConfigError(f"{who} counts epsilon (most_epsilon): set upload_noise or dp_noise")
        beside = any(map(simulation.program.has, ("report", "describe")))
        if self.most_epsilon is not None and beside and not privacy.upload_noise:
            name = label(simulation.config.name)
            raise ConfigError(
                f"{who} counts epsilon (most_epsilon), and dp_noise does not cover what {name} computes "
                "of samples beside training: set upload_noise"
            )

    def check_scores(self, config: Config, who: str) -> None:
        """Refuse a run that asks for scores by its settings, where they do not leave."""
        moment = config.run.moment
        if moment != "received" and self.telling("scores", config.privacy) == "no":
            raise ConfigError(
                f"{who} keeps its scores ([allow] scores), and moment = {moment} needs them: leave out moment"
            )

    def check_training(self, simulation: Simulation, who: str) -> None:
        """Refuse a run of too many rounds, or whose gradients are made of too few samples."""
        if self.most_rounds is not None and simulation.total > self.most_rounds:
            raise ConfigError(f"{who} takes part in at most {self.most_rounds} rounds, the run has {simulation.total}")
        for phase in phases(simulation):
            for client, own in enumerate(simulation.federation.train):
                if not len(own):  # another node's client
                    continue
                size = simulation.engine.drawing.recipe(phase, client).size
                if size < self.min_batch:
                    raise ConfigError(f"{who} wants a batch of at least {self.min_batch}, the run has {size}")
                begin, end = bounds(len(own), phase.sample_range)
                if phase.sample_range != (0, 1) and 0 < end - begin < self.min_train_samples:
                    raise ConfigError(
                        f"{who} wants at least {self.min_train_samples} training samples behind what leaves, and a "
                        f"phase of {label(simulation.config.name)} uses {end - begin}"
                    )

    def check_silos(self, silos: int, who: str) -> None:
        """Refuse a run with too few silos."""
        if not 1 <= silos <= MOST_SILOS:
            raise ConfigError(f"a run is one of 1 to {MOST_SILOS:,} silos, the server says {short(repr(silos))}")
        if silos < self.min_clients:
            raise ConfigError(f"{who} wants {self.min_clients} silos at least, the run has {silos}")

    def check_company(self, hosts: Sequence[str], kept: int, who: str) -> None:
        """Refuse a run with too few silos, and a server that makes means over fewer.

        `hosts` is the silo of each client, `kept` the fewest silos of a mean, as the server says.
        """
        self.check_silos(len(set(hosts)), who)
        if kept < self.min_clients:
            raise ConfigError(f"{who} wants {self.min_clients} silos behind every mean, the server keeps to {kept}")

    def check_leaving(self, leaving: Collection[str], config: Config, who: str) -> None:
        """Refuse parts and extras that may not leave."""
        more = sorted(set(leaving) - set(self.parts))
        if ANY not in self.parts and more:
            allowed = ", ".join(self.parts)
            meant = [f"'{part}' as '{near}'" for part in self.parts if (near := nearest(part, more))]
            hint = f"; did its [allow] parts mean {', '.join(meant)}?" if meant else ""
            uploads = f"{label(config.name)} uploads {', '.join(more)}"
            raise ConfigError(f"{who} lets {allowed} leave, and {uploads}{hint}")


def phases(simulation: Simulation) -> Iterator[ResolvedPhase]:
    """Return the phases of a run in which clients train."""
    for plan in simulation.server.plans:
        yield from (phase for phase in trained(plan) if phase.steps or any(map(phase.epochs_after, (0, MANY_TIMES))))


def allowed_by(settings: Settings, simulated: bool) -> Allowed:
    """Return what a silo's file allows; a file that demands noise and lets go what no noise covers is refused."""
    allowed = Allowed(**{**(SIMULATED if simulated else {}), **settings})
    for name in ("loss", "scores"):
        if allowed.demands_noise and settings.get(name, "no") != "no":
            raise ConfigError(
                f"[allow] {name} = {settings[name]} leaves without noise, and least_noise, least_dp_noise or "
                f"most_epsilon demands noise: leave out {name}"
            )
    return allowed
