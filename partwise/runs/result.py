"""What a run leaves behind: its metrics as a table, its ledger, and a model for every client."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from partwise.client import Kernel
from partwise.net import Me, Net, Received
from partwise.runs.config import Config
from partwise.runs.simulation import Simulation


class PersonalModel(nn.Module):
    """One client's model, to be used like any other: samples as the data set holds them in, logits out."""

    def __init__(self, kernel: Kernel, tensors: dict[str, Tensor], extras: dict[str, Any], counts: Tensor):
        super().__init__()
        self.tensors, self.extras, self.counts = tensors, extras, counts
        self.kernel = dataclasses.replace(kernel, centre=kernel.centre.cpu(), scale=kernel.scale.cpu())

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel
        received, keep = self.below("got."), self.below("keep.")
        own = {name: value for name, value in self.tensors.items() if not name.startswith(("got.", "keep."))}
        net = Net(kernel.parts, kernel.scope, own, compute=kernel.compute)
        got = Net(kernel.parts, kernel.scope, {**own, **received}, record=False, compute=kernel.compute)
        zero = torch.zeros((), dtype=kernel.dtype)
        me = Me(Received(got, set(received or own), self.extras), keep, self.counts, self.counts.sum(), zero, zero)
        return kernel.method.predict(net, (x.to(kernel.dtype) - kernel.centre) / kernel.scale, me).to(kernel.dtype)

    def below(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


class Models(Mapping[int, PersonalModel]):
    """Every client's model by its number: adapted where the method adapts, else as received after the last round."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self.clients = simulation.server.eligible

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __getitem__(self, client: int) -> PersonalModel:
        if client not in self.clients:
            raise KeyError(f"client {client} has no model; clients with training samples: {self.clients}")
        return self.some([client])[client]

    def some(self, clients: list[int]) -> dict[int, PersonalModel]:
        """The models of several clients, made together."""
        simulation = self.simulation
        job = "adapt" if simulation.engine.adapt_phases else "predict"
        order = simulation.server.order(job, clients, models=True)
        tensors = simulation.engine.run(order).models
        counts = simulation.engine.counts.cpu()
        return {k: PersonalModel(simulation.kernel, tensors[k], order.extras, counts[k]) for k in clients}


class Result:
    """A finished run."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self.config: Config = simulation.config
        self.notes = simulation.notes
        self.models = Models(simulation)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A row for every round: what metrics.jsonl holds."""
        return self.simulation.history.rows

    @cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Best and last of every moment (`received`, `trained`, `adapted`, `global`), as fractions."""
        return self.simulation.history.headline()

    @property
    def clients(self) -> list[dict[str, Any]]:
        """A row for every client: what clients.csv holds; None where there is no value."""
        simulation, history = self.simulation, self.simulation.history
        counts = simulation.federation.class_counts()
        rounds = Counter(client for row in self.metrics for client in row["participants"])
        rows = []
        for client in range(simulation.federation.clients):
            row: dict[str, Any] = {
                "client": client,
                "train_samples": len(simulation.federation.train[client]),
                "validation_samples": len(simulation.federation.validation[client]),
                "test_samples": len(simulation.federation.test[client]),
                "classes": int((counts[client] > 0).sum()),
                "rounds": rounds[client],
            }
            for moment in ("received", "trained", "adapted", "global"):
                score = history.last.get(moment, {}).get(client)
                row[moment] = None if score is None else score.accuracy
                row[f"{moment}_balanced"] = None if score is None else score.balanced
                row[f"{moment}_best"] = history.best.get(moment, {}).get(client)
            rows.append(row)
        return rows

    @property
    def ledger(self) -> dict[str, Any]:
        """Bytes down and up for each part, one-off transfers, training FLOPs."""
        return self.simulation.server.ledger.as_dict()

    def __repr__(self) -> str:
        best = {moment: values["last"] for moment, values in self.summary.items() if "last" in values}
        words = [
            f"{moment} {100 * value['acc_pooled']:.2f} %" for moment, value in best.items() if "acc_pooled" in value
        ]
        return f"<Result of {self.config.name}: {len(self.metrics)} rounds, last {', '.join(words)}>"
