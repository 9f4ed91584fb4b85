"""What exporters, converters and operators need of the process: silence, and threads.

What matters comes back as an error. In a fork of a process that has used PyTorch the threads of its
operators are missing: one that wants two would wait for the other for ever. So operators take one
thread there, as in the workers of PyTorch's own DataLoader.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

_IMPORTED_IN = os.getpid()
_SILENCE = threading.RLock()


class SilencedThread:
    """The thread that makes it, until `end`: only what comes from there is silenced."""

    def __init__(self) -> None:
        self._place: tuple[int, int] | None = (os.getpid(), threading.get_ident())

    def is_current(self) -> bool:
        """Return whether the calling thread is silenced."""
        return (os.getpid(), threading.get_ident()) == self._place

    def match(self, _message: str) -> bool:
        """Match what this thread warns of, as the pattern of a warnings filter."""
        return self.is_current()

    def filter(self, _record: logging.LogRecord) -> bool:
        """Let pass what other threads log, as the filter of a handler."""
        return not self.is_current()

    def end(self) -> None:
        """End the silence, also in what somebody still holds of it."""
        self._place = None


class OtherThreadsStream:
    """Text stream that drops what a silenced thread writes and hands on what others do."""

    def __init__(self, stream: Any, silenced: SilencedThread) -> None:
        self._stream = stream
        self._silenced = silenced

    def write(self, text: str) -> int:
        """Write text; return how many letters."""
        return len(text) if self._silenced.is_current() else int(self._stream.write(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write one text after another."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def silence_python() -> Iterator[None]:
    """Silence what the calling thread prints, warns of or logs by Python; others are heard.

    What exporters switch belongs to the process, so one thread at a time is in here.
    """
    with _SILENCE, contextlib.ExitStack() as stack:
        silenced = SilencedThread()
        stack.callback(silenced.end)
        stack.enter_context(_drop_warnings(silenced))
        stack.enter_context(_drop_records(silenced))
        for name in ("stdout", "stderr"):
            stack.enter_context(_drop_text(name, silenced))
        yield


@contextlib.contextmanager
def _drop_text(name: str, silenced: SilencedThread) -> Iterator[None]:
    before = getattr(sys, name)
    if before is None:  # a process without one
        yield
        return
    stream = OtherThreadsStream(before, silenced)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        if getattr(sys, name) is stream:  # else another thread has put its own in place
            setattr(sys, name, before)


@contextlib.contextmanager
def _drop_warnings(silenced: SilencedThread) -> Iterator[None]:
    # In place: `catch_warnings` of two threads would restore each other's filters.
    filters: Any = warnings.filters
    before = list(filters)
    filters.insert(0, ("ignore", silenced, Warning, None, 0))
    try:
        yield
    finally:
        filters[:] = before


@contextlib.contextmanager
def _drop_records(silenced: SilencedThread) -> Iterator[None]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = set(chain.from_iterable(getattr(logger, "handlers", ()) for logger in loggers))
    # Another list each time: another thread may be walking the one that is there.
    for handler in handlers:
        handler.filters = [*handler.filters, silenced]
    try:
        yield
    finally:
        for handler in handlers:
            handler.filters = [known for known in handler.filters if known is not silenced]


@contextlib.contextmanager
def silence_process() -> Iterator[None]:
    """Silence everything on the terminal, whatever writes it.

    LiteRT's converters are Python, MLIR and TensorFlow Lite, each with a log of its own. Those of
    C++ write to descriptors, which the process has once: what other threads write to the terminal
    meanwhile is lost, too.
    """
    with _SILENCE:
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
