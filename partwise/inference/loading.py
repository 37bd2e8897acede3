"""`partwise.load_model`: a model that a run left, built again without the run's data."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.data.source import Source
from partwise.engines.probe import samples_of
from partwise.errors import ConfigError, DataError, one_line
from partwise.inference.described import Described, TensorFile
from partwise.inference.served import ServedModel
from partwise.method import Method
from partwise.methods import find
from partwise.network.parts import Network
from partwise.records.codec import Decoder
from partwise.rounds.client import ClientProgram
from partwise.rounds.plan import Plan
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.prepare import draw, programmed
from partwise.runs.result import PersonalModel
from partwise.runs.saving import ENDING, EXTRA, GLOBAL, KNOWN, TREE, of_global

SAMPLES = 16  # of zeros, by which a network is tried: there are no others here


def load_model(
    run: str | Path, client: int | str | None = None, model: Network | None = None, trust: bool = False
) -> ServedModel:
    """Return the model of a client, by its number or its name, from a run's folder; without one, the global model.

    Nothing but the folder is needed: `load_model("runs/fedper", client="Graz").predict("new.csv")` gives classes. A
    network of your own is handed in as for the run, `model=Net()`. Code is only executed with `trust=True`: a method
    file that lies in the folder, or a class that is imported.
    """
    described = Described(run)
    stem = described.stem(client)
    try:
        return built(described, stem, model, trust)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a description that fits nothing
        what = f"{type(error).__name__}: {one_line(error)}"
        raise DataError(f"'{described.run}': {described.title(stem)} cannot be built: {what}") from error


def built(described: Described, stem: str, network: Network | None, trust: bool) -> ServedModel:
    """Return a model of what its files hold."""
    config = configured(described, trust)
    main, extra = described.file(stem + ENDING), described.file(stem + EXTRA)
    if "lacks" in extra.about:
        raise ConfigError(f"'{main.path}' cannot be loaded: {extra.about['lacks']}, which no file can hold")
    program, plans = program_of(described, config, network_of(described, network, trust))
    trees = {name.removeprefix(TREE): value for name, value in extra.tensors.items() if name.startswith(TREE)}
    decoder = Decoder(trees, KNOWN, torch.device("cpu"))
    extras, held = (decoder.decode(json.loads(extra.about.get(name, "{}"))) for name in ("extras", "held"))
    vars(config.method).update(held)
    plan = plans[int(main.about["stage"])]
    personal = PersonalModel(
        program,
        of_global(plan, config.method) if stem == GLOBAL else plan,
        fitted(program, main, extra),
        extras,
        extra.tensors.get("counts", torch.zeros(program.classes, dtype=program.dtype)),
        float(extra.about.get("lr", 0.0)),
        int(extra.about.get("key", 0)),
    )
    return ServedModel(personal, described, stem)


def configured(described: Described, trust: bool) -> Config:
    """Return the method with its settings, and the network's."""
    network = described["network"]
    made = {key: network[key] for key in ("batch_norm", "dropout", "projector", "dtype")}
    made |= {"model": network["name"] or HANDED_IN, "device": "cpu"}
    settings = {**described["method"]["settings"], **made}
    return make_config(chosen_method(described, settings, trust), settings)


def chosen_method(described: Described, settings: dict[str, Any], trust: bool) -> str | type[Method]:
    """Return the run's method; whether that needs trust is decided by what would be executed."""
    method = described["method"]
    name, file, own = method["name"], method["file"], method["name"].startswith(HANDED_IN)
    if file and not name.endswith(".py"):
        raise DataError(f"'{described.run}' names the method '{name}' and a method file beside it: no run writes that")
    code = [str(each) for each in (name, settings.get("host", "")) if str(each).endswith(".py")]
    if own:
        code = [f"class {method['class']}", *code]
    if code and not trust:
        raise ConfigError(
            f"'{described.run}' needs code to predict, {code[0]}: read it first, then execute it with trust=True "
            "(--trust)"
        )
    if own:
        return imported(method["class"], "method")
    return find(str(described.method_file())) if file else name


def network_of(described: Described, network: Network | None, trust: bool) -> Network | None:
    """Return the network that is handed in, or imported where that is trusted; None: it is built by its name."""
    name, own = described["network"]["name"], described["network"]["class"]
    if name is not None:
        if network is not None:
            raise ConfigError(f"the network of this run is '{name}', which partwise builds by name; leave out model")
        return None
    if network is not None:
        return network
    if not trust:
        raise ConfigError(
            f"the network of this run is your own class {own}: pass it with load_model(..., model=Net()), or "
            "import it with trust=True (--trust)"
        )
    return imported(own, "model")


def imported(where: str, what: str) -> Any:
    """Return a class by `module:name`."""
    module, _, name = where.partition(":")
    try:
        found: Any = import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
        return found
    except (ImportError, AttributeError, ValueError):
        hint = "; hand it in with load_model(..., model=Net())" if what == "model" else ""
        raise ConfigError(f"the {what} of this run, {where}, cannot be imported here{hint}") from None


def program_of(described: Described, config: Config, network: Network | None) -> tuple[ClientProgram, list[Plan]]:
    """What clients run, with samples of zeros in place of the run's data."""
    shape, standard = described["input"]["shape"], described["standardise"]
    x, y = torch.zeros(SAMPLES, *shape), torch.zeros(SAMPLES, dtype=torch.int64)
    centre, scale = tuple(standard["centre"]), tuple(standard["scale"])
    source = Source(described["data"], x, y, len(described["classes"]), SAMPLES, centre, scale)
    probed = samples_of(source)
    parts = draw(config, source, network, probed)
    program, plans = programmed(config, source, parts, probed, len(described["clients"]), torch.device("cpu"))
    if list(program.parts.modules) != list(described["parts"]):
        raise ConfigError(
            f"the network that was passed has the parts {', '.join(program.parts.modules)}, the run's has "
            f"{', '.join(described['parts'])}; name them alike with partwise.Parts"
        )
    return program, plans


def fitted(program: ClientProgram, main: TensorFile, extra: TensorFile) -> dict[str, Tensor]:
    """Return every tensor that the model predicts with, by our names; those that do not fit the network are refused."""
    names = program.parts.names
    tensors = {names[own]: value for own, value in main.tensors.items() if own in names}
    tensors |= {name: value for name, value in extra.tensors.items() if not name.startswith(("counts", TREE))}
    for name, value in program.parts.tensors().items():
        there, here = tuple(tensors[name].shape) if name in tensors else "missing", tuple(value.shape)
        if there != here:
            raise ConfigError(f"'{main.path}' does not fit the network: {name} is {there} there and {here} here")
    return tensors
