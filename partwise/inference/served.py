"""A loaded model: a module that also takes what people have, tables and pictures, and answers as its task does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from partwise.errors import short
from partwise.inference.given import Arrays, GivenSamples, NamedArrays
from partwise.inference.images import Images
from partwise.inference.run_models import RunModels
from partwise.inference.tables import Tables
from partwise.records.manifest import ImageInput, ModelManifest, NamedInput, TableInput
from partwise.runs.result import PersonalModel
from partwise.runs.saving import ENDING, EXTRA
from partwise.trees import Samples, in_pieces

PREDICTED_TOGETHER = 256  # samples that are predicted at once


def reader(manifest: ModelManifest) -> Callable[[Any], GivenSamples]:
    """Return a reader of samples for the models of a run."""
    if isinstance(manifest.input, TableInput):
        return Tables(manifest.input, manifest.standardise.centre)
    if isinstance(manifest.input, NamedInput):
        return NamedArrays(manifest.input)
    return Images(manifest.input) if isinstance(manifest.input, ImageInput) else Arrays(manifest.input)


class ServedModel(nn.Module):
    """The model of a client, or the global one.

    `model(x)` takes samples as the data set holds them and gives what the network gives, as `result.models[3](x)` does:
    logits, or standardised numbers. `predict` and `predict_proba` take a table or images as people have them; `predict`
    gives numbers in the label's own unit.
    """

    def __init__(self, personal: PersonalModel, saved: RunModels, stem: str):
        super().__init__()
        self.personal = personal
        self.saved, self.stem = saved, stem
        self.task = saved.manifest.task  # what a label is, with the names of classes, labels or numbers
        self.classes: tuple[str, ...] = tuple(saved.manifest.classes)
        self.read = reader(saved.manifest)
        self.eval()

    @property
    def manifest(self) -> ModelManifest:
        """Return the manifest in the run's model.json: `manifest.classes`, `manifest.method.name`, `manifest.plain`."""
        return self.saved.manifest

    @property
    def files(self) -> dict[str, str]:
        """Return the files that it was built of, with their SHA-256."""
        own = (self.stem + ENDING, self.stem + EXTRA)
        return {name: self.manifest.files[name] for name in own if name in self.manifest.files}

    def forward(self, x: Samples) -> Tensor:
        """Return (rows, ...) what the network gives of samples as the data set holds them; they are standardised here.

        Logits of classes, labels or places, (rows, classes, places...); of numbers what `task.in_own_unit` takes.
        """
        return self.personal(x)

    def predict(self, samples: Any) -> NDArray[Any]:
        """Return what is predicted of each sample.

        The name of a class, (samples,); numbers in the label's own unit, (samples,) or (samples, numbers) of several; 1
        or 0 for each label, (samples, labels); the name of a class for each place, (samples, places...).

        Of a table a pandas DataFrame, a dict of columns, or the path of a CSV or Parquet file, whose columns are found
        by their names; of images an array, PIL images, or paths of image files or of a folder of them.
        """
        return self.task.predictions(self.outputs(self.read(samples).x))

    def predict_proba(self, samples: Any) -> NDArray[np.float64]:
        """Return the probability of each class or label, in the order of `task.names`; numbers have none.

        It is (samples, classes), (samples, labels), or (samples, classes, places...).
        """
        return self.task.probabilities(self.outputs(self.read(samples).x)).numpy()

    def outputs(self, x: Samples) -> Tensor:
        """Return (samples, ...) float64 what the network gives of samples as the data set holds them."""
        device = self.personal.counts.device
        with torch.no_grad():
            given = [self(rows).cpu() for rows in in_pieces(x, PREDICTED_TOGETHER, device)]
        return torch.cat(given).double()

    def extra_repr(self) -> str:
        """Return the text of a model in `repr`."""
        names = short(", ".join(self.task.names))
        return f"{self.saved.title(self.stem)} of {self.manifest.method.name}, {self.task.kind}: {names}"
