"""The features that clients' own models give, and the papers' metrics of them."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.network.view import Net
from partwise.papers.representations import cka_matrix, class_separation, existing_number, mean_cka, tsne_rows
from partwise.records.features import FeatureMetrics
from partwise.rounds.batches import EVALUATION_BATCH
from partwise.runs.result import Models, PersonalModel, Result
from partwise.runs.simulation import Simulation
from partwise.trees import Samples, chosen, in_pieces

MODELS_AT_ONCE = 16  # models that are in memory at a time
POINTS = 2000  # samples of all clients together on a plane: more would cover each other


def client_features(run: Result | Simulation, path: str | Sequence[str], test: bool = True) -> dict[int, Tensor]:
    """Return the features of each client's own samples behind some parts of its model, as it would predict now.

    They are test samples, or training samples on request; the rows (samples, size) are in the order of `client_labels`.
    `path` names the parts that a sample passes: "body" for DualFed's z, "body projector" for its u. A run that is
    under way can be asked too, and ends as if it had not been:
    `simulation.run(lambda record: noted.append(representation_metrics(simulation, "body")))`.
    """
    simulation = run.simulation if isinstance(run, Result) else run
    path = path.split() if isinstance(path, str) else list(path)
    for part in path:
        simulation.program.parts.module(part)
    models, index, device = Models(simulation), evaluated_samples(simulation, test), simulation.engine.device
    result = {}
    clients = list(index)
    for start in range(0, len(clients), MODELS_AT_ONCE):
        for client, model in models.some(clients[start : start + MODELS_AT_ONCE]).items():
            own = chosen(simulation.engine.x, index[client].to(device))
            batches = in_pieces(own, EVALUATION_BATCH, device)
            result[client] = torch.cat([passed(model.to(device), x, path).flatten(1).cpu() for x in batches])
    return result


def client_labels(run: Result | Simulation, test: bool = True) -> dict[int, Tensor]:
    """Return the labels of the rows that `client_features` gives."""
    simulation = run.simulation if isinstance(run, Result) else run
    return {client: simulation.federation.source.y[own] for client, own in evaluated_samples(simulation, test).items()}


def evaluated_samples(simulation: Simulation, test: bool) -> dict[int, Tensor]:
    """Return the samples of each client that is evaluated."""
    own = simulation.federation.test if test else simulation.federation.train
    return {client: own[client] for client in simulation.evaluation.clients}


@torch.no_grad()
def passed(model: PersonalModel, x: Samples, path: Sequence[str]) -> Tensor:
    """Return samples of the data set, passed through some parts of a client's model in evaluation mode."""
    net = Net(model.parts, model.scope, model.own, compute=model.compute)
    first, *others = path
    output: Tensor = getattr(net, first)(model.standardised(x))
    for part in others:
        output = getattr(net, part)(output)
    return output.to(model.dtype)


def representation_metrics(run: Result | Simulation, path: str | Sequence[str]) -> FeatureMetrics:
    """Return CKA between clients and class separation at each, on test samples (DualFed Eq. 1 and R^2)."""
    rows, own = client_features(run, path), client_labels(run)
    matrix = cka_matrix(list(rows.values()))
    separation = {client: class_separation(rows[client], own[client]) for client in rows}
    known = [value for value in separation.values() if value is not None]
    return FeatureMetrics(
        clients=list(rows),
        cka=[[existing_number(value) for value in line] for line in matrix],
        cka_mean=mean_cka(matrix),
        separation=separation,
        separation_mean=math.fsum(known) / len(known) if known else None,
    )


def tsne(run: Result | Simulation, path: str | Sequence[str]) -> NDArray[np.float64]:
    """Return (samples, 3) x, y and label of all clients' test samples, each as its client's model sees it.

    Of more than 2,000 samples every second (third ...) one, so that every client and class is there as it is in all.
    """
    rows, own = torch.cat([*client_features(run, path).values()]), torch.cat([*client_labels(run).values()])
    step = -(-len(rows) // POINTS)
    simulation = run.simulation if isinstance(run, Result) else run
    return tsne_rows(rows[::step], own[::step], simulation.config.run.seed)
