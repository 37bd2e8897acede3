"""Before round 0: data, network, server and engine are brought together, and what cannot run is refused."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from partwise import models
from partwise.augment import check_shape, parse_augmentation
from partwise.client import Kernel
from partwise.data import Federation, Source, check, load, partition
from partwise.data.own import as_data
from partwise.data.reading import Reading
from partwise.data.saved import saved_rule
from partwise.data.standardise import standardised
from partwise.engines.engine import Engine
from partwise.engines.loop import Loop
from partwise.engines.vector import Vector
from partwise.errors import ConfigError, DataError
from partwise.layers import Scope
from partwise.net import Net
from partwise.parts import Parts, Task
from partwise.plan import plans
from partwise.runs.config import Config, Data
from partwise.runs.metrics import History
from partwise.runs.probe import check_repeatable, mixes_rows, probe
from partwise.runs.simulation import Simulation
from partwise.runs.store import Store
from partwise.server import Server
from partwise.updates import Copies

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of its channels, white being 1


def prepare(config: Config, data: Any = None, network: Parts | nn.Module | None = None) -> Simulation:
    """Bring everything together and refuse what cannot run, before round 0; `data` is what a user handed in."""
    method, seed = config.method, config.run.seed
    device = choose_device(config.run.device)
    federation = standardised(divide(config, data), fill=config.data.missing == "mean")
    source = normalised(federation.source, config.data.normalise)
    federation = replace(federation, source=source)
    here = federation.pooled() if method.pooled else federation  # who trains on what
    augmentation = parse_augmentation(config.data.augment) if config.data.augment else None
    dtype = torch.float64 if config.run.dtype == "float64" else torch.float32
    scope = Scope()
    shape = tuple(source.x.shape[1:])
    check_shape(shape, augmentation)
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
    samples = torch.tensor([len(index) for index in here.train])
    server = Server(method, prepared, scope, resolved, samples, seed)
    check_federation(federation, server, config)
    if method.pooled:
        server.ledger.count_samples(source.x, len(here.train[0]))
    tensors = {name: value.detach() for name, value in prepared.tensors().items()}
    keep = method.keep(Net(prepared, scope, tensors))
    store = Store({name: Copies(value[None]) for name, value in tensors.items()}, keep, prepared, seed)
    check_repeatable(prepared, scope, shape, dtype, device)
    kind, note = choose_engine(config, prepared, device, mixes_rows(prepared, scope, shape, dtype, device))
    engine = kind(kernel, here, store, seed, device, augmentation)
    if isinstance(engine, Vector):
        engine.width = config.run.block
    server.engine = engine
    empty = [client for client, own in enumerate(federation.train) if not len(own)]
    notes = [f"{note} on {device.type}", *parts.notes]
    if empty:
        notes.append(f"clients without training samples, never sampled: {', '.join(map(str, empty))}")
    return Simulation(config, federation, kernel, server, engine, History(config.run.metric), notes)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")  # checked with the other settings
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


def check_federation(federation: Federation, server: Server, config: Config) -> None:
    """What is known only once the data are divided and the stages resolved."""
    if not server.eligible:
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
    found = load(settings.data, **vars(wanted)) if data is None else as_data(data, wanted, seed=seed, **own)
    source = found.source if isinstance(found, Federation) else found
    check(source, settings.allow_nonfinite_data, settings.missing)
    if isinstance(found, Federation):
        if settings.clients not in (None, found.clients):
            raise ConfigError(f"clients = {settings.clients}, but the data are those of {found.clients} clients")
        return found
    return partition(
        source,
        settings.partition,
        settings.clients,
        seed,
        split=settings.split,
        cap=settings.cap,
        min_samples=settings.min_samples,
        balance=settings.balance,
        **own,
    )


def reading(settings: Data) -> Reading:
    """How the settings want files to be read."""
    rule = settings.partition
    if rule.startswith("file:"):
        rule = saved_rule(rule.removeprefix("file:"))
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


def normalised(source: Source, how: str | None) -> Source:
    """The source as the network is to see it, where that is not what its papers do."""
    if how is None:
        return source
    if source.x.dtype != torch.uint8:
        raise ConfigError(f"normalise = '{how}' is for images of bytes, but '{source.name}' holds {source.x.dtype}")
    white = source.centre[0] + source.scale[0]  # 255, but 16 in digits
    if how == "imagenet" and source.x.shape[1] != 3:
        raise ConfigError(f"normalise = 'imagenet' is for 3 channels, but '{source.name}' has {source.x.shape[1]}")
    centre, scale = {"half": ((0.5,), (0.5,)), "unit": ((0.0,), (1.0,)), "imagenet": IMAGENET}[how]
    return replace(source, centre=tuple(white * c for c in centre), scale=tuple(white * s for s in scale))


def draw(config: Config, source: Source, network: Parts | nn.Module | None) -> Parts:
    """The network: one that was handed in keeps its values, one by name is drawn from its streams."""
    settings, shape = config.model, tuple(source.x.shape[1:])
    if network is None:
        name = (source.model or models.usual(shape)) if settings.model in ("auto", "cnn") else settings.model
        parts = models.build(name, shape, source.classes, settings.batch_norm, settings.dropout)
        parts = parts.initialise(config.run.seed)
    elif settings.batch_norm or settings.dropout:
        raise ConfigError("batch_norm and dropout are for networks by name; put such layers into the one handed in")
    else:
        parts = network.duplicate() if isinstance(network, Parts) else Parts(network)
        parts.seed = config.run.seed
    if settings.projector:
        parts = parts.append("body", "projector", models.projector(features(parts, shape)))
    if settings.weights is not None:
        features(parts, shape)  # a network of one's own is compared with its parts while it has its values
        parts = models.with_weights(parts, settings.weights)
    return parts


def features(parts: Parts, shape: tuple[int, ...]) -> int:
    """What the last part of the chain takes in; also the check that data and network fit and that the parts are it."""
    modules = parts.duplicate().modules  # it is run, and what was handed in stays as it is
    sample = probe(shape, next(iter(parts.tensors().values())).dtype, torch.device("cpu"))[:2]
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
