"""VADER's sentences, which people rated from -4 to 4 (Hutto and Gilbert 2014), in the archive of vaderSentiment."""

from pathlib import PurePath

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.frames import framed
from partwise.data.readers.places import DataPlace
from partwise.data.readers.sdists import archived_files
from partwise.data.readers.tables import source_of
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import DataError, needed

INNER, RATED = "*/hutto_ICWSM_2014.tar.gz", "*_GroundTruth.txt"
DOMAINS = {"amazonReviewSnippets": "products", "movieReviewSnippets": "films"}
DOMAINS |= {"nytEditorialSnippets": "newspaper", "tweets": "tweets"}
LABELS = ("sentiment", "rating")


def load(known: DataEntry, place: DataPlace, reading: Reading) -> Source:
    """Return the sentences as tokens, a client per domain, split by article or review.

    The label is whether the mean rating is positive or negative, without sentences of mean 0; or `rating` itself. Of
    equal sentences the first counts.
    """
    assert known.columns is not None
    wanted = known.columns.over(reading)
    if wanted.label not in LABELS:
        raise DataError(f"data set '{known.name}': label must be {' or '.join(LABELS)}, got '{wanted.label}'")
    rows: dict[str, tuple[str, str, float, str]] = {}  # by their texts
    for inner in archived_files(place.path, INNER, place.path).values():
        for path, content in archived_files(inner, RATED, place.path).items():
            domain = DOMAINS.get(PurePath(path).name.removesuffix(RATED[1:]))
            if domain is None:
                raise DataError(f"{place.path}: {path} is none of {', '.join(DOMAINS)}")
            for line in content.decode("utf-8", "replace").splitlines():
                number, rating, text = line.split("\t", 2)
                article = number.partition("_")[0]
                rows.setdefault(text.strip(), (domain, f"{domain} {article}", float(rating), text.strip()))
    frame = needed("pandas", "tables").DataFrame(list(rows.values()), columns=["domain", "article", "rating", "text"])
    if wanted.label == "sentiment":
        frame = frame[frame["rating"] != 0].reset_index(drop=True)
        frame["sentiment"] = (frame.pop("rating") > 0).map({True: "positive", False: "negative"})
    return source_of(framed(frame, f"data set '{known.name}'"), wanted, known.name)
