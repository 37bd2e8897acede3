"""`partwise.run`: one call, one run; `partwise.compare`: several."""

import builtins
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from partwise.errors import ConfigError, short
from partwise.method import Method
from partwise.methods import find
from partwise.network.parts import Parts
from partwise.papers.presets import preset_settings
from partwise.runs.compare import parse_seeds
from partwise.runs.comparison import Comparison
from partwise.runs.config import HANDED_IN, known_fields, make_config
from partwise.runs.observers import Observer, TellRows
from partwise.runs.prepare import prepare
from partwise.runs.result import Result
from partwise.runs.simulation import Progress


def run(
    method: str | type[Method] | Method,
    *,
    data: Any = None,
    model: str | Parts | nn.Module | None = None,
    preset: str | None = None,
    progress: Progress | bool | None = None,
    observers: Sequence[Observer] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **settings: Any,
) -> Result:
    """Run a method and return its result.

    `method` is a name, a class, an object or the path of a file; `data` and `model` are names or objects of your own
    (unset: digits, and the network that belongs to the data);
    every other setting of the command line is a keyword: `run("fedper", rounds=50, lr=0.05, partition="dir:0.3")`.
    `data` may be a path, a pair (x, y) of arrays, a torch or Hugging Face data set, a DataFrame, or a list or dict with
    the arrays or the torch data set of each client.
    `preset` is a paper's table, whose settings hold where nothing else is said: "fed3p2p/table1" with data="cifar10".
    With `out` the run is written into that folder as well, with checkpoints; `overwrite` replaces an earlier run there,
    `resume` goes on with one that was not finished, or begins. Objects of your own stand in its config.toml as handed
    in: that file alone cannot repeat the run, and says so.
    `progress` is called with every row of the metrics; True shows how far the run is, which a notebook does unless it
    is False. `observers` see all of a run's inside and may end it (`partwise.Observer`).
    """
    own_data = None if isinstance(data, str | Path) else data
    own_model = None if isinstance(model, str) else model
    if data is not None:
        settings["data"] = str(data) if own_data is None else HANDED_IN
    if model is not None:
        settings["model"] = model if isinstance(model, str) else HANDED_IN
    if not isinstance(observers, list | tuple) or not all(isinstance(one, Observer) for one in observers):
        raise ConfigError(f"observers must be a list of partwise.Observer objects, got {short(repr(observers))}")
    below = None if preset is None else partial(preset_settings, preset)
    config = make_config(method, settings, preset=below)
    watching = [*observers, *shown(progress)]
    if out is None:
        return Result(prepare(config, own_data, own_model).run(observers=watching))
    from partwise.runs.folder import RunFolder, inside  # needs safetensors and filelock; a run alone does not

    folder = RunFolder(inside(out), config, overwrite, resume)  # refuses before the data are read
    if folder.kept:
        raise ConfigError(f"'{out}' holds this run, finished: read its files, or pass overwrite=True")
    simulation = prepare(config, own_data, own_model, before=folder.made_with)
    return folder.record(simulation, observers=watching)


def compare(
    methods: Sequence[str | type[Method] | Method],
    *,
    seeds: Sequence[int] = (0,),
    data: Any = None,
    model: str | Parts | nn.Module | None = None,
    preset: str | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run several methods with every seed and return their results against each other.

    All else is as in `run`; a setting that only some of the methods have goes to those. In a notebook the comparison
    shows itself as a leaderboard, and its `plot()` draws the curves.
    """
    known = [set(known_fields(class_of(method).variant(settings))) for method in methods]
    common = {name for name in settings if not any(name in own for own in known)}  # nobody's: `run` refuses it
    every = parse_seeds(seeds)
    results = []
    for method, own in zip(methods, known, strict=True):
        mine = {name: value for name, value in settings.items() if name in own | common}
        for seed in every:
            results.append(run(method, data=data, model=model, preset=preset, progress=progress, seed=seed, **mine))
    return Comparison(results)


def class_of(method: str | type[Method] | Method) -> type[Method]:
    """The class of what names a method."""
    return type(method) if isinstance(method, Method) else find(method) if isinstance(method, str) else method


def shown(progress: Progress | bool | None) -> list[Observer]:
    """Who shows the progress of a run."""
    if callable(progress):
        return [TellRows(progress)]
    if progress is False or (progress is None and not hasattr(builtins, "get_ipython")):  # where IPython puts itself
        return []
    from partwise.reporting.progress import Shown  # needs rich; a run alone does not

    return [Shown()]
