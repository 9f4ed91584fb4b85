"""Calls of functions that clients pass; an error in one of them stops nothing else."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from nnstretch.errors import describe_error

LOG = logging.getLogger("nnstretch")


class CallbackThread:
    """Calls done-callbacks one after another, on a thread that starts with the first of them.

    The scheduling thread cannot call them: a callback that waits until the server has room would
    wait for the thread that it blocks.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], object], object] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def put(self, callback: Callable[[Any], object], reply: object) -> None:
        """Queue a callback; only the scheduling thread may."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="nnstretch-callbacks", daemon=True
            )
            self._thread.start()
        self._calls.put((callback, reply))

    def finish(self) -> None:
        """Let the thread end behind the last call."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait for its end, unless this is the thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            callback, reply = call
            call_logged(callback, reply, "a done-callback")
            del call, callback, reply  # a thread that waits keeps nothing alive


def call_logged(function: Callable[[Any], object], argument: object, what: str) -> None:
    """Call a client's function; what it raises, be it SystemExit, is logged and goes no further."""
    try:
        function(argument)
    except BaseException as error:
        LOG.error("%s of a server raised: %s", what, describe_error(error), exc_info=True)
