"""Tokens of texts: words, characters, or those of a tokenizer's file; each has a number, from 0 for padding on."""

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from partwise.errors import ConfigError, DataError, needed, one_line, unknown

PADDING, UNKNOWN_TOKEN, FIRST = 0, 1, 2  # numbers: behind the end of a text, tokens of no vocabulary, the first of one
COUNTED = ("words", "characters")  # their vocabulary is fitted
KINDS = (*COUNTED, "ascii")
TOKENIZER = ".json"
WORD = re.compile(r"\w+|[^\w\s]")
ALPHABET = ("\n", *map(chr, range(32, 127)))  # of `ascii`: it is fixed
PADDING_NAMES = ("[PAD]", "<pad>", "<|padding|>")  # as usual tokenizers call token 0


def check_tokens(kind: str) -> None:
    """Refuse tokens that are neither a kind by name nor a tokenizer's file."""
    if kind not in KINDS and not kind.endswith(TOKENIZER):
        raise ConfigError(unknown("kind of tokens", kind, [*KINDS, f"FILE{TOKENIZER}"]))


def split_words(text: str) -> list[str]:
    """Return the words and the punctuation marks of a text, in lower case."""
    return WORD.findall(text.lower())


TOKENISERS: dict[str, Callable[[str], list[str]]] = {"words": split_words, "characters": list, "ascii": list}


def read_tokenizer(path: str) -> str:
    """Return the content of a tokenizer's file, as the package tokenizers writes it."""
    try:
        content = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the tokenizer '{path}': {one_line(error)}") from None
    try:
        made_tokenizer(content)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # the package raises Exception itself
        raise DataError(f"'{path}' is no tokenizer of the package tokenizers: {one_line(error)}") from None
    return content


@lru_cache(maxsize=4)
def made_tokenizer(content: str) -> Any:
    """Return the tokenizer of a file's content; it neither pads nor cuts texts."""
    tokenizer = needed("tokenizers", "texts").Tokenizer.from_str(content)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def shift_of(content: str) -> int:
    """Return what is added to a tokenizer's numbers: 0 if its token 0 is padding, otherwise 1."""
    return 0 if made_tokenizer(content).id_to_token(PADDING) in PADDING_NAMES else 1
