"""The choice of engine, device, threads and compilation: by rules, not by timing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partwise.client_settings import ClientSettings, client_settings
from partwise.data import Federation
from partwise.engines.client_engine import ClientEngine
from partwise.engines.engine import Engine
from partwise.engines.loop import Loop
from partwise.engines.probe import mixes_rows, not_in_blocks, probe_outputs
from partwise.engines.store import Store
from partwise.engines.tracing import Traced
from partwise.engines.vector import Vector
from partwise.engines.workers import TRAINING_PASSES, Workers, processors, unsendable
from partwise.errors import ConfigError
from partwise.method import Method
from partwise.records.record import Record
from partwise.rounds.augment import Augmentation
from partwise.rounds.batches import EVALUATION_BATCH, number_of_steps
from partwise.rounds.client import ClientProgram
from partwise.rounds.plan import MANY_TIMES, Plan, ResolvedPhase
from partwise.runs.config import Config
from partwise.runs.evaluation import Evaluation
from partwise.runs.settings import Run
from partwise.trees import Samples, tensors_of

WORKERS_PAY = 20_000  # steps: about twenty seconds of the smallest convolutions, where starting workers takes two
COMPILING_PAYS = 50_000  # steps: compiling takes half a minute, and saves up to half a millisecond a step

# Operations of a step. On an idle machine two threads are a third to a half faster from 1e8 on; beside one busy process
# they take half as long again up to 1e10, beside several up to forty times as long. The number of threads changes the
# last bits of a result, so it depends on the step alone, not on what else the machine does; a run that has an idle
# processor to gain and many clients takes workers. `python -m benchmarks.threads` measures it.
THREADS_PAY = 1e10

ENGINES: dict[str, type[Engine]] = {"loop": Loop, "workers": Workers, "vector": Vector}


@dataclass(frozen=True)
class MadeWith(Record):
    """The circumstances under which a run continues bit for bit, as its checkpoints name them."""

    method: str  # the class
    clients: int
    network: str  # the type of its numbers, and the first digits of a SHA-256 over its tensors' names and shapes
    torch: str
    device: str
    data: str  # SHA-256 of samples, labels and partition
    engine: str
    threads: int
    compiles: list[str]  # names of the phases that are compiled


class Machines(Protocol):
    """Other machines on which clients are, and the engine that asks them."""

    @property
    def hosts(self) -> Sequence[str]:
        """Return the node of every client, (clients,)."""

    @property
    def evaluates(self) -> type[Evaluation]:
        """Return how to evaluate: clients score themselves there."""

    @property
    def engine(self) -> Callable[..., ClientEngine]:
        """Return what makes the engine that asks the nodes, of the arguments that every engine takes."""


def choose_device(name: str) -> torch.device:
    """Return the device of this name; refuse one that this machine lacks."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")  # checked with the other settings
    devices = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= devices:
        raise ConfigError(f"device = '{name}', but torch sees {devices} CUDA devices here; use cpu or auto")
    return torch.device(name)


def make_engine(
    config: Config,
    program: ClientProgram,
    stages: list[Plan],
    federation: Federation,
    store: Store,
    seed: int,
    device: torch.device,
    augmentation: Augmentation | None,
    probed: Samples,
    before: MadeWith | None = None,
    nodes: Machines | None = None,
) -> tuple[ClientEngine, str]:
    """Return the engine of a run and a note that names it; `probed` are samples to try the network with.

    A run that continues (`before`) keeps what was chosen when it began. With `nodes`, they choose.
    """
    if nodes is not None:
        remote = nodes.engine(program, federation, store, seed, device, augmentation)
        return remote, f"engine: {len(set(nodes.hosts))} nodes"
    steps = steps_in_all(federation, program.method, stages)
    if before is None:
        kind, note = choose_engine(config, program, probed, steps)
    else:
        kind, note = ENGINES[before.engine], f"engine: {before.engine}"
    settings, own = config.run, dict[str, Any]()
    if kind is Loop and settings.engine == "auto":  # a user who sets the loop wants to look at its steps
        own = {"caller": Traced()}
    if kind is Workers:
        own = {"method_name": config.name, "workers": settings.workers or processors()}
    if kind is Vector:
        chosen = to_compile(settings.compile, federation, program, stages, device)
        own = {"compiles": chosen if before is None else tuple(before.compiles), "block": settings.block}
    engine = kind(program, federation, store, seed, device, augmentation, settings.check, **own)
    return engine, f"{note} on {device.type}"


def choose_engine(config: Config, program: ClientProgram, probed: Samples, steps: float) -> tuple[type[Engine], str]:
    """Choose the engine, and say why: return its class and a note.

    A GPU or a network without convolutions takes vector; otherwise workers, or the loop where the run is too short for
    them to pay. `steps` are those of all clients in the whole run. An engine that cannot run the network is refused
    where a user named it; else the loop runs it.
    """
    wanted, parts, scope = config.run.engine, program.parts, program.scope
    device = tensors_of(probed)[0].device
    if wanted == "workers" and device.type != "cpu":
        raise ConfigError("engine = workers needs a CPU; on a GPU use vector, which computes all clients on one device")
    convolutions = any(
        isinstance(layer, nn.modules.conv._ConvNd) for part in parts.modules.values() for layer in part.modules()
    )
    if wanted == "auto":
        few = steps < WORKERS_PAY or (config.run.workers or processors()) < 2
        wanted = "vector" if device.type == "cuda" or not convolutions else "loop" if few else "workers"
    why = ""
    if wanted == "vector":
        why = mixes_rows(parts, scope, probed) or not_in_blocks(parts, scope, probed)
    elif wanted == "workers":
        why = unsendable(program, config.name, asked=config.run.engine == "workers")
    if why and config.run.engine == wanted:
        raise ConfigError(f"engine = {wanted} cannot run this: {why}; use engine loop or auto")
    if why:
        return Loop, f"engine: loop, because {why}"
    return ENGINES[wanted], f"engine: {wanted}"


def steps_in_all(federation: Federation, method: Method, stages: list[Plan]) -> float:
    """Estimate the number of mini-batches of all clients in the whole run."""
    return sum(steps_in_phase(federation, method, plan, phase) for plan in stages for phase in plan.phases)


def steps_in_phase(federation: Federation, method: Method, plan: Plan, phase: ResolvedPhase) -> float:
    """Estimate the number of mini-batches of all clients in a phase, over all rounds of its stage."""
    number = method.clients_per_round
    share = method.participation if number is None else number / federation.clients
    every = zip(federation.train, client_settings(method.per_client, federation.names), strict=True)
    in_round = sum(
        phase.epochs_after(MANY_TIMES, own.epochs) * len(k) / (own.batch or method.batch) for k, own in every
    )
    return plan.rounds * share * in_round


def to_compile(
    wanted: str, federation: Federation, program: ClientProgram, stages: list[Plan], device: torch.device
) -> tuple[str, ...]:
    """Return the names of the phases to compile: the steps of each must pay for its own compilation.

    On a GPU the steps of the client with most count, were it in every round: others are stepped beside it.
    """

    def pays(plan: Plan, phase: ResolvedPhase) -> bool:
        if device.type == "cpu":
            return steps_in_phase(federation, program.method, plan, phase) >= COMPILING_PAYS
        return plan.rounds * max(steps_of(phase, *each) for each in clients) >= COMPILING_PAYS

    def steps_of(phase: ResolvedPhase, samples: int, own: ClientSettings) -> int:
        recipe = program.recipe(phase, own.batch or program.method.batch, epochs=own.epochs)
        return number_of_steps(samples, recipe)

    settings = client_settings(program.method.per_client, federation.names)
    clients = set(zip(map(len, federation.train), settings, strict=True))
    phases = [(plan, phase) for plan in stages for phase in (*plan.prepare, *plan.phases)]
    return tuple(each.name for plan, each in phases if wanted == "yes" or (wanted == "auto" and pays(plan, each)))


# ---- threads: they wait for each other in every operation, which in a small one costs more than the second one brings


def choose_threads(settings: Run, engine: ClientEngine, probed: Samples) -> tuple[int, str]:
    """Return how many threads a run uses, and a note that says why; no note where there was nothing to choose.

    `probed` are samples to try the network with.
    """
    most = torch.get_num_threads()
    if settings.threads is not None or most == 1 or engine.device.type != "cpu":
        return settings.threads or most, ""
    if operations_of_step(engine, settings.block, forward_operations(engine.program, probed)) < THREADS_PAY:
        return 1, "threads: 1, because training steps are small"
    return most, f"threads: {most}, because training steps are large"


def forward_operations(program: ClientProgram, probed: Samples) -> float:
    """Return the floating-point operations that the network needs for one of these samples."""
    with FlopCounterMode(display=False) as counter:
        probe_outputs(program.parts, program.scope, probed)
    return counter.get_total_flops() / len(tensors_of(probed)[0])


def operations_of_step(engine: ClientEngine, block: int | None, forward: float) -> float:
    """Return about how many operations this process does in one go."""
    if isinstance(engine, Workers):  # they train, one thread each; the global model is tested here
        return forward * EVALUATION_BATCH
    method, together = engine.program.method, 1.0
    if isinstance(engine, Vector):
        together = block or method.clients_per_round or method.participation * len(engine.train)
    return TRAINING_PASSES * forward * engine.drawing.batch * together
