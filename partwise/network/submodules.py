"""The parts of a network, as a user names them or by default."""

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from torch import Tensor, nn

from partwise.errors import ConfigError, unknown

Layers = list[str | nn.Module]  # paths of submodules, and modules that are none of the network's
Where = str | nn.Module | Sequence[str | nn.Module]  # as a user writes it: "conv1 relu", a list of names and modules


def take_apart(net: nn.Module, where: Mapping[str, Where]) -> tuple[dict[str, nn.Module], dict[str, Tensor]]:
    """Return a copy of a network's parts, as a user names them or by default, and its state dict of their tensors."""
    said = {part: layers_of(net, part, layers) for part, layers in where.items()}
    net, said = copy.deepcopy((net, said))
    parameters, state = dict(net.named_parameters()), net.state_dict(keep_vars=True)
    if set(said) == {"head"}:
        parts = around(net, said["head"])
    else:
        parts = {part: in_a_row(net, layers) for part, layers in said.items()} or obvious(net)
    check_covered(type(net).__name__, parameters, parts)
    return parts, state


def children(module: nn.Module) -> dict[str, nn.Module]:
    """Return every child by name; unlike named_children, with all names of a child that is used several times."""
    return {name: child for name, child in module._modules.items() if child is not None}


def is_sequence(module: nn.Module) -> bool:
    """Return whether a module does nothing but run its children, one after the other."""
    return type(module).forward is nn.Sequential.forward and "forward" not in vars(module)


def layers_of(net: nn.Module, part: str, where: Where) -> Layers:
    """Return a user's description of a part as a list."""
    said = where.split() if isinstance(where, str) else [where] if isinstance(where, nn.Module) else list(where)
    if not said:
        raise ConfigError(f"part '{part}' of {type(net).__name__} needs at least one submodule")
    paths = {module: path for path, module in net.named_modules()}
    return [paths.get(layer, layer) if isinstance(layer, nn.Module) else layer for layer in said]


def obvious(net: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a network by default: its own body and head, or the last linear layer as the head."""
    named = children(net)
    own = {"body", "head"} & set(named)
    if len(own) == 2 or type(net).forward is nn.Module.forward:
        return named
    if is_sequence(net):
        last = next(reversed(named), "")
        return around(net, [last]) if not own and isinstance(named.get(last), nn.Linear) else named
    linear = [
        path
        for path, layer in net.named_modules()
        if isinstance(layer, nn.Linear) and not inside_torch_layer(net, path)
    ]
    if not linear:
        return {"body": net}
    return {"head": net} if linear == [""] else around(net, linear[-1:])


def inside_torch_layer(net: nn.Module, path: str) -> bool:
    """Return whether a layer belongs to a torch layer that reads its weights without calling it: it is no head."""
    parent = net.get_submodule(path.rpartition(".")[0])
    return isinstance(parent, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)


def around(net: nn.Module, head: Layers) -> dict[str, nn.Module]:
    """Return the head, and as the body the rest of the network, which is taken apart."""
    taken, names = in_a_row(net, head), list(children(net))
    if is_sequence(net) and names[-len(head) :] == head:
        return {"body": in_a_row(net, [*names[: -len(head)]]), "head": taken}
    for path in head:
        if isinstance(path, str):
            parent, _, name = path.rpartition(".")
            setattr(net.get_submodule(parent), name, nn.Identity())
    return {"body": net, "head": taken}


def in_a_row(net: nn.Module, layers: Layers) -> nn.Module:
    """Return a submodule, or several as a sequence that keeps their names; a repeated one gets a number."""
    modules = [submodule(net, layer) if isinstance(layer, str) else layer for layer in layers]
    if len(modules) == 1:
        return modules[0]
    row: OrderedDict[str, nn.Module] = OrderedDict()
    for layer, module in zip(layers, modules, strict=True):
        plain = name = layer.rpartition(".")[2] if isinstance(layer, str) else type(layer).__name__.lower()
        numbers = count(2)
        while name in row:
            name = f"{plain}_{next(numbers)}"
        row[name] = module
    return nn.Sequential(row)


def submodule(net: nn.Module, path: str) -> nn.Module:
    """Return a submodule by its path; refuse an unknown one with the nearest name."""
    module, before = net, ""
    for name in path.split("."):
        known = children(module)
        if name not in known:
            raise ConfigError(f"{type(net).__name__}: {unknown('submodule', path, [before + near for near in known])}")
        module, before = known[name], f"{before}{name}."
    return module


def check_covered(name: str, parameters: Mapping[str, Tensor], parts: dict[str, nn.Module]) -> None:
    """Refuse parts that do not hold every parameter of a network exactly once."""
    holders = Counter(id(tensor) for module in parts.values() for tensor in module.parameters())
    left = [path for path, tensor in parameters.items() if not holders[id(tensor)]]
    if left or not parts:
        raise ConfigError(f"{name} has parameters outside its parts {list(parts)}: {', '.join(left)}")
    twice = [path for path, tensor in parameters.items() if holders[id(tensor)] > 1]
    if twice:
        raise ConfigError(f"{name} has parameters in more than one of its parts {list(parts)}: {', '.join(twice)}")


def as_told(function: Callable, module: nn.Module, x: Tensor) -> Tensor:
    """Run a part by a user's function; within it, calling the part runs the module's own forward."""
    told = vars(module).pop("forward")
    try:
        return function(module, x)
    finally:
        module.forward = told
