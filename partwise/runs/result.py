"""The results of a run: its metrics as a table, its ledger, and a model for every client."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from partwise.data import Federation
from partwise.errors import ConfigError, DataError, needed, unknown
from partwise.network.keyed import Draws
from partwise.network.parts import floating
from partwise.network.view import Extras, Me, Net, PerClient, Received, Remembered, Tensors
from partwise.records.metrics import FIELDS, RANKING, TITLES
from partwise.records.record import Json
from partwise.records.rounds import RoundRecord
from partwise.records.summaries import ClientRecord, RunSummary
from partwise.rounds.client import MINE, PREDICT, ClientProgram
from partwise.rounds.messages import Job, Request
from partwise.rounds.plan import Plan
from partwise.runs.config import Config, label
from partwise.runs.evaluation import sound_models
from partwise.runs.metrics import validation_value, worse_off
from partwise.runs.simulation import Simulation
from partwise.trees import Samples, is_whole, tensors_of


class PersonalModel(nn.Module):
    """One client's model, to be used like any other: samples as the data set holds them in, the network's output out.

    That is logits, (rows, classes, ...), or standardised numbers: `model.task.in_own_unit` has them in the label's own
    unit. `logits` takes samples that are standardised already.
    """

    counts: Tensor

    def __init__(
        self,
        program: ClientProgram,
        plan: Plan,
        tensors: Tensors,
        extras: Extras,
        counts: Tensor,
        lr: float,
        key: int,
    ):
        super().__init__()
        self.key = key  # of what the method draws as it predicts
        self.sent, self.lr, self.stage = set(plan.down), lr, plan.number
        how = plan.predict
        self.how, self.scope, self.dtype, self.compute = how, program.scope, program.dtype, program.compute
        self.task, self.parts = program.task, program.parts.duplicate()
        self.network = nn.ModuleDict(self.parts.modules).cpu()  # so that parameters(), state_dict() and to() see them
        with torch.no_grad():
            for name, value in self.own.items():
                value.copy_(tensors[name])
        self.extras, self.beside = extras, [name for name in tensors if name.startswith(("got.", "keep."))]
        for name in self.beside:
            self.register_buffer(name.replace(".", "/"), tensors[name])
        self.embeds = program.embeds
        for name, value in {
            **named("centre", program.centre),
            **named("scale", program.scale),
            "counts": counts,
        }.items():
            self.register_buffer(name, value.cpu(), persistent=False)
        self.eval()

    def single(self) -> "PersonalModel":
        """Compute in float32 from now on, with everything in it."""
        self.float()
        self.dtype, self.compute = torch.float32, None
        self.extras = tree_map(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, self.extras)
        return self

    @property
    def own(self) -> Tensors:
        """Return the parameters and floating-point buffers of the network, by part and name."""
        return {f"{part}.{name}": value for part, module in self.network.items() for name, value in floating(module)}

    @property
    def tensors(self) -> Tensors:
        """Return the client's tensors for prediction: its network, `got.` what it only received, `keep.` its memory."""
        beside = {name: getattr(self, name.replace(".", "/")) for name in self.beside}
        return {name: value.detach() for name, value in {**self.own, **beside}.items()}

    def forward(self, x: Samples) -> Tensor:
        """Return what the network gives of samples as the data set holds them."""
        return self.logits(self.standardised(x))

    def standardised(self, x: Samples) -> Samples:
        """Return samples as the network takes them, from samples as the data set holds them."""

        def of_tensor(name: str, tensor: Tensor) -> Tensor:
            if self.embeds and is_whole(tensor):
                return tensor
            return (tensor.to(self.dtype) - getattr(self, f"centre{name}")) / getattr(self, f"scale{name}")

        if isinstance(x, dict):
            return {name: of_tensor(f"/{name}", tensor) for name, tensor in x.items()}
        return of_tensor("", x)

    def logits(self, x: Samples, asked: set[str] | None = None) -> Tensor:
        """Return (rows, ...) what the client's network gives; `asked` records what it reads of `me`."""
        own, beside = self.own, self.tensors
        received = {name.removeprefix("got."): beside[name] for name in self.beside if name.startswith("got.")}
        keep = {name.removeprefix("keep."): beside[name] for name in self.beside if name.startswith("keep.")}
        device = tensors_of(x)[0].device
        extras = tree_map(lambda tensor: tensor.to(device), self.extras)
        net = Net(self.parts, self.scope, own, compute=self.compute)
        got = Net(self.parts, self.scope, {**own, **received}, record=False, compute=self.compute)
        zero = torch.zeros((), dtype=self.dtype, device=device)
        draws = Draws(torch.tensor(self.key + PREDICT + MINE, device=device), self.dtype)
        lr = torch.full_like(zero, self.lr)
        task, samples = self.task, self.counts.sum()
        me = Me(Received(got, self.sent, extras), Remembered(keep), self.counts, task, samples, zero, lr, draws)
        return self.how(net, x, me if asked is None else Watched(me, asked)).to(self.dtype)


def named(what: str, tree: Samples) -> Tensors:
    """Return the tensors of centre or scale by the names of their buffers."""
    return {f"{what}/{name}": own for name, own in tree.items()} if isinstance(tree, dict) else {what: tree}


class Watched:
    """Stands for `me` and notes what of it is read."""

    def __init__(self, me: Me, asked: set[str]):
        self._me, self._asked = me, asked

    def __getattr__(self, name: str) -> Any:
        self._asked.add(name)
        return getattr(self._me, name)


class Models(Mapping[int, PersonalModel]):
    """Every client's model after the last round, by its number.

    A model is adapted in the method's own way where it has one, else as received.
    """

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self.clients = simulation.clients

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __getitem__(self, client: int) -> PersonalModel:
        if client not in self.clients:
            raise KeyError(f"client {client} has no model; clients with training samples: {self.clients}")
        models = self.some([client])
        if client not in models:
            raise KeyError(f"client {client} has no model: its adaptation diverged")
        return models[client]

    def __repr__(self) -> str:
        few = ", ".join(map(str, self.clients[:3])) + (", ..." if len(self.clients) > 3 else "")
        return f"<Models of {len(self)} clients, as {self.moment}, by their numbers: {few}>"

    @property
    def moment(self) -> str:
        """Return the moment of the models: `method_adapted` or `received`."""
        return "method_adapted" if self.simulation.engine.drawing.adapt_phases else "received"

    def some(self, clients: list[int]) -> dict[int, PersonalModel]:
        """Make the models of several clients; a client whose adaptation diverged has none."""
        simulation = self.simulation
        job: Job = "adapt" if self.moment == "method_adapted" else "predict"
        request = simulation.server.request(job, clients, models=True)
        tensors = simulation.method_adapted
        if not set(clients) <= set(tensors):
            tensors = sound_models(simulation.engine.run(request))
        return {k: personal_model(simulation, request, k, tensors[k]) for k in clients if k in tensors}


def personal_model(simulation: Simulation, request: Request, client: int, tensors: Tensors) -> PersonalModel:
    """Return the model of one client of a request, from the engine's tensors."""
    program, engine = simulation.program, simulation.engine
    lr, key = request.rate * program.method.lr, engine.drawing.key(request, client)
    return PersonalModel(program, request.plan, tensors, extras_of(request, client), engine.counts[client], lr, key)


def extras_of(request: Request, client: int) -> Extras:
    """Return the extras that one client received, on the host."""
    host = torch.device("cpu")
    return {
        name: tree_map(lambda rows: rows[0], value.of(request.clients, [client], host))
        if isinstance(value, PerClient)
        else tree_map(lambda tensor: tensor.to(host), value)
        for name, value in request.extras.items()
    }


class Result:
    """A finished run."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self.config: Config = simulation.config
        self.notes = simulation.notes
        self.models: Models = Models(simulation)  # `models[3]` is client 3's own, a `PersonalModel`

    @property
    def federation(self) -> Federation:
        """Return the data set and its partition."""
        return self.simulation.federation

    @property
    def rounds(self) -> list[RoundRecord]:
        """Return the record of every round: who took part, what travelled, and the scores."""
        return self.simulation.history.rounds

    @property
    def metrics(self) -> list[Json]:
        """Return a row for every round, as in metrics.jsonl."""
        return self.simulation.history.rows

    @property
    def table(self) -> list[Json]:
        """Return the metrics as a table: the same columns in every row, such as `received.acc_pooled`."""
        rows = [dict(flat("", row)) for row in self.metrics]
        columns = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name) for name in columns} for row in rows]

    @cached_property
    def summary(self) -> RunSummary:
        """Return the run in a few numbers, as in summary.json: `result.summary.last("received").accuracy`."""
        config, history, source = self.config, self.simulation.history, self.federation.source
        last = self.rounds[-1]
        participants = sum(row["participants"] for row in self.ledger["rounds"])
        return RunSummary(
            label(config.name),
            len(self.rounds),
            sum(record.sent for record in self.rounds) / max(1, participants),
            round(sum(record.seconds for record in self.rounds), 4),
            source.name,
            self.federation.rule,
            self.federation.clients,
            config.run.seed,
            last.restored,
            config.run.moment,
            config.run.metric,
            (source.class_names or "01")[1] if source.task.of_classes and source.classes == 2 else None,
            validation_value(last, config.run.moment, config.run.metric),
            self.judged,
            last.changed_at_end,
            self.simulation.names_held_out,
            last.epsilon,
            history.headlines(),
            history.global_headline(),
            history.chosen(),
            source.task.kind,
        )

    @property
    def client_records(self) -> list[ClientRecord]:
        """Return the record of every client, by its number."""
        federation, history = self.federation, self.simulation.history
        counts = federation.class_counts()
        rounds = Counter(client for record in self.rounds for client in record.participants)
        return [
            ClientRecord(
                client,
                federation.names[client],
                len(federation.train[client]),
                len(federation.validation[client]),
                len(federation.test[client]),
                int((counts[client] > 0).sum()) if federation.holds == "all" else None,
                rounds[client],
                {moment: scores[client] for moment, scores in history.scores.items() if client in scores},
                {moment: best[client] for moment, best in history.best.items() if client in best},
                self.federation.source.task.kind,
            )
            for client in range(federation.clients)
        ]

    @property
    def clients(self) -> list[Json]:
        """Return a row for every client, as in clients.csv; None where there is no value."""
        return [record.as_row() for record in self.client_records]

    @property
    def judged(self) -> list[float | None]:
        """Return each client's accuracy at the moment that compares methods; of other tasks what ranks by default."""
        scores = self.simulation.history.scores.get(self.config.run.moment, {})
        return [scores[k].ranking if k in scores else None for k in range(self.federation.clients)]

    def worse_off(self, reference: "Result") -> float:
        """Return the share of clients tested in both runs that do worse here than in `reference`."""
        ours, theirs = self.federation.test, reference.federation.test
        if len(ours) != len(theirs) or not all(map(torch.equal, ours, theirs)):
            raise DataError(
                "the two runs did not test the same clients on the same samples, so they cannot be compared"
            )
        sign = FIELDS[RANKING[self.federation.source.task.kind]].sign
        share = worse_off(self.judged, reference.judged, sign)
        if share is None:
            raise DataError("no client was tested in both runs: there is nothing to compare")
        return share

    @property
    def ledger(self) -> Json:
        """Return bytes down and up for each part, one-off transfers and training FLOPs."""
        return self.simulation.server.ledger.as_dict()

    def to_pandas(self, rows: Literal["rounds", "clients"] = "rounds") -> Any:
        """Return a pandas DataFrame: `table`, a row for every round, or `clients`, a row for every client."""
        if rows not in ("rounds", "clients"):
            raise ConfigError(unknown("table", rows, ("rounds", "clients")))
        return needed("pandas", "tables").DataFrame(self.table if rows == "rounds" else self.clients)

    def plot(self, moment: str | None = None, axes: Any = None) -> Any:
        """Draw the run's metric over rounds, with matplotlib, and return the axes; `moment` unset: the compared one."""
        from partwise.reporting.curves import draw_curves  # needs matplotlib; a run alone does not

        run = self.config.run
        return draw_curves({label(self.config.name): [self.rounds]}, moment or run.moment, run.metric, axes)

    def __repr__(self) -> str:
        last = {moment: headline.last.ranking for moment, headline in self.summary.moments.items()}
        metric = RANKING[self.summary.task]
        shown = [f"{moment} {ranked_text(value, metric)}" for moment, value in last.items() if value is not None]
        words = [f"{len(self.rounds)} rounds", *([f"last {', '.join(shown)}"] if shown else [])]
        return f"<Result of {label(self.config.name)}: {', '.join(words)}>"

    def _repr_html_(self) -> str:
        """Return the table of the command line as HTML, for notebooks."""
        from partwise.reporting.tables import one_run  # needs rich; a run alone does not

        return one_run(self.summary).to_html()


def ranked_text(value: float, metric: str) -> str:
    """Return a share in percent, another number plainly; behind the metric's title where it is not accuracy."""
    text = f"{100 * value:.2f} %" if FIELDS[metric].percent else f"{value:.4g}"
    return text if metric == "accuracy" else f"{TITLES[metric]} {text}"


def flat(prefix: str, values: Json) -> Iterator[tuple[str, Any]]:
    """Return the numbers of a row by their path."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value
