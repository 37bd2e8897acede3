"""Before round 0: data, network, server and engine are brought together, and what cannot run is refused."""

import copy

import torch
from torch import nn

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
from partwise.runs.metrics import History
from partwise.runs.probe import check_repeatable, mixes_rows
from partwise.runs.simulation import Simulation
from partwise.runs.store import Store
from partwise.server import Server
from partwise.updates import Copies


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
    store = Store({name: Copies(value[None]) for name, value in tensors.items()}, keep, prepared, seed)
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


def check_federation(method: Method, server: Server, config: Config) -> None:
    """What is known only once the data are divided and the stages resolved."""
    if not server.eligible:
        raise DataError("no client has a training sample")
    config.check_clients(server.clients)
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
        train_samples=settings.train_samples,
        validation=settings.validation,
    )


def draw(config: Config, source: Source, network: Parts | nn.Module | None) -> Parts:
    """The network: one that was handed in keeps its values, one by name is drawn from its streams."""
    if network is not None:
        parts = network.duplicate() if isinstance(network, Parts) else Parts(network)
        parts.seed = config.run.seed
        return parts
    settings, shape = config.model, tuple(source.x.shape[1:])
    name = (source.model or models.usual(shape)) if settings.model in ("auto", "cnn") else settings.model
    parts = models.build(name, shape, source.classes, settings.batch_norm, settings.dropout)
    return parts.initialise(config.run.seed)


def features(parts: Parts, shape: tuple[int, ...]) -> int:
    """What the last part of the chain takes in; also the check that data and network fit and that the parts are it."""
    modules = parts.duplicate().modules  # it is run, and what was handed in stays as it is
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
