"""`partwise.run`: one call, one run."""

from pathlib import Path
from typing import Any

from torch import nn

from partwise.data.source import Federation, Source
from partwise.method import Method
from partwise.parts import Parts
from partwise.runs.config import make_config
from partwise.runs.folder import RunFolder
from partwise.runs.result import Result
from partwise.runs.simulation import Progress, prepare


def run(
    method: str | type[Method] | Method,
    *,
    data: str | Source | Federation = "digits",
    model: str | Parts | nn.Module = "auto",
    progress: Progress = lambda row: None,
    out: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Result:
    """Run a method and return its result.

    `method` is a name, a class, an object or the path of a file; `data` and `model` are names or objects of your own;
    every other setting of the command line is a keyword: `run("fedper", rounds=50, lr=0.05, partition="dir:0.3")`.
    With `out` the run is written into that folder as well; `overwrite` replaces an earlier run there.
    """
    if isinstance(data, str):
        settings["data"] = data
    if isinstance(model, str):
        settings["model"] = model
    if isinstance(data, Federation):
        settings["clients"] = data.clients
    config = make_config(method, settings)
    folder = None if out is None else RunFolder(out, config, overwrite)  # refuses before the data are read
    simulation = prepare(config, None if isinstance(data, str) else data, None if isinstance(model, str) else model)
    given = {"method": method, "data": data, "model": model}
    handed = [name for name, value in given.items() if not isinstance(value, str)]
    if handed:
        simulation.notes.append(f"handed in from Python, so not in config.toml: {', '.join(handed)}")
    return Result(simulation.run(progress)) if folder is None else folder.record(simulation, progress)
