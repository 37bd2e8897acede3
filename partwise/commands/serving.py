"""`partwise predict`, `partwise export` and `partwise join`."""

from pathlib import Path
from typing import Any

import click

from partwise.errors import ConfigError, unknown
from partwise.inference.exporting import EXPORT_FORMATS, export
from partwise.inference.loading import load_model
from partwise.inference.newcomers import JoinResult, join
from partwise.inference.run_models import RunModels
from partwise.records.formats import as_csv
from partwise.records.manifest import TableInput
from partwise.reporting.tables import NOTHING, Cells, in_unit, metric_cell, print_table
from partwise.runs.saving import GLOBAL_STEM
from partwise.writing import write


def predict(run: str, samples: str, client: str | None, of_all: bool, out: str | None, trust: bool) -> None:
    """Show or write what is predicted of every sample: a class or labels with probabilities, or numbers."""
    model = load_model(run, named_client(client, of_all), trust=trust)
    given = model.read(samples)
    first = "row" if isinstance(model.manifest.input, TableInput) else "file"
    columns = model.task.columns(model.outputs(given.x))
    if not columns:
        raise ConfigError(
            "a class for each place of a sample is no CSV; in Python, load_model(...).predict gives an array"
        )
    if first in columns:
        raise ConfigError(f"two columns would be called '{first}'; in Python, load_model(...).predict gives an array")
    values = zip(given.names, *(own.tolist() for own in columns.values()), strict=True)
    content = as_csv([dict(zip((first, *columns), row, strict=True)) for row in values])
    if out is None:
        click.echo(content.decode(), nl=False)
    else:
        write(out, content)
        click.echo(f"predictions: {out}")


def named_client(client: str | None, of_all: bool) -> str | None:
    """Return the client whose model is meant, or None for the global one."""
    if (client is None) != of_all:
        raise ConfigError("name one model: --client NUMBER or NAME, or --global")
    return client


def export_models(
    run: str, client: str | None, of_all: bool, every: bool, to: str, formats: str, overwrite: bool, trust: bool
) -> None:
    """Write a model, or every one into a folder of its own, in some formats."""
    wanted = tuple(name.strip() for name in formats.split(","))
    for name in wanted:
        if name not in EXPORT_FORMATS:
            raise ConfigError(unknown("format", name, EXPORT_FORMATS))
    if every and (client is not None or of_all):
        raise ConfigError("--all takes every model; leave out --client and --global")
    if not every:
        export(load_model(run, named_client(client, of_all), trust=trust), to, wanted, overwrite)
        click.echo(f"model: {to}")
        return
    saved = RunModels(run)
    saved.check_some()
    models: list[tuple[str, int | None]] = [(stem, number) for number, stem in sorted(saved.stems.items())]
    models += [(GLOBAL_STEM, None)] if saved.has_global else []
    for stem, number in models:
        export(load_model(run, number, trust=trust), Path(to, stem), wanted, overwrite)
    click.echo(f"models: {to} ({len(models)})")


def join_run(run: str, data: str, **given: Any) -> None:
    """Let clients join a run, and show how they do with what they get."""
    joined = join(run, data, **given)
    print_table(as_table(joined))
    click.echo(f"models: {joined.folder}")


def as_table(joined: JoinResult) -> Cells:
    """Return a row for every newcomer: its samples, and how the models do that it might use."""
    rows = []
    for each in joined.newcomers:
        values = [metric_cell(value, joined.metric) for value in (each.joined, each.alone, each.all_alike)]
        rows.append([each.name, str(each.train_samples), str(each.test_samples), *values])
    notes = [f"joined: {joined.how}"]
    notes.append(f"alone: trains {joined.rounds} rounds on its own samples, as many as the run (local)")
    notes.append(f"global: the run's global model; {NOTHING}: it has none")
    title = in_unit(joined.metric)
    return Cells(title[0].upper() + title[1:], ["newcomer", "train", "test", "joined", "alone", "global"], rows, notes)
