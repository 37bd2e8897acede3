"""A model taken away: as files that `load_model` reads, as a program of torch.export, and as ONNX.

The last two are the whole way from raw samples - pixels or feature values - to logits and probabilities, or to numbers
in the label's own unit, in float32 and for any number of rows; each is compared with the model before it is written.
"""

import copy
import io
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from partwise.errors import ConfigError, PartwiseError, needed, one_line
from partwise.inference.card import card, signature
from partwise.inference.run_models import sound
from partwise.inference.served import ServedModel
from partwise.records.files import CONFIG, METHOD, MODEL, MODELS_FOLDER, NETWORK_COPY
from partwise.records.formats import as_json
from partwise.records.manifest import ArrayInput, ImageInput, ModelManifest, NamedInput, TableInput
from partwise.runs.saving import ENDING
from partwise.streams import torch_stream
from partwise.writing import make_folder, write

EXPORT_FORMATS = ("safetensors", "pt2", "onnx")
BATCH = "batch"  # the name of the first axis of samples and outputs
CARD, PT2, ONNX = "README.md", "model.pt2", "model.onnx"
COMPARED_ROWS = 5  # of the samples on which an export is compared with the model
CLOSE = 1e-5  # relative to numbers above 1


class RawSamplesModel(nn.Module):
    """The model from raw samples to what its task says of them."""

    def __init__(self, model: ServedModel):
        super().__init__()
        self.task = model.task
        self.personal = copy.deepcopy(model.personal).single().requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return by name, (rows, ...) each, logits and probabilities, or numbers in the label's own unit."""
        return dict(zip(self.task.result_names, self.task.results(self.personal(x)), strict=True))


def export(
    model: ServedModel, to: str | Path, formats: tuple[str, ...] = EXPORT_FORMATS, overwrite: bool = False
) -> list[Path]:
    """Write a model into a folder, with a model card; return the files.

    A folder holds one model: another in it is refused, or with `overwrite` removed.
    """
    folder = Path(to).expanduser()
    if (folder / CONFIG).exists():
        raise ConfigError(f"'{folder}' holds a run; export into a folder of its own")
    there = exported_files(folder)
    same = (folder / CARD).is_file() and signature(model) in (folder / CARD).read_text("utf-8", "replace").splitlines()
    if there and not same and not overwrite:
        raise ConfigError(f"'{folder}' holds another model or its card; choose another folder, or --overwrite")
    files: dict[str, bytes] = {}
    if "safetensors" in formats:
        files |= as_folder(model)
    if {"pt2", "onnx"} & set(formats):
        files |= as_programs(model, formats)
    left = [name for name in there if same]  # in other formats
    files[CARD] = card(model, (*files, *left)).encode()
    for name in () if same else there:
        (folder / name).unlink()
    for name, content in files.items():
        make_folder((folder / name).parent)
        write(folder / name, content)
    return [folder / name for name in files]


def exported_files(folder: Path) -> list[str]:
    """Return the files in a folder that an export writes."""
    names = (CARD, MODEL, METHOD, NETWORK_COPY, PT2, ONNX)
    weights = (path.relative_to(folder).as_posix() for path in sorted((folder / MODELS_FOLDER).glob(f"*{ENDING}")))
    return [*(name for name in names if (folder / name).is_file()), *weights]


def as_folder(model: ServedModel) -> dict[str, bytes]:
    """Return the files of one model of a run for `load_model`, without the names of other clients."""
    saved, manifest, kept = model.saved, model.manifest, model.files
    files = {f"{MODELS_FOLDER}/{name}": sound(saved.run / MODELS_FOLDER / name, sha) for name, sha in kept.items()}
    if manifest.method.file:
        files[METHOD] = saved.method_file().read_bytes()
    if manifest.network.file:
        files[NETWORK_COPY] = saved.network_file().read_bytes()
    clients = [name if saved.stems.get(number) == model.stem else "" for number, name in enumerate(manifest.clients)]
    return {**files, MODEL: as_json(replace(manifest, clients=clients, files=kept).as_json())}


def as_programs(model: ServedModel, formats: tuple[str, ...]) -> dict[str, bytes]:
    """Return the model as programs that need no partwise."""
    whole, x = RawSamplesModel(model), raw_samples(model.manifest)
    expected = {name: value.numpy() for name, value in whole(x).items()}
    files: dict[str, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        try:
            program = torch.export.export(whole, (x,), dynamic_shapes={"x": {0: torch.export.Dim(BATCH)}})
        except Exception as error:  # a network may hold what torch cannot trace
            raise PartwiseError(f"torch.export cannot take this model: {one_line(error)}") from error
        if "pt2" in formats:
            check_same_outputs("torch.export", program.module()(x), expected)
            torch.export.save(program, raw := io.BytesIO())
            files[PT2] = raw.getvalue()
        if "onnx" in formats:
            files[ONNX] = as_onnx(program, x, expected)
    return files


def as_onnx(program: Any, x: Tensor, expected: dict[str, np.ndarray]) -> bytes:
    """Return the program as ONNX, compared by running it."""
    for package in ("onnx", "onnxscript"):
        needed(package, "export")
    runtime = needed("onnxruntime", "export")
    try:
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=list(expected),
            dynamic_shapes={"x": {0: BATCH}},  # else torch makes up a name for the axis
        )
        assert made is not None
        content = made.model_proto.SerializeToString()
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        got = dict(zip(expected, session.run(list(expected), {"x": x.numpy()}), strict=True))
    except Exception as error:  # an operation that ONNX or its runtime does not know
        raise PartwiseError(f"ONNX cannot take this model: {one_line(error)}") from error
    check_same_outputs("ONNX", got, expected)
    return content


def raw_samples(manifest: ModelManifest) -> Tensor:
    """Return (rows, ...) raw samples like those of the run: by its means and deviations, within an image's values."""
    shape, standard = manifest.input.shape, manifest.standardise
    text = manifest.input.text if isinstance(manifest.input, TableInput) else None
    codes = isinstance(manifest.input, TableInput) and manifest.input.codes
    if isinstance(manifest.input, NamedInput) or codes or (text is not None and not shape):
        raise ConfigError(
            "models whose samples have several tensors cannot be exported yet; use predict, or load_model"
        )
    if text is not None or (isinstance(manifest.input, ArrayInput) and manifest.input.whole):
        return torch.ones(COMPARED_ROWS, *shape, dtype=torch.int64)
    channels = (-1, *[1] * (len(shape) - 1))
    centre, scale = (torch.tensor(numbers).view(channels) for numbers in (standard.centre, standard.scale))
    x = centre + scale * torch.randn(COMPARED_ROWS, *shape, generator=torch_stream(0, "export"))
    return x.clamp(0, manifest.input.white) if isinstance(manifest.input, ImageInput) else x


def check_same_outputs(what: str, got: Any, expected: dict[str, np.ndarray]) -> None:
    """Refuse an export whose outputs differ from the model's."""
    for name, wanted in expected.items():
        apart = np.abs(np.asarray(got[name]) - wanted) / np.maximum(1, np.abs(wanted))
        if not apart.max() <= CLOSE:  # NaN too
            raise PartwiseError(
                f"{what} returns {name} that differ from the model's by {apart.max():.1e}, so it was not written"
            )
