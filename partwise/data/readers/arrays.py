"""Samples in memory: arrays, tensors and torch data sets, and the arrays of .npz files."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from partwise.data.readers.labels import as_classes, check_whole
from partwise.data.readers.task_labels import of_array
from partwise.data.reading import TaskName
from partwise.data.room import check_plain_file, check_room
from partwise.data.source import Source, image_source
from partwise.data.transforms import as_array, as_numbers
from partwise.errors import ConfigError, DataError, one_line, short, unknown
from partwise.trees import Samples, is_whole, joined, tensors_of

IMAGE_CHANNELS = (1, 3, 4)  # of images: grey, colour, colour with transparency
# What an .npz file may call its samples and labels, and those of its own test set.
KEYS = (
    ("x", "y", "x_test", "y_test"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("images", "labels", "test_images", "test_labels"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
ACCEPTED = "a torch Dataset, a pair (x, y) of arrays, or a pair (train, test) of either"


@dataclass(frozen=True)
class LabelledSamples:
    """Samples as passed by a user, and the declared names of labels 0, 1, ..., if any."""

    x: Samples
    labels: NDArray[Any]
    classes: tuple[str, ...] | None


def from_arrays(
    x: Any,
    y: Any,
    test: tuple[Any, Any] | None = None,
    name: str = "arrays",
    classes: int | Sequence[str] | None = None,
    task: TaskName = "auto",
) -> Source:
    """Read numpy arrays or torch tensors, and their own test set (x, y) if given.

    uint8 arrays (N, H, W), (N, H, W, C) or (N, C, H, W) are images, which the network sees as -1..1; others are taken
    as they are, or several arrays by name: {"image": ..., "row": ...}. The different labels in order are the classes,
    unless `classes` says what labels 0, 1, ... stand for.
    Labels (N,) or (N, numbers) with fractions are numbers, (N, labels) of 0., 1. and NaN are labels, and whole numbers
    (N, places...) are a class for each place, -1 for none; `task` says so where it should be something else.
    """
    declared = tuple(map(str, range(classes) if isinstance(classes, int) else classes)) if classes else None
    return make_source(name, (x, y), test, declared, task)


def from_dataset(dataset: Dataset, test: Dataset | None = None, name: str = "dataset") -> Source:
    """Read a torch Dataset of pairs (x, y) once and in order; its random changes stay as drawn."""
    return make_source(name, dataset, test)


def read_npz(path: Path, task: TaskName = "auto") -> Source:
    """Read the arrays of an .npz file: x and y, x_train and y_train, or images and labels; and its test set, if any."""
    check_plain_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that Python 2 wrote
            with path.open("rb") as raw, np.lib.npyio.NpzFile(raw, allow_pickle=False) as file:
                names = list(file)
                wanted = next((keys for keys in KEYS if {*keys[:2]} <= {*names}), ()) or keys_by_name(names)
                members = file.zip.infolist() if file.zip else []
                check_room(
                    path, sum(each.file_size for each in members if each.filename.removesuffix(".npy") in wanted)
                )
                arrays = {key: file[key] for key in wanted if key in names}
    except DataError:
        raise
    except Exception as error:  # a broken file may raise anything in numpy
        raise DataError(f"{path}: cannot be read: {one_line(error)}") from error
    pairs = samples_and_labels(arrays)
    if pairs is None:
        known = ", or ".join(" and ".join(keys[:2]) for keys in KEYS)
        raise DataError(
            f"{path}: it must hold {known}, or several x.NAME and y, a test set both x and y; got "
            f"{one_line(', '.join(names))}"
        )
    (x, y), test = pairs
    return from_arrays(x, y, test, path.name, task=task)


def keys_by_name(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of arrays `x.NAME`, `x_test.NAME` and their labels."""
    return tuple(name for name in names if name in ("y", "y_test") or name.partition(".")[0] in ("x", "x_test"))


def samples_and_labels(arrays: Mapping[str, NDArray[Any]]) -> tuple[tuple[Any, Any], tuple[Any, Any] | None] | None:
    """Return samples and labels, and those of a test set if there is one; None where some are missing."""
    if not any("." in key for key in arrays):
        each = list(arrays.values())
        return ((each[0], each[1]), (each[2], each[3]) if len(each) == 4 else None) if len(each) in (2, 4) else None
    trees = {
        prefix: {key.partition(".")[2]: own for key, own in arrays.items() if key.startswith(f"{prefix}.")}
        for prefix in ("x", "x_test")
    }
    if not trees["x"] or "y" not in arrays or bool(trees["x_test"]) != ("y_test" in arrays):
        return None
    return (trees["x"], arrays["y"]), (trees["x_test"], arrays["y_test"]) if trees["x_test"] else None


def make_source(
    name: str, train: Any, test: Any, declared: tuple[str, ...] | None = None, task: TaskName = "auto"
) -> Source:
    """Return a training set, and a test set unless it is None, as a source."""
    sets = {"the training set": read_samples(train, f"data set '{name}'", declared)}
    if test is not None:
        sets["the test set"] = read_samples(test, f"data set '{name}', test set", declared)
    return joined_samples(name, sets, train=len(sets["the training set"].labels), task=task)


def read_samples(data: Any, where: str, declared: tuple[str, ...] | None = None) -> LabelledSamples:
    """Return the samples of a torch Dataset, or of a pair (x, y) of arrays."""
    if isinstance(data, Dataset):
        return _read(data, where)
    if isinstance(data, tuple) and len(data) == 2:
        x = _arranged_tree(data[0], where)
        return LabelledSamples(x, _labels(data[1], len(tensors_of(x)[0]), where), declared)
    raise ConfigError(f"{where} cannot be a {type(data).__name__}: it must be {ACCEPTED}")


def _arranged_tree(x: Any, where: str) -> Samples:
    """Return an array as samples, or several arrays by name."""
    if not isinstance(x, dict):
        return _arranged(as_numbers(x, f"{where}: x"), where)
    if not x or not all(isinstance(name, str) and name.isidentifier() for name in x):
        raise DataError(f"{where}: the arrays of x must have names such as image and row, got {short(str(list(x)))}")
    result = {name: _arranged(as_numbers(own, f"{where}: x[{name!r}]"), where) for name, own in sorted(x.items())}
    if len({len(own) for own in result.values()}) > 1:
        sizes = ", ".join(f"{len(own):,} of {name}" for name, own in result.items())
        raise DataError(f"{where}: the arrays of x must hold as many samples each, got {sizes}")
    return result


def _arranged(x: Tensor, where: str) -> Tensor:
    """Return (N, C, H, W) of uint8 for images; (N, ...) of int64 or float32 for everything else."""
    shape = tuple(x.shape)
    if x.ndim < 2 or 0 in shape[1:]:
        raise DataError(f"{where}: x must be (samples, features) or images, got shape {shape}")
    if x.dtype != torch.uint8 or x.ndim not in (3, 4):
        return x if is_whole(x) else x.float()
    if x.ndim == 3:
        return x[:, None]
    if shape[1] in IMAGE_CHANNELS:
        return x
    if shape[3] in IMAGE_CHANNELS:
        return x.movedim(3, 1).contiguous()
    raise DataError(f"{where}: images must be (N, H, W), (N, H, W, C) or (N, C, H, W), C 1, 3 or 4, got shape {shape}")


def _labels(y: Any, samples: int, where: str) -> NDArray[Any]:
    """Return one number or text for each sample, a single column too, or a row of numbers."""
    if isinstance(y, Tensor):
        y = y.tolist() if y.ndim < 3 else y.detach().cpu().numpy()  # masks would be long lists
    values = as_array(y, f"{where}: y")
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape[:1] != (samples,) or (values.ndim > 1 and values.dtype.kind not in "biuf"):
        raise DataError(f"{where}: {samples:,} samples need as many labels, got y of shape {values.shape}")
    texts = values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
    if values.dtype.kind not in "biufU" and not texts:
        raise DataError(f"{where}: y must be whole numbers or texts, got {values.dtype}")
    return values


def _read(dataset: Dataset, where: str) -> LabelledSamples:
    """Return every sample of a torch Dataset, by its own __getitem__."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(f"{where}: {type(dataset).__name__} has no length; read its samples into arrays x and y")
    if not len(dataset):
        raise DataError(f"{where}: no samples")
    x, labels = torch.empty(0), []
    for index in range(len(dataset)):
        at = f"{where}, sample {index}"
        try:
            pair = dataset[index]
        except Exception as error:
            raise DataError(f"{at}: cannot be read: {type(error).__name__}: {one_line(error)}") from error
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{at}: must be a pair (x, y), got {short(one_line(repr(pair)))}")
        sample, label = as_numbers(pair[0], at), pair[1]
        if index == 0:
            x = sample.new_empty((len(dataset), *sample.shape))
        if is_whole(x) != is_whole(sample) and torch.uint8 not in (x.dtype, sample.dtype):
            x, sample = x.float(), sample.float()  # whole numbers and fractions
        if _kind(sample[None]) != _kind(x):
            raise DataError(f"{at}: {_kind(sample[None])}, but sample 0 is {_kind(x)}")
        x[index] = sample
        if isinstance(label, Tensor | np.generic | np.ndarray):
            label = label.item() if label.shape in ((), (1,)) else np.asarray(label)
        if not isinstance(label, int | float | str | np.ndarray):
            raise DataError(f"{at}: its label must be a number, a text or an array, got {short(one_line(repr(label)))}")
        labels.append(label)
    return LabelledSamples(_arranged(x, where), _labels(labels, len(x), where), _declared(dataset))


def same_numbers(sets: Mapping[str, LabelledSamples]) -> Mapping[str, LabelledSamples]:
    """Return the sets, with whole numbers as floats where another set has fractions."""
    every = [samples.x for samples in sets.values()]
    fractions = any(isinstance(x, Tensor) and x.is_floating_point() for x in every)
    if not fractions or not any(isinstance(x, Tensor) and is_whole(x) for x in every):
        return sets
    return {
        who: replace(own, x=own.x.float()) if isinstance(own.x, Tensor) and is_whole(own.x) else own
        for who, own in sets.items()
    }


def _kind(x: Samples) -> str:
    if isinstance(x, dict):
        return ", ".join(f"{name}: {_kind(own)}" for name, own in x.items())
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape[1:])}"


def _declared(dataset: Any) -> tuple[str, ...] | None:
    """Return the classes that a data set declares, also where it is a part of another, as a Subset is."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    return tuple(map(str, names)) if names and isinstance(names, list | tuple) else None


def joined_samples(name: str, sets: Mapping[str, LabelledSamples], train: int, task: TaskName = "auto") -> Source:
    """Return samples of one kind and with the same classes as a source, one set after the other."""
    sets = same_numbers(sets)
    where, (first, model) = f"data set '{name}'", next(iter(sets.items()))
    for who, samples in sets.items():
        if _kind(samples.x) != _kind(model.x):
            raise DataError(f"{where}: samples are {_kind(model.x)} in {first}, but {_kind(samples.x)} in {who}")
    texts = {samples.labels.dtype.kind in "OU": who for who, samples in sets.items() if len(samples.labels)}
    if len(texts) > 1:
        raise DataError(f"{where}: labels are texts in {texts[True]}, but numbers in {texts[False]}")
    shapes = {samples.labels.shape[1:]: who for who, samples in sets.items()}
    if len(shapes) > 1:
        (one, own), (two, other) = list(shapes.items())[:2]
        raise DataError(f"{where}: labels have the shape {one} in {own}, but {two} in {other}")
    x = joined([samples.x for samples in sets.values()])
    labels = np.concatenate([samples.labels for samples in sets.values()])
    names = same_classes(where, {who: samples.classes for who, samples in sets.items() if samples.classes})
    read = of_array(labels, task, where, names)
    if read is not None:
        if isinstance(x, Tensor) and x.dtype == torch.uint8:
            return image_source(name, x, train=train, **read.fields())
        return Source(name, x, train=train, centre=(0.0,), scale=(1.0,), **read.fields())
    if names is None:
        y, names = as_classes(labels, f"{where}, labels", "sample {}".format)
    else:
        y = _numbered(labels, names, where)
    if isinstance(x, Tensor) and x.dtype == torch.uint8:
        return image_source(name, x, y, len(names), train, class_names=names)
    return Source(name, x, y, len(names), train, (0.0,), (1.0,), class_names=names)


def same_classes(where: str, declared: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the classes that all data sets with declared classes agree on; one network needs the same classes."""
    if not declared:
        return None
    first, names = next(iter(declared.items()))
    for who, others in declared.items():
        if len(others) != len(names):
            raise DataError(f"{where}: {first} has {len(names)} classes, but {who} has {len(others)}")
        for number, (one, other) in enumerate(zip(names, others, strict=True)):
            if one != other:
                raise DataError(f"{where}: class {number} is {one!r} in {first}, but {other!r} in {who}")
    return names


def _numbered(labels: NDArray[Any], names: tuple[str, ...], where: str) -> Tensor:
    """Return labels as numbers of declared classes, which their names may stand for."""
    if labels.dtype.kind in "OU":
        number = {name: label for label, name in enumerate(names)}
        for label in sorted({*labels.tolist()} - {*names})[:1]:
            raise DataError(f"{where}: {unknown('class', label, names)}")
        return torch.tensor([number[label] for label in labels.tolist()])
    check_whole(labels, where, "sample {}".format)
    return torch.from_numpy(labels.astype(np.int64))
