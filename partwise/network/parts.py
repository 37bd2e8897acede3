"""A model as named parts, which methods select, cut, copy, add and draw anew."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import MethodType
from typing import TypeVar

import torch
from torch import Tensor, nn

from partwise.errors import ConfigError, unknown
from partwise.network.layers import NORMS, LayerScope, MaskedBatchNorm, exchanged
from partwise.network.submodules import Where, as_told, children, is_sequence, take_apart
from partwise.streams import stream_key
from partwise.tasks import Task
from partwise.trees import Shape

Value = TypeVar("Value")
BUILD_AGAIN = "build_again"  # a function of a module whose layers cannot be drawn one by one


@dataclass(frozen=True)
class Sizes:
    """What the parts have to fit: `build` makes further parts by them."""

    task: Task  # what a label is
    shape: Shape  # of one sample
    features: int  # what the model's head takes in
    clients: int  # how many there are

    @property
    def classes(self) -> int:
        """Return the number of classes; refused where labels are something else."""
        self.task.require_classes("sizes.classes")
        return self.task.outputs

    @property
    def outputs(self) -> int:
        """Return how many numbers a head gives for a sample, or for each of its places."""
        return self.task.outputs


class Parts:
    """A network as a chain of named parts (`x -> body -> head`) and, beside the chain, what a method adds.

    `Parts(net)` finds the parts by itself: the children, where some are called body and head; else the last linear
    layer is the head and all before it the body. `Parts(net, head="fc")` names the head, `Parts(net, body="backbone",
    head="fc")` every part; a part may be several submodules in a row, `body="conv1 bn1 relu"` or a list of names and
    modules. `forward={"body": function(module, x)}` says how a part runs where calling it is not enough. Methods that
    change parts return new ones.
    """

    notes: tuple[str, ...] = ()  # what a user should know of how the network came about

    def __init__(self, net: nn.Module, forward: dict[str, Callable] | None = None, **where: Where):
        self.modules: dict[str, nn.Module]  # every part by name, those beside the chain too
        self.modules, state = take_apart(net, where)
        self.made_of = f"{type(net).__module__}:{type(net).__qualname__}"  # where its class is found
        ours = {id(value): name for name, value in self.tensors().items()}
        # What the network's own state dict calls the tensors of its parts; what else is in that are constants.
        self.names: dict[str, str] = {name: ours[id(value)] for name, value in state.items() if id(value) in ours}
        self.constants: dict[str, Tensor] = {
            name: value for name, value in state.items() if isinstance(value, Tensor) and not value.is_floating_point()
        }
        self.chain: tuple[str, ...] = tuple(self.modules)  # the parts that `net(x)` runs, one after the other
        self.seed = 0
        in_order = type(net).forward is nn.Module.forward or (is_sequence(net) and not where)
        self.origin = None if in_order else copy.deepcopy(net)  # what the chain must be equal to
        for part, function in (forward or {}).items():
            self.module(part).forward = MethodType(partial(as_told, function), self.module(part))

    # ---- what a method does in `build`

    def layers(self, part: str) -> list[str]:
        """Return the names of a part's layers, from input to output; [] if it is no sequence of layers."""
        module = self.module(part)
        return list(children(module)) if isinstance(module, nn.Sequential) else []

    def has_parameters(self, part: str, layer: str) -> bool:
        """Return whether a layer of a part has parameters."""
        return any(True for _ in children(self.module(part))[layer].parameters())

    def trained_layers(self, part: str) -> list[str]:
        """Return a part's layers that have parameters; normalisation belongs to the layer before it."""
        layers = children(self.module(part)) if self.layers(part) else {}
        trained = [name for name in layers if self.has_parameters(part, name)]
        return [name for name in trained if name == trained[0] or not isinstance(layers[name], NORMS)]

    def cut(self, part: str, **layers: str) -> "Parts":
        """Cut a part in two, before the given layer: `cut("body", filter="fc1")`. Values stay."""
        if len(layers) != 1 or part not in self.chain:
            raise ConfigError(f"cut takes a part of the chain {self.chain} and one new name: cut('body', filter='fc1')")
        ((name, layer),) = layers.items()
        self._check_new(name)
        names = self.layers(part)
        if not is_sequence(self.modules[part]):
            raise ConfigError(f"part '{part}' has a forward of its own and cannot be cut")
        if layer not in names:
            raise ConfigError(f"part '{part}': {unknown('layer', layer, names)}")
        if names.index(layer) == 0:
            raise ConfigError(f"part '{part}' cannot be cut before '{layer}', its first layer; its layers: {names}")
        result = self.duplicate()
        every, at = list(children(result.modules[part]).items()), names.index(layer)
        result.modules[part] = nn.Sequential(OrderedDict(every[:at]))
        result.modules[name] = nn.Sequential(OrderedDict(every[at:]))
        result.names = moved_names(self.names, {f"{part}.{layer}": f"{name}.{layer}" for layer in names[at:]})
        at = self.chain.index(part) + 1
        result.chain = (*self.chain[:at], name, *self.chain[at:])
        return result

    def append(self, part: str, name: str, layer: nn.Module) -> "Parts":
        """Add a layer at the end of a part, drawn from the stream of its own name."""
        result = self.duplicate()
        module = result.module(part)
        before = children(module) if is_sequence(module) else {"backbone": module}
        if name in before:
            raise ConfigError(f"part '{part}' has a layer '{name}' already; its layers: {', '.join(before)}")
        drawn = redraw(layer, stream_key(self.seed, "init", name)).to(next(iter(self.tensors().values())).dtype)
        result.modules[part] = nn.Sequential(OrderedDict({**before, name: drawn}))
        if not is_sequence(module):
            result.names = moved_names(self.names, {part: f"{part}.backbone"})
        result.origin = None
        return result

    def copy(self, part: str, name: str) -> "Parts":
        """Add a second copy of a part, or with `"*"` of the whole chain, with the values that it has."""
        if part == "*":
            module: nn.Module = nn.Sequential(OrderedDict((link, self.modules[link]) for link in self.chain))
        else:
            module = self.module(part)
        return self.add(name, copy.deepcopy(module), drawn=False)

    def like(self, part: str, name: str) -> "Parts":
        """Add a part of the same shape as another, drawn anew from the stream of its own name."""
        return self.add(name, self.module(part))

    def add(self, name: str, module: nn.Module, drawn: bool = True) -> "Parts":
        """Add a part beside the chain, drawn from the stream of its own name unless it is to keep its values."""
        self._check_new(name)
        result = self.duplicate()
        result.modules[name] = redraw(module, stream_key(self.seed, "init", name)) if drawn else module
        return result

    def replace(self, name: str, module: nn.Module) -> "Parts":
        """Put another module in a part's place, as it is."""
        self.module(name)
        result = self.duplicate()
        result.modules[name] = module
        return result

    # ---- tensors and selectors

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter and every floating buffer by name, as `body.conv1.0.weight`; others are constants."""
        return {f"{part}.{name}": value for part, module in self.modules.items() for name, value in floating(module)}

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Return the names of the tensors that no gradient reaches: running values."""
        parameters = {
            f"{part}.{name}" for part, module in self.modules.items() for name, _ in module.named_parameters()
        }
        return frozenset(self.tensors()) - parameters

    @cached_property
    def members(self) -> dict[str, dict[str, str]]:
        """Return for every part the names of its tensors: without the part's name, and in full."""
        return {part: {name: f"{part}.{name}" for name, _ in floating(self.modules[part])} for part in self.modules}

    @cached_property
    def batch_norm(self) -> bool:
        """Return whether the network has batch-norm, which cannot learn from a single sample."""
        return any(isinstance(layer, MaskedBatchNorm) for part in self.modules.values() for layer in part.modules())

    @cached_property
    def norms(self) -> frozenset[str]:
        """Return the names of the tensors of normalisation layers."""
        layers = {
            f"{part}.{path}" if path else part
            for part, module in self.modules.items()
            for path, layer in module.named_modules()
            if isinstance(layer, (*NORMS, MaskedBatchNorm))
        }
        return frozenset(name for name in self.tensors() if name.rpartition(".")[0] in layers)

    def select(self, selectors: str) -> list[str]:
        """Return the tensors that `"body"`, `"body.conv1"`, `"@norm"`, `"*"`, or several of them, stand for."""
        if selectors not in self._selected:
            chosen: set[str] = set()
            for selector in selectors.split():
                chosen |= self._matches(selector)
            self._selected[selectors] = [name for name in self.tensors() if name in chosen]
        return self._selected[selectors]

    @cached_property
    def _selected(self) -> dict[str, list[str]]:
        return {}

    def parameters(self, selectors: str) -> dict[str, str]:
        """Return the full names of the parameters that selectors stand for, by the names that methods know them by.

        These are the full names too, but for a single part those without the part, so that copies of it line up.
        """
        prefix = f"{selectors}." if selectors in self.modules else ""
        return {name.removeprefix(prefix): name for name in self.select(selectors) if name not in self.buffers}

    def assign(self, answers: dict[str, Value]) -> dict[str, Value]:
        """Return one answer for every tensor: the later selector wins; refuse tensors without one."""
        result: dict[str, Value] = {}
        for selector, answer in answers.items():
            result.update(dict.fromkeys(self.select(selector), answer))
        missing = [name for name in self.tensors() if name not in result]
        if missing:
            raise ConfigError(
                f"nothing is given for '{missing[0]}', which none of the selectors {list(answers)} matches; {self}"
            )
        return {name: result[name] for name in self.tensors()}

    def _matches(self, selector: str) -> set[str]:
        names = set(self.tensors())
        if selector == "*":
            return names
        if selector == "@norm":
            if not self.norms:
                raise ConfigError(f"selector '@norm' matches nothing: the model has no normalisation layers; {self}")
            return set(self.norms)
        found = {name for name in names if name.startswith(f"{selector}.")}
        if not found:
            known = [*self.modules, *(f"{part}.{layer}" for part in self.modules for layer in self.layers(part))]
            if selector in known:
                raise ConfigError(f"selector '{selector}' matches nothing: it has no parameters; {self}")
            raise ConfigError(unknown("part", selector, [*known, "@norm", "*"]))
        return found

    # ---- drawing and preparing

    def initialise(self, seed: int) -> "Parts":
        """Draw every part from the model-initialisation stream, by its name."""
        result = self.duplicate()
        result.seed = seed
        result.modules = {part: redraw(module, stream_key(seed, "init", part)) for part, module in self.modules.items()}
        return result

    def seeded(self, seed: int) -> "Parts":
        """Return the same parts, values and all; what is added to them is drawn from this seed's streams."""
        result = copy.copy(self)
        result.seed = seed
        return result

    def draw(self, names: list[str], seed: int, *stream: str | int) -> dict[str, Tensor]:
        """Return new values of some tensors, each part from its own stream."""
        result: dict[str, Tensor] = {}
        for part in {name.split(".")[0]: None for name in names}:
            fresh = redraw(self.modules[part], stream_key(seed, *stream, part))
            result.update({f"{part}.{name}": value.detach() for name, value in floating(fresh)})
        return {name: result[name] for name in names}

    def prepared(self, scope: LayerScope) -> "Parts":
        """Return the parts as the engines run them, batch-norm and dropout exchanged (see layers.py)."""
        result = self.duplicate()
        result.modules = exchanged(result.modules, scope)
        return result

    def duplicate(self) -> "Parts":
        """Return the same parts in memory of their own."""
        result = copy.copy(self)
        result.modules = copy.deepcopy(self.modules)
        for name, value in vars(type(self)).items():
            if isinstance(value, cached_property):  # what was found out of the modules before
                vars(result).pop(name, None)
        return result

    def _check_new(self, name: str) -> None:
        if name in self.modules:
            raise ConfigError(f"there is a part '{name}' already; the parts: {', '.join(self.modules)}")

    def module(self, part: str) -> nn.Module:
        """Return a part's module; refuse an unknown part with the nearest name."""
        if part not in self.modules:
            raise ConfigError(unknown("part", part, self.modules))
        return self.modules[part]

    def __repr__(self) -> str:
        layers = {part: self.layers(part) for part in self.modules}
        return "parts: " + ", ".join(
            f"{part} ({' > '.join(names)})" if names else part for part, names in layers.items()
        )


Network = Parts | nn.Module | Callable[..., Parts | nn.Module]  # of a user's own: itself, or what makes it


def is_made(network: Network | None) -> bool:
    """Return whether a class or a function makes the network; modules can be called, too."""
    return callable(network) and not isinstance(network, nn.Module)


def moved_names(names: dict[str, str], moved: dict[str, str]) -> dict[str, str]:
    """Return the names in a state dict after some layers or parts have moved."""
    return {
        own: next((new + ours.removeprefix(old) for old, new in moved.items() if ours.startswith(f"{old}.")), ours)
        for own, ours in names.items()
    }


def floating(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and floating buffers of a module by name."""
    buffers = [(name, value) for name, value in module.named_buffers() if value.is_floating_point()]
    return [*module.named_parameters(), *buffers]


def redraw(module: nn.Module, stream: int) -> nn.Module:
    """Return a copy of a module with newly drawn values: the same on every device, torch's global generator untouched.

    Layers are drawn one by one, but a module with `build_again` is built again and gives its values.
    """
    fresh = copy.deepcopy(module).cpu().float()
    rebuilt: set[nn.Module] = set()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream)  # torch.manual_seed would reseed GPUs too
        for name, layer in fresh.named_modules():
            if layer in rebuilt:
                continue
            if hasattr(layer, BUILD_AGAIN):
                layer.load_state_dict(getattr(layer, BUILD_AGAIN)().state_dict(), strict=False)
                rebuilt.update(layer.modules())
            elif hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            elif any(True for _ in layer.parameters(recurse=False)):
                raise ConfigError(
                    f"layer '{name}' ({type(layer).__name__}) cannot be reinitialised: it has no reset_parameters()"
                )
    return fresh
