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
from partwise.reporting.tables import NOTHING, Cells, percent, print_table
from partwise.runs.saving import GLOBAL_STEM
from partwise.writing import write


def predict(run: str, samples: str, client: str | None, of_all: bool, out: str | None, trust: bool) -> None:
    """Show or write the class and the probabilities of every sample."""
    model = load_model(run, named_client(client, of_all), trust=trust)
    given = model.read(samples)
    probabilities = model.probabilities(given.x)
    column = "row" if isinstance(model.manifest.input, TableInput) else "file"
    titles = [f"p({name})" for name in model.classes]
    rows = [
        {column: name, "class": chosen, **dict(zip(titles, own.round(6).tolist(), strict=True))}
        for name, chosen, own in zip(given.names, model.named(probabilities), probabilities, strict=True)
    ]
    content = as_csv(rows)
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
    """Return a row for every newcomer: its samples, and the accuracy of the models that it might use."""
    rows = []
    for each in joined.newcomers:
        accuracies = map(percent, (each.joined, each.alone, each.all_alike))
        rows.append([each.name, str(each.train_samples), str(each.test_samples), *accuracies])
    notes = [f"joined: {joined.how}"]
    notes.append(f"alone: trains {joined.rounds} rounds on its own samples, as many as the run (local)")
    notes.append(f"global: the run's global model; {NOTHING}: it has none")
    return Cells("Accuracy in %", ["newcomer", "train", "test", "joined", "alone", "global"], rows, notes)
