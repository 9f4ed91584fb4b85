"""Workers that pass items on.

A thread for every replica of every stage, and nothing between them but counters.

What the loop would decide for a pipeline is always the same (`flow`: every stage works off the
items in their order), so the workers carry it out themselves. Each counts the items that it is
through with; whoever waits for one of these counters sleeps on a bell of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from nnstretch.schedule.cpu_affinity import pin
from nnstretch.schedule.pipeline_graph import StageGraph


class StageFunction(Protocol):
    """What a worker does; made on its thread, so that threads of a backend inherit its cores."""

    def __call__(self, item: int, /) -> None:
        """Compute one item. An error of the item is the item's; what this raises ends the
        executor.
        """
        ...


Make = Callable[[int, int], StageFunction]
"""The craft of (stage, replica)."""


@dataclass(slots=True, eq=False)
class Wakeup:
    """A thread that may sleep until a counter moves."""

    bell: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    asleep: bool = False

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until something is there; return False where it was not in time.

        Who moves a counter looks at `asleep` after it, and this looks at the counter after `asleep`
        is set: one of them sees the other.
        """
        until_s = None if timeout_s is None else perf_counter() + timeout_s
        while not is_ready():
            self.asleep = True
            if is_ready():
                break
            try:
                left_s = None if until_s is None else until_s - perf_counter()
                if left_s is not None and left_s <= 0:
                    return is_ready()
                self.bell.get(timeout=left_s)
            except queue.Empty:
                pass
        self.asleep = False
        return True

    def ring(self) -> None:
        """Wake the thread if it sleeps."""
        if self.asleep:
            self.asleep = False
            self.bell.put(None)


@dataclass(slots=True, eq=False)
class PipelineWorker(Wakeup):
    """One replica of a stage."""

    stage: int = 0
    replica: int = 0
    cores: frozenset[int] | None = None
    done: int = 0
    """Of its own items: those with this replica's number modulo the replicas."""
    starved_s: float = 0.0
    """Waited for an item."""
    blocked_s: float = 0.0
    """Waited for room behind it."""
    listeners: tuple[Wakeup, ...] = ()


class PipelineExecutor:
    """Runs every item through every stage.

    `submit` says that one more item is there; `through` counts those that have left the last
    stages.

    One thread may wait for room, one for a result. `close` lets the workers go through what was
    submitted and joins them.
    """

    def __init__(
        self, stage_graph: StageGraph, make: Make, cores: Sequence[Sequence[frozenset[int] | None]]
    ) -> None:
        """Create the executor; `cores`: those of each replica of each stage. Nothing runs before
        `start`.
        """
        self._stage_graph, self._make = stage_graph, make
        self.submitted = 0
        self.error: BaseException | None = None
        """What broke the relay itself."""
        self._closing = False
        self.taker, self.giver = Wakeup(), Wakeup()
        self.workers = [
            [PipelineWorker(stage=s, replica=r, cores=cores[s][r]) for r in range(step.replicas)]
            for s, step in enumerate(stage_graph)
        ]
        for number, step in enumerate(stage_graph):
            heard = [
                w for neighbor in (*step.feeders, *step.readers) for w in self.workers[neighbor]
            ]
            outside = [self.taker, self.giver] if step.last else [self.giver] if step.fed else []
            for worker in self.workers[number]:
                worker.listeners = (*heard, *outside)
        self._made: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        everyone = [worker for stage in self.workers for worker in stage]
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(w,),
                name=f"nnstretch-{stage_graph[w.stage].name}.{w.replica}",
                daemon=True,
            )
            for w in everyone
        ]

    def start(self) -> None:
        """Start every worker, once its stage's function is made on its own thread.

        Raises what making one raises; then, and where that is interrupted, no thread is left.
        """
        try:
            for thread in self._threads:
                thread.start()
            failed = [error for _ in self._threads if (error := self._made.get()) is not None]
            if failed:
                raise failed[0]
        except BaseException:
            self.close()
            raise

    def is_item_complete(self, stage: int, item: int) -> bool:
        """Return whether a stage is through with an item."""
        workers = self.workers[stage]
        return item < 0 or workers[item % len(workers)].done > item // len(workers)

    def has_room(self, item: int) -> bool:
        """Return whether the stages that the caller feeds have room for this item."""
        return all(
            self.is_item_complete(number, item - step.window)
            for number, step in enumerate(self._stage_graph)
            if step.fed
        )

    def is_complete(self, item: int) -> bool:
        """Return whether all stages that hand something to the caller are through with it.

        All others then are, too.
        """
        return all(
            self.is_item_complete(number, item)
            for number, step in enumerate(self._stage_graph)
            if step.last
        )

    def queued_items(self, stage: int) -> int:
        """Return items that are ready for a stage and not done: in its queue and at work."""
        step = self._stage_graph[stage]
        ready = min(
            [sum(w.done for w in self.workers[f]) for f in step.feeders]
            + ([self.submitted] if step.fed else [])
        )
        return max(0, ready - sum(w.done for w in self.workers[stage]))

    def submit(self) -> None:
        """Begin one more item, which is where the stages find it."""
        self.submitted += 1
        for step, workers in zip(self._stage_graph, self.workers, strict=True):
            if step.fed:
                for worker in workers:
                    worker.ring()

    def close(self) -> None:
        """Finish what was submitted, and join every thread; harmless when repeated."""
        self._closing = True
        self._wake()
        for thread in self._threads:
            if (
                thread.is_alive() and thread is not threading.current_thread()
            ):  # which may be the one that collects garbage
                thread.join()
        self._wake()

    def _wake(self) -> None:
        for waiter in (
            self.taker,
            self.giver,
            *(worker for stage in self.workers for worker in stage),
        ):
            waiter.ring()

    def _serve(self, worker: PipelineWorker) -> None:
        pin(None if worker.cores is None else set(worker.cores))
        try:
            craft = self._make(worker.stage, worker.replica)
        except BaseException as error:
            self.error = self.error or error
            self._made.put(error)
            return
        self._made.put(None)
        try:
            self._run_stage(worker, craft)
        except BaseException as error:
            self.error = self.error or error
            self._wake()

    def _run_stage(self, worker: PipelineWorker, craft: StageFunction) -> None:
        step, item = self._stage_graph[worker.stage], worker.replica
        feeders, readers = (
            step.feeders,
            [(reader, self._stage_graph[reader].window) for reader in step.readers],
        )
        over = self.is_item_complete

        def fed() -> bool:
            if self.error is not None:
                return True
            if step.fed and self.submitted <= item:
                return self._closing
            for feeder in feeders:
                if not over(feeder, item):
                    return self._closing and self.submitted <= item
            return True

        def room() -> bool:
            if self.error is not None:
                return True
            for reader, window in readers:  # noqa: SIM110 (a generator costs microseconds here)
                if not over(reader, item - window):
                    return False
            return True

        while True:
            if not fed():
                began_s = perf_counter()
                worker.wait(fed)
                worker.starved_s += perf_counter() - began_s
            if self.error is not None or self.submitted <= item:
                return
            if not room():
                began_s = perf_counter()
                worker.wait(room)
                worker.blocked_s += perf_counter() - began_s
            if self.error is not None:
                return
            craft(item)
            worker.done += 1
            item += step.replicas
            for listener in worker.listeners:
                if listener.asleep:
                    listener.ring()
