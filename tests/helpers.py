"""Small federations with awkward clients, and the comparison of two runs."""

import pickle
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partwise.data.source import Federation, Source
from partwise.engines.engine import Engine
from partwise.engines.shared_memory import Mapped
from partwise.engines.trial import Trial
from partwise.engines.vector import Vector
from partwise.engines.workers import learn
from partwise.network import models
from partwise.network.models.resnet import resnet18
from partwise.network.parts import Parts
from partwise.runs.config import make_config
from partwise.runs.observers import Observer
from partwise.runs.prepare import prepare
from partwise.runs.result import Models
from partwise.runs.simulation import Simulation

CLASSES = 4
# With batch 8: one sample; one class; less than a batch; n mod batch = 1; full batches; and some between.
SIZES = (1, 6, 7, 17, 16, 11, 9, 20)
ONE_CLASS = 1  # the number of the client that holds a single class


def awkward_federation(sizes: tuple[int, ...] = SIZES, tested: int = 3, validated: int = 0) -> Federation:
    """Clients of many sizes on made images of 1x8x8; every sample belongs to one client."""
    random = np.random.default_rng(7)
    owner = np.repeat(np.arange(len(sizes)), [size + tested + validated for size in sizes])
    y = random.integers(0, CLASSES, len(owner))
    y[owner == ONE_CLASS] = 2
    centres = random.uniform(40, 215, (CLASSES, 1, 8, 8))
    x = np.clip(centres[y] + random.normal(0, 40, (len(y), 1, 8, 8)), 0, 255).astype(np.uint8)
    train, test, validation = [], [], []
    for client, size in enumerate(sizes):
        mine = torch.from_numpy(random.permutation(np.where(owner == client)[0]))
        train.append(mine[:size])
        test.append(mine[size : size + tested])
        validation.append(mine[size + tested :])
    source = Source(
        "awkward", torch.from_numpy(x), torch.from_numpy(y), CLASSES, len(y), (127.5,), (127.5,), "cnn-digits"
    )
    return Federation(source, train, test, torch.cat(test).sort().values, validation)


def network(name: str, factor: float = 1.0, dropout: float = 0.0, seed: int = 0) -> Parts:
    """`mlp`, `mlp of two layers`, `cnn`, `cnn+bn`, `cnn+gn` or a narrow `resnet`; its initial values times `factor`."""
    if name == "resnet":
        parts = resnet18((1, 8, 8), CLASSES, dropout=dropout, stem=3, width=8)
    elif name == "cnn+gn":
        body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout))
        parts = Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(288, CLASSES))))
    else:
        kind = {"mlp": "mlp-100", "mlp of two layers": "tabular"}.get(name, "cnn-digits")
        parts = models.build(kind, (1, 8, 8), CLASSES, norm=name == "cnn+bn", dropout=dropout)
    parts = parts.initialise(seed)
    for module in parts.modules.values():
        module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)
    return parts


@contextmanager
def untried() -> Iterator[None]:
    """Nothing that a method brings is tried meanwhile."""
    with patch.object(Trial, "__call__", lambda self, request: ""), patch.object(Trial, "globally", return_value=""):
        yield


def simulate(
    method: Any,
    parts: Parts,
    federation: Federation | None = None,
    engine: str = "loop",
    block: int | None = None,
    filler: int | None = None,
    observers: Sequence[Observer] = (),
    trials: bool = False,
    **settings: Any,
) -> Simulation:
    """A run in float64 on the CPU, from given parts; without `trials`, which change nothing and take their time."""
    federation = federation or awkward_federation()
    defaults = {"dtype": "float64", "device": "cpu", "batch": 8, "rounds": 5, "lr": 0.05, "clients": federation.clients}
    defaults["threads"] = torch.get_num_threads()  # a run chooses one for steps as small as these
    config = make_config(method, {**defaults, "engine": engine, "block": block, **settings})
    simulation = prepare(config, federation, parts)
    if filler is not None:
        assert isinstance(simulation.engine, Vector)
        simulation.engine.caller.filler = filler
    with nullcontext() if trials else untried():
        return simulation.run(observers=observers)


class InThisProcess(Executor):
    """Stands for the processes of workers: jobs run here, but all that would cross processes is pickled as there."""

    def __init__(self, workers: int, begin: Any, known: tuple[Any, ...]):
        learn(*(crossed(each) if isinstance(each, Mapped) else each for each in known))

    def kill(self) -> None:
        pass

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        function, arguments = crossed((function, arguments))
        try:
            future.set_result(crossed(function(*arguments)))
        except Exception as error:
            future.set_exception(crossed(error))
        return future


def crossed(message: Any) -> Any:
    """What another process makes of a message."""
    return pickle.loads(ForkingPickler.dumps(message))


def short_of_memory(monkeypatch: Any, most: int) -> list[int]:
    """Blocks of more than `most` clients do not fit; returns the widths that were tried."""
    execute, tried = Vector.execute, list[int]()

    def limited(self: Vector, request: Any, client: Any, common: Any, batches: Any) -> Any:
        tried.append(len(batches))
        if len(batches) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return execute(self, request, client, common, batches)

    monkeypatch.setattr(Vector, "execute", limited)
    return tried


def state(simulation: Simulation) -> dict[str, Tensor]:
    """Every tensor that a run leaves: the server's, the clients' own, what they remember, their models, the metrics."""
    engine: Engine = simulation.engine
    result = {f"server/{name}": copies.values for name, copies in simulation.server.copies.items()}
    for name, value in simulation.server.memory.items():
        leaves = enumerate(tree_leaves(value))
        result.update({f"memory/{name}/{number}": leaf for number, leaf in leaves if isinstance(leaf, Tensor)})
    for client in range(simulation.federation.clients):
        held = engine.store.own(client, simulation.server.plan.own)
        result.update({f"client {client}/{name}": value for name, value in held.items()})
        kept = engine.store.remembered([client])
        result.update({f"client {client}/keep/{name}": value[0] for name, value in kept.items()})
        for path, sheet in engine.store.sheets.items():
            if path[0] == "optimizer_state" and engine.store.filled(path, [client])[0]:
                result[f"client {client}/{'/'.join(path)}"] = sheet.values[engine.store.row[client]]
    source = simulation.federation.source
    for client, model in Models(simulation).some(simulation.server.eligible.tolist()).items():
        result.update({f"model {client}/{name}": value for name, value in model.tensors.items()})
        result[f"model {client}/logits"] = model(source.x[simulation.federation.test[client]]).detach()
    for row in simulation.history.rows:
        told = {key: value for key, value in row.items() if key not in ("seconds", "groups")}  # a relay may be FedAvg
        result.update(numbers(f"round {row['round']}", told))
    return {name: value.cpu() for name, value in result.items()}


def numbers(prefix: str, value: Any) -> dict[str, Tensor]:
    """The numbers of a row of metrics, by their path."""
    if isinstance(value, dict):
        return {
            key: number for name, inner in value.items() for key, number in numbers(f"{prefix}/{name}", inner).items()
        }
    return {} if value is None else {prefix: torch.as_tensor(value, dtype=torch.float64)}


def distance(one: Simulation, two: Simulation) -> float:
    """The largest difference between two runs over everything that they leave."""
    return apart(state(one), state(two))


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest difference between two states."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.shape == second[name].shape, name
        assert torch.isfinite(value).all() and torch.isfinite(second[name]).all(), name
    return max(
        float((first[name].double() - second[name].double()).abs().max()) for name in first if first[name].numel()
    )
