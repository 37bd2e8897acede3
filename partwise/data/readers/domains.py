"""Domain folders, `domain/class/image`: PACS, Office-Home, DomainNet and a user's own."""

from collections.abc import Sequence

import torch

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.files import Files, open_files
from partwise.data.readers.images import decode_images, image_names
from partwise.data.readers.lists import Image, split_by_lists
from partwise.data.readers.places import DataPlace
from partwise.data.readers.published import DOMAIN_FOLDERS
from partwise.data.reading import Reading
from partwise.data.source import Column, Source
from partwise.errors import DataError


def load(known: DataEntry, place: DataPlace, reading: Reading) -> Source:
    """Read a published data set with exactly its domains and classes."""
    files, wanted = open_files(place.path), DOMAIN_FOLDERS[known.name]
    folders = {folder: domain for domain, names in wanted.domains.items() for folder in names}
    images: list[Image] = []
    tops: dict[str, tuple[list[str], str]] = {}  # of each domain, the folder in which it lies
    for name in image_names(files):
        *above, folder, label, _ = ["", "", *name.split("/")]
        if folder in folders and label in wanted.classes:
            images.append(Image(folders[folder], label, name))
            if tops.setdefault(folders[folder], (above, folder)) != (above, folder):
                raise DataError(f"{files.where(name)}: the domain '{folders[folder]}' occurs twice")
    held = {(image.domain, image.label) for image in images}
    for domain in wanted.domains:
        lacking = [label for label in wanted.classes if (domain, label) not in held]
        if len(lacking) == len(wanted.classes):
            raise DataError(f"{place.path}: data set '{known.name}' lacks the domain '{domain}'")
        if lacking:
            raise DataError(f"{place.path}: data set '{known.name}' lacks {domain}/{', '.join(lacking)}")
    return read(known.name, files, images, reading.image_size or known.image_size, selected=True)


def read(name: str, files: Files, images: Sequence[Image], size: int | None, selected: bool = False) -> Source:
    """Read every image with its domain; lists among the files give the split, or else each client splits."""
    train, test = split_by_lists(files, images, selected) or (list(images), [])
    samples = train + test
    domains, classes = (tuple(sorted({getattr(image, field) for image in samples})) for field in ("domain", "label"))
    domain_code = {domain: code for code, domain in enumerate(domains)}
    label_code = {label: code for code, label in enumerate(classes)}
    return Source(
        name,
        decode_images(files, [image.name for image in samples], size),
        torch.tensor([label_code[image.label] for image in samples]),
        len(classes),
        len(train),
        centre=(0.0,) * 3,  # DualFed does not normalise
        scale=(255.0,) * 3,
        model="resnet18",
        partition="domain",
        split="original" if test else "merged",
        test_share=0.2,
        columns={"domain": Column(domains, torch.tensor([domain_code[image.domain] for image in samples]))},
        class_names=classes,
    )
