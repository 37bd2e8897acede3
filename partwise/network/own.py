"""A user's own network: found in its file, or handed in, and made with what it asks for."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from partwise.code_files import load_network_file, network_file_of, split_network
from partwise.errors import ConfigError, PartwiseError, located, one_line, short, unknown
from partwise.network.parts import Network, Parts
from partwise.streams import stream_key


def network_in_file(name: str) -> Network | None:
    """Return the class or function that `nets.py:Net` names; execute its file. None for other networks."""
    named, path = split_network(name), network_file_of(name)
    if named is None:
        return None
    file, called = named
    module = load_network_file(path or Path(file))
    known = {name: value for name, value in vars(module).items() if makes_networks(value, module.__name__)}
    if called not in known:
        if called in vars(module):
            what = f"{called} must be a class of torch.nn.Module, or a function, that this file defines"
        else:
            what = unknown("network", called, known)
        raise ConfigError(f"'{file}': {what}")
    return known[called]


def makes_networks(value: Any, module: str) -> bool:
    """Return whether this is a class of networks or a function, and a module of this name defines it."""
    made = issubclass(value, nn.Module | Parts) if inspect.isclass(value) else inspect.isfunction(value)
    return made and value.__module__ == module


def own_parts(network: Network, name: str, asked: Mapping[str, object], seed: int) -> Parts:
    """Return the parts of a user's network.

    `name` is what the setting `model` says, `asked` what a class or function may ask for by the name of a parameter.
    """
    made = make_network(network, name, asked, seed)
    check_network(made)
    return (made.duplicate() if isinstance(made, Parts) else Parts(made)).seeded(seed)


def make_network(network: Network, name: str, asked: Mapping[str, object], seed: int) -> Parts | nn.Module:
    """Return a user's network; one that is made is drawn from this seed's stream, on the CPU."""
    if isinstance(network, Parts | nn.Module) or not callable(network):
        return network
    called = name if split_network(name) else short(getattr(network, "__qualname__", repr(network)))
    values = wanted_values(network, called, asked)
    try:
        with located(f"model = {called}"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_key(seed, "init"))  # torch.manual_seed would reseed GPUs too
            return network(**values)
    except (PartwiseError, MemoryError):
        raise
    except Exception as error:  # a library's function may fail in any way
        raise ConfigError(f"model = {called} cannot be made: {type(error).__name__}: {one_line(error)}") from error


def wanted_values(network: Callable[..., Any], called: str, asked: Mapping[str, object]) -> dict[str, object]:
    """Return what the parameters of a class or function ask for; refuse one that must be given and is not known."""
    try:
        parameters = inspect.signature(network).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model = {called} cannot be called: {one_line(error)}") from None
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [name for name, each in parameters.items() if each.default is each.empty and each.kind not in optional]
    if strange := [name for name in needed if name not in asked]:
        raise ConfigError(
            f"model = {called} needs {', '.join(strange)}; a network can ask for {', '.join(asked)}: give other "
            f"parameters a default, or write a function, as def net(classes): return Net(10, classes)"
        )
    return {name: value for name, value in asked.items() if name in parameters}


def check_network(network: Any) -> None:
    """Refuse an object that is no network, or a network whose tensors cannot be taken out of it."""
    modules = network.modules.values() if isinstance(network, Parts) else [network]
    for module in modules:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                "model must be a name, a torch.nn.Module or Parts, or a class or function that makes one, got "
                f"{short(repr(module))}"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError("a torch.jit module cannot be divided into parts; pass the module that it was made from")
        if any(isinstance(value, UninitializedParameter) for value in module.parameters()):
            raise ConfigError("the network has uninitialised lazy layers; run it on a sample first")
