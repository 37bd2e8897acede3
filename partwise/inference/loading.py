"""`partwise.load_model`: a model that a run left, built again without the run's data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.code_files import split_network
from partwise.data.source import Source
from partwise.data.transforms import BESIDE, CODES, TOKENS, TextTransform
from partwise.engines.probe import samples_of
from partwise.errors import ConfigError, DataError, one_line
from partwise.inference.run_models import ModelFile, RunModels
from partwise.inference.served import ServedModel
from partwise.method import Method
from partwise.methods import find
from partwise.network.parts import Network
from partwise.records.codec import Decoder
from partwise.records.manifest import ArrayInput, ImageInput, NamedInput, TableInput
from partwise.rounds.client import ClientProgram
from partwise.rounds.plan import Plan
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.prepare import draw, programmed
from partwise.runs.result import PersonalModel
from partwise.runs.saving import COUNTS, ENDING, EXTRA, GLOBAL_STEM, RECEIVABLE, TREE, of_global
from partwise.trees import Samples

HOST_SETTING = "host"  # the setting of methods that are a layer's schedule on top of another method
NETWORK = ("batch_norm", "dropout", "projector", "dtype")  # settings of a run that its manifest has of the network
SAMPLES = 16  # of zeros, by which a network is tried: there are no others here


def load_model(
    run: str | Path, client: int | str | None = None, model: Network | None = None, trust: bool = False
) -> ServedModel:
    """Return the model of a client, by its number or its name, from a run's folder; without one, the global model.

    Nothing but the folder is needed: `load_model("runs/fedper", client="Graz").predict("new.csv")` gives classes, or
    numbers in the label's own unit. A network of your own is handed in as for the run, `model=Net()`. Code is only
    executed with `trust=True`: a method or network file that lies in the folder, or a class that is imported.
    """
    saved = RunModels(run)
    stem = saved.stem(client)
    try:
        return built(saved, stem, model, trust)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a description that fits nothing
        what = f"{type(error).__name__}: {one_line(error)}"
        raise DataError(f"'{saved.run}': {saved.title(stem)} cannot be built: {what}") from error


def built(saved: RunModels, stem: str, network: Network | None, trust: bool) -> ServedModel:
    """Return a model from its files."""
    config = config_of(saved, network, trust)
    main = saved.file(stem + ENDING)
    extra = saved.file(stem + EXTRA) if stem + EXTRA in saved.manifest.files else replace(main, tensors={})
    needs = extra.header
    if needs.lacks is not None:
        raise ConfigError(f"'{main.path}' cannot be loaded: {needs.lacks}, which no file can hold")
    program, plans = program_of(saved, config, network_to_use(saved, network, trust))
    trees = {name.removeprefix(TREE): value for name, value in extra.tensors.items() if name.startswith(TREE)}
    decoder = Decoder(trees, RECEIVABLE, torch.device("cpu"))
    extras, held = (decoder.decode(json.loads(text or "{}")) for text in (needs.extras, needs.held))
    vars(config.method).update(held)
    plan = plans[main.header.stage]
    personal = PersonalModel(
        program,
        of_global(plan, config.method) if stem == GLOBAL_STEM else plan,
        all_tensors(program, main, extra),
        extras,
        extra.tensors.get(COUNTS, torch.zeros(program.task.bins, dtype=program.dtype)),
        needs.lr or 0.0,
        needs.key or 0,
    )
    return ServedModel(personal, saved, stem)


def config_of(saved: RunModels, network: Network | None, trust: bool) -> Config:
    """Return the method with its settings, and the network's."""
    known = asdict(saved.manifest.network)
    made = {name: known[name] for name in NETWORK}
    made |= {"model": network_setting(saved, network, trust), "device": "cpu"}
    settings = {**saved.manifest.method.settings, **made}
    return make_config(chosen_method(saved, settings, trust), settings)


def chosen_method(saved: RunModels, settings: Mapping[str, object], trust: bool) -> str | type[Method]:
    """Return the run's method; it needs trust if code of its own would be executed."""
    method = saved.manifest.method
    own = method.name.startswith(HANDED_IN)
    if method.file and not method.name.endswith(".py"):
        raise DataError(
            f"'{saved.run}' names the method '{method.name}' and a method file beside it: no run writes that"
        )
    code = [str(each) for each in (method.name, settings.get(HOST_SETTING, "")) if str(each).endswith(".py")]
    if own:
        code = [f"class {method.made_of}", *code]
    if code and not trust:
        raise ConfigError(
            f"'{saved.run}' needs code to predict, {code[0]}: read it first, then execute it with trust=True (--trust)"
        )
    if own:
        return imported(method.made_of, "method")
    return find(str(saved.method_file())) if method.file else method.name


def network_setting(saved: RunModels, network: Network | None, trust: bool) -> str:
    """Return the setting `model` of the run; it needs trust if a file of code in the run's folder would be executed."""
    known = saved.manifest.network
    named = split_network(known.name or "")
    if (named is None) != (known.file is None):
        raise DataError(f"'{saved.run}' names the network '{known.name}' and the file {known.file}: no run writes that")
    if named is None:
        return known.name or HANDED_IN
    if network is not None:
        return HANDED_IN
    if not trust:
        raise ConfigError(
            f"'{saved.run}' needs code to predict, the network {known.name} in {known.file}: read it first, then "
            "execute it with trust=True (--trust), or pass the network with load_model(..., model=Net)"
        )
    return f"{saved.network_file()}:{named[1]}"


def network_to_use(saved: RunModels, network: Network | None, trust: bool) -> Network | None:
    """Return the network that is handed in, or imported where that is trusted; None: it is built by its name."""
    known = saved.manifest.network
    if network is not None:
        if known.name is not None and known.file is None:
            raise ConfigError(
                f"the network of this run is '{known.name}', which partwise builds by name; leave out model"
            )
        return network
    if known.name is not None:
        return None
    if not trust:
        raise ConfigError(
            f"the network of this run is your own class {known.made_of}: pass it with load_model(..., model=Net()), or "
            "import it with trust=True (--trust)"
        )
    return imported(known.made_of, "model")


def imported(where: str | None, what: str) -> Any:
    """Return a class by `module:name`."""
    module, _, name = (where or "").partition(":")
    try:
        found: Any = import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
        return found
    except (ImportError, AttributeError, ValueError):
        hint = "; hand it in with load_model(..., model=Net())" if what == "model" else ""
        raise ConfigError(f"the {what} of this run, {where}, cannot be imported here{hint}") from None


def program_of(saved: RunModels, config: Config, network: Network | None) -> tuple[ClientProgram, list[Plan]]:
    """Return what clients run, with samples of zeros in place of the run's data, and its stages."""
    manifest = saved.manifest
    x = zero_samples(manifest.input, SAMPLES)
    y = torch.zeros((), dtype=torch.int64).expand(SAMPLES, *manifest.label_shape)
    centre, scale = tuple(manifest.standardise.centre), tuple(manifest.standardise.scale)
    source = Source(manifest.data, x, y, manifest.task.bins, SAMPLES, centre, scale, own_task=manifest.task)
    if isinstance(manifest.input, TableInput) and isinstance(text := manifest.input.transform, TextTransform):
        source = replace(source, text=text, table=text.row)
    elif isinstance(manifest.input, TableInput):
        source = replace(source, table=manifest.input.row)
    elif isinstance(manifest.input, ArrayInput):
        source = replace(source, tokens=manifest.input.vocabulary)
    probed = samples_of(source)
    parts = draw(config, source, network, probed)
    program, plans = programmed(config, source, parts, probed, len(manifest.clients), torch.device("cpu"))
    if list(program.parts.modules) != list(manifest.parts):
        raise ConfigError(
            f"the network that was passed has the parts {', '.join(program.parts.modules)}, the run's has "
            f"{', '.join(manifest.parts)}; name them alike with partwise.Parts"
        )
    return program, plans


def zero_samples(given: TableInput | ImageInput | ArrayInput | NamedInput, samples: int) -> Samples:
    """Return samples of zeros, as the run's data set would hold them."""
    if isinstance(given, NamedInput):
        return {n: torch.zeros(samples, *own, dtype=getattr(torch, given.types[n])) for n, own in given.shapes.items()}
    if isinstance(given, TableInput) and given.codes:
        numbers, codes = len(given.row.numbers), len(given.row.code_sizes)
        x = {CODES: torch.zeros(samples, codes, dtype=torch.int64)}
        return {**x, BESIDE: torch.zeros(samples, numbers)} if numbers else x
    if isinstance(given, TableInput) and given.text is not None:
        tokens = torch.zeros(samples, given.text.length, dtype=torch.int64)
        return {TOKENS: tokens, BESIDE: torch.zeros(samples, len(given.features))} if given.features else tokens
    whole = isinstance(given, ArrayInput) and given.whole
    return torch.zeros(samples, *given.shape, dtype=torch.int64 if whole else torch.float32)


def all_tensors(program: ClientProgram, main: ModelFile, extra: ModelFile) -> dict[str, Tensor]:
    """Return every tensor that the model predicts with, by our names; those that do not fit the network are refused."""
    names = program.parts.names
    tensors = {names[own]: value for own, value in main.tensors.items() if own in names}
    tensors |= {name: value for name, value in extra.tensors.items() if not name.startswith((COUNTS, TREE))}
    for name, value in program.parts.tensors().items():
        there, here = tuple(tensors[name].shape) if name in tensors else "missing", tuple(value.shape)
        if there != here:
            raise ConfigError(f"'{main.path}' does not fit the network: {name} is {there} there and {here} here")
    return tensors
