"""Read and write one array of plain numbers as a `.npy` file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import atomic_write
from nnstretch.files.checked import checked
from nnstretch.files.read import MOST_MODEL_BYTES, check_file


@checked
def read_npy(path: Path) -> np.ndarray:
    """Read an array. Raises UnknownName for no file, BrokenFile for one that holds no array."""
    check_file(path, "input", MOST_MODEL_BYTES)
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy answers damaged headers with exceptions of a dozen kinds
        # What numpy says then invites to load it all the same.
        invites = "pickle" in str(error)
        why = "but Python objects or another kind of file" if invites else error
        raise BrokenFile(
            f"broken input {path}, not a .npy array of plain numbers, {why or type(error).__name__}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise BrokenFile(f"broken input {path}, an archive of arrays, expected one .npy array")
    return array


def write_npy(path: Path, output: Any) -> None:
    """Write an array or a number. Raises BadInput for anything else."""
    numeric = isinstance(output, np.ndarray | np.generic | int | float)
    if not numeric or np.asarray(output).dtype.kind not in "biufc":
        raise BadInput(
            f"cannot write {path}, output of the network, a .npy holds numbers and this is"
            f" {type(output).__name__}"
        )
    with atomic_write(path) as aside, aside.open("wb") as file:
        np.save(file, output, allow_pickle=False)
