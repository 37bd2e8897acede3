"""Refusals, image files and trees of files."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from partwise.errors import PartwiseError


def refusal(kind: type[PartwiseError], call: Callable[[], object]) -> str:
    """The line with which `call` refuses."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def picture(
    colour: int | tuple[int, ...] = 0, size: tuple[int, int] = (4, 3), kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    """An image file of one colour; a number stands for a grey."""
    file = io.BytesIO()
    grey = (colour,) * len(Image.new(mode, (1, 1)).getbands()) if isinstance(colour, int) else colour
    Image.new(mode, size, grey if len(grey) > 1 else grey[0]).save(file, kind)
    return file.getvalue()


def write_tree(path: Path, tree: dict[str, bytes]) -> Path:
    """Writes files by their names into a folder, or into an archive where `path` ends with .zip."""
    if path.suffix == ".zip":
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in tree.items():
                archive.writestr(name, content)
        return path
    path.mkdir(parents=True, exist_ok=True)
    for name, content in tree.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(content)
    return path


def read_tree(path: Path) -> dict[str, bytes]:
    """Every file at and below a path, to see that nothing has changed."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files}
