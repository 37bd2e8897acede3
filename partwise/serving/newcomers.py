"""`partwise.join`: clients that were not in training get models of their own, from a finished run's last checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partwise.data import Federation
from partwise.data.checks import other_columns
from partwise.errors import ConfigError, DataError, Problems, needed
from partwise.federation.agreement import Agreed, part_of
from partwise.network.parts import Parts
from partwise.rounds.mixing import Copies
from partwise.runs.checkpoints import checkpoints_in, made_with
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.divide import divide
from partwise.runs.evaluation import sound_models
from partwise.runs.files import CHECKPOINTS, CONFIG, MODEL
from partwise.runs.joining import Joining, how_to_join
from partwise.runs.prepare import prepare
from partwise.runs.result import personal_model
from partwise.runs.saving import ENDING, GLOBAL, ModelFiles
from partwise.runs.simulation import Simulation, switches
from partwise.runs.toml import read
from partwise.serving.described import Described
from partwise.serving.loading import chosen_method, load_model, network_of
from partwise.serving.served import ServedModel

OURS = "joined"  # the moment, and the folder in that of the run for models of clients that joined
# Settings that were about the run's own clients, and what holds for those that join
NEW: dict[str, Any] = {"clients": 1, "partition": "iid", "min_samples": None, "cap": False, "balance": False}
NEW |= {"drop": None, "hold_out": 0.0, "eval_clients": None, "eval_at": None, "patience": None, "failure_trace": None}


@dataclass(frozen=True)
class Newcomer:
    """A client that joined, and how it does on its own test samples."""

    name: str
    train_samples: int
    test_samples: int
    joined: float | None  # accuracy of the model that it takes away; None: it diverged, or there are no test samples
    alone: float | None  # of one that it trains by itself, for as many rounds as the run had
    all_alike: float | None  # of the run's global model; None: there is none


@dataclass(frozen=True)
class Joined:
    """What came of joining."""

    how: str  # clients join this run
    newcomers: list[Newcomer]
    folder: Path  # with their models

    def model(self, client: str | None = None, **own: Any) -> ServedModel:
        """The model of a newcomer, by its name; there may be only one."""
        return load_model(self.folder, client or self.newcomers[0].name, **own)


def join(
    run: str | Path,
    data: Any,
    *,
    name: str | None = None,
    out: str | Path | None = None,
    model: nn.Module | Parts | None = None,
    trust: bool = False,
    **settings: Any,
) -> Joined:
    """Let a client join a finished run that it was not in: it gets a model of its own, and the others keep theirs.

    `data` are what it has, in any form that `partwise.run` takes, with the run's columns and classes. `settings` are
    those of its data and of joining: `test_share=0.2`, `join_rounds=20`, `partition="column:ward"` for one client for
    each value of a column. Its model is written into `out` (unset: RUN/joined/NAME), for `load_model`.
    """
    described = Described(run)
    own = None if isinstance(data, str | Path) else data
    settings = {"drop": beside(described, data), **settings}
    config = configured(described, str(data) if own is None else HANDED_IN, settings, trust)
    federation = renamed(divide(config, own), described, name or (Path(str(data)).stem if own is None else None))
    everybody = agreed(described, federation)
    part = part_of(federation, everybody, federation.names[0], config.data.missing == "mean")
    network = network_of(described, model, trust)
    simulation = widened_run(described, config, part, network)
    newcomers = list(range(len(described["clients"]), part.clients))
    with switches(config.run.deterministic, simulation.threads):
        request, answers = Joining(simulation.server, simulation.engine, newcomers).join(config.run.join_rounds)
    tested = simulation.evaluation.scores_at(OURS, answers)[OURS].each
    scores = {client: score.accuracy for client, score in tested.items()}
    tensors = sound_models(answers)
    first = federation.names[0] if len(newcomers) == 1 else f"{federation.names[0]} and others"
    folder = Path(run, OURS, first) if out is None else Path(out)
    if (folder / MODEL).exists():
        raise ConfigError(f"'{folder}' holds models already; choose another name (--name) or folder (--out)")
    write_models(folder, simulation, {k: personal_model(simulation, request, k, tensors[k]) for k in tensors})
    alone, alike = trained_alone(config, part, network), by_global(described, part, newcomers, model, trust)
    return Joined(
        how_to_join(simulation.engine, simulation.server.plan, config.run.join_rounds),
        [
            Newcomer(
                part.names[client],
                len(part.train[client]),
                len(part.test[client]),
                scores.get(client) if client in tensors else None,
                alone.get(client),
                alike.get(client),
            )
            for client in newcomers
        ],
        folder,
    )


# ---- the run, with room for newcomers


def beside(described: Described, data: Any) -> str | None:
    """The columns of a table that were none of the run's features, such as that of its clients: nor are they here."""
    about = described["input"]
    if about["kind"] != "table":
        return None
    _, *others = about["beside"]  # the label comes first
    if isinstance(data, str | Path) and Path(data).suffix == ".csv" and Path(data).is_file():
        data = needed("pandas", "tables").read_csv(data, nrows=0)
    found = [name for name in others if name in getattr(data, "columns", ())]
    return ",".join(found) or None


def configured(described: Described, data: str, settings: dict[str, Any], trust: bool) -> Config:
    """The run's settings, for other data."""
    problems = Problems()
    written = read(described.run / CONFIG, problems)
    problems.tell()
    network = described["network"]["name"] or HANDED_IN
    own = {key: value for key, value in settings.items() if value is not None}
    if "partition" in own:
        own.setdefault("clients", None)
    config = make_config(
        chosen_method(described, trust), {**written.settings, **NEW, "data": data, "model": network, **own}
    )
    config.method.pooled = False  # whoever joins keeps its samples
    return config


def renamed(federation: Federation, described: Described, name: str | None) -> Federation:
    """Newcomers with names that no client of the run has."""
    if federation.clients == 1:
        federation = replace(federation, names=(name or "newcomer",))
    taken = [each for each in federation.names if each in described["clients"]]
    if taken:
        raise ConfigError(f"the run has a client '{taken[0]}' already; give the new one another name (--name)")
    return federation


def agreed(described: Described, federation: Federation) -> Agreed:
    """What the run and newcomers agree on: the classes and features are the run's."""
    source, about = federation.source, described["input"]
    shape, classes, features = list(about["shape"]), described["classes"], about.get("features", [])
    columns = set(about.get("columns", ()))
    if wrong := other_columns(set(source.feature_columns or source.feature_names), columns):
        raise DataError(f"'{source.name}': {wrong}; it needs the columns of the run")
    if not features and list(source.x.shape[1:]) != shape:
        raise DataError(f"'{source.name}' has samples of the shape {list(source.x.shape[1:])}, the run's are {shape}")
    own = source.class_names or tuple(map(str, range(source.classes)))
    strange = [each for each in own if each not in classes]
    if strange:
        raise DataError(f"'{source.name}' has the class '{strange[0]}'; the run knows {', '.join(classes)}")
    known = set(features)
    if lost := [each for each in source.feature_names if features and each not in known]:
        raise DataError(f"'{source.name}' has a text that the run never saw: {lost[0]}")
    sets = zip(federation.train, federation.test, federation.validation, strict=True)
    old = described["clients"]
    return Agreed(
        names=[*old, *federation.names],
        hosts=[],
        sizes=[[0, 0, 0]] * len(old) + [[len(each) for each in own] for own in sets],
        shape=shape,
        classes=len(classes),
        class_names=list(classes) if source.class_names else [],
        features=list(features),
        whole=source.x.dtype == torch.uint8,
        standardise=source.standardise,
        centre=list(described["standardise"]["centre"]),
        scale=list(described["standardise"]["scale"]),
        white=source.white,
        data=described["data"],
        model=source.model,
    )


def widened_run(
    described: Described, config: Config, part: Federation, network: nn.Module | Parts | None
) -> Simulation:
    """The run after its last round, with clients that were never in it behind all others."""
    last = next((each for each in checkpoints_in(described.run / CHECKPOINTS) if each.over), None)
    if last is None:
        raise DataError(f"'{described.run}' has no checkpoint of a finished run: there is nothing to join")
    simulation = prepare(config, part, network)
    here = made_with(simulation)
    for what in ("method", "network"):
        if here[what] != last.made_with[what]:
            raise ConfigError(f"'{described.run}': the {what} was {last.made_with[what]} and is {here[what]}")
    state = last.state(simulation.engine.device)
    old = len(described["clients"])
    more, server, store = part.clients - old, state["server"], state["store"]
    server["copies"] = {name: widened(copies, more) for name, copies in server["copies"].items()}
    server["times"] = np.concatenate([server["times"], np.zeros(more, np.int64)])
    if server["groups"] is not None:
        server["groups"] = torch.cat([server["groups"], torch.zeros(more, dtype=torch.long)])
    initial = {name: widened(copies, more) for name, copies in store["initial"].items()}
    nobody = {"known": np.zeros(0, np.int64), "steps": np.zeros(part.clients, np.int64)}  # the others stay at home
    simulation.engine.store.restore({"initial": initial, "fresh": store["fresh"], **nobody}, [])
    vars(config.method).update(state["method"])
    for name in state["gone"]:
        delattr(config.method, name)
    simulation.server.restore(server)
    config.method.admit(simulation.server, list(range(old, part.clients)))
    return simulation


def widened(copies: Copies, more: int) -> Copies:
    """Copies of a tensor with those of clients behind all others: where each has one the mean, of groups' the first."""
    if copies.row is None:
        return copies
    each = len(copies.values) == len(copies.row) and torch.equal(copies.row, torch.arange(len(copies.row)))
    if not each:
        return Copies(copies.values, torch.cat([copies.row, torch.zeros(more, dtype=torch.long)]))
    values = torch.cat([copies.values, copies.values.mean(0).expand(more, *copies.values.shape[1:])])
    return Copies(values, torch.arange(len(values)))


def write_models(folder: Path, simulation: Simulation, models: dict[int, Any]) -> None:
    """Write newcomers' models, with what describes them."""
    files = ModelFiles(folder, simulation)
    for client, model in models.items():
        files.write(client, model, OURS)
    files.describe()


# ---- what else they could do


def trained_alone(config: Config, part: Federation, network: nn.Module | Parts | None) -> dict[int, float]:
    """By client: the accuracy of a model that it trains on its own samples alone, for as many rounds as the run had."""
    train = {name: value for name, value in config.as_tables()["train"].items() if value is not None}
    others = {name: value for table in ("model", "run") for name, value in config.as_tables()[table].items()}
    train |= {"participation": 1.0, "rounds": config.method.rounds, "eval_every": config.method.rounds}
    train.pop("clients_per_round", None)
    simulation = prepare(make_config("local", {**others, **train, "moment": "received"}), part, network)
    last = simulation.run().history.last["received"]
    return {client: score.accuracy for client, score in last.items()}


def by_global(
    described: Described, part: Federation, clients: Sequence[int], model: nn.Module | Parts | None, trust: bool
) -> dict[int, float]:
    """By client: the accuracy of the run's global model, where it has one."""
    if GLOBAL + ENDING not in described["files"]:
        return {}
    served, source = load_model(described.run, model=model, trust=trust), part.source

    def right(rows: Tensor) -> float:
        chosen = torch.from_numpy(served.probabilities(source.x[rows]).argmax(1))
        return float((chosen == source.y[rows]).double().mean())

    return {client: right(part.test[client]) for client in clients if len(part.test[client])}
