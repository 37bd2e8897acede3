"""Trees of image files: classes, domains, and the layouts of published sets."""

import numpy as np

from partwise.data.readers.published import DOMAINNET
from tests.support.files import picture

Tree = dict[str, bytes]
CLASSES: Tree = {"dog/2.png": picture(20), "dog/10.png": picture(10), "cat/a.jpg": picture(30, kind="JPEG")}
DOMAINS: Tree = {
    "photo/dog/1.png": picture(1),
    "photo/cat/1.png": picture(2),
    "sketch/dog/1.png": picture(3),
    "sketch/dog/2.png": picture(4),
}


def domainnet() -> Tree:
    """Two images of each of ten classes and of another in six domains; the values of its pixels tell which."""
    every = [*DOMAINNET.classes, "zigzag"]
    return {
        f"{domain}/{label}/{domain}_{at}.png": picture((number, value, at))
        for number, domain in enumerate(DOMAINNET.domains)
        for value, label in enumerate(every)
        for at in (0, 1)
    }


def lists(kind: str, test: int = 1) -> Tree:
    """Split lists in reverse order: the images numbered `test` are for testing."""
    import pickle

    result = {}
    for domain in DOMAINNET.domains:
        names = [name for name in reversed(domainnet()) if name.startswith(domain)]
        for part in ("train", "test"):
            listed = [name for name in names if (f"_{test}." in name) == (part == "test")]
            if kind == "txt":
                numbers = {label: number for number, label in enumerate([*DOMAINNET.classes, "zigzag"])}
                content = "".join(f"{name} {numbers[name.split('/')[1]]}\n" for name in listed).encode()
            else:  # as FedBN publishes them: its ten classes, the folder above in every path
                listed = [f"DomainNet/{name}" for name in listed if "zigzag" not in name]
                labels = [name.split("/")[2] for name in listed]
                arrays = kind == "arrays.pkl"
                content = pickle.dumps((np.array(listed), np.array(labels)) if arrays else (listed, labels), 4)
            result[f"split/{domain}_{part}.{kind.rpartition('.')[2]}"] = content
    return result


def tiny() -> Tree:
    """Three classes with two training images and one validation image each."""
    top, every = "tiny-imagenet-200", ("n03", "n01", "n02")
    tree = {f"{top}/wnids.txt": "\n".join(every).encode(), f"{top}/test/images/test_0.JPEG": b"never read"}
    rows = []
    for number, wnid in enumerate(every):
        for at in (0, 1):
            grey = picture(50 * number + 10 * at, kind="JPEG", mode="L" if at else "RGB")
            tree[f"{top}/train/{wnid}/images/{wnid}_{at}.JPEG"] = grey
        tree[f"{top}/train/{wnid}/{wnid}_boxes.txt"] = b"x"
        tree[f"{top}/val/images/val_{number}.JPEG"] = picture(50 * number + 20, kind="JPEG")
        rows.append(f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    return tree | {f"{top}/val/val_annotations.txt": "".join(rows).encode()}
