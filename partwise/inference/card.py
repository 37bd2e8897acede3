"""The card of a model that is taken away: what it is, how good it is, how it is used."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from partwise.data.saved import json_digest
from partwise.errors import DataError, one_line, printable
from partwise.inference.served import ServedModel
from partwise.records.files import CLIENTS, MODELS_FOLDER, SUMMARY
from partwise.records.manifest import ArrayInput, ImageInput, NamedInput, TableInput
from partwise.records.summaries import ClientRecord, RunSummary, read_clients
from partwise.runs.config import label
from partwise.runs.saving import ENDING, GLOBAL_STEM

SPELLED_OUT = 20  # classes or features that are spelled out
MARKUP = re.compile(r"[&<>`|*\[\]\\]")  # what Markdown and HTML read as more than a letter


def card(model: ServedModel, files: tuple[str, ...]) -> str:
    """Return a README.md as model hubs show it."""
    about, title = model.manifest, model.saved.title(model.stem)
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
        f"# {markdown_text(title[0].upper() + title[1:])}",
        "",
        f"Trained by personalised federated learning with partwise {markdown_text(about.partwise)}.",
        "",
        f"- **Method**: {markdown_text(label(about.method.name))} ({markdown_text(settings)})",
        f"- **Network**: {markdown_text(network)}, parts {markdown_text(', '.join(about.parts))}",
        f"- **Data**: {markdown_text(about.data)}; {taken(about.input)}",
        f"- **Classes** ({len(model.classes)}): {as_code(model.classes[:SPELLED_OUT])}{more(model.classes)}",
        f"- **Accuracy**: {markdown_text(accuracy_in_words(model))}",
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


def accuracy_in_words(model: ServedModel) -> str:
    """Return the accuracy that the run measured for this model, in a sentence; nothing where it measured none."""
    try:
        return measured_accuracy(model)
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"'{model.saved.run}': its {SUMMARY} or {CLIENTS} is damaged: {one_line(error)}") from None


def measured_accuracy(model: ServedModel) -> str:
    """Return the accuracy in the run's files, and the samples that it was measured on."""
    if model.stem == GLOBAL_STEM:
        measured = global_accuracy(model.saved.run / SUMMARY)
        return "not measured" if measured is None else f"{100 * measured:.2f} % of all clients' test samples"
    client, moment = model.saved.number_of(model.stem), model.saved.file(model.stem + ENDING).header.moment
    record = client_record(model.saved.run / CLIENTS, client)
    measured = None if record is None else record.ranking(moment)
    if record is None or measured is None:
        return "not measured"
    return f"{100 * measured:.2f} % of the client's {record.test_samples} test samples ({moment})"


def global_accuracy(summary: Path) -> float | None:
    """Return the global model's accuracy on all clients' test samples after the last round; None: not measured."""
    if not summary.is_file():
        return None
    headline = RunSummary.from_json(json.loads(summary.read_text(encoding="utf-8"))).global_model
    return None if headline is None else headline.last.clients.accuracy


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
            f"model.predict({what})  # classes; predict_proba: probabilities",
            "```",
            "",
        ]
    if "model.pt2" in files or "model.onnx" in files:
        result += [*interface(model), ""]
    if "model.pt2" in files:
        result += ["```python", "import torch", "", 'program = torch.export.load("model.pt2").module()']
        result += ['program(x)["probabilities"]', "```", ""]
    if "model.onnx" in files:
        result += ["```python", "import onnxruntime", "", 'session = onnxruntime.InferenceSession("model.onnx")']
        result += ['logits, probabilities = session.run(None, {"x": x})', "```", ""]
    return result


def interface(model: ServedModel) -> list[str]:
    """Return the inputs and outputs of the programs, axis by axis."""
    about, classes = model.manifest.input, len(model.classes)
    shape = ", ".join(map(str, ("batch", *about.shape)))
    lines = [f"- **In**: `x`, float32 ({shape}), any number of rows; raw, for they are standardised inside."]
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
    lines.append(f"- **Out**: `logits` and `probabilities`, float32 (batch, {classes}).")
    lines.append(f"  Classes in this order: {as_code(model.classes)}.")
    return lines
