"""Pickles from elsewhere: plain values and arrays are built from them, nothing that they name is ever called.

Numpy's own classes trust the state that a pickle hands them, down to raw pointers: classes that check it stand in for
them.
"""

import io
import pickle
import pickletools
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from partwise.errors import DataError, one_line, short


class ArrayType:
    """Stands for numpy.dtype: numbers, text or bytes, or any objects."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    @property
    def dtype(self) -> np.dtype:
        """Return the type of numpy's that it stands for."""
        if not re.fullmatch(r"[<>|=][biufSU][0-9]{1,6}", self.order + self.code):
            raise ValueError(f"arrays of the type '{self.order}{self.code}' cannot be read")
        return np.dtype(self.order + self.code)


class Array:
    """Stands for numpy.ndarray; `values` is an array of numbers, or the list of an array's texts or objects."""

    values: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if kind.code in ("O", "O8") and isinstance(data, list):
            self.values = data
        else:
            array = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if fortran else "C")
            self.values = array.tolist() if array.dtype.kind in "SU" else array


PICKLE_STAND_INS = {
    ("numpy", "dtype"): ArrayType,
    ("numpy", "ndarray"): Array,
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,  # its name since numpy 2
    ("_codecs", "encode"): str.encode,  # how Python 3 writes bytes for Python 2
}


class Unpickler(pickle.Unpickler):
    """Knows the names that arrays, bytes and text need, and refuses every other."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name of the pickle; refuse one that arrays, bytes and text do not need."""
        if (module, name) not in PICKLE_STAND_INS:
            raise DataError(f"refused to load {short(f'{module}.{name}')}")
        return PICKLE_STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refuse an object from outside the file."""
        raise DataError("refused to load an object from outside the file")


def load(raw: bytes | bytearray, path: Path | str) -> Any:
    """Read a pickle without executing code: plain values, `Array` for arrays, and bytes for texts of Python 2."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python only warns of is broken here
            _check_memory(raw)
            return Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a pickle is a program: it can go wrong in every way
        reason = str(error) if isinstance(error, DataError) else f"cannot be unpickled: {type(error).__name__}: {error}"
        raise DataError(f"{path}: {one_line(reason)}") from error


def _check_memory(raw: bytes | bytearray) -> None:
    """Refuse numbers of memory cells that are not counted up: the unpickler makes room for as many as a file says."""
    cells = 0
    for opcode, number, _ in pickletools.genops(raw):
        if opcode.name not in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            continue
        cells += 1
        if number is not None and number > cells:
            raise DataError(f"refused to make room for {number:,} values where {cells:,} are kept")


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)
