"""What a server keeps of requests, and what its clients tell the scheduling thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Self

from nnstretch.errors import Cancelled, Stuck, contained
from nnstretch.run.loaded_network import Values
from nnstretch.schedule.executors.callback_thread import CallbackThread
from nnstretch.schedule.executors.owner_process import OwnerProcess
from nnstretch.schedule.executors.wakeup import Wakeup
from nnstretch.schedule.timeout import Timeout

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Reply(Future[Any]):
    """Future of an answer; its other fields are known once it is done.

    Done-callbacks run on a thread of the server that does nothing else, so they may submit, wait
    and close. Where the reply was cancelled, they run on the thread that cancelled it; where it is
    done already, on the thread that adds them.
    """

    plan: str | None = None
    """Plan that computed it, or began to; None where none did."""
    replaced: int = 0
    """Tasks of it that ran elsewhere than planned."""
    latency_ms: float | None = None
    """From its arrival at the loop to its end, on the server's clock."""

    def __init__(self, number: int, server: ServerSide) -> None:
        super().__init__()
        self._number, self._server = number, server

    def cancel(self) -> bool:
        """Take the request back; False where it has ended."""
        cancelled = super().cancel()
        if cancelled:
            self._server.tell(CancelMessage(self._number))
        return cancelled

    def result(self, timeout: float | None = None) -> Any:
        """Return the answer; waits `timeout` seconds, forever by default.

        Raises the request's error, TimeoutError where it is not there in time, and Stuck where
        waiting would never end: on a thread that computes it, in a forked process.
        """
        return super().result(self._checked(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the request's error, None for an answer; waits and raises as `result`."""
        return super().exception(self._checked(timeout))

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Call a function with this when it is done; what the function raises is logged."""

        def call_elsewhere(reply: Future[Any]) -> None:
            if self._server.is_loop():
                self._server.callbacks.put(fn, reply)
            else:
                fn(reply)  # type: ignore[arg-type]

        super().add_done_callback(call_elsewhere)

    def notify(self, loop: AbstractEventLoop, function: Callable[[], object]) -> None:
        """Have an asyncio event loop call a function once this is done.

        No other thread is woken for it. A loop that is closed by then calls nothing.
        """

        def call_there(_reply: Future[Any]) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(function)

        super().add_done_callback(call_there)

    def _checked(self, timeout: float | None) -> float | None:
        """Return a timeout that a wait takes. Raises BadInput for what is no number."""
        left_s = Timeout(timeout, "timeout").left_s
        if not self.done():
            self._server.check_may_wait(f"the answer of request {self._number}")
        return left_s


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What replies know of their server."""

    process: OwnerProcess
    tell: Callable[[Hashable], None]
    """Sends a message to the scheduling thread."""
    callbacks: CallbackThread
    own_threads: tuple[threading.Thread, ...]
    """The scheduling thread, then those that compute."""

    def is_loop(self) -> bool:
        """Return whether this is the scheduling thread."""
        return threading.current_thread() is self.own_threads[0]

    def is_own_thread(self) -> bool:
        """Return whether this is a thread without which no request ends."""
        return threading.current_thread() in self.own_threads

    def check_may_wait(self, what: str) -> None:
        """Raise Stuck where waiting for `what` could never end."""
        self.process.check()
        if self.is_own_thread():
            raise Stuck(
                f"waiting for {what} would never end, {self.process.what}, thread"
                f" {threading.current_thread().name} is one of those that work on it"
            )


@dataclass(slots=True)
class OpenRequest:
    """A request, until it is answered."""

    values: Values
    reply: Reply
    deadline_us: float = inf
    priority: int = 0
    """Of several that wait, the greater goes first."""
    arrived_us: float = 0.0
    counted: bool = False
    """Whether the scheduling thread has heard of it."""


@dataclass(slots=True)
class ServerCounters:
    """Counts of all requests since the server began."""

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    """Ended with an error: a missed deadline, a processor or a task that failed, the end of the
    server.
    """
    cancelled: int = 0
    replaced: int = 0
    """Tasks that ran elsewhere than planned."""
    plans: Counter[str] = field(default_factory=Counter)
    """Requests begun, by plan."""

    @property
    def lost(self) -> int:
        """Return how many requests never ended; 0 once the server is closed."""
        return self.submitted - self.answered - self.failed - self.cancelled


@dataclass(frozen=True, slots=True)
class SubmitMessage:
    """A request that a client's thread hands to the scheduling thread."""

    request: int
    name: str = ""
    """Network that it is for, where the server has several."""


@dataclass(frozen=True, slots=True)
class CancelMessage:
    """Asks the scheduling thread to cancel a request."""

    request: int


@dataclass(frozen=True, slots=True)
class CloseMessage:
    """Asks the scheduling thread to end when nothing is open."""

    drain: bool
    """Else what is open is cancelled."""


class OpenRequests:
    """Requests that have no answer yet: clients add them, the scheduling thread takes them out.

    Whether there is room follows from what is open, so no place can be lost.
    """

    def __init__(
        self,
        side: ServerSide,
        capacity: int,
        name: str = "",
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Begin without any. Those for several networks of a server share its `numbers`."""
        self.entries: dict[int, OpenRequest] = {}
        """By number."""
        self.counts = ServerCounters()
        self._side, self._capacity, self._name = side, capacity, name
        self._numbers = count() if numbers is None else numbers
        self._closing = False
        # clients hold it only as long as it takes to add a request, the scheduling thread never
        self._lock = threading.RLock()
        self._room = Wakeup()

    def take_number(self) -> int:
        """Return a number that no request has."""
        return next(self._numbers)

    def add(
        self, values: Values, deadline_us: float, priority: int = 0, arrived_us: float = 0.0
    ) -> Reply | None:
        """Open a request and tell the scheduling thread; return None where there is no room.

        Raises Cancelled once no more are taken.
        """
        with self._lock:
            if self._closing:
                where = self._side.process.what
                raise Cancelled(f"no request is taken, {where}, it has been closed")
            if len(self.entries) >= self._capacity:
                return None
            number = self.take_number()
            reply = Reply(number, self._side)
            try:
                self.entries[number] = OpenRequest(values, reply, deadline_us, priority, arrived_us)
                self._side.tell(SubmitMessage(number, self._name))
            except BaseException:  # Ctrl-C: without its message it would keep its place for ever
                self.entries.pop(number, None)
                raise
            return reply

    def wait_for_room(self, timeout: Timeout) -> None:
        """Wait until there is room, or no more are taken. Raises Stuck."""
        self._side.check_may_wait("room for one more request")
        try:
            has_room = self._room.wait(self._has_room_or_end, timeout.left_s)
        except BaseException:
            self._room.ring()  # this thread may have been the one that was woken
            raise
        if not has_room:
            self._room.ring()
            where = self._side.process.what
            raise Stuck(f"no room for one more request, {where}, {len(self.entries)} are open")

    def take_no_more(self) -> None:
        """Refuse requests from now on."""
        with self._lock:
            self._closing = True
        self._room.ring()

    def heard_of(self, number: int) -> OpenRequest | None:
        """Return a request that the scheduling thread hears of, and count it.

        None where its client was interrupted, or has ended it.
        """
        request = self.entries.get(number)
        if request is not None and not request.counted:
            request.counted = True
            self.counts.submitted += 1
        return request

    def end(
        self, number: int, outcome: Callable[[OpenRequest], Any], error: Exception | None
    ) -> None:
        """Reply exactly once, with the `outcome` or an error: who takes a request out replies."""
        request = self.entries.pop(number, None)
        if request is None:
            return
        self._room.ring_first()
        try:
            self._reply(request, outcome, error)
        except (InvalidStateError, RuntimeError):  # its client has ended it himself
            self.counts.cancelled += 1

    def _reply(
        self, request: OpenRequest, outcome: Callable[[OpenRequest], Any], error: Exception | None
    ) -> None:
        reply, answer = request.reply, None
        if not reply.set_running_or_notify_cancel():
            self.counts.cancelled += 1
            return
        if error is None:
            try:
                answer = outcome(request)
            except BaseException as broken:
                error = contained(broken, f"a request failed, {self._side.process.what}")
        if error is None:
            self.counts.answered += 1
            reply.set_result(answer)
        else:
            self.counts.failed += 1
            reply.set_exception(contained(error, f"a request failed, {self._side.process.what}"))

    def _has_room_or_end(self) -> bool:
        return len(self.entries) < self._capacity or self._closing
