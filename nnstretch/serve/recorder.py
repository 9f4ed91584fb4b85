"""Write requests to a record as they end, on a thread of its own: nobody waits for the disk."""

from __future__ import annotations

import queue
import threading

from nnstretch.errors import NnstretchError
from nnstretch.files.workload.service_record import RecordedRequest, RecordWriter

FLUSH_S = 1.0


class Recorder:
    """Hands requests to a thread that writes them; `close` returns when all are on the disk."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._inbox: queue.SimpleQueue[RecordedRequest | None] = queue.SimpleQueue()
        self.error: NnstretchError | None = None
        """Why nothing more is written; None where everything was."""
        self._thread = threading.Thread(target=self._run, name="nnstretch-record", daemon=True)
        self._thread.start()

    def add(self, request: RecordedRequest) -> None:
        """Let a request be written."""
        self._inbox.put(request)

    def close(self) -> None:
        """Write what is left."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write_all()
        except NnstretchError as error:
            self.error = error

    def _write_all(self) -> None:
        try:
            while True:
                try:
                    request = self._inbox.get(timeout=FLUSH_S)
                except queue.Empty:
                    self._writer.flush()
                    continue
                if request is None:
                    return
                self._writer.add(request)
        finally:
            self._writer.close()
