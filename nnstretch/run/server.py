"""A bundle that serves many clients at once: requests come from any thread, each gets one answer or one error.

    with Server("net.nns") as server:
        answers = [server.submit(image, deadline_ms=50) for image in images]
        scores = [answer.result() for answer in answers]
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from nnstretch.bundle import Bundle, read_bundle
from nnstretch.errors import BadInput, Cancelled, Stuck
from nnstretch.run.network import Network, Values
from nnstretch.schedule import Answer, Mishaps, Placed, Request, Service, Threads, durations_of, tasks_of
from nnstretch.soc import Processor
from nnstretch.trace import Task

CAPACITY = 16
"""Open requests; who wants one more waits."""


@dataclass(slots=True)
class Entry:
    """What is kept of a request until it is answered."""

    values: Values
    reply: Future[Any]
    deadline_us: float = inf


@dataclass(slots=True)
class Counts:
    """Of all requests since the server began."""

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    """Ended with an error: a missed deadline, a processor or a task that failed, the end of the server."""
    cancelled: int = 0
    replaced: int = 0
    """Tasks that ran elsewhere than planned."""

    @property
    def lost(self) -> int:
        """Requests that never ended; 0 once the server is closed."""
        return self.submitted - self.answered - self.failed - self.cancelled


@dataclass(frozen=True, slots=True)
class Arrive:
    """What a client's thread tells the loop."""

    request: int


@dataclass(frozen=True, slots=True)
class Cancel:
    request: int


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(slots=True)
class Open:
    """Requests that are on their way, by number; written by clients and by the loop."""

    entries: dict[int, Entry] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Server:
    """One thread and one bounded queue per processor, and one thread for the loop that feeds them.

    `submit` waits while `capacity` requests are open: nothing is dropped, and memory is bounded. A processor that
    fails is used no more and its work runs elsewhere (`Service`). `close` lets what is open end, or ends it with an error.
    """

    def __init__(
        self,
        bundle: Path | str | Bundle,
        processors: tuple[Processor, ...] | None = None,
        capacity: int = CAPACITY,
        emulated: bool = False,
        dilation: float = 1.0,
        mishaps: Mishaps = Mishaps(),  # noqa: B008 (frozen)
        network: Network | None = None,
    ) -> None:
        """`emulated` makes every task last its predicted time; otherwise tasks take what they take. Raises BadInput for no capacity."""
        if capacity < 1:
            raise BadInput(f"capacity is {capacity}, server, needed is at least 1 open request")
        bundle = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
        self.manifest, self.network = bundle.manifest, network or Network(bundle)
        self.processors = processors or tuple(Processor(n, "cpu" if n.startswith("cpu") else n, 2) for n in placed(bundle))
        self.counts = Counts()
        self._open, self._room, self._numbers = Open(), threading.BoundedSemaphore(capacity), count()
        self._closing = False
        durations_us = durations_of(self.manifest)
        self._threads = Threads(self.processors, self._work, durations_us if emulated else None, dilation, mishaps=mishaps)
        self._threads.listen()
        policy = Placed(tuple(processor.name for processor in self.processors))
        self._service = Service(self.processors, policy, self._threads, self._answered, durations_us)
        self._loop = threading.Thread(target=self._serve, name="nnstretch-loop", daemon=True)
        self._loop.start()

    def submit(
        self, inputs: np.ndarray | Mapping[str, np.ndarray], deadline_ms: float | None = None, timeout_s: float | None = None
    ) -> Future[Any]:
        """The answer to come: an array, or arrays by name. `cancel()` takes the request back as long as it has not ended.

        Waits for room as long as `timeout_s`, forever by default. Raises BadInput for what the network does not take,
        Stuck where there is no room in time, Cancelled once the server is closed.
        """
        values = self.network.inputs(inputs)
        if not self._room.acquire(timeout=timeout_s):
            raise Stuck(f"no room for one more request, server of {self.manifest.model}, {len(self._open.entries)} are open")
        number, reply = next(self._numbers), Future[Any]()
        deadline_us = inf if deadline_ms is None else self._threads.now_us + deadline_ms * 1000
        with self._open.lock:
            if self._closing:
                self._room.release()
                raise Cancelled(f"no request is taken, server of {self.manifest.model}, it has been closed")
            self._open.entries[number] = Entry(values, reply, deadline_us)
            self.counts.submitted += 1
        reply.add_done_callback(lambda future: self._threads.call(Cancel(number)) if future.cancelled() else None)
        self._threads.call(Arrive(number))
        return reply

    def close(self, drain: bool = True) -> None:
        """Take no more requests; answer the open ones, or with `drain` false end them with Cancelled. Joins every thread."""
        with self._open.lock:
            self._closing = True
        if self._loop.is_alive():
            self._threads.call(Close())
            if not drain:
                for entry in tuple(self._open.entries.values()):
                    entry.reply.cancel()
        self._loop.join()
        self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(drain=kind is None)

    def _serve(self) -> None:
        """Ends once the server closes and nothing is open; if the loop itself breaks, nobody is left waiting."""
        closing = False
        try:
            while not (closing and not self._open.entries):
                closing = self._hear(self._service.turn()) or closing
        except BaseException as error:
            with self._open.lock:
                self._closing = True
            for number, entry in tuple(self._open.entries.items()):
                self._reply(number, entry, Cancelled(f"request {number} was open, server of {self.manifest.model}, its loop broke: {error}"))

    def _hear(self, what: object) -> bool:
        """Whether the server is to close."""
        if isinstance(what, Arrive):
            entry = self._open.entries[what.request]
            self._service.arrive(Request(what.request, tasks_of(self.manifest, what.request), entry.deadline_us))
        elif isinstance(what, Cancel):
            self._service.cancel(what.request)
        return isinstance(what, Close)

    def _work(self, task: Task) -> None:
        """On a processor's thread; of a request that is over, nothing is computed any more."""
        if (entry := self._open.entries.get(task.request)) is not None:
            self.network.compute(task.subgraph, entry.values)

    def _answered(self, answer: Answer) -> None:
        self.counts.replaced += answer.replaced
        self._reply(answer.request, self._open.entries[answer.request], answer.error)

    def _reply(self, number: int, entry: Entry, error: Exception | None) -> None:
        """Exactly once: whoever takes the entry out replies."""
        with self._open.lock:
            if self._open.entries.pop(number, None) is None:
                return
        if not entry.reply.set_running_or_notify_cancel():
            self.counts.cancelled += 1
        elif error is None:
            self.counts.answered += 1
            entry.reply.set_result(self.network.outputs(entry.values))
        else:
            self.counts.failed += 1
            entry.reply.set_exception(error)
        self._room.release()


def placed(bundle: Bundle) -> tuple[str, ...]:
    """Processors that a bundle uses, in order of first use."""
    return tuple(dict.fromkeys(sub.processor for sub in bundle.manifest.subgraphs))
