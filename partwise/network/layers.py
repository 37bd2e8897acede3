"""Layers that behave the same for one client and for many side by side.

A mini-batch may be padded, and vmap allows neither random numbers nor changes in place. So batch-norm is exchanged for
a layer that uses real rows only and returns its new running values, and dropout for one whose mask is a stateless hash;
attention and recurrent layers, which have dropout inside, for those of sequences.py. Tensors keep their names.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from partwise.errors import ConfigError
from partwise.network.keyed import hashed
from partwise.network.sequences import Attention, Recurrent

NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.instancenorm._InstanceNorm,
)
RECURRENT = (nn.RNN, nn.GRU, nn.LSTM)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
EXCHANGED = (nn.BatchNorm1d, nn.SyncBatchNorm, *DROPOUTS, nn.MultiheadAttention, *RECURRENT)
FORWARDS = {kind.forward for kind in EXCHANGED}  # of torch's own layers


@dataclass
class LayerScope:
    """The call in progress, as the exchanged layers of a network see it; copies of a network share it."""

    training: bool = False
    mask: Tensor | None = None  # (rows,) which rows of the mini-batch are real
    key: Tensor | None = None  # names this step of this client, for dropout
    running: dict[str, Tensor] | None = None  # new running values by name; None: they are not wanted

    def __deepcopy__(self, memo: dict) -> "LayerScope":
        return self

    def begin(self, training: bool, mask: Tensor | None, key: Tensor | None, notes_running: bool) -> None:
        """Set what the layers need in the call that begins."""
        self.training, self.mask, self.key = training, mask, key
        self.running = {} if notes_running else None

    def clear(self) -> None:
        """Forget the tensors of the call that has ended."""
        self.training, self.mask, self.key, self.running = False, None, None, None


class MaskedBatchNorm(nn.Module):
    """Batch-norm over the real rows of a padded mini-batch; equal to torch's where all rows are real.

    Layers inside a batch-norm (timm's holds its activation) run after it, in their order.
    """

    name = ""  # in its network, once it is taken in
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm, scope: LayerScope):
        super().__init__()
        if norm.momentum is None or not norm.track_running_stats:
            raise ConfigError(f"{norm} is not supported: batch-norm needs a momentum and running values")
        self.scope = scope
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        for name, layer in norm.named_children():
            self.add_module(name, layer)

    def find_place(self, name: str, number: int) -> None:
        """Take the name that the layer has in its network."""
        self.name = name

    def reset_parameters(self) -> None:
        """Set the values that torch's batch-norm begins with."""
        nn.init.zeros_(self.running_mean)
        nn.init.ones_(self.running_var)
        if self.weight is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised by the mini-batch in training, by the running values in evaluation."""
        shape = (1, -1, *[1] * (x.dim() - 2))  # broadcasts one number a channel
        values = x.to(self.running_mean.dtype)
        if self.scope.training:
            mean, variance = self.statistics(values)
        else:
            mean, variance = self.running_mean, self.running_var
        values = (values - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            values = values * self.weight.to(values.dtype).view(shape) + self.bias.to(values.dtype).view(shape)
        values = values.to(x.dtype)
        for layer in self.children():
            values = layer(values)
        return values

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (channels,) mean and variance over the real rows, and note the new running values."""
        mask = torch.ones(len(x), device=x.device) if self.scope.mask is None else self.scope.mask
        if len(x) % len(mask):
            raise ConfigError(f"batch-norm '{self.name}' is given {len(x)} rows of a mini-batch of {len(mask)}")
        mask = mask[:, None].expand(-1, len(x) // len(mask))  # more than one of each where a sample's tokens are rows
        mask = mask.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
        dims = [0, *range(2, x.dim())]
        number = mask.sum() * (x[0, 0].numel())
        mean = (x * mask).sum(dims) / number
        shape = (1, -1, *[1] * (x.dim() - 2))
        variance = ((x - mean.view(shape)).square() * mask).sum(dims) / number
        if self.scope.running is not None:
            unbiased = variance.detach() * number / (number - 1).clamp(min=1)
            for name, new in (("running_mean", mean.detach()), ("running_var", unbiased)):
                old = getattr(self, name)
                self.scope.running[f"{self.name}.{name}"] = old + self.momentum * (new - old)
        return mean, variance


class HashedDropout(nn.Module):
    """Dropout whose mask depends on (seed, client, round, step, layer, position) alone."""

    number = 0  # in its network, once it is taken in

    def __init__(self, rate: float, scope: LayerScope, dims: int | None = None):
        super().__init__()
        self.p, self.scope = rate, scope  # p is its name in torch: attention asks its dropout layer for it
        self.dims = dims  # the first dimensions, whose every place is kept or dropped as a whole; None: all of them

    def find_place(self, name: str, number: int) -> None:
        """Take the number that the layer has in its network: no other draws the same mask."""
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropped places in training, unchanged in evaluation."""
        if not self.scope.training or self.p == 0 or self.scope.key is None:
            return x
        shape = x.shape[: self.dims]
        draw = hashed(self.scope.key + self.number, shape)
        mask = (draw >= int(self.p * 2**32)).to(x.dtype) / ((1 - self.p) or 1)
        return x * mask.view(*shape, *[1] * (x.dim() - len(shape)))


def exchanged(modules: dict[str, nn.Module], scope: LayerScope) -> dict[str, nn.Module]:
    """Return modules by name with layers exchanged; each of those gets its name or number in the network."""
    holder = nn.ModuleDict(modules)  # so that a module that is itself such a layer is exchanged too
    exchange(holder, scope)
    for number, (path, layer) in enumerate(holder.named_modules()):
        if isinstance(layer, MaskedBatchNorm | HashedDropout):
            layer.find_place(path, number)
    return dict(holder.items())


def exchange(module: nn.Module, scope: LayerScope, done: dict[nn.Module, nn.Module] | None = None) -> None:
    """Exchange layers below `module`, as `taken_in` says; one that stands in several places only once."""
    done = {} if done is None else done
    for name, child in module._modules.items():
        if child is None:
            continue
        if child not in done:
            done[child] = taken_in(child, scope)
            exchange(done[child], scope, done)
        setattr(module, name, done[child])


def taken_in(layer: nn.Module, scope: LayerScope) -> nn.Module:
    """Return the layer to use in a layer's place: itself, unless it would be random or look at padding."""
    torchs = type(layer).forward in FORWARDS  # not a subclass with its own forward
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        masked = MaskedBatchNorm(layer, scope)
        if not torchs and not computes_the_same(layer, masked):
            raise ConfigError(
                f"{type(layer).__name__} is not supported: it does more than batch-norm followed by its inner layers"
            )
        return masked
    if isinstance(layer, DROPOUTS) and torchs:
        return HashedDropout(layer.p, scope, dims=None if isinstance(layer, nn.Dropout) else 2)
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        raise ConfigError(
            f"{layer} is not supported; supported dropout layers are Dropout, Dropout1d, Dropout2d and Dropout3d"
        )
    if type(layer).__name__ == "DropPath" and "drop_prob" in vars(layer) and getattr(layer, "scale_by_keep", True):
        return HashedDropout(vars(layer)["drop_prob"] or 0.0, scope, dims=1)  # timm's, and that of many papers' code
    if isinstance(layer, nn.MultiheadAttention) and torchs:
        return Attention(layer, HashedDropout(layer.dropout, scope))
    if isinstance(layer, RECURRENT) and torchs:
        return Recurrent(layer, [HashedDropout(layer.dropout, scope) for _ in range(layer.num_layers - 1)])
    if isinstance(layer, nn.TransformerEncoder):
        layer.use_nested_tensor = False  # in evaluation alone, of tensors that Attention does not know
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise ConfigError(f"{layer} is not supported; of the layers with running values, only batch-norm is")
    return layer


def computes_the_same(norm: nn.modules.batchnorm._BatchNorm, masked: MaskedBatchNorm) -> bool:
    """Return whether a batch-norm with its own forward computes what its replacement does; both are tried."""
    theirs, scope = copy.deepcopy(norm).eval(), LayerScope()
    ours = MaskedBatchNorm(copy.deepcopy(norm), scope).eval()
    ours.find_place("ours", 0)
    dims = 0 if isinstance(norm, nn.BatchNorm1d) else 3 if isinstance(norm, nn.BatchNorm3d) else 2
    shape = torch.Size([4, norm.num_features, *[3] * dims])
    x = torch.arange(shape.numel()).sin().view(shape).to(masked.running_mean)
    pairs = []
    for training in (False, True):
        theirs.training = training  # not the layers inside: their dropout would be random
        scope.begin(training, None, None, notes_running=True)
        try:
            with torch.no_grad():
                pairs.append((theirs(x.clone()), ours(x.clone())))
        except Exception:  # it may need something other than a mini-batch
            return False
    pairs += [
        (getattr(theirs, name), (scope.running or {})[f"ours.{name}"]) for name in ("running_mean", "running_var")
    ]
    return all(torch.allclose(one, two, atol=1e-4) for one, two in pairs)
