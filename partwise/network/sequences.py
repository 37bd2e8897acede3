"""Attention and recurrent layers in plain operations, which vmap supports, with dropout as a layer of its own.

Torch's own layers draw dropout masks from its global generator; its recurrent ones cannot run for several clients at
once, and its attention takes another path in evaluation than in training. Tensors keep their names.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partwise.errors import ConfigError

State = tuple[Tensor, ...]  # of a recurrent layer: h, and of an LSTM c too


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017), equal to torch's; `dropout` falls on the attention weights."""

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    out_proj: nn.Linear
    kind = "MultiheadAttention"
    _qkv_same_embed_dim = False  # TransformerEncoderLayer asks for it, and then calls this layer in evaluation too

    def __init__(self, layer: nn.MultiheadAttention, dropout: nn.Module):
        super().__init__()
        if layer.bias_k is not None or layer.add_zero_attn:
            raise ConfigError(
                "MultiheadAttention with add_bias_kv or add_zero_attn is not supported; leave them out, or write the "
                "attention with nn.Linear and nn.Dropout layers"
            )
        self.batch_first, self.embed_dim, self.num_heads = layer.batch_first, layer.embed_dim, layer.num_heads
        take_parameters(self, layer)
        self.out_proj, self.dropout = layer.out_proj, dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint: the mask itself is there
    ) -> tuple[Tensor, Tensor | None]:
        """Return (rows, tokens, features) and the attention weights, as torch's layer does."""
        check_dims(self.kind, query)
        tokens = [x if self.batch_first else x.transpose(0, 1) for x in (query, key, value)]
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = apart if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in zip(tokens, weights, biases, strict=True)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])  # (rows, heads, tokens, tokens)
        if key_padding_mask is not None:
            scores = masked(scores, key_padding_mask[:, None, None])
        if attn_mask is not None:
            scores = masked(scores, attn_mask if attn_mask.dim() == 2 else attn_mask.view(scores.shape))
        shares = self.dropout(scores.softmax(-1))
        result = self.out_proj((shares @ v).transpose(1, 2).flatten(2))
        result = result if self.batch_first else result.transpose(0, 1)
        return result, (shares.mean(1) if average_attn_weights else shares) if need_weights else None


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Return scores without those that a mask forbids: where it is true, or by the numbers that it adds."""
    return scores.masked_fill(mask, -math.inf) if mask.dtype is torch.bool else scores + mask


class Recurrent(nn.Module):
    """An RNN, GRU or LSTM, equal to torch's, step by step; `dropouts` stand between its layers."""

    num_layers: int
    hidden_size: int
    proj_size: int
    bias: bool
    batch_first: bool
    bidirectional: bool

    def __init__(self, layer: nn.RNNBase, dropouts: Sequence[nn.Module]):
        super().__init__()
        self.kind = type(layer).__name__
        for name in layer.__constants__:  # hidden_size, num_layers, ...: forwards that call a layer ask for them
            setattr(self, name, getattr(layer, name))
        self.step = {"LSTM": lstm_step, "GRU": gru_step, "RNN_TANH": tanh_step, "RNN_RELU": relu_step}[layer.mode]
        take_parameters(self, layer)
        self.dropouts = nn.ModuleList(dropouts)

    def reset_parameters(self) -> None:
        """Draw as torch does."""
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))

    def flatten_parameters(self) -> None:
        """Ignore the call: torch's layers order their weights for kernels that are not used here."""

    def forward(self, x: Tensor, hx: Tensor | State | None = None) -> tuple[Tensor, Tensor | State]:
        """Return the outputs of all steps and the last states, as torch's layer does."""
        check_dims(self.kind, x)
        x = x if self.batch_first else x.transpose(0, 1)  # rows first: a row's dropout does not depend on how many
        directions = ("", "_reverse") if self.bidirectional else ("",)
        if hx is None:
            hx = self.zeros(x, len(directions) * self.num_layers)
        before = list(zip(*((hx,) if isinstance(hx, Tensor) else hx), strict=True))
        last: list[State] = []
        for number in range(self.num_layers):
            x = self.dropouts[number - 1](x) if number else x
            outputs = []
            for direction in directions:
                output, state = self.run(x, before[len(last)], f"_l{number}{direction}")
                outputs.append(output)
                last.append(state)
            x = torch.cat(outputs, -1)
        end = tuple(torch.stack(values) for values in zip(*last, strict=True))
        return x if self.batch_first else x.transpose(0, 1), end if self.step is lstm_step else end[0]

    def run(self, x: Tensor, state: State, name: str) -> tuple[Tensor, State]:
        """Run one direction of one layer over all steps; return its outputs and last state."""
        biases = [getattr(self, f"bias_{kind}{name}") if self.bias else None for kind in ("ih", "hh")]
        steps = F.linear(x, getattr(self, f"weight_ih{name}"), biases[0]).unbind(1)
        backwards = name.endswith("_reverse")
        outputs = []
        for step in reversed(steps) if backwards else steps:
            state = self.step(step, F.linear(state[0], getattr(self, f"weight_hh{name}"), biases[1]), state)
            if self.proj_size:
                state = F.linear(state[0], getattr(self, f"weight_hr{name}")), *state[1:]
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if backwards else outputs, 1), state

    def zeros(self, x: Tensor, number: int) -> State:
        """Return the states of all layers and directions before the first step."""
        sizes = [self.proj_size or self.hidden_size, self.hidden_size]
        return tuple(x.new_zeros(number, x.shape[0], size) for size in sizes[: 2 if self.step is lstm_step else 1])


def lstm_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the next h and c of an LSTM."""
    enter, forget, value, leave = (x + h).chunk(4, -1)
    c = forget.sigmoid() * state[1] + enter.sigmoid() * value.tanh()
    return leave.sigmoid() * c.tanh(), c


def gru_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the next h of a GRU."""
    (reset, update, value), (own_reset, own_update, own) = x.chunk(3, -1), h.chunk(3, -1)
    value = (value + (reset + own_reset).sigmoid() * own).tanh()
    return (value + (update + own_update).sigmoid() * (state[0] - value),)


def tanh_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the next h of an RNN with tanh."""
    return ((x + h).tanh(),)


def relu_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the next h of an RNN with ReLU."""
    return ((x + h).relu(),)


def take_parameters(ours: nn.Module, theirs: nn.Module) -> None:
    """Take the parameters of torch's layer, under their names."""
    for name, parameter in theirs._parameters.items():
        ours.register_parameter(name, parameter)


def check_dims(kind: str, x: Tensor) -> None:
    """Refuse inputs that are not (samples, steps, features)."""
    if not isinstance(x, Tensor) or x.dim() != 3:
        given = f"{x.dim()} dimensions" if isinstance(x, Tensor) else type(x).__name__
        raise ConfigError(
            f"{kind} is given {given}; it must get a tensor (samples, steps, features); set batch_first=True"
        )
