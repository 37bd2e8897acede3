"""A finished run, with room for clients that were never in it."""

from dataclasses import replace

import numpy as np
import torch

from partwise.data import Federation
from partwise.engines.store import StoreState
from partwise.errors import ConfigError, DataError
from partwise.inference.run_models import RunModels
from partwise.network.parts import Network
from partwise.records.files import CHECKPOINTS_FOLDER
from partwise.rounds.mixing import Copies
from partwise.runs.checkpoints import checkpoints_in, made_with
from partwise.runs.config import Config
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation


def widened_run(saved: RunModels, config: Config, part: Federation, network: Network | None) -> Simulation:
    """Return the run after its last round, with clients that were never in it behind all others."""
    last = next((each for each in checkpoints_in(saved.run / CHECKPOINTS_FOLDER) if each.over), None)
    if last is None:
        raise DataError(f"'{saved.run}' has no checkpoint of a finished run: there is nothing to join")
    simulation = prepare(config, part, network)
    here = made_with(simulation)
    for what in ("method", "network"):
        before, now = getattr(last.made_with, what), getattr(here, what)
        if before != now:
            raise ConfigError(f"'{saved.run}': the {what} was {before} and is {now}")
    state = last.state(simulation.engine.device)
    old = len(saved.manifest.clients)
    more, server, store = part.clients - old, state.server, state.store
    copies = {name: widened(each, more) for name, each in server.copies.items()}
    times = np.concatenate([server.times, np.zeros(more, np.int64)])
    groups = None if server.groups is None else torch.cat([server.groups, torch.zeros(more, dtype=torch.long)])
    initial = {name: widened(each, more) for name, each in store.initial.items()}
    nobody, no_steps = np.zeros(0, np.int64), np.zeros(part.clients, np.int64)  # the run's own clients take no part
    simulation.engine.store.restore(StoreState(initial, store.fresh, nobody, no_steps), [])
    vars(config.method).update(state.method)
    for name in state.gone:
        delattr(config.method, name)
    simulation.server.restore(replace(server, copies=copies, times=times, groups=groups))
    config.method.admit(simulation.server, list(range(old, part.clients)))
    return simulation


def widened(copies: Copies, more: int) -> Copies:
    """Return copies of a tensor with those of more clients behind all others: the mean, or that of the first group."""
    if copies.row is None:
        return copies
    each = len(copies.values) == len(copies.row) and torch.equal(copies.row, torch.arange(len(copies.row)))
    if not each:
        return Copies(copies.values, torch.cat([copies.row, torch.zeros(more, dtype=torch.long)]))
    values = torch.cat([copies.values, copies.values.mean(0).expand(more, *copies.values.shape[1:])])
    return Copies(values, torch.arange(len(values)))
