"""The executor of static orders: workers with steps, and counters between them.

What a schedule has decided needs no loop at run time. A step waits until the steps that it needs
have passed its item, and until its readers have passed the item one window before, so that its
output has room; then it calls its function and counts. Single runs are one item at a time with
many steps a worker (`static_order.py`), pipelines many items with one step a worker
(`pipeline.py`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from zlib import crc32

from nnstretch.schedule.cpu_affinity import pin, spin_buffer
from nnstretch.schedule.executors.wakeup import Wakeup

Call = Callable[[], object]


@dataclass(slots=True, eq=False)
class StaticStep:
    """A function that a worker calls once an item, and the counter of its items."""

    name: str
    call: Call | None = None
    """Computes the next item."""
    make: Callable[[], Call] | None = None
    """Makes `call` on the worker's thread: threads of a backend inherit its cores."""
    passed: int = 0
    """All items of this replica below this number are done; begins at the replica's number."""
    waits: tuple[Wait, ...] = ()
    """What has to be passed before the call."""
    listeners: tuple[Wakeup, ...] = ()
    begin_s: float = 0.0
    end_s: float = 0.0


Replicas = tuple[StaticStep, ...]
"""Steps that take items in turn."""
Wait = tuple[Replicas, int]
"""Replicas, and the window: before item n they have to have passed item n - window.

The window is 0 for what the step needs, and the room behind it for its readers.
"""


@dataclass(slots=True, eq=False)
class StaticWorker:
    """A thread that takes every `stride`-th item, from item `first` on, through its steps."""

    name: str
    steps: tuple[StaticStep, ...]
    cores: Collection[int] | None = None
    first: int = 0
    stride: int = 1
    awake_s: float = 0.0
    """How long it spins before it sleeps."""
    starved_s: float = 0.0
    """Time spent waiting for an item."""
    blocked_s: float = 0.0
    """Time spent waiting for room behind it."""
    wakeup: Wakeup = field(default_factory=Wakeup)


class StaticExecutor:
    """Threads that take every item through every step in the static order.

    `submit` adds one item, which passes `source`. Of the caller's threads one may wait for room
    (`producer`) and one for results (`consumer`); a worker named `caller` has no thread, `run_once`
    serves it. `error` is what a step raised: it ends the executor.
    """

    def __init__(
        self,
        workers: Sequence[Sequence[StaticWorker]],
        source: StaticStep,
        room: Sequence[Wait],
        results: Sequence[Wait],
        caller: StaticWorker | None = None,
    ) -> None:
        """Create the executor; `start` starts its threads. `workers`: replicas together."""
        self.workers = workers
        self.producer, self.consumer = Wakeup(), Wakeup()
        self.error: BaseException | None = None
        self._source, self._room, self._results = source, room, results
        self._closing = False
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        every = list(chain.from_iterable(workers))
        for worker in every:
            for step in worker.steps:
                _listen(worker.wakeup, step.waits)
        _listen(self.producer, (*room, *results))
        _listen(self.consumer, results)
        self._wakeups = [self.producer, self.consumer, *(worker.wakeup for worker in every)]
        self._idle = spin_buffer() if any(worker.awake_s for worker in every) else b""
        self._threads = [self._thread(worker) for worker in every if worker is not caller]
        self._gone: list[StaticWorker] = []
        self._waits_from_s = 0.0
        """Waiting before this does not count."""

    def start(self) -> None:
        """Start every thread and wait until each has made its calls; where one raises, end all."""
        try:
            for thread in self._threads:
                thread.start()
            errors = [self._started.get() for _ in self._threads]
            for error in errors:
                if error is not None:
                    raise error
        except BaseException:
            self.close()
            raise

    @property
    def submitted(self) -> int:
        """Return how many items have been submitted."""
        return self._source.passed

    def has_room(self, item: int) -> bool:
        """Return whether the first steps have room for an item."""
        return is_passed(self._room, item)

    def is_complete(self, item: int) -> bool:
        """Return whether every step has passed an item."""
        return is_passed(self._results, item)

    def submit(self) -> None:
        """Add one item; an interrupt leaves it added or not, and nobody asleep who should know."""
        try:
            self._source.passed += 1
            for listener in self._source.listeners:
                if listener.asleep:
                    listener.ring()
        except BaseException:
            self._wake_all()
            raise

    def run_once(self, caller: StaticWorker) -> None:
        """Submit an item, serve the caller's steps, and wait for all; raises what a step raises."""
        item = self._source.passed
        try:
            self.submit()
            self._run_item(caller, item)
            for replicas, _window in self._results:
                if replicas[0].passed <= item:
                    self._await(self.consumer, caller.awake_s, replicas[0], item, item)
        except BaseException as error:
            self._fail(error)
        if self.error is not None:
            raise self.error

    def is_worker(self) -> bool:
        """Return whether the calling thread is one of the executor's."""
        return threading.current_thread() in self._threads

    def has_ended(self) -> bool:
        """Return whether no thread serves any more."""
        return len(self._gone) == len(self._threads)

    def restart_waits(self) -> None:
        """Count the workers' waiting from now on; nothing may be on its way."""
        self._waits_from_s = perf_counter()
        for worker in chain.from_iterable(self.workers):
            worker.starved_s = worker.blocked_s = 0.0

    def stop(self) -> None:
        """Let every thread end when it has finished what was submitted, and wait for none."""
        self._closing = True
        self._wake_all()

    def close(self) -> None:
        """Finish what was submitted and join every thread; harmless when repeated."""
        self.stop()
        for thread in self._threads:  # the current one may be of them and collect garbage
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        self._wake_all()

    def _thread(self, worker: StaticWorker) -> threading.Thread:
        name = f"nnstretch-{worker.name}"
        return threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)

    def _serve(self, worker: StaticWorker) -> None:
        """Serve a worker on a thread of its own."""
        pin(worker.cores)
        try:
            for step in worker.steps:
                if step.make is not None:
                    step.call = step.make()
        except BaseException as error:
            self.error = self.error or error
            self._started.put(error)
            return
        self._started.put(None)
        item = worker.first
        try:
            while self._run_item(worker, item):
                item += worker.stride
        except BaseException as error:
            self._fail(error)
        finally:
            self._gone.append(worker)
            self._wake_all()

    def _run_item(self, worker: StaticWorker, item: int) -> bool:
        """Take an item through a worker's steps; return False where no more will come.

        After a long call nothing of this is in the core's caches, hence no calls of ours.
        """
        for step in worker.steps:
            for replicas, window in step.waits:
                past = item - window
                needed = replicas[past % len(replicas)]
                if needed.passed <= past:
                    self._await_step(worker, needed, past, item)
                    if self._source.passed <= item:
                        return False
            if self.error is not None:
                return False
            begin_s = perf_counter()
            step.call()  # type: ignore[misc]
            step.begin_s, step.end_s = begin_s, perf_counter()
            step.passed = item + worker.stride
            for listener in step.listeners:
                if listener.asleep:
                    listener.ring()
        return True

    def _await_step(self, worker: StaticWorker, needed: StaticStep, past: int, item: int) -> None:
        """Wait for a step to pass item `past`, and add the time to the worker's statistics."""
        began_s = perf_counter()
        self._await(worker.wakeup, worker.awake_s, needed, past, item)
        waited_s = perf_counter() - max(began_s, self._waits_from_s)
        if past == item:
            worker.starved_s += waited_s
        else:
            worker.blocked_s += waited_s

    def _await(
        self, wakeup: Wakeup, awake_s: float, needed: StaticStep, past: int, item: int
    ) -> None:
        """Wait, spinning and then asleep, until `needed` has passed `past` or nothing more comes.

        Between two checksums this thread has Python's lock, in the way of the one that ends the
        step: no calls of ours.
        """
        if awake_s:
            until_s, idle = perf_counter() + awake_s, self._idle
            while needed.passed <= past and perf_counter() < until_s:
                if self.error is not None or self._closing:
                    break
                crc32(idle)
            if needed.passed > past:
                return

        def is_over() -> bool:
            if needed.passed > past or self.error is not None:
                return True
            return self._closing and self._source.passed <= item

        wakeup.wait(is_over)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._wake_all()

    def _wake_all(self) -> None:
        for wakeup in self._wakeups:
            wakeup.ring()


def is_passed(waits: Sequence[Wait], item: int) -> bool:
    """Return whether an item need not wait."""
    for replicas, window in waits:
        past = item - window
        if replicas[past % len(replicas)].passed <= past:
            return False
    return True


def _listen(wakeup: Wakeup, waits: Sequence[Wait]) -> None:
    """Wake a thread when one of the steps that it waits for counts."""
    for replicas, _window in waits:
        for step in replicas:
            if wakeup not in step.listeners:
                step.listeners += (wakeup,)
