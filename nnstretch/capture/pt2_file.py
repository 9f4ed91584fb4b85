"""A program that torch.export saved -> Graph, without running anything the file says."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import torch

from nnstretch.capture.captured_network import CapturedNetwork
from nnstretch.capture.checks.pt2_checks import check_archive
from nnstretch.capture.host_process import silence_python
from nnstretch.capture.program_reader import read_program
from nnstretch.errors import BrokenFile, NnstretchError
from nnstretch.files.read import MOST_MODEL_BYTES, as_path, read_bytes


def read_pt2(path: Path) -> CapturedNetwork:
    """Read the network in a .pt2 file, at the batch it was saved with, 1 where that may vary.

    Raises UnknownName, BrokenFile, UnsupportedOp or CannotCapture in one line.
    """
    path = as_path(path, "model file")
    data = read_bytes(path, "model file", MOST_MODEL_BYTES)
    try:
        with silence_python(), torch.no_grad():
            check_archive(data, path)
            return read_program(load_program(data), 1, re.sub(r"\W", "_", path.stem))
    except NnstretchError:
        raise
    except Exception as error:
        # Broad on purpose: a damaged archive fails in the zip reader, in JSON or anywhere in
        # PyTorch's deserializer.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BrokenFile(
            f"broken torch.export file, {path}, {type(error).__name__}: {reason}"
        ) from error


def load_program(data: bytes) -> Any:
    """Load a program without torch.export.load, which falls back to an older format on failure."""
    from torch.export.pt2_archive._package import load_pt2

    return load_pt2(io.BytesIO(data)).exported_programs["model"]
