"""A run on this machine: data, network, server and engine brought together, rounds carried out, clients evaluated."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from partwise import models
from partwise.client import Kernel
from partwise.data import Federation, Source, load, partition
from partwise.engines.engine import Engine
from partwise.engines.loop import Loop
from partwise.engines.vector import Vector
from partwise.errors import ConfigError, DataError
from partwise.layers import Scope
from partwise.method import Method
from partwise.net import Net
from partwise.parts import Parts, Task
from partwise.plan import plans
from partwise.runs.config import Config
from partwise.runs.flops import flops_per_sample, training_flops
from partwise.runs.metrics import History, Score, score
from partwise.runs.probe import check_repeatable, mixes_rows
from partwise.runs.store import Store
from partwise.server import Server
from partwise.streams import stream
from partwise.updates import Copies, Updates

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Simulation:
    """Everything that a run consists of, ready for round 0."""

    config: Config
    federation: Federation
    kernel: Kernel
    server: Server
    engine: Engine
    history: History
    notes: list[str]  # decisions that the run took by itself, a line each
    keep_adapted: bool = False  # keep the models that the last evaluation adapts, for whoever writes them down
    adapted: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def run(self, progress: Progress = lambda row: None) -> "Simulation":
        """All rounds; `progress` gets every row of the metrics as it is made."""
        settings = self.config.run
        deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
        torch.use_deterministic_algorithms(deterministic or settings.deterministic)
        torch.set_num_threads(settings.threads or threads)
        try:
            self.rounds(progress)
        finally:
            torch.use_deterministic_algorithms(deterministic)
            torch.set_num_threads(threads)
        return self

    @property
    def total(self) -> int:
        """The rounds of all stages together."""
        return sum(plan.rounds for plan in self.server.plans)

    def rounds(self, progress: Progress) -> None:
        """From before the first round to after the last."""
        server = self.server
        total = self.total
        flops: dict[int, list[float]] = {}  # of a sample in each phase, by stage
        server.begin()
        for number in range(1, total + 1):
            begun = time.perf_counter()
            evaluated = number % self.config.run.eval_every == 0 or number == total
            adapted = number in (self.config.run.eval_at or (total,))
            trained = server.step(evaluate=evaluated)
            updates = [update for _, update in trained]
            if server.stage_over and server.plan.stage.snapshot:
                server.snapshots[server.plan.stage.snapshot] = self.global_tensors()
            row = self.row(number, updates)
            for order, _ in trained:
                if order.plan.number not in flops:
                    flops[order.plan.number] = flops_per_sample(self.engine, order)
                server.ledger.flops += training_flops(self.engine, order, flops[order.plan.number])
            if number == total:
                server.end()
            if evaluated or adapted:
                row.update(self.evaluate(updates, evaluated, adapted))
            row["seconds"] = round(time.perf_counter() - begun, 4)
            self.history.rows.append(row)
            progress(row)

    def row(self, number: int, updates: list[Updates]) -> dict[str, Any]:
        """What every round notes, evaluated or not."""
        server = self.server
        ledger = server.ledger.rounds[-1]
        return {
            "round": number,
            "stage": server.plan.number,
            "participants": server.cohort,
            "refused": [refused.client for refused in server.refused if refused.round == number - 1],
            "train_loss": mean_loss(updates),
            "bytes_down": sum(ledger["down"].values()),
            "bytes_up": sum(ledger["up"].values()),
        }

    # ---- evaluation: on copies, from outside; a run with evaluations ends bit-equal to one without

    def evaluate(self, updates: list[Updates], evaluated: bool, adapted: bool) -> dict[str, Any]:
        """The moments of a round: the global model; what clients received, trained, and adapted."""
        result: dict[str, Any] = {}
        clients = self.evaluated_clients()
        if not clients:
            return result
        if evaluated:
            if self.config.method.predict_global is not None:
                result["global"] = self.evaluate_global(clients)
            received = self.server.order("predict", clients, evaluate=True)
            logits = self.engine.run(received).logits
            result["received"] = self.history.note("received", self.scores(logits))
            if any(len(index) for index in self.federation.validation):
                result["validation"] = self.history.note("validation", self.scores(logits, validation=True))
            every = {client: value for update in updates for client, value in update.logits.items()}
            trained = {client: value for client, value in every.items() if client in set(clients)}
            result["trained"] = self.history.note("trained", self.scores(trained))
        if adapted and self.engine.adapt_phases:
            kept = self.keep_adapted and self.server.round == self.total
            answers = self.engine.run(self.server.order("adapt", clients, evaluate=True, models=kept))
            self.adapted = answers.models
            result["adapted"] = self.history.note("adapted", self.scores(answers.logits))
        return result

    def evaluated_clients(self) -> list[int]:
        """Clients with samples to train and to test on: all, or a fixed sample of them."""
        clients = [client for client in self.server.eligible if len(self.federation.test[client])]
        wanted = self.config.run.eval_clients
        if wanted is None or wanted >= len(clients):
            return clients
        return sorted(stream(self.config.run.seed, "evaluated").choice(clients, wanted, replace=False).tolist())

    def scores(self, logits: dict[int, Tensor], validation: bool = False) -> dict[int, Score]:
        """Each client's predictions against its labels: test samples come first, validation samples after them."""
        result = {}
        for client, values in logits.items():
            tested = len(self.federation.test[client])
            index = self.federation.validation[client] if validation else self.federation.test[client]
            rows = values[tested:] if validation else values[:tested]
            result[client] = score(rows, self.federation.source.y[index], self.kernel.classes)
        return result

    def evaluate_global(self, clients: list[int]) -> dict[str, Any]:
        """The global model on the global test set, and on each client's own."""
        index = self.federation.global_test
        logits = self.engine.predict_global(self.global_tensors(), index)
        labels = self.federation.source.y
        place = torch.full((len(labels),), -1)
        place[index] = torch.arange(len(index))
        local = {}
        for client in clients:
            tested = self.federation.test[client]
            local[client] = score(logits[place[tested]], labels[tested], self.kernel.classes)
        return {
            "g_test": score(logits, labels[index], self.kernel.classes).accuracy,
            "p_test": self.history.note("global", local),
        }

    def global_tensors(self) -> dict[str, Tensor]:
        """The server's parts (or its snapshot of them); what clients keep is averaged, in simulation only."""
        server, plan = self.server, self.server.plan
        if server.snapshots:
            return next(reversed(server.snapshots.values()))
        tensors = {name: copies.values.mean(0) for name, copies in server.copies.items()}
        tensors.update(self.engine.norm_average(plan))
        # A part that is uploaded has its mean on the server; what only clients hold is averaged over all of them.
        own = [name for name in plan.own if name not in self.kernel.parts.buffers and not plan.share[name].sent]
        if own:
            weights = {client: len(self.engine.train[client]) for client in server.eligible}
            tensors.update(self.engine.store.average(own, weights))
        return tensors


def mean_loss(updates: list[Updates]) -> float | None:
    """The mean training loss of the participants that took a step; None where there is no number to give."""
    losses = [loss for update in updates for loss in update.loss[update.steps > 0].tolist()]
    loss = math.fsum(losses) / len(losses) if losses else math.nan
    return loss if math.isfinite(loss) else None


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"device = '{name}' is not allowed: cpu, cuda, cuda:NUMBER or auto")
    devices = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= devices:
        raise ConfigError(f"device = '{name}', but torch sees {devices} CUDA devices here; use cpu or auto")
    return torch.device(name)


def choose_engine(config: Config, parts: Parts, device: torch.device, mixing: bool) -> tuple[type[Engine], str]:
    """A rule, not a race: a GPU or a network without convolutions -> vector; otherwise one client after another."""
    wanted = config.run.engine
    convolutions = any(
        isinstance(layer, nn.modules.conv._ConvNd) for part in parts.modules.values() for layer in part.modules()
    )
    if mixing:
        return Loop, "engine: loop, because a row of a mini-batch changes the others in this network"
    if wanted == "auto":
        wanted = "vector" if device.type == "cuda" or not convolutions else "loop"
    return (Vector, "engine: vector") if wanted == "vector" else (Loop, "engine: loop")


def prepare(
    config: Config, data: Source | Federation | None = None, network: Parts | nn.Module | None = None
) -> Simulation:
    """Bring everything together and refuse what cannot run, before round 0."""
    method, seed = config.method, config.run.seed
    device = choose_device(config.run.device)
    federation = divide(config, data)
    source = federation.source
    dtype = torch.float64 if config.run.dtype == "float64" else torch.float32
    scope = Scope()
    shape = tuple(source.x.shape[1:])
    parts = draw(config, source, network)
    task = Task(source.classes, shape, features(parts, shape))
    built = method.build(parts, task)
    prepared = built.prepared(scope)
    for module in prepared.modules.values():
        module.to(device, dtype)
    if prepared.batch_norm and method.batch == 1:
        raise ConfigError("batch = 1 leaves batch-norm nothing to average over; use batch of at least 2")
    resolved = plans(method, prepared)
    channels = (-1, *[1] * (len(shape) - 1))
    centre, scale = (torch.tensor(v, dtype=dtype, device=device).view(channels) for v in (source.centre, source.scale))
    compute = torch.bfloat16 if config.run.dtype == "bfloat16" else None
    kernel = Kernel(method, prepared, scope, source.classes, centre, scale, dtype, compute)
    samples = torch.tensor([len(index) for index in federation.train])
    server = Server(method, prepared, scope, resolved, samples, seed)
    check_federation(method, server, config)
    tensors = {name: value.detach() for name, value in prepared.tensors().items()}
    keep = method.keep(Net(prepared, scope, tensors))
    store = Store({name: Copies(value[None]) for name, value in tensors.items()}, keep)
    check_repeatable(prepared, scope, shape, dtype, device)
    kind, note = choose_engine(config, prepared, device, mixes_rows(prepared, scope, shape, dtype, device))
    engine = kind(kernel, federation, store, seed, device)
    if isinstance(engine, Vector):
        engine.width = config.run.block
    server.engine = engine
    empty = [client for client in range(len(samples)) if client not in set(server.eligible)]
    notes = [f"{note} on {device.type}"]
    if empty:
        notes.append(f"clients without training samples, never sampled: {', '.join(map(str, empty))}")
    return Simulation(config, federation, kernel, server, engine, History(), notes)


def check_federation(method: Method, server: Server, config: Config) -> None:
    """What is known only once the data are divided and the stages resolved."""
    if not server.eligible:
        raise DataError("no client has a training sample")
    number, rounds = method.clients_per_round or 0, sum(plan.rounds for plan in server.plans)
    if number > len(server.eligible):
        raise ConfigError(f"clients_per_round = {number} is more than the {len(server.eligible)} clients with samples")
    late = [at for at in config.run.eval_at or () if at > rounds]
    if late:
        raise ConfigError(f"eval_at = {late[0]} is after the last round, {rounds}")


def divide(config: Config, data: Source | Federation | None) -> Federation:
    if isinstance(data, Federation):
        return data
    settings = config.data
    source = load(settings.data, settings.data_root) if data is None else data
    return partition(
        source,
        settings.partition,
        settings.clients,
        config.run.seed,
        split=settings.split,
        cap=settings.cap,
        min_samples=settings.min_samples,
        balance=settings.balance,
        test_share=settings.test_share,
        validation=settings.validation,
    )


def draw(config: Config, source: Source, network: Parts | nn.Module | None) -> Parts:
    """The network: one that was handed in keeps its values, one by name is drawn from its streams."""
    if network is not None:
        parts = network._copy() if isinstance(network, Parts) else Parts(network)
        parts.seed = config.run.seed
        return parts
    settings, shape = config.model, tuple(source.x.shape[1:])
    name = (source.model or models.usual(shape)) if settings.model in ("auto", "cnn") else settings.model
    parts = models.build(name, shape, source.classes, settings.batch_norm, settings.dropout)
    return parts.initialise(config.run.seed)


def features(parts: Parts, shape: tuple[int, ...]) -> int:
    """What the last part of the chain takes in; also the check that data and network fit and that the parts are it."""
    modules = parts._copy().modules  # it is run, and what was handed in stays as it is
    sample = torch.zeros(2, *shape, dtype=next(iter(parts.tensors().values())).dtype)
    x = sample
    try:
        with torch.no_grad():
            for part in parts.chain:
                size, x = x.flatten(1).shape[1], modules[part].eval()(x)
            whole = x if parts.origin is None else copy.deepcopy(parts.origin).eval()(sample)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the network does not take samples of shape {shape}: {str(error).splitlines()[0]}") from None
    if whole.shape != x.shape or not torch.allclose(whole, x, atol=1e-5):
        raise ConfigError(
            f"the parts {' > '.join(parts.chain)} in a row are not the network: its forward does more than call them; "
            "say how a part runs with Parts(net, ..., forward={'body': function})"
        )
    return size
