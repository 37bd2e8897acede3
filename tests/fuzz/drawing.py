"""Input that is nearly right: each choice is a sound one nine times out of ten, so that much of what is drawn runs."""

import dataclasses
import gzip
import io
import typing
from collections.abc import Mapping

import numpy as np
import pandas
from hypothesis import strategies as st

from partwise import methods
from partwise.errors import ConfigError
from partwise.options import convert, field_type, with_effect
from partwise.runs.config import known_fields

SAFE = ("data", "data_root", "device", "download")  # what is not drawn: it would reach beyond the test
FIELDS = {
    method: {name: spec for name, spec in known_fields(methods.find(method)).items() if name not in SAFE}
    for method in methods.names()
}
EVERY = {name: spec for fields in FIELDS.values() for name, spec in fields.items()}
# What takes time or memory by its size: it is never large, however wrong it is.
DEAR = {"rounds", "epochs", "clients", "finetune_epochs", "image_size", "threads", "workers", "model", "compile"}
# Sound values of what no type describes, and of what would take too long.
SOUND = {
    "augment": ["flip", "rotate:30", "crop:1", "flip,crop:2"],
    "batch": ["8", "16", "64"],
    "compile": ["auto", "no"],
    "eval_at": ["1", "2", "1,2"],
    "finetune_part": ["*", "head", "body"],
    "histograms": ["exact", "presence", "bits:2", "laplace:1"],
    "host": ["fedavg", "fedper", "fedbabu"],
    "image_size": ["8", "16"],
    "model": ["auto", "mlp-100", "cnn-digits"],
    "partition": ["auto", "iid", "dir:0.5", "hsu:1", "pat:2", "quantity:5"],
    "robust": ["median", "trimmed", "trimmed:0.2", "krum:1", "clip", "clip:1"],
    "unfreeze": ["0,1", "0,0", "0"],
    "workers": ["1"],
}
SMALL = st.sampled_from(["0", "1", "2", "3", "-1", "x", "1.5", ""])
WILD = st.one_of(
    SMALL,
    st.integers(-3, 40).map(str),
    st.floats(allow_nan=True).map(repr),
    st.sampled_from(["nan", "inf", "-inf", "1e-30", "1e30", "true", "auto", "all", "dir:0.1", "pat:2", "iid", "sgd"]),
    st.sampled_from(["adamw", "received", "trained", "flip,crop:1", "0,1", "1,2,3", "none", "loop", "vector"]),
    st.text(max_size=8),
)
ONE_IN_TEN = st.sampled_from([False] * 9 + [True])


# ------------------------------------------------------------------------------------------------- configurations


def sound(spec: dataclasses.Field) -> st.SearchStrategy[str] | None:
    """Values that a field takes; None where nothing says which."""
    plain, limits = field_type(spec)[0], spec.metadata
    if spec.name in SOUND:
        return st.sampled_from(SOUND[spec.name])
    if typing.get_origin(plain) is typing.Literal:
        return st.sampled_from(typing.get_args(plain))
    if plain is bool:
        return st.sampled_from(["true", "false"])
    if plain is int:
        least = limits["minimum"] or 0
        return st.integers(least, min(least + 3, limits["maximum"] or least + 3)).map(str)
    if plain is float:
        above, below = limits["above"] is not None, limits["below"] is not None
        least = limits["above"] if above else limits["minimum"] or 0.0
        most = limits["below"] if below else limits["maximum"] or least + 1.0
        middle = [least + share * (most - least) for share in (0.1, 0.3, 0.9)]
        return (st.sampled_from(middle) | st.floats(least, most, exclude_min=above, exclude_max=below)).map(repr)
    return None


@st.composite
def options(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A method and up to four options, most of them its own, sound, and with an effect beside the others."""
    method = draw(st.sampled_from(methods.names()))
    fields = EVERY if draw(ONE_IN_TEN) else FIELDS[method]
    chosen = draw(st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True))
    values = {}
    for name in chosen:
        wild = SMALL if name in DEAR else WILD
        values[name] = draw(wild if draw(ONE_IN_TEN) else sound(fields[name]) or wild)
    if not draw(ONE_IN_TEN):
        values = effective(fields, values)
    return method, [word for name, value in values.items() for word in words(fields[name], value)]


def effective(fields: Mapping[str, dataclasses.Field], values: dict[str, str]) -> dict[str, str]:
    """The settings that have an effect beside each other, if they can be understood at all."""
    try:
        kept = with_effect(fields, {name: convert(fields[name], value) for name, value in values.items()})
    except (ConfigError, KeyError):  # a condition may be about a setting that another method has
        return values
    return {name: values[name] for name in kept}


def words(spec: dataclasses.Field, value: str) -> list[str]:
    option = "--" + spec.name.replace("_", "-")
    if field_type(spec)[0] is bool:
        return [option if value == "true" else option.replace("--", "--no-", 1)]
    return [f"{option}={value}"]


# ----------------------------------------------------------------------------------------------------- data files

CELLS = ["1", "-3.5", "a", "", "nan", "1e400", "=1", "\x1b[2J", "ä", '"', "'", "1,2", "NA", "0x1", "\0"]
COLUMNS = {
    "number": lambda random, rows: random.normal(0, 1, rows).round(3).astype(str),
    "whole": lambda random, rows: random.integers(-5, 5, rows).astype(str),
    "word": lambda random, rows: random.choice(["f", "m", "ä b"], rows),
    "yes": lambda random, rows: random.choice(["True", "False"], rows),
}


@st.composite
def frames(draw: st.DrawFn) -> pandas.DataFrame:
    """A table with features and a label, at times too short, too narrow or with cells that do not belong there."""
    random, rows = np.random.default_rng(draw(st.integers(0, 99))), draw(st.integers(0, 60))
    rows = draw(st.integers(0, 9)) if draw(ONE_IN_TEN) else 30 + rows
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4))
    classes = draw(st.sampled_from([["a", "b"], ["0", "1", "2"], ["yes", "no"]]))
    columns = {f"x{number}": COLUMNS[kind](random, rows) for number, kind in enumerate(kinds)}
    columns["label" if not draw(ONE_IN_TEN) else draw(st.sampled_from(["y", "", "Label", "x y"]))] = random.choice(
        classes, rows
    )
    frame = pandas.DataFrame(columns, dtype=object)
    for _ in range(draw(st.integers(1, 3)) if rows and draw(ONE_IN_TEN | ONE_IN_TEN) else 0):
        place = draw(st.integers(0, rows - 1)), draw(st.integers(0, len(columns) - 1))
        frame.iloc[place] = draw(st.sampled_from(CELLS))
    return frame


def written(frame: pandas.DataFrame, ending: str, separator: str) -> bytes:
    """A table as a file; of an .npz only its numbers."""
    file = io.BytesIO()
    if ending == "parquet":
        pandas.read_csv(io.StringIO(frame.to_csv(index=False))).to_parquet(file)  # with types
    elif ending == "npz":
        label = frame.iloc[:, -1]
        x = frame.iloc[:, :-1].apply(pandas.to_numeric, errors="coerce").fillna(0).to_numpy(np.float32)
        np.savez(file, x=x, y=label.to_numpy(str))
    else:
        text = frame.to_csv(index=False, sep=separator).encode()
        return gzip.compress(text) if ending == "csv.gz" else text
    return file.getvalue()


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """The ending of a file and what is in it: a table as it should be, cut or changed, or something else."""
    ending = draw(st.sampled_from(["csv", "csv.gz", "npz", "parquet"]))
    if draw(ONE_IN_TEN):
        return ending, draw(st.binary(max_size=200))
    content = written(draw(frames()), ending, draw(st.sampled_from([",", ",", ";", "\t"])))
    if draw(ONE_IN_TEN):
        content = content[: draw(st.integers(0, len(content)))]
    if draw(ONE_IN_TEN) and content:
        at = draw(st.integers(0, len(content) - 1))
        content = content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at + 1 :]
    return ending, content
