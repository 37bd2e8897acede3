"""`partwise.join`: clients that were not in training get models of their own, from a finished run's last checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partwise.data import Federation
from partwise.data.schema import part_of
from partwise.engines.scores import Judged
from partwise.errors import ConfigError, Problems
from partwise.inference.fitting import beside, check_kind_of, named_newcomers, no_features, schema_of_run
from partwise.inference.loading import chosen_method, load_model, network_setting, network_to_use
from partwise.inference.run_models import RunModels
from partwise.inference.served import ServedModel
from partwise.inference.widening import widened_run
from partwise.network.parts import Network
from partwise.records.files import CONFIG, MODEL
from partwise.records.metrics import RANKING
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.evaluation import sound_models
from partwise.runs.joining import Joining, how_to_join
from partwise.runs.metrics import measure_all
from partwise.runs.partitioning import partitioned
from partwise.runs.prepare import prepare
from partwise.runs.result import PersonalModel, personal_model
from partwise.runs.saving import ModelFiles, code_copies
from partwise.runs.simulation import Simulation, switches
from partwise.runs.toml import read_settings
from partwise.trees import chosen
from partwise.writing import write

RECEIVED = "received"  # the moment at which models that were trained alone are measured
ROOT, DROP = "data_root", "drop"  # settings: where data lie; columns of a table that are no features
JOINED = "joined"  # the moment, and the folder in that of the run for models of clients that joined
# Settings that were about the run's own clients, with the values for clients that join
NEWCOMER_SETTINGS: dict[str, object] = {
    "clients": 1,
    "partition": "iid",
    "min_samples": None,
    "cap": False,
    "balance": False,
    "drop": None,
    "hold_out": 0.0,
    "eval_clients": None,
    "eval_at": None,
    "patience": None,
    "failure_trace": None,
}


@dataclass(frozen=True)
class Newcomer:
    """A client that joined, and how it does on its own test samples."""

    name: str
    train_samples: int
    test_samples: int
    joined: float | None  # score of the model that it takes away; None: it diverged, or there are no test samples
    alone: float | None  # of one that it trains by itself, for as many rounds as the run had
    all_alike: float | None  # of the run's global model; None if it has none


@dataclass(frozen=True)
class JoinResult:
    """What came of joining."""

    how: str  # clients join this run
    rounds: int  # of the run, and of a model that is trained alone
    newcomers: list[Newcomer]
    folder: Path  # with their models
    metric: str = "accuracy"  # of the scores: what ranks by default

    def model(self, client: str | None = None, **own: Any) -> ServedModel:
        """Return the model of a newcomer, by its name; there may be only one."""
        return load_model(self.folder, client or self.newcomers[0].name, **own)


def join(
    run: str | Path,
    data: Any,
    *,
    name: str | None = None,
    out: str | Path | None = None,
    model: Network | None = None,
    trust: bool = False,
    **settings: Any,
) -> JoinResult:
    """Give a client that was not in a finished run a model of its own; the run's own models stay as they are.

    `data` are what it has, in any form that `partwise.run` takes, with the run's columns and labels. `settings` are
    those of its data and of joining: `test_share=0.2`, `join_rounds=20`, `partition="column:ward"` for one client for
    each value of a column. Its model is written into `out` (unset: RUN/joined/NAME), for `load_model`.
    """
    saved = RunModels(run)
    own = None if isinstance(data, str | Path) else data
    config = config_for(saved, data, settings, model, trust)
    federation = named_newcomers(
        partitioned(config, own), saved, name or (Path(str(data)).stem if own is None else None)
    )
    part = part_of(federation, schema_of_run(saved, federation), federation.names[0], config.data.missing == "mean")
    network = network_to_use(saved, model, trust)
    simulation = widened_run(saved, config, part, network)
    newcomers = list(range(len(saved.manifest.clients), part.clients))
    with switches(config.run.deterministic, simulation.threads):
        request, answers = Joining(simulation.server, simulation.engine, newcomers).join(config.run.join_rounds)
    tested = simulation.evaluation.scores_at(JOINED, answers)[0].each
    scores = {client: score.ranking for client, score in tested.items()}
    tensors = sound_models(answers)
    first = federation.names[0] if len(newcomers) == 1 else f"{federation.names[0]} and others"
    folder = Path(run, JOINED, first) if out is None else Path(out)
    if (folder / MODEL).exists():
        raise ConfigError(f"'{folder}' holds models already; choose another name (--name) or folder (--out)")
    models = {client: personal_model(simulation, request, client, own) for client, own in tensors.items()}
    save_newcomers(folder, simulation, models, no_features(saved))
    alone, alike = trained_alone(config, part, network), by_global(saved, part, newcomers, model, trust)
    return JoinResult(
        how_to_join(simulation.engine, simulation.server.plan, config.run.join_rounds),
        config.method.rounds,
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
        RANKING[part.source.task.kind],
    )


def config_for(
    saved: RunModels, data: Any, settings: Mapping[str, object], model: Network | None, trust: bool
) -> Config:
    """Return the run's settings, for other data."""
    problems = Problems()
    written = read_settings(saved.run / CONFIG, problems)
    problems.tell()
    own = {name: value for name, value in settings.items() if value is not None}
    if "partition" in own:
        own.setdefault("clients", None)
    handed_in = not isinstance(data, str | Path)
    known = {
        "model": network_setting(saved, model, trust),
        "data": HANDED_IN if handed_in else str(data),
        "task": saved.manifest.task.kind,  # a newcomer's labels alone might look like another
    }
    every = {**written.settings, **NEWCOMER_SETTINGS, **known, **own}
    root = every.get(ROOT)
    check_kind_of(saved, data, root)
    if every.get(DROP) is None:
        every[DROP] = beside(saved, data, root)
    config = make_config(chosen_method(saved, every, trust), every)
    config.method.pooled = False  # a newcomer keeps its samples
    return config


def save_newcomers(
    folder: Path, simulation: Simulation, models: dict[int, PersonalModel], beside: Sequence[str]
) -> None:
    """Write newcomers' models and their manifest; `beside`: columns that the run's own clients may have too."""
    files = ModelFiles(folder, simulation)
    for client, model in models.items():
        files.write(client, model, JOINED)
    files.describe(beside)
    for name, source in code_copies(simulation.config).items():
        write(folder / name, source)


# ---- alternatives to joining


def trained_alone(config: Config, part: Federation, network: Network | None) -> dict[int, float]:
    """Return by client the score of a model that it trains on its own, in as many rounds as the run had."""
    tables = config.as_tables()
    kept = {name: value for table in ("model", "run", "train") for name, value in tables[table].items()}
    rounds = config.method.rounds
    alone = {"participation": 1.0, "clients_per_round": None, "rounds": rounds, "eval_every": rounds}
    alone |= {"per_client": None}  # which is for the run's clients
    simulation = prepare(make_config("local", {**kept, **alone, "moment": RECEIVED}), part, network)
    last = simulation.run().history.scores[RECEIVED]
    return {client: score.ranking for client, score in last.items() if score.ranking is not None}


def by_global(
    saved: RunModels, part: Federation, clients: Sequence[int], model: Network | None, trust: bool
) -> dict[int, float]:
    """Return by client the score of the run's global model, where it has one."""
    if not saved.has_global:
        return {}
    served, source = load_model(saved.run, model=model, trust=trust), part.source
    tested = [client for client in clients if len(part.test[client])]
    if not tested:
        return {}
    samples = torch.cat([part.test[client] for client in tested])
    sizes = [len(part.test[client]) for client in tested]
    judged = Judged(served.outputs(chosen(source.x, samples)), source.y[samples], tested, sizes)
    [scores] = measure_all([judged], source.task)
    return {client: score.ranking for client, score in scores.each.items() if score.ranking is not None}
