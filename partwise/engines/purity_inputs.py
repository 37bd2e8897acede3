"""What the functions of a method are tried with: a client after download, a second one beside it, and padded rows."""

from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_map

from partwise.engines.purity_probes import moved, on_host
from partwise.network.view import PerClient
from partwise.rounds.client import ClientProgram
from partwise.rounds.messages import Request
from partwise.rounds.state import BatchRows, ClientState, Common
from partwise.trees import Samples, is_whole

if TYPE_CHECKING:
    from partwise.engines.engine import Engine

REAL_ROWS = 3  # rows of the mini-batch that is tried; beside another client one fewer, for a function may count rows
MOST_LABELS = 10  # of the client's own: each stands in a padded row
FAR_FACTORS = (10, 1e3)  # padded rows are also tried at these multiples of their distance from the data's centre
WATCHED_NUMBERS = 1024  # numbers of a received tensor that are watched one by one: any of them may switch something on


class PurityInputs:
    """Chooses clients and samples of a request, and copies what their functions read to the CPU in float64."""

    def __init__(self, engine: "Engine"):
        self.engine = engine
        self.host_program: ClientProgram | None = None  # in float64 on the CPU, once it is needed

    def zeros(self, request: Request, watched: Container[str] | None = None) -> dict[str, Tensor]:
        """Return where a client's received tensors and memory are zero, for all or for watched tensors.

        A number that was non-zero once is no longer watched: the function was tried with it.
        """
        received = {name: request.copies[name].values for name in request.plan.down}
        extras = {name: value.rows if isinstance(value, PerClient) else value for name, value in request.extras.items()}
        rows = {name for name, value in request.extras.items() if isinstance(value, PerClient)}
        found = {}
        for where, tree in {**extras, "got": received}.items():
            for path, value in tree_flatten_with_path(tree)[0]:
                name = where + keystr(path)
                if watched is None or name in watched:
                    found[name] = is_zero(value, of_clients=where == "got" or where in rows)
        store = self.engine.store
        remembered = {f"keep/{name}": name for name in store.keep}
        if any(watched is None or name in watched for name in remembered):
            longest = max(request.clients, key=lambda client: (store.steps[client], -client))
            kept = store.remembered([longest])
            found |= {name: is_zero(kept[short], of_clients=True) for name, short in remembered.items()}
        return found

    def subjects(self, request: Request) -> tuple[ClientState, ClientState, Common]:
        """Return a client after download, the same beside another client, and what they share."""
        clients = self.chosen(request)
        batches = [self.engine.drawing.draw(request, client) for client in clients]
        both, common = self.engine.layout(request, clients, batches)
        both, inputs = on_host((both, common.round))
        both = both.overwritten(moved(both.trained.own, "own"))._replace(keep=moved(both.keep, "keep"))
        return tree_map(lambda tensor: tensor[0], both), both, Common(*self.samples(clients[0]), inputs)

    def chosen(self, request: Request) -> list[int]:
        """Choose up to two clients: those that read most non-zero tensors, trained most, and have most classes."""
        read = torch.zeros(len(request.clients))
        for value in request.extras.values():
            if isinstance(value, PerClient):
                read += sum(
                    (leaf != 0).reshape(len(leaf), -1).sum(1).cpu() for leaf in tree_leaves(value.rows)
                )  # a switch may be on for some clients alone
        steps, train = self.engine.store.steps, self.engine.train
        kinds = (self.engine.counts > 0).sum(1).tolist()
        rank = {
            client: (float(read[row]), steps[client], kinds[client], len(train[client]))
            for row, client in enumerate(request.clients)
        }
        first, *others = sorted(request.clients, key=lambda client: rank[client], reverse=True)
        return [first, *others[:1]]

    def samples(self, client: int) -> tuple[Samples, Tensor]:
        """Return a few of a client's samples; then, as padding, one under each of its labels, and distant ones.

        Whole numbers that stand for something are no farther off than others.
        """
        engine = self.engine
        own = engine.train[client]
        index = torch.from_numpy(np.resize(own, REAL_ROWS)).to(engine.device)
        y = engine.y[index].cpu()
        labels = engine.y[torch.from_numpy(own).to(engine.device)].cpu().unique(dim=0)[:MOST_LABELS]

        def padded(stored: Tensor, centre: Tensor) -> Tensor:
            x = stored[index].cpu()
            form = len(FAR_FACTORS), *x.shape[1:]
            if is_whole(x):
                far = x[1:2].expand(form)
            else:
                x = x.double().nan_to_num()
                far = torch.stack([centre + factor * (x[1] - centre) for factor in FAR_FACTORS]).view(form)
            return torch.cat([x, x[:1].expand(len(labels), *x.shape[1:]), far])

        x = tree_map(padded, engine.x, self.on_host().centre)
        return x, torch.cat([y, labels, y[1:2].expand(len(FAR_FACTORS), *y.shape[1:])])

    def on_host(self) -> ClientProgram:
        """Return the run's program in float64 on the CPU."""
        if self.host_program is None:
            program = self.engine.program
            parts = program.parts.duplicate()
            for module in parts.modules.values():
                module.to("cpu", torch.float64)
            centre, scale = (tree_map(lambda v: v.cpu().double(), each) for each in (program.centre, program.scale))
            program = replace(program, parts=parts, centre=centre, scale=scale)
            self.host_program = replace(program, dtype=torch.float64, compute=None, channels_last=False)
        return self.host_program


def mini_batch(real: int, padded: int, batches: int) -> BatchRows:
    """Return a step's mini-batches: the first samples, then padded rows; each further one is rolled by one."""
    first, behind = torch.arange(real), torch.arange(REAL_ROWS, REAL_ROWS + padded)
    samples = torch.stack([torch.cat([first.roll(turn), behind]) for turn in range(batches)])
    return BatchRows(samples, torch.tensor(real), torch.tensor(7), torch.zeros(*samples.shape, 0))


def extras_form(request: Request) -> Any:
    """Return the names, shapes and types of the extras that clients receive, for any number of clients."""
    extras = {
        name: tree_map(lambda rows: rows[:1], value.rows) if isinstance(value, PerClient) else value
        for name, value in request.extras.items()
    }
    leaves, structure = tree_flatten(extras)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def is_zero(value: Tensor, of_clients: bool) -> Tensor:
    """Return where a tensor is zero or NaN, at all clients if it has a row for each; for large ones, by row."""
    zero = (value == 0) | value.isnan()
    if of_clients:
        zero = zero.all(0)
    while zero.numel() > WATCHED_NUMBERS:
        zero = zero.all(-1)
    return zero
