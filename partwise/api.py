"""`partwise.run`: one call, one run; `partwise.compare`: several."""

import builtins
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.errors import ConfigError, short
from partwise.method import Method
from partwise.methods import find
from partwise.network.parts import Network, is_made
from partwise.papers.presets import preset_settings
from partwise.runs.config import HANDED_IN, Config, check_distinct_names, known_fields, label, make_config
from partwise.runs.observers import Observer, TellRounds
from partwise.runs.prepare import prepare
from partwise.runs.result import Result
from partwise.runs.simulation import Progress
from partwise.studies.grouping_fidelity import TellAgreement
from partwise.studies.seeds import Show, unseen

if TYPE_CHECKING:
    from partwise.studies.comparison import Comparison  # needs safetensors and filelock; a run alone does not

log = logging.getLogger(__name__)


def run(
    method: str | type[Method] | Method,
    *,
    data: Any = None,
    model: str | Network | None = None,
    preset: str | None = None,
    progress: Progress | bool | None = None,
    observers: Sequence[Observer] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **settings: Any,
) -> Result:
    """Run a method and return its result.

    `method` is a name, a class, an object or the path of a file. `data` and `model` are names or objects of your own;
    unset: digits, and the network that belongs to the data. Every other setting of the command line is a keyword:
    `run("fedper", rounds=50, lr=0.05, partition="dir:0.3")`.
    `data` may be a path, a pair (x, y) of arrays, a torch or Hugging Face data set, a DataFrame, or a list or dict with
    the arrays or the torch data set of each client. `model` may be a `torch.nn.Module` or `Parts`, whose values the run
    starts from and does not change, or its class, or a function (`model=lambda: Net(10)`), which is called with the
    run's seed set: another seed starts from other weights. It asks for `shape` and `classes` by parameters of these
    names. `model="nets.py:Net"` is a class or function in a file.
    `preset` is a paper's table, whose settings are the defaults: "fed3p2p/table1" with data="cifar10".
    With `out` the run is written into that folder as well, with checkpoints; `overwrite` replaces an earlier run there,
    `resume` continues an unfinished one, or begins. Objects of your own are marked in its config.toml: that file alone
    cannot repeat the run, and says so.
    `progress` is called with the record of every round; True shows the run's progress, as a notebook does unless it is
    False. `observers` see the inside of a run and may end it (`partwise.Observer`).
    """
    own_data, own_model = handed_in(data, model, settings)
    check_observers(observers)
    below = None if preset is None else partial(preset_settings, preset)
    config = make_config(method, settings, preset=below)
    watching = [TellAgreement(), *observers, *watchers(progress)]
    if out is None:
        return Result(prepare(config, own_data, own_model).run(observers=watching))
    from partwise.runs.folder import RunFolder, folder_inside  # needs safetensors and filelock; a run alone does not

    folder = RunFolder(folder_inside(out), config, overwrite, resume)  # refuses before the data are read
    if folder.complete:
        raise ConfigError(f"'{out}' holds this run, finished: read its files, or pass overwrite=True")
    simulation = prepare(config, own_data, own_model, before=folder.made_with)
    return folder.record(simulation, observers=watching)


def compare(
    methods: Sequence[str | type[Method] | Method],
    *,
    seeds: Sequence[int] = (0,),
    data: Any = None,
    model: str | Network | None = None,
    preset: str | None = None,
    progress: Progress | bool | None = None,
    observers: Sequence[Observer] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    **settings: Any,
) -> "Comparison":
    """Run several methods with every seed and return their results against each other.

    All else is as in `run`; a setting that only some of the methods have goes to those. In a notebook the comparison
    shows itself as a leaderboard, and its `plot()` draws the curves.
    With `out` the folder is that of `partwise compare --out`: `METHOD/seed-0` and so on, and `leaderboard.csv`, `.md`
    and `.tex`; `resume` keeps the runs that are finished there, as settings, metrics and summary.
    A `model` that is one network starts every seed with the same weights, and a warning says so; its class, or a
    function, is called anew for each run.
    """
    from partwise.studies.comparison import Comparison
    from partwise.studies.jobs import ComparisonJobs, KeptRun
    from partwise.studies.leaderboard import parse_seeds

    every = parse_seeds(seeds)
    own_data, own_model = handed_in(data, model, settings)
    check_observers(observers)
    results: dict[int, Result | KeptRun] = {}
    jobs = ComparisonJobs(
        configs_of(methods, every, settings, preset),
        out,
        overwrite,
        resume,
        keep=results.__setitem__,
        observers=observers,
        data=own_data,
        model=own_model,
    )
    if own_model is not None and not is_made(own_model) and len(every) > 1:
        log.warning(
            "model is one network, so seeds %s start from the same weights and ± over seeds does not include them; "
            "pass its class or a function (model=lambda: Net()) to draw new weights for each seed",
            ", ".join(map(str, every)),
        )
    watched = bool(observers) or callable(progress)  # they see one run after the other
    jobs.carry_out(show_runs(progress), together=not watched)
    jobs.check_diverged()
    return Comparison([results[number] for number in sorted(results)])


def configs_of(
    methods: Sequence[str | type[Method] | Method],
    seeds: Sequence[int],
    settings: Mapping[str, object],
    preset: str | None,
) -> list[Config]:
    """Return a configuration for every method and seed; each method gets the settings that it has."""
    known = [set(known_fields(class_of(method).variant(settings))) for method in methods]
    common = {name for name in settings if not any(name in own for own in known)}  # nobody's: it is refused
    below = None if preset is None else partial(preset_settings, preset)
    configs = []
    for method, own in zip(methods, known, strict=True):
        mine = {name: value for name, value in settings.items() if name in own | common}
        configs += [make_config(method, {**mine, "seed": seed}, preset=below) for seed in seeds]
    check_distinct_names([label(config.name) for config in configs[:: len(seeds)]])
    return configs


def handed_in(data: Any, model: Any, settings: dict[str, object]) -> tuple[Any, Any]:
    """Return the data and the network that are objects, and describe them in the settings."""
    own_data = None if isinstance(data, str | Path) else data
    own_model = None if isinstance(model, str) else model
    if data is not None:
        settings["data"] = str(data) if own_data is None else HANDED_IN
    if model is not None:
        made = f"{HANDED_IN} called for each run" if is_made(model) else HANDED_IN
        settings["model"] = model if isinstance(model, str) else made
    return own_data, own_model


def check_observers(observers: Any) -> None:
    """Refuse anything but a list of observers."""
    if not isinstance(observers, list | tuple) or not all(isinstance(one, Observer) for one in observers):
        raise ConfigError(f"observers must be a list of partwise.Observer objects, got {short(repr(observers))}")


def class_of(method: str | type[Method] | Method) -> type[Method]:
    """Return the class of a method given by name, class or object."""
    return type(method) if isinstance(method, Method) else find(method) if isinstance(method, str) else method


def no_progress_wanted(progress: Progress | bool | None) -> bool:
    """Return whether progress stays hidden; by default a notebook shows it."""
    return progress is False or (progress is None and not hasattr(builtins, "get_ipython"))  # where IPython puts itself


def watchers(progress: Progress | bool | None) -> list[Observer]:
    """Return the observers that show the progress of a run."""
    if callable(progress):
        return [TellRounds(progress)]
    if no_progress_wanted(progress):
        return []
    from partwise.reporting.progress import Shown  # needs rich; a run alone does not

    return [Shown()]


def show_runs(progress: Progress | bool | None) -> Show:
    """Return the function that shows the progress of several runs."""
    if callable(progress):
        return lambda titles, *_: nullcontext([progress] * len(titles))
    if no_progress_wanted(progress):
        return unseen
    from partwise.reporting.progress import displays

    return displays
