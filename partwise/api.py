"""`partwise.run`: one call, one run."""

from typing import Any

from torch import nn

from partwise.data.source import Federation, Source
from partwise.method import Method
from partwise.parts import Parts
from partwise.runs.config import make_config
from partwise.runs.result import Result
from partwise.runs.simulation import Progress, prepare


def run(
    method: str | type[Method] | Method,
    *,
    data: str | Source | Federation = "digits",
    model: str | Parts | nn.Module = "auto",
    progress: Progress = lambda row: None,
    **settings: Any,
) -> Result:
    """Run a method and return its result.

    `method` is a name, a class, an object or the path of a file; `data` and `model` are names or objects of your own;
    every other setting of the command line is a keyword: `run("fedper", rounds=50, lr=0.05, partition="dir:0.3")`.
    """
    if isinstance(data, str):
        settings["data"] = data
    if isinstance(model, str):
        settings["model"] = model
    if isinstance(data, Federation):
        settings["clients"] = data.clients
    config = make_config(method, settings)
    simulation = prepare(config, None if isinstance(data, str) else data, None if isinstance(model, str) else model)
    return Result(simulation.run(progress))
