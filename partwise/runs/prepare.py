"""Preparation before round 0: join data, network, server and engine, and refuse what cannot run."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.client_settings import check_names, settings_by_name
from partwise.data import Federation, Source
from partwise.data.standardise import normalised, standardised, tells_of_clients
from partwise.data.vocabulary import with_vocabulary
from partwise.engines.client_engine import ClientEngine
from partwise.engines.probe import (
    as_seen,
    check_and_measure,
    check_repeatable,
    check_rows_first,
    check_short_series,
    embeds,
    mixes_rows,
    samples_of,
)
from partwise.engines.purity_probes import equal_to_the_bit, states
from partwise.engines.store import Store
from partwise.errors import ConfigError, DataError, blamed, called, located
from partwise.method import Method
from partwise.network import models
from partwise.network.layers import LayerScope
from partwise.network.own import network_in_file, own_parts
from partwise.network.parts import Network, Parts, Sizes
from partwise.network.view import Net, Tensors
from partwise.records.metrics import METRICS_OF
from partwise.rounds.acceptance import Outliers
from partwise.rounds.augment import check_shape, parse_augmentation
from partwise.rounds.batches import number_of_steps
from partwise.rounds.client import ClientProgram
from partwise.rounds.cohort import share_of
from partwise.rounds.failures import PlayedFailures, read_trace
from partwise.rounds.mixing import Copies
from partwise.rounds.plan import MANY_TIMES, Plan, plans
from partwise.rounds.robust import check_plans, parse_robust
from partwise.rounds.safeguards import Safeguards
from partwise.rounds.server import Server
from partwise.runs.choose import Machines, MadeWith, choose_device, choose_threads, make_engine
from partwise.runs.config import HANDED_IN, Config, label
from partwise.runs.evaluation import Evaluation
from partwise.runs.partitioning import partitioned, partitioned_again
from partwise.runs.privacy import make_accountant, private_gradients, upload_filters
from partwise.runs.simulation import Simulation
from partwise.streams import stream
from partwise.trees import Samples


def prepare(
    config: Config,
    data: Any = None,
    network: Network | None = None,
    beside: Simulation | None = None,
    before: MadeWith | None = None,
    nodes: Machines | None = None,
    secret: int | None = None,
) -> Simulation:
    """Build the simulation and refuse what cannot run, before the first round.

    `data` and `network` are what a user handed in.
    `beside` is a run that differs in its seed alone: the samples that it has read, and put on the device, serve both.
    `before` tells how a run was made that continues from a checkpoint. `nodes` are the machines on which clients
    train; `data` is then what is known of them here. `secret` takes the seed's place in what is drawn as clients train
    and upload: noise that the server could draw too would hide nothing from it.
    """
    with blamed(config.method), located(""):
        return build_simulation(config, data, network, beside, before, nodes, secret)


def build_simulation(
    config: Config,
    data: Any,
    network: Network | None,
    beside: Simulation | None,
    before: MadeWith | None,
    nodes: Machines | None,
    secret: int | None,
) -> Simulation:
    """Build the simulation, as `prepare` says."""
    method, seed = config.method, config.run.seed
    drawn = seed if secret is None else secret
    device = choose_device(config.run.device)
    fill = config.data.missing == "mean"
    whole = not isinstance(data, Federation | list | dict)  # else a seed may divide it in a way of its own
    if beside is not None and whole and not tells_of_clients(beside.federation.source, fill):
        data = beside.federation.source
    federation = partitioned(config, data)
    config = for_task(config, federation.source)
    held_out = drawn_out(config, federation)
    if federation.holds == "all":  # else all nodes have agreed on it
        few, rare = config.privacy.min_train_samples, config.privacy.min_class_count
        known = standardised(with_vocabulary(federation.without(held_out)), fill, few, rare)
        federation = replace(known, train=federation.train)
    elif method.pooled:
        raise ConfigError(
            f"{label(config.name)} pools all samples in one place, but nodes never send samples; choose another method"
        )
    source = normalised(federation.source, config.data.normalise)
    if source is not federation.source:  # or every index would be checked again
        federation = replace(federation, source=source)
    here = federation.pooled(held_out) if method.pooled else federation  # who trains on what
    if beside is not None and beside.federation.source.x is source.x:
        placed = beside.engine.federation.source
    else:
        placed = replace(source, x=tree_map(lambda tensor: tensor.to(device), source.x))
    if placed.x is not here.source.x:
        here = replace(here, source=placed)
    augmentation = parse_augmentation(config.data.augment) if config.data.augment else None
    check_shape(source.shape, augmentation)
    probed = samples_of(source)
    parts = draw(config, source, network, probed)
    check_short_series(parts, source)
    program, resolved = programmed(config, source, parts, probed, federation.clients, device)
    prepared, scope = program.parts, program.scope
    samples = torch.tensor([len(index) for index in here.train])
    samples[held_out] = 0
    check_federation(federation, resolved, config)
    tensors = {name: value.detach() for name, value in prepared.tensors().items()}
    keep = kept(method, Net(prepared, scope, tensors))
    store = Store({name: Copies(value[None]) for name, value in tensors.items()}, keep, prepared, seed, here.clients)
    probed = tree_map(lambda tensor: tensor.to(device), as_seen(prepared, probed, program.dtype))
    check_repeatable(prepared, scope, probed)
    check_rows_first(prepared, scope, probed)
    program = replace(program, private=private_gradients(config, program, resolved, here))
    engine, note = make_engine(
        config, program, resolved, here, store, drawn, device, augmentation, probed, before, nodes
    )
    if federation.holds != "some":
        check_steps(engine, resolved)
    safeguards = guarding(config, resolved, federation.clients)
    filters = upload_filters(config, engine, resolved, drawn) if nodes is None else None  # else they filter
    accountant = make_accountant(config, engine, resolved)
    server = Server(method, prepared, scope, resolved, samples, seed, engine, safeguards, filters, accountant)
    if method.pooled:
        server.ledger.count_samples(source.x, len(here.train[0]))
    empty = [client for client, own in enumerate(federation.train) if not len(own)]
    threads, why = choose_threads(config.run, engine, probed) if before is None else (before.threads, "")
    notes = [
        note,
        *filter(None, [why, partitioned_again(config.data, source)]),
        *source.notes,
        *config.notes,
        *parts.notes,
    ]
    averaged = [name for plan in resolved for name in plan.names(lambda share: share.upload and share.sent)]
    if safeguards.robust is not None and not averaged:
        notes.append(f"robust = {safeguards.robust} has no effect, because the method averages no part")
    if empty:
        notes.append(f"clients without training samples, never sampled: {', '.join(map(str, empty))}")
    rows_meet = bool(mixes_rows(prepared, scope, probed))
    evaluates = Evaluation if nodes is None else nodes.evaluates
    return Simulation(config, federation, server, engine, notes, threads, rows_meet, held_out, evaluates)


def for_task(config: Config, source: Source) -> Config:
    """Return the settings with a metric of the task: its own in place of accuracy; refuse settings of another task."""
    task, method = source.task, config.method
    names, metric = METRICS_OF[task.kind], config.run.metric
    if config.data.task not in ("auto", task.kind):
        raise DataError(f"task = {config.data.task}, but the labels of '{source.name}' are {task.kind}")
    if method.needs_classes:
        task.require_classes(label(config.name))
    for name in ("class_weights", "sampling"):
        if getattr(method, name) == "balanced":
            task.require_classes(f"{name} = balanced", "leave it out")
    if config.data.augment and source.y.ndim > 2:
        raise ConfigError("augment moves pixels, but not the classes of places; leave it out")
    if metric in names:
        return config
    if metric != "accuracy":
        raise ConfigError(f"metric = {metric} is not one of task {task.kind}: {', '.join(names)}")
    return replace(config, run=replace(config.run, metric=names[0]))


def drawn_out(config: Config, federation: Federation) -> list[int]:
    """Return the clients that never train and join after the last round."""
    share = config.run.hold_out
    if not share:
        return []
    if federation.holds != "all":
        raise ConfigError("hold_out works in simulations only; over nodes, start no node for a held-out client")
    both = zip(federation.train, federation.test, strict=True)
    able = [client for client, (train, test) in enumerate(both) if len(train) and len(test)]
    number = share_of(len(able), share)
    if number >= len(able):
        raise ConfigError(f"hold_out = {share:g} leaves none of the {len(able)} clients with samples to train")
    return sorted(stream(config.run.seed, "held out").choice(able, number, replace=False).tolist())


def programmed(
    config: Config, source: Source, parts: Parts, probed: Samples, clients: int, device: torch.device
) -> tuple[ClientProgram, list[Plan]]:
    """Return the clients' program and its stages: the method on a network, for samples as a source holds them."""
    method, shape = config.method, source.shape
    dtype = torch.float64 if config.run.dtype == "float64" else torch.float32
    scope = LayerScope()
    sizes = Sizes(source.task, shape, check_and_measure(parts, probed, source.task, source.y.shape[1:]), clients)
    prepared = method.build(parts, sizes).prepared(scope)
    for module in prepared.modules.values():
        module.to(device, dtype)
    own = settings_by_name(method.per_client).values()
    if prepared.batch_norm and 1 in (method.batch, *(each.batch for each in own)):
        raise ConfigError("batch = 1 is too small for batch-norm; set batch to at least 2")
    resolved = plans(method, prepared)
    check_per_client(config, resolved)
    centre, scale = (tree_map(lambda v: v.to(device, dtype), each) for each in source.normalisation)
    compute = torch.bfloat16 if config.run.dtype == "bfloat16" else None
    return ClientProgram(
        method, prepared, scope, source.task, centre, scale, dtype, compute, embeds(prepared)
    ), resolved


def check_per_client(config: Config, plans: list[Plan]) -> None:
    """Refuse epochs and batch of single clients where they would have no effect."""
    own = settings_by_name(config.method.per_client).values()
    if own and config.method.pooled:
        raise ConfigError(f"per_client: {label(config.name)} trains on all samples in one place; leave it out")
    if any(each.epochs for each in own) and not any(phase.run_epochs for plan in plans for phase in plan.phases):
        raise ConfigError(
            f"per_client: {label(config.name)} sets the epochs of all its phases itself; give clients batches only"
        )


def guarding(config: Config, plans: list[Plan], clients: int) -> Safeguards:
    """Return the safeguards of the server; where all samples are in one place, no client fails."""
    wrong, failing = config.robust, config.failures
    participants = config.method.clients_per_round or share_of(clients, config.method.participation)
    if participants < failing.min_clients and not config.method.pooled:
        raise ConfigError(
            f"min_clients = {failing.min_clients} is more than the {participants} participants of a round"
        )
    robust = parse_robust(wrong.robust) if wrong.robust else None
    if robust is not None:
        check_plans(robust, plans, participants)
    trace = read_trace(failing.failure_trace, clients) if failing.failure_trace else {}
    outliers = Outliers(wrong.outliers, wrong.outlier_factor)
    if config.method.pooled:
        return Safeguards(robust, outliers)
    failures = PlayedFailures(failing.client_dropout, failing.stragglers, trace)
    return Safeguards(robust, outliers, failures, failing.min_clients)


def kept(method: Method, net: Net) -> Tensors:
    """Return what clients keep before their first round; call `keep` twice to detect randomness."""
    generators, keep = states(), method.keep(net)
    if states() != generators or not equal_to_the_bit(keep, method.keep(net)):
        raise ConfigError(
            f"{called(method, 'keep')} draws random numbers, but every client must begin with the same tensors"
        )
    if not isinstance(keep, dict) or not all(isinstance(value, Tensor) for value in keep.values()):
        raise ConfigError(f"{called(method, 'keep')} must return tensors by name")
    return keep


def check_federation(federation: Federation, plans: list[Plan], config: Config) -> None:
    """Check what depends on the partition and the stages."""
    if not any(map(len, federation.train)):
        raise DataError("no client has a training sample")
    config.check_clients(federation.clients)
    config.method.check(federation.clients)
    if federation.holds == "all":  # else the server knows all names
        check_names(config.method.per_client, federation.names)
    if federation.holds == "some":  # the server knows the rest
        return
    if not any(len(own) and len(test) for own, test in zip(federation.train, federation.test, strict=True)):
        raise DataError("no client has both training and test samples, so nothing can be measured; set test_share")
    number, rounds = config.method.clients_per_round or 0, sum(plan.rounds for plan in plans)
    able = sum(len(own) > 0 for own in federation.train)
    if number > able:
        raise ConfigError(f"clients_per_round = {number} is more than the {able} clients with samples")
    if config.run.patience is not None and not any(map(len, federation.validation)):
        raise ConfigError("patience needs validation samples; set validation above 0")
    late = [at for at in config.run.eval_at or () if at > rounds]
    if late:
        raise ConfigError(f"eval_at = {late[0]} is after the last round, {rounds}")


def check_steps(engine: ClientEngine, stages: list[Plan]) -> None:
    """Refuse a run in which there is something to train and nobody can."""
    phases = [phase for plan in stages for phase in plan.phases if phase.steps or phase.epochs_after(MANY_TIMES)]
    order = sorted(range(len(engine.train)), key=lambda client: -len(engine.train[client]))
    recipes = ((client, engine.drawing.recipe(phase, client)) for client in order for phase in phases)
    if phases and not any(number_of_steps(len(engine.train[client]), recipe) for client, recipe in recipes):
        largest, own = len(engine.train[order[0]]), [engine.drawing.recipe(phase, order[0]) for phase in phases]
        needed = min(recipe.smallest * recipe.batches for recipe in own)
        why = " (batch-norm cannot learn from one sample)" if engine.program.parts.batch_norm else ""
        raise DataError(
            f"no client can make a step: it needs {needed} training samples{why}, and the largest client has {largest}"
        )


def draw(config: Config, source: Source, own: Network | None, probed: Samples) -> Parts:
    """Return the network: one by name, or that a class or a function makes, is drawn; else it keeps its values."""
    settings, task, label = config.model, source.task, source.y.shape[1:]
    network = network_in_file(settings.model) if own is None else own
    if network is None:
        if settings.model.startswith(HANDED_IN):
            raise ConfigError("the network of this run was passed from Python, not by name; choose one with --model")
        parts = named_network(config, source).initialise(config.run.seed)
    elif settings.batch_norm or settings.dropout:
        raise ConfigError("batch_norm and dropout apply to networks by name; put such layers into your own network")
    else:
        generators = states()
        parts = own_parts(network, settings.model, network_arguments(source), config.run.seed)
        if states() != generators:
            raise ConfigError(
                "model draws random numbers from numpy or random, which the run's seed does not set; use torch"
            )
    if settings.projector:
        parts = parts.append("body", "projector", models.projector(check_and_measure(parts, probed, task, label)))
    if settings.weights is not None:
        # A network of one's own is compared with its parts while it has its values.
        check_and_measure(parts, probed, task, label)
        parts = models.with_weights(parts, settings.weights)
    return parts


def named_network(config: Config, source: Source) -> Parts:
    """Return the network that settings name, for samples and labels as a source holds them, not yet drawn."""
    settings = config.model
    return models.build(
        network_name(config, source),
        source.shape,
        source.outputs,
        settings.batch_norm,
        settings.dropout,
        source.vocabulary,
        each_step=source.at_places,
        code_sizes=source.code_sizes,
    )


def network_arguments(source: Source) -> dict[str, object]:
    """Return all that a user's class or function may ask for by the name of a parameter."""
    return {
        "shape": source.shape,  # of a sample
        "outputs": source.task.outputs,  # how many numbers the head gives: classes, labels or numbers
        "classes": source.task.outputs,  # the same, as classification calls it
        "task": source.task,  # what a label is
        "vocabulary": source.vocabulary,  # how many different tokens samples hold, None where they hold none
    }


def network_name(config: Config, source: Source) -> str:
    """Return the name of the network that a run builds."""
    name = config.model.model
    return (source.model or models.usual(source.shape, source.at_places)) if name in ("auto", "cnn") else name
