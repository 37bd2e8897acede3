"""Before round 0: data, network, server and engine are brought together, and what cannot run is refused."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from partwise import models
from partwise.augment import check_shape, parse_augmentation
from partwise.batches import number_of_steps
from partwise.client import Kernel
from partwise.data import Federation, Source, check, load, partition
from partwise.data.own import as_data
from partwise.data.reading import Reading
from partwise.data.saved import saved_rule
from partwise.data.standardise import normalised, standardised
from partwise.engines.engine import Engine
from partwise.engines.loop import Loop
from partwise.engines.store import Store
from partwise.engines.tracing import Traced
from partwise.engines.vector import Vector
from partwise.engines.workers import Workers, processors, unsendable
from partwise.errors import ConfigError, DataError, short
from partwise.layers import Scope
from partwise.method import Method
from partwise.net import Net
from partwise.parts import Parts, Task
from partwise.plan import Plan, plans
from partwise.runs.config import HANDED_IN, Config, Data
from partwise.runs.metrics import History
from partwise.runs.probe import check_repeatable, features, goes_in_blocks, mixes_rows, samples_of
from partwise.runs.simulation import Simulation
from partwise.server import Server
from partwise.updates import Copies

WORKERS_PAY = 20_000  # steps: about twenty seconds of the smallest convolutions, where starting workers takes two
COMPILING_PAYS = 50_000  # steps: compiling takes half a minute, and saves up to half a millisecond a step


def prepare(
    config: Config,
    data: Any = None,
    network: Parts | nn.Module | None = None,
    beside: Simulation | None = None,
) -> Simulation:
    """Bring everything together and refuse what cannot run, before round 0; `data` is what a user handed in.

    `beside` is a run that differs in its seed alone: the samples that it has read, and put on the device, serve both.
    """
    method, seed = config.method, config.run.seed
    device = choose_device(config.run.device)
    fill = config.data.missing == "mean"
    if beside is not None and data is None and not (fill and beside.federation.source.standardise):
        data = beside.federation.source
    federation = standardised(divide(config, data), fill)
    source = normalised(federation.source, config.data.normalise)
    if source is not federation.source:  # or every index would be checked again
        federation = replace(federation, source=source)
    here = federation.pooled() if method.pooled else federation  # who trains on what
    if beside is not None and beside.federation.source.x is source.x:
        here = replace(here, source=replace(source, x=beside.engine.x))
    augmentation = parse_augmentation(config.data.augment) if config.data.augment else None
    dtype = torch.float64 if config.run.dtype == "float64" else torch.float32
    scope = Scope()
    shape = tuple(source.x.shape[1:])
    check_shape(shape, augmentation)
    probed = samples_of(source)
    parts = draw(config, source, network, probed)
    task = Task(source.classes, shape, features(parts, probed, source.classes))
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
    samples = torch.tensor([len(index) for index in here.train])
    server = Server(method, prepared, scope, resolved, samples, seed)
    check_federation(federation, server, config)
    if method.pooled:
        server.ledger.count_samples(source.x, len(here.train[0]))
    tensors = {name: value.detach() for name, value in prepared.tensors().items()}
    keep = method.keep(Net(prepared, scope, tensors))
    store = Store({name: Copies(value[None]) for name, value in tensors.items()}, keep, prepared, seed, here.clients)
    probed = probed.to(device, dtype)
    check_repeatable(prepared, scope, probed)
    steps = steps_in_all(here, method, resolved)
    kind, note = choose_engine(config, kernel, probed, steps)
    engine = kind(kernel, here, store, seed, device, augmentation)
    if type(engine) is Loop and config.run.engine == "auto":  # whoever asks for the loop wants to look at its steps
        engine.walk = Traced()
    if isinstance(engine, Workers):
        engine.name, engine.workers = config.name, config.run.workers or processors()
    if isinstance(engine, Vector):
        one_by_one = steps_of_largest(engine, resolved) if device.type == "cuda" else steps
        pays = one_by_one >= COMPILING_PAYS * len(resolved)  # every stage has steps of its own
        engine.compile = config.run.compile == "yes" or (config.run.compile == "auto" and pays)
        engine.block = config.run.block
    server.engine = engine
    empty = [client for client, own in enumerate(federation.train) if not len(own)]
    notes = [f"{note} on {device.type}", *parts.notes]
    if empty:
        notes.append(f"clients without training samples, never sampled: {', '.join(map(str, empty))}")
    return Simulation(config, federation, kernel, server, engine, History(config.run.metric), notes)


def steps_in_all(federation: Federation, method: Method, stages: list[Plan]) -> float:
    """About how many mini-batches all clients train on in a whole run."""
    epochs = sum(plan.rounds * sum(phase.epochs for phase in plan.phases) for plan in stages)
    number = method.clients_per_round
    share = method.participation if number is None else number / federation.clients
    return epochs * share * sum(len(own) / method.batch for own in federation.train)


def steps_of_largest(engine: Engine, stages: list[Plan]) -> int:
    """The steps of the largest client in a whole run, were it in every round: others are stepped beside it."""
    largest = max(map(len, engine.train))
    return sum(plan.rounds * number_of_steps(largest, engine.recipe(phase)) for plan in stages for phase in plan.phases)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")  # checked with the other settings
    devices = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= devices:
        raise ConfigError(f"device = '{name}', but torch sees {devices} CUDA devices here; use cpu or auto")
    return torch.device(name)


def choose_engine(config: Config, kernel: Kernel, probed: Tensor, steps: float) -> tuple[type[Engine], str]:
    """A rule, not a race: a GPU or a network without convolutions -> vector; otherwise workers, or the loop where the
    run is too short for them to pay. `steps` are those of all clients in the whole run."""
    wanted, parts, scope = config.run.engine, kernel.parts, kernel.scope
    if wanted == "workers" and probed.device.type != "cpu":
        raise ConfigError("engine = workers is for a CPU; a GPU is one device for all clients: use vector")
    convolutions = any(
        isinstance(layer, nn.modules.conv._ConvNd) for part in parts.modules.values() for layer in part.modules()
    )
    if wanted == "auto":
        few = steps < WORKERS_PAY or (config.run.workers or processors()) < 2
        wanted = "vector" if probed.device.type == "cuda" or not convolutions else "loop" if few else "workers"
    if mixes_rows(parts, scope, probed):
        return Loop, "engine: loop, because a row of a mini-batch changes the others in this network"
    if wanted == "vector" and not goes_in_blocks(parts, scope, probed):
        return Loop, "engine: loop, because torch cannot run this network for several clients at once"
    if wanted == "workers":
        why = unsendable(kernel, config.name, asked=config.run.engine == "workers")
        return (Loop, f"engine: loop, because {why}") if why else (Workers, "engine: workers")
    return (Vector, "engine: vector") if wanted == "vector" else (Loop, "engine: loop")


def check_federation(federation: Federation, server: Server, config: Config) -> None:
    """What is known only once the data are divided and the stages resolved."""
    if not len(server.eligible):
        raise DataError("no client has a training sample")
    config.check_clients(federation.clients)
    number, rounds = config.method.clients_per_round or 0, sum(plan.rounds for plan in server.plans)
    able = sum(len(own) > 0 for own in federation.train)
    if number > able:
        raise ConfigError(f"clients_per_round = {number} is more than the {able} clients with samples")
    if config.run.patience is not None and not any(map(len, federation.validation)):
        raise ConfigError("patience needs validation samples to watch; set validation above 0")
    late = [at for at in config.run.eval_at or () if at > rounds]
    if late:
        raise ConfigError(f"eval_at = {late[0]} is after the last round, {rounds}")


def divide(config: Config, data: Any = None) -> Federation:
    """The data set that the settings name, or what was handed in, divided among clients as the settings say."""
    settings, seed, wanted = config.data, config.run.seed, reading(config.data)
    own: dict[str, Any] = {  # how each client's samples are divided
        "test_share": settings.test_share,
        "train_samples": settings.train_samples,
        "validation": settings.validation,
    }
    if data is None and settings.data.startswith(HANDED_IN):
        raise ConfigError("the data of this run were handed in from Python; name others with --data")
    found = load(settings.data, **vars(wanted)) if data is None else as_data(data, wanted, seed=seed, **own)
    if isinstance(found, Federation):
        check(found.source, settings.allow_nonfinite_data, settings.missing)
        check_divided(found, settings, ignored=own if isinstance(data, Federation) else ())
        return found
    if data is not None:
        check(found, settings.allow_nonfinite_data, settings.missing)
    return partition(
        found,
        settings.partition,
        settings.clients,
        seed,
        split=settings.split,
        cap=settings.cap,
        min_samples=settings.min_samples,
        balance=settings.balance,
        **own,
    )


def check_divided(federation: Federation, settings: Data, ignored: Iterable[str]) -> None:
    """Refuse what is said about a division where the data came divided."""
    if settings.clients not in (None, federation.clients):
        raise ConfigError(f"clients = {settings.clients}, but the data are those of {federation.clients} clients")
    usual = Data()
    names = ("partition", "split", "min_samples", "cap", "balance", *ignored)
    given = [name for name in names if getattr(settings, name) != getattr(usual, name)]
    if given:
        raise ConfigError(f"the data are divided among clients already; leave out {', '.join(given)}")


def reading(settings: Data) -> Reading:
    """How the settings want files to be read."""
    rule = settings.partition
    if rule.startswith("file:"):
        rule = saved_rule(rule.removeprefix("file:"))
    rule = "column:domain" if rule == "domain" else rule
    return Reading(
        root=settings.data_root,
        download=settings.download,
        image_size=settings.image_size,
        label=settings.label,
        drop=tuple(name.strip() for name in settings.drop.split(",")) if settings.drop else (),
        column=rule.removeprefix("column:") if rule.startswith("column:") else None,
        missing=settings.missing,
        allow_nonfinite=settings.allow_nonfinite_data,
    )


def draw(config: Config, source: Source, network: Parts | nn.Module | None, probed: Tensor) -> Parts:
    """The network: one that was handed in keeps its values, one by name is drawn from its streams."""
    settings, shape = config.model, tuple(source.x.shape[1:])
    if network is None:
        if settings.model.startswith(HANDED_IN):
            raise ConfigError("the network of this run was handed in from Python; name another with --model")
        name = (source.model or models.usual(shape)) if settings.model in ("auto", "cnn") else settings.model
        parts = models.build(name, shape, source.classes, settings.batch_norm, settings.dropout)
        parts = parts.initialise(config.run.seed)
    elif settings.batch_norm or settings.dropout:
        raise ConfigError("batch_norm and dropout are for networks by name; put such layers into the one handed in")
    else:
        check_network(network)
        parts = network.duplicate() if isinstance(network, Parts) else Parts(network)
        parts.seed = config.run.seed
    if settings.projector:
        parts = parts.append("body", "projector", models.projector(features(parts, probed, source.classes)))
    if settings.weights is not None:
        # A network of one's own is compared with its parts while it has its values.
        features(parts, probed, source.classes)
        parts = models.with_weights(parts, settings.weights)
    return parts


def check_network(network: Any) -> None:
    """Refuse what is no network, or none whose tensors can be taken out of it."""
    modules = network.modules.values() if isinstance(network, Parts) else [network]
    for module in modules:
        if not isinstance(module, nn.Module):
            called = f"the class {module.__name__}, not one of it" if isinstance(module, type) else repr(module)
            raise ConfigError(f"model must be a name, a torch.nn.Module or Parts, got {short(called)}")
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError("a torch.jit module cannot be taken apart; hand in the module that it was made from")
        if any(isinstance(value, UninitializedParameter) for value in module.parameters()):
            raise ConfigError("the network has lazy layers without values; run it on a sample before it is handed in")
