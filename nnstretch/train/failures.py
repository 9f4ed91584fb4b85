"""Errors of PyTorch, Lightning and the system in a user's words, and Lightning kept quiet."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from nnstretch.errors import BadInput

LIGHTNING_LOGGERS = (
    "pytorch_lightning",
    "lightning_fabric",
    "lightning.pytorch",
    "lightning.fabric",
)
OUT_OF_MEMORY_ADVICE = (
    "memory ran out, take smaller data.batch_images, data.image_px or data.val_px, or more"
    " trainer.micro_batches"
)
PROCESS_ENDED_ADVICE = "another of its processes has ended, which said why or was killed"
ERROR_EXPLANATIONS = {
    "more than 1 value per channel": (
        "a batch norm has one image to go by, take larger batches, fewer micro-batches or fewer"
        " processes"
    ),
    "Connection closed by peer": PROCESS_ENDED_ADVICE,
    "Connection reset by peer": PROCESS_ENDED_ADVICE,
    "Broken pipe": PROCESS_ENDED_ADVICE,
    "out of memory": OUT_OF_MEMORY_ADVICE,
    "can't allocate memory": OUT_OF_MEMORY_ADVICE,
    "not enough memory": OUT_OF_MEMORY_ADVICE,
    "is killed by signal": (
        "a process that loads images was killed, take fewer data.workers, or 0, or give the"
        " machine more shared memory"
    ),
    "exited unexpectedly": (
        "a process that loads images has ended, take fewer data.workers, or 0, which says why"
    ),
    "No working C++ compiler": (
        "trainer.compile needs a C++ compiler, install one or set trainer.compile to false"
    ),
    "does not have a deterministic implementation": (
        "an operation has no deterministic way here, set trainer.deterministic to false"
    ),
    "Expected to have finished reduction": (
        "some weight takes gradients and has no part in the loss, which several processes cannot"
        " share out"
    ),
}
"""What words of PyTorch's errors mean to a user."""


def explain_error(error: Exception) -> str | None:
    """Return what an error of PyTorch means to a user; None where it is a programming error."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY_ADVICE
    for words, advice in ERROR_EXPLANATIONS.items():
        if words in str(error):
            return advice
    return None


@contextmanager
def explain_failures(training: str) -> Iterator[None]:
    """Turn the machine's refusals (disk, rights, memory, processes) into one line.

    It begins with the `training` that stopped, in words.

    Raises BadInput in their place.
    """
    excepthook = threading.excepthook

    def hide_log_writer(failure: threading.ExceptHookArgs) -> None:
        # TensorBoard's thread hands its error to the next writer, too, where it is explained.
        if type(failure.thread).__name__ != "_AsyncWriterThread":
            excepthook(failure)

    threading.excepthook = hide_log_writer
    try:
        yield
    except OSError as error:
        # Without a number it is a programming error, to be shown whole.
        if error.errno is None:
            raise
        raise BadInput(
            f"{training} stopped, {error.filename or 'the system'}, {error.strerror}"
        ) from error
    except (ValueError, RuntimeError, MemoryError) as error:
        advice = explain_error(error)
        if advice is None:
            raise
        raise BadInput(f"{training} stopped, {advice}") from error
    finally:
        threading.excepthook = excepthook


@contextmanager
def keep_keyboard_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl+C, where Lightning would exit with status 1."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        # Lightning has switched the signal off for good.
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


@contextmanager
def silence_lightning() -> Iterator[None]:
    """Silence Lightning's banners and advice, which are for its own users."""
    loggers = [logging.getLogger(name) for name in LIGHTNING_LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
