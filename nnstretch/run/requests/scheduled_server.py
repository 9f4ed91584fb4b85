"""A server's scheduling thread: its start, its messages and its end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from nnstretch.errors import Cancelled, describe_error
from nnstretch.files.checked import checked
from nnstretch.run.requests.open_requests import CloseMessage, ServerSide
from nnstretch.schedule import ThreadExecutor
from nnstretch.schedule.executors.callback_thread import CallbackThread
from nnstretch.schedule.executors.owner_process import OwnerProcess


class ScheduledServer(ABC):
    """Threads that compute, and one that schedules until the server is closed and nothing is open.

    Subclasses define the requests and the scheduler.
    """

    def __init__(self, threads: ThreadExecutor, what: str) -> None:
        """Prepare the scheduling thread of a server called `what`; `_beginning` starts it."""
        self._threads = threads
        self._loop = threading.Thread(target=self._serve, name="nnstretch-loop", daemon=True)
        own_threads = (self._loop, *threads.threads)
        self._side = ServerSide(OwnerProcess(what), threads.call, CallbackThread(), own_threads)

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Begin to schedule once the caller has made all that the scheduling thread needs.

        Where that fails, all threads end. Raises what the caller raises.
        """
        try:
            self._threads.listen()
            yield
            self._loop.start()
        except BaseException:
            if self._loop.ident is None:
                self._threads.close()
            else:  # Ctrl-C right behind its start: it waits already, and ends the other threads
                self._begin_closing(drain=False)
            raise

    @property
    @abstractmethod
    def open_count(self) -> int:
        """Return how many requests are open."""

    @abstractmethod
    def take_no_more(self) -> None:
        """Refuse requests from now on with Cancelled; those that are open are answered."""

    @abstractmethod
    def _step(self) -> object:
        """Schedule until the next message to the scheduling thread, and return that."""

    @abstractmethod
    def _handle(self, message: object) -> None:
        """Do what a message to the scheduling thread asks for."""

    @abstractmethod
    def _end_all(self, why: str) -> None:
        """End every request with Cancelled, also those of which nobody has heard yet."""

    @checked
    def close(self, drain: bool = True) -> None:
        """Take no more requests.

        Answer the open ones, or with `drain` false end them with Cancelled. Joins every thread,
        except where one of the server's own closes it.
        """
        if not self._side.process.is_current():
            return
        try:
            self._begin_closing(drain)
            if not self._side.is_own_thread():
                self._loop.join()
                self._side.callbacks.join()
        except BaseException:  # Ctrl-C: all of it still ends, and nobody waits
            self._begin_closing(drain)
            raise

    def _begin_closing(self, drain: bool) -> None:
        self.take_no_more()
        self._threads.call(CloseMessage(drain))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    def _serve(self) -> None:
        """Serve until the server closes and nothing is open, then end the other threads.

        If the loop itself breaks, nobody is left waiting.
        """
        closing = False
        try:
            while not (closing and not self.open_count):
                message = self._step()
                self._handle(message)
                closing = closing or isinstance(message, CloseMessage)
        except BaseException as error:
            self.take_no_more()
            self._end_all(f"{self._side.process.what}, its loop broke: {describe_error(error)}")
        finally:
            self._threads.close()
            self._side.callbacks.finish()


def broken_off(number: int, why: str) -> Cancelled:
    """Return the error of a request that was open when its server broke or was closed."""
    return Cancelled(f"request {number} was open, {why}")
