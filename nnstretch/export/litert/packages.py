"""LiteRT's packages: are they there, and what they complain of in one line."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from importlib import import_module

import numpy as np
import torch

from nnstretch.capture.host_process import silence_process as silent
from nnstretch.errors import BadInput, UnsupportedOp

CULPRITS = (
    r"Lowering not found: (?:aten\.)?(\w+)",
    r"target=torch\.ops\.(?:aten\.)?(\w+)",
    r"builtin opcode '(\w+)'",
    r"unresolved custom op: (\w+)",
)
"""Where LiteRT's complaints name an operator."""
SOURCE = re.compile(r"^.*?\.py:\d+:\d+: error: ")
"""What stands before a reason: a line of PyTorch's, which is nobody's fault."""


@contextlib.contextmanager
def keep_generators() -> Iterator[None]:
    """Leave the generators of random numbers as they are: some packages draw when imported."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def require_packages() -> None:
    """Check that the extra `litert` is installed. Raises BadInput where it is not."""
    try:
        with silent(), keep_generators():
            for package in (
                "litert_torch",
                "ai_edge_litert.interpreter",
                "ai_edge_quantizer.quantizer",
            ):
                import_module(package)
    except ImportError as error:
        raise BadInput(
            f"LiteRT is not installed ({error}), conversion to .tflite, pip install"
            " 'nnstretch[litert]'"
        ) from error


@contextlib.contextmanager
def converter_errors(
    name: str, what: str, find: Callable[[str | None], str] | None = None
) -> Iterator[None]:
    """Turn what a converter or interpreter throws into one line that names the operator, where
    known; `find` returns it with its place, given its name if the complaint has one.

    Raises UnsupportedOp in their place.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        culprit = named_operator(text)
        if find is not None:
            culprit = find(culprit)
        where = f"operator {culprit}" if culprit else "LiteRT"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reason = SOURCE.sub("", lines[0]) if lines else type(error).__name__
        raise UnsupportedOp(
            f"cannot convert {name} to LiteRT {what}, {where}, {reason[:200]}"
        ) from error


def named_operator(complaint: str) -> str | None:
    """Return the operator that a complaint names."""
    for pattern in CULPRITS:
        if match := re.search(pattern, complaint):
            return match[1]
    return None
