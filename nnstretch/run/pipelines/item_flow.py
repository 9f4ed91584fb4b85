"""Which items are on their way through a pipeline: who may push and take, and who has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nnstretch.errors import Cancelled, Stuck, describe_error
from nnstretch.run.pipelines.item_buffer import InFlightItem, ItemBuffer
from nnstretch.run.pipelines.item_tensors import Values
from nnstretch.schedule.executors.owner_process import OwnerProcess
from nnstretch.schedule.executors.static import StaticExecutor
from nnstretch.schedule.timeout import Timeout


def never() -> bool:
    """Return False: nothing but its own reasons ends a wait."""
    return False


class ItemFlow:
    """The two ends of a pipeline, each for any number of threads.

    Locks are held only as long as it takes to count, and by `with` alone: nobody waits with one,
    and no Ctrl-C comes between acquiring and releasing. They are reentrant, so a signal's handler
    may close.
    """

    def __init__(
        self, executor: StaticExecutor, items: ItemBuffer, limit: int, process: OwnerProcess
    ) -> None:
        """Create the ends. `limit`: items on their way or waiting to be read."""
        self._executor, self._items, self._limit = executor, items, limit
        self._name = process.what
        self.front, self._back = threading.RLock(), threading.RLock()
        """Who holds `front` decides what is computed with the next item."""
        self.taken = 0
        """Items whose results were taken."""
        self._is_closed = False

    @property
    def pushed(self) -> int:
        """Return how many items have been pushed, which is the number of the next one."""
        return self._executor.submitted

    @property
    def open_items(self) -> int:
        """Return items that were pushed and whose results were not taken."""
        return self.pushed - self.taken

    def begin(self, values: Values) -> int | None:
        """Put an item into the ring and return its number; None where there is no room."""
        with self.front:
            self.check_open()
            if not self.has_room():
                return None
            item = self.pushed
            self._items.put(item, values)
            self._executor.submit()
            return item

    def has_room(self) -> bool:
        """Return whether one more item may be pushed now."""
        pushed = self._executor.submitted
        return pushed - self.taken < self._limit and self._executor.has_room(pushed)

    def wait_for_room(self, timeout: Timeout, is_unwanted: Callable[[], bool] = never) -> None:
        """Wait until there is room, the pipeline ends, or `is_unwanted` holds. Raises Stuck."""
        self._check_may_wait("room for one more item")

        def is_over() -> bool:
            stopped = self._is_closed or self._executor.error is not None
            return self.has_room() or stopped or self._items.stopped_by is not None

        if not self._executor.producer.wait(lambda: is_over() or is_unwanted(), timeout.left_s):
            where = f"{self._name}, {self.open_items} are on their way or wait to be read"
            raise Stuck(f"no room for one more item, {where}, at most {self._limit}")

    def is_ready(self) -> bool:
        """Return whether the next result is there."""
        return self._executor.is_complete(self.taken)

    def has_ended(self) -> bool:
        """Return whether the next result will never be there."""
        if self._is_closed and (not self.open_items or self._executor.has_ended()):
            return not self.is_ready()
        return self._executor.error is not None and not self.is_ready()

    def take(self) -> tuple[int, InFlightItem] | None:
        """Take the next item out of the ring; None where it is on its way or may still come.

        Raises Stuck where it never will.
        """
        with self._back:
            item = self.taken
            if not self.is_ready():
                if self.has_ended():
                    raise self._broken() or Stuck(
                        f"no item is left, {self._name}, it has been closed"
                    )
                return None
            entry = self._items.at(item)
            try:
                self.taken += 1
                self._items.drop(item)
                self._executor.producer.ring()
            except BaseException:  # Ctrl-C between counting and waking
                self._executor.producer.ring()
                raise
            return item, entry

    def wait_for_result(self, timeout: Timeout, is_enough: Callable[[], bool] = never) -> None:
        """Wait until the next result is there, or never will be, or `is_enough` holds.

        Raises Stuck.
        """
        self._check_may_wait("a result")
        if not self._executor.consumer.wait(
            lambda: self.is_ready() or self.has_ended() or is_enough(), timeout.left_s
        ):
            what = f"no result of item {self.taken} in {timeout}, {self._name}"
            raise Stuck(f"{what}, {self.open_items} are on their way")

    def wake(self) -> None:
        """Have everybody who waits look again."""
        self._executor.producer.ring()
        self._executor.consumer.ring()

    def take_no_more(self, drain: bool) -> None:
        """Refuse items from now on; with `drain` false cancel those on their way."""
        with self.front:
            self._is_closed = True
            if not drain and self._items.cancelled_from is None:
                self._items.cancelled_from = self.taken
            self._executor.stop()

    def check_open(self) -> None:
        """Raise Stuck where a worker broke, Cancelled where no item is taken any more."""
        if (broken := self._broken()) is not None:
            raise broken
        where = f"no item is taken, {self._name}"
        if self._items.stopped_by is not None:
            raise Cancelled(f"{where}, item {self._items.stopped_by} failed and it stops there")
        if self._is_closed:
            raise Cancelled(f"{where}, it has been closed")

    def drained(self) -> bool:
        """Return whether nothing is on its way that will come to its end."""
        return not self.open_items or self._executor.error is not None

    def check_empty(self) -> None:
        """Raise Stuck where items are on their way, and as `check_open`."""
        self.check_open()
        if self.open_items:
            what = f"{self.open_items} items are on their way or wait to be read"
            raise Stuck(f"{what}, {self._name}, get them first")

    def _broken(self) -> Stuck | None:
        error = self._executor.error
        if error is None:
            return None
        return Stuck(f"no result comes, {self._name}, it broke: {describe_error(error)}")

    def _check_may_wait(self, what: str) -> None:
        if self._executor.is_worker():
            thread = threading.current_thread().name
            reason = f"thread {thread} is one of those that work on it"
            raise Stuck(f"waiting for {what} would never end, {self._name}, {reason}")
