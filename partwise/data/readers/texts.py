"""A column of texts: how it becomes tokens, before the clients' training samples say which of them have a number."""

from dataclasses import replace

from partwise.data.readers.frames import DataTable
from partwise.data.reading import Reading
from partwise.data.room import check_room
from partwise.data.tokens import ALPHABET, COUNTED, FIRST, TOKENISERS, read_tokenizer
from partwise.data.transforms import TextTransform, VocabularyLimits
from partwise.errors import DataError

LONGEST = 256  # tokens of a sample, where nobody says how many
TOKEN_BYTES = 8


def fit_text(table: DataTable, reading: Reading) -> TextTransform | None:
    """Return the transform of the table's column of texts; None without one.

    Until a vocabulary is fitted, every word or character of the column has a number.
    """
    reading.refuse_what_is_for_texts(table.where)
    column = reading.text
    if column is None:
        return None
    kind, texts = reading.tokens, table.strings(column)
    if kind in COUNTED:
        limits = VocabularyLimits(reading.vocabulary, reading.min_token_count)
        vocabulary = tuple(sorted({token for text in texts for token in TOKENISERS[kind](text)}))
        transform = TextTransform(column, kind, vocabulary, 0, limits=limits)
    elif kind in TOKENISERS:
        transform = TextTransform(column, kind, ALPHABET, 0)
    else:
        transform = TextTransform(column, read_tokenizer(kind), (), 0)
    most = max(map(len, transform.numbers(texts)))
    if most == 0 or transform.size == FIRST:
        raise DataError(f"{table.column(column)}: every text is empty")
    length = reading.text_length or min(most, LONGEST)
    check_room(
        f"{table.column(column)}: its tokens", len(texts) * length * TOKEN_BYTES, "; use a smaller --text-length"
    )
    return replace(transform, length=length)
