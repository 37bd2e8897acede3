"""Versions and method code, which must be the same on server and nodes, or results differ silently."""

import hashlib
from collections.abc import Iterable, Mapping

import torch

from partwise.errors import ConfigError
from partwise.methods import names, published_method, source
from partwise.version import __version__

NETWORK_FILE = "network file"  # beside versions in `Join`: the SHA-256 of the file that the run's network is in
VERSION_LETTERS = 20  # letters: a whole version, or enough of a SHA-256


def software(methods: Iterable[str | None]) -> dict[str, str]:
    """Return the versions here, and the SHA-256 of every installed method of these; a user's file is compared apart.

    A method that another package publishes counts with the package's version and all of its Python files.
    """
    own = {"partwise": __version__, "torch": torch.__version__.partition("+")[0]}  # +cpu, +cu126: the same code
    for name in sorted({name for name in methods if name}):
        if known := published_method(name):
            own = {known.package: known.version, **own, f"code of {name}": known.digest()}
        elif name in names():
            own[f"code of {name}"] = hashlib.sha256(source(name).encode()).hexdigest()
    return own


def check_same(there: Mapping[str, str], here: Mapping[str, str], node: str) -> None:
    """Refuse a server with other versions or another method's code than this node."""
    other = [
        f"{what} is {str(there.get(what, 'unknown'))[:VERSION_LETTERS]} on the server "
        f"and {known[:VERSION_LETTERS]} on {node}"
        for what, known in here.items()
        if there.get(what) != known
    ]
    if other:
        raise ConfigError(f"{'; '.join(other)}: install the same on both")
