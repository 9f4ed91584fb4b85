"""A pipeline at work: items go in at one end, each is at another stage at the same time, and
results come out in order.

    with Pipeline("net.nns") as pipeline:
        for result in pipeline.stream(images):
            print(result.item, result.value())

or by hand, from one thread or two: `push` an item, `get` the next result. Whoever pushes faster
than results are read waits.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.bundle.pipeline_view import functions_of
from nnstretch.errors import BadInput, Cancelled, Stuck, UnknownName
from nnstretch.pipeline import ParameterGroup, find_group
from nnstretch.run.backends.registry import Choice, choose_backends
from nnstretch.run.pipelines.item_buffer import (
    InFlightItem,
    ItemBuffer,
    ItemResult,
    StagePacing,
)
from nnstretch.run.pipelines.item_tensors import TensorForms, dead_tensors
from nnstretch.run.pipelines.stage_functions import (
    Functions,
    SubgraphStage,
    device_stages,
    stage_factory,
    tensors_on_device,
)
from nnstretch.run.pipelines.workers import (
    StageStatistics,
    assign_cores,
    make_on_cores,
    replica_processors,
    shut_down,
    statistics_of,
)
from nnstretch.run.weight_patching import patch_weights, read_weights
from nnstretch.schedule.cpu_affinity import affinity
from nnstretch.schedule.executors.pipeline import pipeline_executor, queued_items
from nnstretch.schedule.pipeline_graph import in_flight_limit, stage_graph, stages_with_copies
from nnstretch.schedule.timeout import Timeout
from nnstretch.trace import Trace

ON_ERROR = ("continue", "stop")
RESULTS = 16
"""Results that may wait to be read."""
TRACED = 256
MOST = 1_000_000


class Pipeline:
    """One thread and one bounded queue for each replica of each stage of a bundle's pipeline.

    Two more where a stage's device is copied to.

    `functions` are the bundle's Python stages by the names it gives them (`module:function`).
    `on_error`: an item on which a stage raises ends with that error, and the others go on; or it is
    the last one (`stop`), and those behind it are cancelled. `results` may wait to be read; then
    `push` waits. `pace` makes stages last their predicted times; `traced` items are kept for
    `trace`. `bind=False` leaves it to the system on which cores stages run, whatever the bundle
    says. Any thread may call any method; results come in the order of items, whoever takes them.
    """

    def __init__(
        self,
        bundle: Path | str | Bundle,
        functions: Functions | None = None,
        *,
        backend: Choice = None,
        on_error: str = "continue",
        results: int = RESULTS,
        pace: StagePacing | None = None,
        traced: int = TRACED,
        bind: bool = True,
    ) -> None:
        """Open a pipeline. Raises BadInput for a bundle without a pipeline, a missing function or a
        core that is not there, UnknownName for a backend.
        """
        bundle = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
        pipeline = bundle.manifest.pipeline
        if pipeline is None:
            raise BadInput(
                f"no pipeline, bundle {bundle.name}, it has branches only; `nnstretch partition`"
                " makes one"
            )
        if on_error not in ON_ERROR:
            raise UnknownName(
                f"unknown on_error {on_error!r}, pipeline, it is one of {', '.join(ON_ERROR)}"
            )
        if not (isinstance(results, int) and 1 <= results <= MOST):
            raise BadInput(
                f"results is {results!r}, pipeline, at least 1 has to wait until it is read, at"
                f" most {MOST} may"
            )
        if not (isinstance(traced, int) and 0 <= traced <= MOST):
            raise BadInput(f"traced is {traced!r}, pipeline, a count of items from 0 to {MOST}")
        self.manifest, self.pipeline = bundle.manifest, pipeline
        self._bundle, self._backends, self._forms = (
            bundle,
            choose_backends(backend, bundle),
            TensorForms(bundle.manifest),
        )
        devices = device_stages(bundle, self._backends) if pace is None else frozenset[str]()
        self.stage_graph = stage_graph(
            pipeline,
            bundle.manifest,
            devices if pace is None else stages_with_copies(bundle.manifest),
        )
        self._limit = in_flight_limit(self.stage_graph) + results
        self._pushed = self._taken = 0
        self._push, self._get, self._params = (
            threading.RLock(),
            threading.RLock(),
            threading.RLock(),
        )  # whom Ctrl-C hits behind `acquire` can still close
        self._files: dict[str, bytes] = {}
        """Of sub-graphs whose parameters were replaced."""
        self.emulated, self.dilation = pace is not None, 1.0 if pace is None else pace.dilation
        stages = {stage.name: stage for stage in pipeline.stages}
        names = [
            replica_processors(stages[step.stage], bundle, step.part) for step in self.stage_graph
        ]
        opened = stage_factory(
            bundle, self._backends, functions_of(pipeline, functions or {}), copied=devices
        )
        self._items = ItemBuffer(
            self.stage_graph, names, self._limit + 1, opened, on_error == "stop", pace, traced
        )
        dead = dead_tensors(bundle.manifest)
        finals = {step.stage: step for step in self.stage_graph}
        self._items.forget(
            [
                (
                    (*dead[step.stage], tensors_on_device(step.stage))
                    if finals[step.stage] is step
                    else ()
                )
                for step in self.stage_graph
            ]
        )
        bound = (
            dict(zip(stages, assign_cores(pipeline.stages, affinity()), strict=True))
            if bind
            else {}
        )
        self._cores = [
            [None] * step.replicas if step.part or not bind else bound[step.stage]
            for step in self.stage_graph
        ]
        self._executor = pipeline_executor(
            self.stage_graph, self._items.stage_function, self._cores
        )
        self._closed, self._process = False, os.getpid()
        self._end = weakref.finalize(self, shut_down, self._executor, self._items)
        self._executor.start()
        self._origin_s = perf_counter()

    def push(self, inputs: Any, timeout_s: float | None = None) -> int:
        """Begin an item and return its number.

        Waits for room as long as `timeout_s`, forever by default.

        `inputs`: one input as it is, several by name; arrays have exactly the shape and type that
        the pipeline says. Raises BadInput for other ones, Stuck where there is no room in time,
        Cancelled once the pipeline is closed or has stopped.
        """
        self._check_same_process()
        return self._push_before(inputs, Timeout(timeout_s))

    def _push_before(self, inputs: Any, deadline: Timeout) -> int:
        values = self._forms.from_caller(self.pipeline, inputs, self.manifest.model)
        if not self._push.acquire(timeout=deadline.for_lock_s):
            raise self._full_error()
        try:
            item = self._pushed
            if not self._has_room() and not self._executor.producer.wait(
                lambda: self._is_closed() or self._has_room(), deadline.left_s
            ):
                raise self._full_error()
            self._check_open()
            self._items.put(item, values)
            self._pushed += 1
            self._executor.submit()
            return item
        finally:
            self._push.release()

    def get(self, timeout_s: float | None = None) -> ItemResult:
        """Return the next result, in the order of items; `timeout_s` 0 asks whether it is there.

        Raises Stuck where it is not there in time, or where the pipeline is closed and none is
        left.
        """
        self._check_same_process()
        return self._take_before(Timeout(timeout_s))

    def _take_before(self, deadline: Timeout) -> ItemResult:
        if not self._get.acquire(timeout=deadline.for_lock_s):
            raise Stuck(
                f"no result in {deadline}, pipeline of {self.manifest.model}, another thread waits"
                " for one"
            )
        try:
            item = self._taken
            if not self._is_ready(item) and not self._executor.consumer.wait(
                lambda: self._is_ready(item) or self._raise_no_result(item), deadline.left_s
            ):
                raise Stuck(
                    f"no result of item {item} in {deadline}, pipeline of {self.manifest.model},"
                    f" {self._pushed - item} are on their way"
                )
            if not self._is_ready(item):
                raise self._stuck_error() or Stuck(
                    f"no item is left, pipeline of {self.manifest.model}, it has been closed"
                )
            entry = self._items.take(item)
            self._taken += 1
        finally:
            self._get.release()
        self._executor.producer.ring()
        return self._result(item, entry)

    def stream(self, items: Iterable[Any]) -> Iterator[ItemResult]:
        """Yield a result for every item, in order. Raises the error that ended the stream.

        Takes items only as fast as results are read; nothing else may be on its way.

        Where `items` raises, an item does not fit or the pipeline stops, the results of all items
        before come first, then that error.

        Raises the error that ended the stream.
        """
        self._check_empty()
        source, end = iter(items), None
        try:
            while end is None:
                while self.open_items and not self._has_room():
                    self._wait_for_either()
                    if self._is_ready(self._taken) or not self._has_room():
                        yield self.get()
                try:
                    self.push(next(source))
                except Exception as error:
                    end = error
                while self._is_ready(self._taken):
                    yield self.get()
            while self.open_items:
                yield self.get()
        except GeneratorExit:
            while self.open_items and self._executor.error is None:  # of who reads no further
                self.get()
            raise
        if not isinstance(end, StopIteration):
            raise end

    def run(self, inputs: Any, timeout_s: float | None = None) -> Any:
        """Run one item through an empty pipeline; return its outputs, within `timeout_s` in all.

        Raises what `push`, `get` and `Result.value` raise.
        """
        self._check_empty()
        deadline = Timeout(timeout_s)
        self._push_before(inputs, deadline)
        return self._take_before(deadline).value()

    @property
    def open_items(self) -> int:
        """Return items that were pushed and whose results were not taken."""
        return self._pushed - self._taken

    def statistics(self) -> tuple[StageStatistics, ...]:
        """Return the statistics of every stage, in their order.

        Copies to and from a device have rows of their own, around their stage's.
        """
        rows = zip(
            self.stage_graph,
            self._items.names,
            self._items.records,
            self._executor.workers,
            strict=True,
        )
        return tuple(
            statistics_of(
                step.name,
                names,
                records,
                workers,
                queued_items(self._executor, self.stage_graph, n),
            )
            for n, (step, names, records, workers) in enumerate(rows)
        )

    def trace(self) -> Trace:
        """Return the last items at every stage, in microseconds since the pipeline began, of the
        chip where stages are emulated.
        """
        return Trace(tuple(self._items.spans(self._origin_s, self.dilation)))

    def parameters(self, group: str) -> dict[str, np.ndarray]:
        """Return the weights of a group that items pushed from now on are computed with.

        Raises UnknownName.
        """
        group_spec = find_group(self.pipeline, group)
        return read_weights(group_spec, self._file(group_spec))

    def set_parameters(self, group: str, values: Mapping[str, np.ndarray]) -> None:
        """Replace some or all weights of a group, for every item that is pushed from now on.

        Items on their way keep the old ones.

        Raises UnknownName, and BadInput for what does not fit, and for NaN or infinity where there
        was none; then everything is as it was.
        """
        group_spec = find_group(self.pipeline, group)
        with self._params:
            data = patch_weights(group_spec, self._file(group_spec), values)
            whose = next(
                stage.name
                for stage in self.pipeline.stages
                if group_spec.subgraph in stage.subgraphs
            )
            number = next(n for n, step in enumerate(self.stage_graph) if step.name == whose)
            parts = [
                (key, self._loaded(key, group_spec.subgraph, data))
                for key in self._items.changes
                if key[0] == number
            ]
            with self._push:
                self._check_open()
                for key, part in parts:
                    self._items.changes[key].append((self._pushed, group_spec.subgraph, part))
                self._files[group_spec.subgraph] = data

    def close(self, drain: bool = True) -> None:
        """Take no more items; finish those on their way, or with `drain` false end them with
        Cancelled. Joins every thread.

        Results that nobody has read can still be read. A stage that closes its own pipeline does
        not wait for the threads.
        """
        self._closed = True
        if not drain and self._items.cancelled_from is None:
            self._items.cancelled_from = self._taken
        self._executor.producer.ring()
        with self._push:  # nobody is in the middle of a push any more
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    def _result(self, item: int, entry: InFlightItem) -> ItemResult:
        latency_us, ended_us = (
            max(0.0, entry.ended_s - since_s) * 1e6 for since_s in (entry.pushed_s, self._origin_s)
        )
        output = (
            None
            if entry.error is not None
            else self._forms.to_caller(self.pipeline.outputs, entry.values)
        )
        return ItemResult(item, output, entry.error, latency_us, ended_us)

    def _wait_for_either(self) -> None:
        """Wait for room or for a result.

        Who waits for the oldest result alone lets the first stages run dry.
        """
        with self._push:
            self._executor.producer.wait(
                lambda: self._is_closed() or self._has_room() or self._is_ready(self._taken)
            )

    def _is_ready(self, item: int) -> bool:
        return item < self._pushed and self._executor.is_complete(item)

    def _raise_no_result(self, item: int) -> bool:
        return self._executor.error is not None or (self._closed and item >= self._pushed)

    def _has_room(self) -> bool:
        return self._executor.has_room(self._pushed) and self.open_items < self._limit

    def _is_closed(self) -> bool:
        return (
            self._closed or self._executor.error is not None or self._items.stopped_by is not None
        )

    def _stuck_error(self) -> Exception | None:
        error = self._executor.error
        return (
            None
            if error is None
            else Stuck(
                f"no result comes, pipeline of {self.manifest.model}, it broke:"
                f" {type(error).__name__}: {error}"
            )
        )

    def _full_error(self) -> Stuck:
        return Stuck(
            f"no room for one more item, pipeline of {self.manifest.model}, {self.open_items} are"
            f" on their way or wait to be read, at most {self._limit}"
        )

    def _check_open(self) -> None:
        if (broken := self._stuck_error()) is not None:
            raise broken
        if self._items.stopped_by is not None:
            raise Cancelled(
                f"no item is taken, pipeline of {self.manifest.model}, item"
                f" {self._items.stopped_by} failed and it stops there"
            )
        if self._closed:
            raise Cancelled(
                f"no item is taken, pipeline of {self.manifest.model}, it has been closed"
            )

    def _check_same_process(self) -> None:
        if os.getpid() != self._process:
            raise Stuck(
                f"process {os.getpid()} has no stages, pipeline of {self.manifest.model}, a fork"
                " has no threads: make one of its own there"
            )

    def _check_empty(self) -> None:
        self._check_same_process()
        self._check_open()
        if self.open_items:
            raise Stuck(
                f"{self.open_items} items are on their way or wait to be read, pipeline of"
                f" {self.manifest.model}, get them first"
            )

    def _file(self, group: ParameterGroup) -> bytes:
        plain = self._bundle.files[
            next(sub.file for sub in self.manifest.subgraphs if sub.name == group.subgraph)
        ]
        return self._files.get(group.subgraph, plain)

    def _loaded(self, key: tuple[int, int], subgraph: str, data: bytes) -> Any:
        graphs = self._items.opened[key]
        return make_on_cores(
            self._cores[key[0]][key[1]],
            lambda: (
                graphs.load_replacement(subgraph, data)
                if isinstance(graphs, SubgraphStage)
                else None
            ),
        )
