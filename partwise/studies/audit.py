"""A leak audit: one round of a method, and what an eavesdropper on the uploads learns from it."""

import statistics
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partwise.errors import ConfigError
from partwise.network.view import Net, Tensors
from partwise.privacy.attacks import count_shares, inverted, shares_from_bias, total_variation
from partwise.privacy.filters import class_indexed
from partwise.privacy.histograms import FEWEST_ON_NODES
from partwise.records.ledger import LedgerRecord
from partwise.records.setup import Leaving
from partwise.runs.config import Config, label
from partwise.runs.files import leaving
from partwise.runs.observers import Exchange, Observer, Seen
from partwise.runs.prepare import prepare
from partwise.runs.privacy import uncovered
from partwise.runs.settings import Privacy
from partwise.runs.simulation import Simulation
from partwise.streams import torch_stream
from partwise.trees import chosen, one_tensor

if TYPE_CHECKING:
    from partwise.records.setup import Leaving

MOST_ROUNDS = 5  # that a method's stages may need, to have one round each
SEARCH = 400  # steps for samples
STANDARD = Privacy(upload_clip=1.0, upload_noise=1.0, histograms="presence", min_class_count=FEWEST_ON_NODES)


class Audit(Observer):
    """An eavesdropper who sees all uploads and attacks the first answer of each kind."""

    def __init__(self) -> None:
        self.leaving: dict[str, Leaving] = {}  # by part and extra
        self.rebuilt: dict[str, list[float]] = {}  # by attack: how far it ended from each client's label histogram
        self.sent: dict[str, int] = {}  # bytes by part and extra
        self.uncovered = ""  # a line that lists what has no part in epsilon, where that is counted
        self.blind = 0.0  # how far equal shares of all classes are from the true ones

    def begin(self, simulation: Simulation) -> None:
        """Note the true label histograms, to compare attacks with."""
        self.counts = simulation.engine.federation.class_counts()
        true = [count_shares(row.double()) for row in self.counts if row.sum() > 0]
        self.blind = statistics.fmean([total_variation(torch.full_like(row, 1 / len(row)), row) for row in true])

    def round(self, seen: Seen) -> None:
        """Note and attack every exchange of a round."""
        for exchange in seen.exchanges:
            self.listen(exchange)
            for attack, distances in attacked(exchange, self.counts).items():
                self.rebuilt.setdefault(attack, distances)

    def listen(self, exchange: Exchange) -> None:
        """Note what the clients of an answer upload."""
        updates = exchange.updates
        self.leaving = leaving(updates, self.counts.shape[1], self.leaving)
        held = self.counts[updates.clients]
        few = (held > 0) & (held < FEWEST_ON_NODES)
        for name, extra in updates.extras.items():
            leaves = filter(class_indexed, tree_leaves(extra, is_leaf=class_indexed))
            rare = [int((few & (leaf.counts.cpu() > 0)).sum()) for leaf in leaves]
            self.leaving[name] = replace(self.leaving[name], rare=max(self.leaving[name].rare, *rare, 0))

    def end(self, last: Seen | None) -> None:
        """Note the bytes that clients uploaded, and what epsilon does not cover."""
        if last is not None:
            ledger = LedgerRecord.from_json(last.simulation.server.ledger.as_dict())
            self.sent = dict(Counter(ledger.total.up) + Counter(ledger.once.up))
            spent = last.record.epsilon
            self.uncovered = uncovered(last.simulation, spent) if spent else ""


def attacked(exchange: Exchange, counts: Tensor) -> dict[str, list[float]]:
    """Return by attack how far it ends from the label histogram of each client that answered."""
    updates, found = exchange.updates, dict[str, list[float]]()
    settings = exchange.engine.program.method
    for row, client in enumerate(updates.clients):
        true = count_shares(counts[client].double())
        for name, extra in updates.extras.items():
            for leaf in filter(class_indexed, tree_leaves(extra, is_leaf=class_indexed)):
                told = leaf.counts[row].double().cpu()
                found.setdefault(f"counts in '{name}'", []).append(total_variation(count_shares(told), true))
        for name, value in updates.of_clients().items():
            if value.dim() == 2 and value.shape[1] == counts.shape[1] and name in exchange.request.copies:
                change = (value[row] - exchange.received(client)[name]).double().cpu()
                guess = shares_from_bias(change, settings.lr, float(updates.steps[row]))
                found.setdefault(f"change of '{name}'", []).append(total_variation(guess, true))
    return found


def audited(config: Config) -> Audit:
    """Run a method and return what an eavesdropper learned."""
    prepare(config).run(observers=[(audit := Audit())])
    return audit


def shortest(config: Config) -> Config:
    """Return the same run in as few rounds as its method's stages need."""
    refused: ConfigError | None = None
    for rounds in range(1, MOST_ROUNDS + 1):
        try:
            made = replace(config, method=replace(config.method, rounds=rounds))
            prepare(made)
            return made
        except ConfigError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def plain_and_filtered(config: Config) -> tuple[Config, Config]:
    """Return the run without filters, and with its own; where it has none, with STANDARD ones."""
    filtered = STANDARD if config.privacy == Privacy() else config.privacy
    return replace(config, privacy=Privacy()), replace(config, privacy=filtered)


# ---- a picture


def rebuilt_samples(config: Config, samples: int = 4) -> tuple[Tensor, Tensor]:
    """Return (samples, ...) one client's only mini-batch, and its reconstruction from the upload, both standardised."""
    method = replace(config.method, batch=samples, epochs=1, per_client=None, momentum=0.0, lr_decay=1.0)
    data, run = replace(config.data, train_samples=samples), replace(config.run, dtype="float64", device="cpu")
    simulation = prepare(replace(config, method=method, data=data, run=run))
    server, source, parts = simulation.server, simulation.federation.source, simulation.program.parts
    start = {name: copies.values[0].clone() for name, copies in server.copies.items()}
    simulation.run(observers=[(ear := FirstUpload())])
    if not ear.change:
        raise ConfigError(f"{label(config.name)} uploads nothing of its network: there is no gradient to invert")
    index = simulation.federation.train[ear.client]
    simulation.program.task.require_classes("this audit")
    x = one_tensor(simulation.program.normalised(chosen(source.x, index)), "this audit")
    y = source.y[index]

    def gradients(guess: Tensor) -> Tensors:
        weights = {name: start[name].clone().requires_grad_() for name in ear.change}
        net = Net(parts, simulation.program.scope, {**start, **weights})
        loss = simulation.program.task.loss(net(guess), y, torch.ones(len(y), dtype=torch.bool))
        made = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
        return {n: torch.zeros_like(start[n]) if g is None else g for n, g in zip(weights, made, strict=True)}

    seen = {name: -change for name, change in ear.change.items()}  # a gradient, up to its length
    found = inverted(gradients, seen, x.shape, SEARCH, torch_stream(config.run.seed, "inversion"))
    return x, found


class FirstUpload(Observer):
    """Keep how the first client's model moved in its first training."""

    def __init__(self) -> None:
        self.client, self.change = 0, dict[str, Tensor]()

    def round(self, seen: Seen) -> None:
        """Note the first upload."""
        for exchange in seen.exchanges:
            if exchange.job == "train" and not self.change:
                self.client = exchange.updates.clients[0]
                received = exchange.received(self.client)
                new = exchange.uploaded(self.client)
                self.change = {name: value - received[name] for name, value in new.items() if name in received}
