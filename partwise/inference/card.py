"""The card of a model that is taken away: what it is, how good it is, how it is used."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from partwise.data.saved import json_digest
from partwise.errors import DataError, one_line, printable
from partwise.inference.served import ServedModel
from partwise.records.files import CLIENTS, MODELS_FOLDER, SUMMARY
from partwise.records.manifest import ArrayInput, ImageInput, NamedInput, TableInput
from partwise.records.metrics import FIELDS, METRICS_OF, RANKING, TITLES, Score
from partwise.records.names import capital
from partwise.records.summaries import ClientRecord, RunSummary, read_clients
from partwise.runs.config import label
from partwise.runs.saving import ENDING, GLOBAL_STEM

SPELLED_OUT = 20  # classes or features that are spelled out
MARKUP = re.compile(r"[&<>`|*\[\]\\]")  # what Markdown and HTML read as more than a letter


def card(model: ServedModel, files: tuple[str, ...]) -> str:
    """Return a README.md as model hubs show it."""
    about, title, names = model.manifest, model.saved.title(model.stem), model.task.names
    network = about.network.name or str(about.network.made_of)
    settings = ", ".join(f"{name} = {value}" for name, value in about.method.settings.items())
    lines = [
        "---",
        "library_name: partwise",
        "tags: [federated-learning, personalised-federated-learning]",
        signature(model),
        "# license: yours to say; the data have a word in it",
        "---",
        "",
        f"# {markdown_text(capital(title))}",
        "",
        f"Trained by personalised federated learning with partwise {markdown_text(about.partwise)}.",
        "",
        f"- **Method**: {markdown_text(label(about.method.name))} ({markdown_text(settings)})",
        f"- **Network**: {markdown_text(network)}, parts {markdown_text(', '.join(about.parts))}",
        f"- **Data**: {markdown_text(about.data)}; {taken(about.input)}",
        f"- **{about.task.title}** ({len(names)}): {as_code(names[:SPELLED_OUT])}{more(names)}",
        f"- **{capital(TITLES[RANKING[about.task.kind]])}**: {markdown_text(scores_in_words(model))}",
        "- **License**: not said yet",
        "",
        "## How to use it",
        "",
    ]
    return "\n".join([*lines, *usage(model, files)])


def signature(model: ServedModel) -> str:
    """Return the line of a card that tells one model from another."""
    return f"model_sha256: {json_digest(model.files)}"


def markdown_text(text: str) -> str:
    """Return a text that a page shows letter by letter."""
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", printable(text))


def taken(given: TableInput | ImageInput | ArrayInput | NamedInput) -> str:
    """Return the input of the model, in words."""
    shape = "x".join(map(str, given.shape))
    if isinstance(given, TableInput):
        columns = given.different_columns
        return f"tables with the columns {as_code(columns[:SPELLED_OUT])}{more(columns)}"
    if isinstance(given, ImageInput):
        return f"images, channels x height x width {shape}, values 0 to {given.white:g}"
    if isinstance(given, NamedInput):
        return "arrays by name: " + ", ".join(
            f"{name} ({'x'.join(map(str, own))})" for name, own in given.shapes.items()
        )
    return f"arrays of {'whole numbers ' * given.whole}of the shape {shape}".replace(
        "of whole numbers of", "of whole numbers,"
    )


def as_code(names: Sequence[str]) -> str:
    """Return names as code. Markdown reads no entity between backticks: a name with markup stands in `<code>`."""
    return ", ".join(
        f"<code>{markdown_text(name)}</code>" if MARKUP.search(name) else f"`{printable(name)}`" for name in names
    )


def more(names: Sequence[str]) -> str:
    """Return how many names stand behind the first."""
    return f" and {len(names) - SPELLED_OUT} more" if len(names) > SPELLED_OUT else ""


def scores_in_words(model: ServedModel) -> str:
    """Return what the run measured of this model, in a sentence; that it measured nothing where it did not."""
    try:
        return measured_scores(model)
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"'{model.saved.run}': its {SUMMARY} or {CLIENTS} is damaged: {one_line(error)}") from None


def measured_scores(model: ServedModel) -> str:
    """Return the scores in the run's files, and the samples that they were measured on."""
    if model.stem == GLOBAL_STEM:
        score, samples = global_score(model.saved.run / SUMMARY), "all clients' test samples"
    else:
        client, moment = model.saved.number_of(model.stem), model.saved.file(model.stem + ENDING).header.moment
        record = client_record(model.saved.run / CLIENTS, client)
        score = None if record is None else record.scores.get(moment)
        samples = "" if record is None else f"the client's {record.test_samples} test samples ({moment})"
    if score is None or score.ranking is None:
        return "not measured"
    values = {name: score.value(name) for name in METRICS_OF[score.task]}
    first, *others = [(TITLES[name], shown(value, name)) for name, value in values.items() if value is not None]
    beside = ", ".join(f"{title} {value}" for title, value in others)
    return f"{first[1]} on {samples}{beside and '; '}{beside}"


def shown(value: float, metric: str) -> str:
    """Return the value of a metric: a share in percent, another number with four digits."""
    return f"{100 * value:.2f} %" if FIELDS[metric].percent else f"{value:.4g}"


def global_score(summary: Path) -> Score | None:
    """Return how the global model does on all clients' test samples after the last round; None: not measured."""
    if not summary.is_file():
        return None
    headline = RunSummary.from_json(json.loads(summary.read_text(encoding="utf-8"))).global_model
    return None if headline is None else headline.last.clients.pooled


def client_record(table: Path, client: int) -> ClientRecord | None:
    """Return a client's row of clients.csv; None where there is none."""
    if not table.is_file():
        return None
    return next((own for own in read_clients(table.read_text(encoding="utf-8")) if own.client == client), None)


def usage(model: ServedModel, files: tuple[str, ...]) -> list[str]:
    """Return how each of the files is used."""
    which = "" if model.stem == GLOBAL_STEM else f", client={model.saved.number_of(model.stem)}"
    network = model.manifest.network
    given = ", model=Net()" if network.name is None else ", trust=True" if network.file else ""
    what = {"table": '"new.csv"', "images": '"folder/of/images"', "arrays": "x"}[model.manifest.input.kind]
    result: list[str] = []
    if f"{MODELS_FOLDER}/{model.stem}{ENDING}" in files:
        result += [
            "```python",
            "import partwise",
            "",
            f'model = partwise.load_model("."{which}{given})',
            f"model.predict({what})  # {model.task.predicted}",
            "```",
            "",
        ]
    if "model.pt2" in files or "model.onnx" in files:
        result += [*interface(model), ""]
    if "model.pt2" in files:
        result += ["```python", "import torch", "", 'program = torch.export.load("model.pt2").module()']
        result += [f'program(x)["{model.task.result_names[-1]}"]', "```", ""]
    if "model.onnx" in files:
        result += ["```python", "import onnxruntime", "", 'session = onnxruntime.InferenceSession("model.onnx")']
        result += [f'[{", ".join(model.task.result_names)}] = session.run(None, {{"x": x}})', "```", ""]
    return result


def interface(model: ServedModel) -> list[str]:
    """Return the inputs and outputs of the programs, axis by axis."""
    about, task = model.manifest.input, model.task
    shape = ", ".join(map(str, ("batch", *about.shape)))
    kind = "int64" if isinstance(about, ArrayInput) and about.whole else "float32"
    lines = [f"- **In**: `x`, {kind} ({shape}), any number of rows; raw, for they are standardised inside."]
    if isinstance(about, TableInput) and about.text is not None:
        lines = [
            f"- **In**: `x`, int64 ({shape}), any number of rows: tokens of the column {as_code([about.text.column])}."
        ]
        lines.append("  `input.text` in model.json says which number a token has; 0 is padding, 1 any other token.")
    elif isinstance(about, TableInput):
        lines.append(f"  Columns in this order: {as_code(about.features)}.")
        if about.features != about.columns:
            lines.append("  `column=text` is 1 where the column has this text, else 0.")
    elif isinstance(about, ImageInput):
        lines.append(f"  Channels, height, width; values 0 to {about.white:g}.")
    given = ", ".join(map(str, ("batch", *task.output_shape(torch.Size(model.manifest.label_shape)))))
    lines.append(f"- **Out**: {' and '.join(f'`{name}`' for name in task.result_names)}, {task.result_type} ({given}).")
    lines.append(f"  {task.title} in this order: {as_code(task.names)}.")
    return lines
