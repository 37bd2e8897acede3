"""The vocabulary of texts: the tokens of the clients' training samples, those of many clients first."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from partwise.data.source import Federation, Source
from partwise.data.tokens import FIRST, PADDING, UNKNOWN_TOKEN
from partwise.data.transforms import TextTransform, VocabularyLimits, tokens_of, with_tokens
from partwise.errors import DataError


def with_vocabulary(federation: Federation) -> Federation:
    """Return the federation with a vocabulary from its training samples, if its texts still lack one."""
    source = federation.source
    if source.text is None or source.text.limits is None:
        return federation
    limits = source.text.limits
    chosen = frequent(tokens_of(source.x), federation.train, source.text.size, limits)
    if not len(chosen):
        raise DataError(
            f"data set '{source.name}': no token is in {limits.least} training samples; use --min-token-count 1"
        )
    vocabulary = tuple(source.text.vocabulary[token - FIRST] for token in chosen.tolist())
    text = replace(source.text, vocabulary=vocabulary, limits=None)
    return replace(federation, source=in_tokens_of(source, text))


def in_tokens_of(source: Source, text: TextTransform) -> Source:
    """Return a source whose texts are in the tokens of another transform, and of its length."""
    own = source.text
    if own is None or (own.column, own.tokens) != (text.column, text.tokens):
        raise DataError(f"'{source.name}' must have a column of texts '{text.column}', in the run's tokens")
    x = tokens_of(source.x)
    if own.vocabulary != text.vocabulary:
        number = {token: FIRST + place for place, token in enumerate(text.vocabulary)}
        x = torch.tensor([PADDING, UNKNOWN_TOKEN, *(number.get(token, UNKNOWN_TOKEN) for token in own.vocabulary)])[x]
    x = pad(x, (0, text.length - x.shape[1]), value=PADDING)  # or cut it
    return replace(source, x=with_tokens(source.x, x), text=text)


def frequent(x: Tensor, train: Sequence[Tensor], size: int, limits: VocabularyLimits) -> Tensor:
    """Return the numbers of the tokens that a vocabulary has, of `size` numbers that follow the alphabet.

    They are ordered by the clients that have them, then by how often they occur, then by the alphabet.
    """
    clients, samples, times = (torch.zeros(size, dtype=torch.int64) for _ in range(3))
    for own in train:
        rows = x[own]
        times += rows.flatten().bincount(minlength=size)
        ordered = rows.sort(1).values  # a token of a sample counts where it first stands
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        having = ordered[first].bincount(minlength=size)
        samples += having
        clients += having > 0
    known = [token for token in range(FIRST, size) if samples[token] >= limits.least]
    known.sort(key=lambda token: (-int(clients[token]), -int(times[token]), token))
    return torch.tensor(known[: limits.largest], dtype=torch.int64)
