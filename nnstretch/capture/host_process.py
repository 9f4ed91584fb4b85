"""What exporters, converters and operators need of the process: silence, and threads.

What matters comes back as an error. In a fork of a process that has used PyTorch the threads of its
operators are missing: one that wants two would wait for the other for ever. So operators take one
thread there, as in the workers of PyTorch's own DataLoader.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator

import torch

_IMPORTED_IN = os.getpid()
_SILENCE = threading.RLock()


@contextlib.contextmanager
def silence_python() -> Iterator[None]:
    """Silence what Python prints, warns of or logs.

    All of that belongs to the process, as does what exporters switch: one thread at a time.
    """
    with _SILENCE:
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with (
                warnings.catch_warnings(),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def silence_process() -> Iterator[None]:
    """Silence everything on the terminal, whatever writes it.

    LiteRT's converters are Python, MLIR and TensorFlow Lite, each with a log of its own.
    """
    saved = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as sink:
        try:
            for descriptor in (1, 2):
                os.dup2(sink.fileno(), descriptor)
            with silence_python():
                yield
        finally:
            for descriptor, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)


def operator_threads(wanted: int) -> int:
    """Return how many threads an operator may take in this process."""
    return wanted if os.getpid() == _IMPORTED_IN else 1


def take_one_thread() -> None:
    """Have operators take one thread, and wait for no thread that this process lacks."""
    global _SILENCE
    _SILENCE = threading.RLock()
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=take_one_thread)
