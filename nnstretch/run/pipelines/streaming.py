"""Streams of items through a pipeline: who asks for the next item, and when."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from nnstretch.run.pipelines.item_buffer import ItemResult
from nnstretch.run.pipelines.item_flow import ItemFlow
from nnstretch.schedule.timeout import Timeout

LINGER_S = 1.0
"""How long the end of a stream waits for a source that is in the middle of an item."""
EVER = Timeout(None)


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """What a stream needs of its pipeline."""

    flow: ItemFlow
    begin: Callable[[Any], int | None]
    """Pushes an item as a caller gives it; None where there is no room."""
    get: Callable[[], ItemResult]


def stream_ahead(ends: StreamEnds, items: Iterator[Any]) -> Iterator[ItemResult]:
    """Yield each result once it is computed; another thread reads items and pushes them.

    Raises the error that ended the items, if one did.
    """
    flow, source = ends.flow, ItemSource(ends, items)
    try:
        source.start()
        while True:
            if flow.is_ready():
                yield ends.get()
            elif flow.has_ended() or (source.is_over and not flow.open_items):
                break
            else:
                flow.wait_for_result(EVER, lambda: source.is_over)
    finally:
        source.stop()
    if source.error is None:
        flow.check_open()
    elif not isinstance(source.error, StopIteration):
        raise source.error


def stream_in_turn(ends: StreamEnds, items: Iterator[Any], in_flight: int) -> Iterator[ItemResult]:
    """Yield results; ask for an item when the one `in_flight` before it has been handled.

    Raises what ended the items, where that is not their end.
    """
    flow, end = ends.flow, None
    while end is None or flow.open_items:
        while end is None and flow.open_items < in_flight:
            try:
                item = next(items)
                while ends.begin(item) is None:
                    flow.wait_for_room(EVER)
            except Exception as error:
                end = error
        if flow.open_items:
            yield ends.get()
    if not isinstance(end, StopIteration):
        raise end


class ItemSource:
    """A thread that takes items from an iterator and pushes them as long as somebody wants them.

    An iterator that never gives an item keeps the thread, and nothing of the pipeline, with it.
    """

    def __init__(self, ends: StreamEnds, items: Iterator[Any]) -> None:
        """Prepare the thread; `start` starts it, where `stop` is sure to follow."""
        self.error: BaseException | None = None
        """What ended the items: StopIteration, or what the iterator or the pipeline raised."""
        self.is_over = False
        self._ends: StreamEnds | None = ends
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(self._serve, items),
            name="nnstretch-source",
            daemon=True,
        )

    def start(self) -> None:
        """Begin to take items."""
        self._thread.start()

    def stop(self) -> None:
        """Push nothing any more, and wait for the thread unless its iterator does not come back.

        A fork has no such thread, but may have the lock as the thread held it.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            ends, self._ends = self._ends, None
        if ends is not None:
            ends.flow.wake()
        if self._thread.ident is not None:
            self._thread.join(LINGER_S)

    def _is_unwanted(self) -> bool:
        return self._ends is None

    def _serve(self, items: Iterator[Any]) -> None:
        try:
            while self._has_room():
                item = next(items)
                while not self._begin(item) and self._has_room():
                    pass
                del item  # the next one may take long to come
        except BaseException as error:  # the reader of the results raises it
            self.error = error
        finally:
            self.is_over = True
            if (ends := self._ends) is not None:
                ends.flow.wake()

    def _has_room(self) -> bool:
        """Wait for room; return False where nobody wants more items."""
        ends = self._ends
        if ends is not None and not ends.flow.has_room():
            ends.flow.wait_for_room(EVER, self._is_unwanted)
        return self._ends is not None

    def _begin(self, item: Any) -> bool:
        """Push an item; return False where there is no room."""
        with self._lock:
            return self._ends is None or self._ends.begin(item) is not None
