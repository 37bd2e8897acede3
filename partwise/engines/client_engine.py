"""What a run asks of the engine that carries out its clients' jobs, on this machine or on others."""

from dataclasses import dataclass, field

from partwise.rounds.messages import Entered


@dataclass(frozen=True)
class EngineState:
    """What an engine holds from round to round beside the store."""

    entered: list[Entered] = field(default_factory=list)  # what every stage handed to clients on other machines
