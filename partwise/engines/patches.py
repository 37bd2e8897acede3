"""Functions of one client under vmap, with the convolutions of many clients as one batched matrix product.

Under vmap every client has weights of its own, and torch makes a convolution with a group for each client of it, which
cuDNN carries out client by client. As a product of patches and weights it is one kernel for all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from partwise.rounds.state import BatchRows, ClientState, Common, Trained

SMALL_WEIGHTS = 2**13  # weights whose gradient is summed image by image
# Numbers in the patches of one sample: above, a client alone keeps the chip busy, and memory counts.
LARGEST_PATCHES = 2**18


class Patches(TorchFunctionMode):
    """Compute all convolutions in two dimensions as products of patches while entered."""

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (convolved if function is F.conv2d else function)(*args, **(kwargs or {}))


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return the result of `F.conv2d`, which also handles unusual arguments itself."""
    if x.dim() != 4 or groups > 1 or pair(dilation) != (1, 1) or isinstance(padding, str):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (down, right), kernel, stride = pair(padding), tuple(weight.shape[2:]), pair(stride)
    x = F.pad(x, (right, right, down, down)) if down or right else x
    places = [(x.shape[2 + axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)]
    if places[0] * places[1] * weight[0].numel() > LARGEST_PATCHES or min(places) < 1:
        return F.conv2d(x, weight, bias, stride)
    rows = PatchRows.apply(x.permute(0, 2, 3, 1), kernel, stride)  # type: ignore[no-untyped-call]
    rows = rows.reshape(len(x), -1, weight[0].numel())
    weights = weight.permute(2, 3, 1, 0).reshape(-1, len(weight))
    result = Products.apply(rows, weights)  # type: ignore[no-untyped-call]
    result = result if bias is None else result + bias
    return result.view(len(x), *places, -1).permute(0, 3, 1, 2).contiguous()  # some functions want that under vmap


class PatchRows(torch.autograd.Function):
    """(images, height, width, channels) -> the patch at each place: (images, *places, *kernel, channels)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> Tensor:
        """Return the patches, copied."""
        patches = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
        return patches.permute(0, 1, 2, 4, 5, 3).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, _output: Tensor) -> None:
        """Keep the images' shape and the stride."""
        ctx.shape, ctx.stride = inputs[0].shape, inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Sum each pixel over its patches, in the same order every time, unlike atomic sums."""
        [gradient] = gradients
        for axis in (1, 0):  # first along the width, then along the height: 5 + 5 sums, not 5 x 5
            gradient = fold_patches(gradient, 1 + axis, 3 + axis, ctx.shape[1 + axis], ctx.stride[axis])
        return gradient, None, None


class Products(torch.autograd.Function):
    """Rows (images, places, numbers) times weights (numbers, channels)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weights: Tensor) -> Tensor:
        """Return (images, places, channels)."""
        return product(rows.flatten(0, 1), weights).view(*rows.shape[:2], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, _output: Tensor) -> None:
        """Keep both factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients of rows and weights."""
        rows, weights = ctx.saved_tensors
        [gradient] = gradients
        back = product(gradient.flatten(0, 1), weights.T).view(rows.shape)
        if weights.numel() <= SMALL_WEIGHTS:
            # A long sum for few numbers: image by image, or most of the chip would be idle.
            return back, product(rows.transpose(1, 2), gradient).sum(0)
        return back, product(rows.flatten(0, 1).T, gradient.flatten(0, 1))


def product(one: Tensor, other: Tensor) -> Tensor:
    """Return a matrix product with the precision that torch allows convolutions, which may be lower."""
    return torch.ops.partwise.product(one, other)


def multiply(one: Tensor, other: Tensor) -> Tensor:
    """Return a matrix product, in TF32 where cuDNN's convolutions may use it."""
    matmul, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        return torch.matmul(one, other)
    finally:
        matmul.allow_tf32 = before


def of_many(info: Any, dims: tuple[int | None, int | None], one: Tensor, other: Tensor) -> tuple[Tensor, int]:
    """Return the products of many clients at once, or of many samples each if only the rows differ by sample."""
    pairs = list(zip((one, other), dims, strict=True))
    rank = max(tensor.dim() - (at is not None) for tensor, at in pairs)

    def in_front(tensor: Tensor, at: int | None) -> Tensor:
        """Move the clients first, then add as many dimensions as the other tensor has for samples."""
        if at is None:
            return tensor
        return tensor.movedim(at, 0)[(slice(None), *[None] * (rank + 1 - tensor.dim()))]

    return product(*(in_front(*pair) for pair in pairs)), 0


# An operation of its own: the setting above would be gone by the time that a graph or a compiled step multiplies.
operators = torch.library.Library("partwise", "DEF")
operators.define("product(Tensor one, Tensor other) -> Tensor")
operators.impl("product", multiply, "CompositeExplicitAutograd")
operators.impl("product", torch.library.fallthrough_kernel, "Autograd")  # `Products` has its gradient
torch.library.register_fake("partwise::product", torch.matmul)
torch.library.register_vmap("partwise::product", of_many)


def fold_patches(gradient: Tensor, axis: int, inside: int, size: int, stride: int) -> Tensor:
    """Sum over the places inside a patch (`inside`), each added at its place in the image (`axis`)."""
    shape = [size if at == axis else length for at, length in enumerate(gradient.shape) if at != inside]
    result = gradient.new_zeros(shape)
    for first, part in enumerate(gradient.unbind(inside)):
        last = first + (gradient.shape[axis] - 1) * stride + 1
        result[(slice(None),) * axis + (slice(first, last, stride),)] += part
    return result


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Return the sizes along height and width; one number counts for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def vectorised(function: Callable) -> Callable:
    """Make a function of one client, `(client, common)` or `(client, rows, common)`, one of a block of clients.

    What a client without a real row makes of its mini-batch is zero.
    """

    def guarded(client: ClientState, *others: BatchRows | Common) -> object:
        with Patches():
            new = function(client, *others)
        if not isinstance(others[0], BatchRows):
            return new
        active = others[0].real > 0
        return tree_map(lambda value: torch.where(active, value, torch.zeros_like(value)), new)

    return lambda *arguments: vmap(guarded, in_dims=(*[0] * (len(arguments) - 1), None))(*arguments)


def vectorised_step(step: Callable[[ClientState, BatchRows, Common], Trained]) -> Callable:
    """Make the step of one client one of a block; a client without a real row stays as it is."""

    def guarded(client: ClientState, rows: BatchRows, common: Common) -> Trained:
        with Patches():
            new = step(client, rows, common)
        active = rows.real > 0
        return tree_map(lambda after, before: torch.where(active, after, before), new, client.trained)

    return vmap(guarded, in_dims=(0, 0, None))
