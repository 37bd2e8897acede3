"""Facts about data sets, as text and for programs, from the catalogue and the names of files: none is read."""

from collections.abc import Sequence
from dataclasses import dataclass

from partwise.data import CATALOGUE
from partwise.data.kinds import OWN_KINDS
from partwise.data.readers.catalogue import catalogued
from partwise.data.readers.places import Root
from partwise.published import OTHERS, summaries
from partwise.reporting.amounts import in_columns


@dataclass(frozen=True)
class FileFacts:
    """A file that can be fetched."""

    url: str
    bytes: int
    md5: str


@dataclass(frozen=True)
class DataFacts:
    """What is known of a named data set before it is read."""

    name: str
    summary: str
    samples: str
    classes: int  # 0: labels are numbers
    shape: Sequence[int | None]
    model: str  # unless --model says another, as the next
    partition: str
    found: str | None  # where it lies; None: it is missing
    looked_in: Sequence[str]
    obtain: str  # how to get it
    downloads: Sequence[FileFacts]
    example: str


@dataclass(frozen=True)
class OtherFacts:
    """A data set that another package publishes; nothing more is known before it is read."""

    name: str
    summary: str


def data_overview(root: Root = None) -> str:
    """Return a line for every named data set, and the kinds of a user's own."""
    places = {known.name: known.find(root)[0] for known in CATALOGUE.values()}
    lines = [
        (known.name, known.summary, known.where(place) if (place := places[known.name]) else "missing")
        for known in CATALOGUE.values()
    ]
    sections = [section("Data sets (--data NAME)", lines)]
    if others := summaries("data set", CATALOGUE):
        sections.append(section(OTHERS, others))
    sections.append(section("Your own (--data PATH)", list(OWN_KINDS.items())))
    return "\n\n".join(map("\n".join, sections))


def data_page(name: str, root: Root = None) -> str:
    """Return everything about one data set."""
    facts = data_facts(name, root)
    what = [
        ("samples", facts.samples),
        ("classes", str(facts.classes)) if facts.classes else ("labels", "numbers"),
        ("shape", "x".join("?" if side is None else str(side) for side in facts.shape)),
        ("model", f"{facts.model}, unless --model says another"),
        ("partition", f"{facts.partition}, unless --partition says another"),
    ]
    where = [("found", facts.found)] if facts.found else [("missing", "")]
    if not facts.found:
        where += [("looked in", place) for place in facts.looked_in]
        where += [("to get it", facts.obtain)]
        if facts.downloads:
            size = sum(file.bytes for file in facts.downloads) / 1e6
            where.append(("or fetch it", f"partwise data {name} --download    ({size:,.0f} MB)"))
    sections = [section("What it is", what), section("Where it is", where), ["Example:", f"  {facts.example}"]]
    return "\n\n".join([facts.summary, *("\n".join(lines) for lines in sections)])


def data_facts(name: str, root: Root = None) -> DataFacts:
    """Return the facts that `partwise data --json` prints."""
    known = catalogued(name)
    place, looked_in = known.find(root)
    return DataFacts(
        name=name,
        summary=known.summary,
        samples=known.samples,
        classes=known.classes,
        shape=list(known.shape),
        model=known.model,
        partition=known.partition,
        found=known.where(place) if place else None,
        looked_in=looked_in,
        obtain=known.obtain,
        downloads=[FileFacts(file.url, file.size, file.md5) for file in known.downloads],
        example=f"partwise run fedper --data {name}",
    )


def other_data() -> list[OtherFacts]:
    """Return the data sets that other packages publish."""
    return [OtherFacts(name, summary) for name, summary in summaries("data set", CATALOGUE)]


def section(title: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows in columns below a title. No line is broken: paths and commands are there to be copied."""
    return [f"{title}:", *(f"  {line}" for line in in_columns(rows))]
