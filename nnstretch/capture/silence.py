"""Silence for exporters and converters: what matters comes back as an error."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def silence_python() -> Iterator[None]:
    """Silence what Python prints, warns of or logs."""
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
