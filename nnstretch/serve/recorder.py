"""Write requests to a record as they end, on a thread of its own: nobody waits for the disk."""

from __future__ import annotations

import logging
import threading
from collections import deque

from nnstretch.errors import one_line
from nnstretch.files.workload.service_record import RecordedRequest, RecordWriter

LOG = logging.getLogger("nnstretch")
WRITE_S = 0.25
"""How often what has ended is written: a thread that woke for each would cost more than it does."""


class Recorder:
    """Hands requests to a thread that writes them; `close` returns when all are on the disk."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._waiting: deque[RecordedRequest] = deque()
        self._is_closing = threading.Event()
        self.error: Exception | None = None
        """Why nothing more is written; None where everything was."""
        self._thread = threading.Thread(target=self._run, name="nnstretch-record", daemon=True)
        self._thread.start()

    def add(self, request: RecordedRequest) -> None:
        """Let a request be written."""
        if self.error is None:
            self._waiting.append(request)

    def close(self) -> None:
        """Write what is left."""
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # of the disk, or ours: served requests do not end by it
            self.error = error
            self._waiting.clear()
            LOG.error("the record ends here: %s", one_line(error))

    def _write_all(self) -> None:
        try:
            while not self._is_closing.wait(WRITE_S):
                self._write_waiting()
            self._write_waiting()
        finally:
            self._writer.close()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        while self._waiting:
            self._writer.add(self._waiting.popleft())
        self._writer.flush()
