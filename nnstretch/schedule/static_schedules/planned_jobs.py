"""Static schedules as a run-time policy: each job is planned when it arrives, into the gaps that
earlier ones leave.

What the plan keeps is the order on each processor, and that nothing is handed over before it can
start; when a task really starts follows from when those before it end. Where times are as planned,
and no task takes none, the trace is the plan's.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

from nnstretch.protocols import Choice, ProcessorState
from nnstretch.schedule.costs.cost_rows import CostRows
from nnstretch.schedule.static_schedules.gaps import Gaps
from nnstretch.schedule.static_schedules.insertion import PlaceAll
from nnstretch.schedule.static_schedules.partial_schedule import PartialSchedule
from nnstretch.schedule.static_schedules.planned_slots import PlannedJob, PlannedSlot
from nnstretch.schedule.task_graphs.indexed_graph import IndexedGraph, index_graph
from nnstretch.task import Task
from nnstretch.task_graph import TaskGraph

JobKey = tuple[str, int]
"""Plan and request of a task."""
MOST_GIVEN = 64
"""Jobs that were given to processors and may be kept: no more than processors are open."""
EPSILON = 1e-9
"""Share of a time that its float may be off."""


class PlannedJobs:
    """Policy that plans each job as `place_all` does; `wake` asks for a decision at a time.

    `is_open` returns whether a request has not ended: the slots of one that was ended early are
    dropped. `graphs`: by the plan of a job's tasks. A task without a slot any more (it failed, or
    its processor did) goes where it ends first.
    """

    def __init__(
        self,
        costs: CostRows,
        graphs: Mapping[str, TaskGraph],
        place_all: PlaceAll,
        wake: Callable[[float], None] | None = None,
        is_open: Callable[[int], bool] | None = None,
    ) -> None:
        self._costs = costs
        self._graphs = graphs
        self._place_all = place_all
        self._wake = wake
        self._is_open = is_open
        self._gave_back = False
        """Whether slots were dropped whose time is not free in the gaps yet."""
        self._withdrawn = 0
        """Tasks that had been withdrawn when jobs were looked through last."""
        self._given: set[JobKey] = set()
        """Jobs of which processors have been given every task; some may have failed."""
        self._indexed: dict[str, IndexedGraph] = {}
        self._jobs: dict[JobKey, PlannedJob] = {}
        self._orders: list[list[PlannedSlot]] = [[] for _ in costs.processors]
        self._gaps = [Gaps() for _ in costs.processors]
        self._last_ends_us = [0.0] * len(costs.processors)
        """When what was chosen last is expected to end, by processor."""
        self._woken_us = [-1.0] * len(costs.processors)
        """For when a decision was asked for last, by processor."""
        self._awaits_data = False
        """Whether a decision was asked for, for when data of a task are there."""
        self._arrived: list[Task] = []
        self._loose: dict[str, Task] = {}
        """Tasks without a slot."""
        self._numbers = count()

    def add(self, task: Task, /) -> None:
        """Let a task take its slot, or wait until its job is planned."""
        if not self._take_slot(task):
            self._arrived.append(task)

    def withdraw(self, task: Task, /) -> None:
        """Forget a task, and of its job what is only planned, unless its request goes on.

        A request goes on where its task only moves to another processor.
        """
        if self._is_open is not None and self._is_open(task.request):
            self._drop_slot(task)
        else:
            self._forget(task.plan, task.request)
        self._loose.pop(task.name, None)
        self._arrived = [waiting for waiting in self._arrived if waiting.name != task.name]

    def _drop_slot(self, task: Task) -> None:
        """Take the slot in which a task waits out of its order, where it has one."""
        if (task.plan, task.request) not in self._jobs:
            return
        for order in self._orders:
            for slot in order:
                if slot.task is not None and slot.task.name == task.name:
                    order.remove(slot)
                    self._gave_back = True
                    self._count_down(slot)
                    return

    def _forget(self, plan: str, request: int) -> None:
        """Forget a job; its tasks that wait go on without slots, until they are withdrawn."""
        job = self._jobs.pop((plan, request), None)
        if job is None:
            return
        self._gave_back = True
        for order in self._orders:
            for slot in order:
                if slot.job is job and slot.task is not None:
                    self._loose[slot.task.name] = slot.task
            order[:] = [slot for slot in order if slot.job is not job]

    def _forget_ended(self) -> None:
        """Forget jobs whose requests were ended early, though none of their tasks waited."""
        self._withdrawn = self._costs.withdrawn
        if self._is_open is not None:
            for plan, request in tuple(self._jobs):
                if not self._is_open(request):
                    self._forget(plan, request)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the next task in the order of some processor that can start it now."""
        if self._costs.withdrawn != self._withdrawn:
            self._forget_ended()
        if self._arrived:
            self._plan_arrived(now_us, processors)
        self._awaits_data = False
        choice = self._pick_planned(now_us, processors, resting=False)
        rests = not self._awaits_data and all(state.free_us <= now_us for state in processors)
        if choice is None and rests:
            choice = self._pick_planned(now_us, processors, resting=True)
        return choice or self._pick_loose(now_us, processors)

    def _pick_planned(
        self, now_us: float, processors: Sequence[ProcessorState], resting: bool
    ) -> Choice | None:
        for state in processors:
            if not state.alive:
                self._release(state.index)
            elif state.open:
                slot = self._next(state, now_us, resting)
                if slot is not None and slot.task is not None:
                    self._choose(slot, state, now_us)
                    return slot.task, state
        return None

    def _take_slot(self, task: Task) -> bool:
        job = self._jobs.get((task.plan, task.request))
        slots = None if job is None else job.slots.get(task.subgraph)
        if not slots:
            return False
        slots.pop(0).task = task
        return True

    def _plan_arrived(self, now_us: float, processors: Sequence[ProcessorState]) -> None:
        arrived, self._arrived = self._arrived, []
        for task in arrived:
            key = task.plan, task.request
            is_new = key not in self._jobs and key not in self._given
            if is_new and task.plan in self._graphs:
                if self._gave_back or self._is_late(now_us, processors):
                    self._replay(now_us, processors)
                self._jobs[key] = self._plan(task.plan, now_us, processors)
            if not self._take_slot(task):
                self._loose[task.name] = task

    def _plan(self, plan: str, now_us: float, processors: Sequence[ProcessorState]) -> PlannedJob:
        """Place a job's tasks into the gaps, at what they are expected to cost by now."""
        graph = self._graphs[plan]
        if plan not in self._indexed:
            self._indexed[plan] = index_graph(graph)
        costs_us = tuple([self._costs.row(replace(task, plan=plan)) for task in graph.tasks])
        indexed = replace(self._indexed[plan], costs_us=costs_us)
        for state, gaps in zip(processors, self._gaps, strict=True):
            gaps.forget(min(now_us, self._last_ends_us[state.index]))
        partial = PartialSchedule(indexed, self._gaps, now_us)
        self._place_all(indexed, partial)
        job = PlannedJob(indexed, partial.ends_us, partial.places, open=len(graph.tasks))
        for index, task in enumerate(graph.tasks):
            times = (partial.starts_us[index], partial.ends_us[index])
            slot = PlannedSlot(*times, next(self._numbers), job, index)
            insort(self._orders[partial.places[index]], slot)
            insort(job.slots.setdefault(task.subgraph, []), slot)
        return job

    def _is_late(self, now_us: float, processors: Sequence[ProcessorState]) -> bool:
        """Return whether anything is not as planned."""
        for state in processors:
            order = self._orders[state.index]
            if order and order[0].start_us < now_us - EPSILON * max(1.0, now_us):
                return True
            planned_us = max(now_us, self._last_ends_us[state.index])
            if abs(planned_us - max(now_us, state.free_us)) > EPSILON * max(1.0, planned_us):
                return True
        return False

    def _replay(self, now_us: float, processors: Sequence[ProcessorState]) -> None:
        """Say anew when planned tasks start, in their order, from what is known now."""
        self._gave_back = False
        free_us = [max(now_us, state.free_us) for state in processors]
        places: dict[int, int] = {}
        for place, order in enumerate(self._orders):
            places |= dict.fromkeys(map(id, order), place)
        for slot in sorted(chain.from_iterable(self._orders)):
            place = places[id(slot)]
            slot.start_us = max(free_us[place], self._data_us(slot, place))
            cost_us = slot.job.indexed.costs_us[slot.index][place]
            slot.end_us = free_us[place] = slot.start_us + cost_us
            slot.job.ends_us[slot.index] = slot.end_us
        for state, order in zip(processors, self._orders, strict=True):
            start_us = max(now_us, state.free_us)
            self._last_ends_us[state.index] = start_us
            taken = [(slot.start_us, slot.end_us) for slot in order]
            self._gaps[state.index] = Gaps([(0.0, start_us), *taken])

    def _data_us(self, slot: PlannedSlot, place: int) -> float:
        """Return when what a planned task needs is on its processor, or is expected there."""
        if slot.task is not None:  # all before it have ended
            row = self._costs.ready_us(slot.task)
            return 0.0 if row is None else row[place]
        job, there_us = slot.job, 0.0
        for need, transfer_us in job.indexed.needs[slot.index]:
            wait_us = 0.0 if job.places[need] == place else transfer_us
            there_us = max(there_us, job.ends_us[need] + wait_us)
        return there_us

    def _next(self, state: ProcessorState, now_us: float, resting: bool) -> PlannedSlot | None:
        """Return the slot whose turn it is on a processor, if its task can start now.

        A slot whose task is overdue lets the next go ahead, and so does each where all processors
        rest and no other task can start or waits for data: its job may have been withdrawn.
        """
        slack_us = EPSILON * max(1.0, now_us)
        if state.free_us > now_us + slack_us:
            return None
        for slot in self._orders[state.index]:
            if slot.task is None:
                if resting or slot.start_us < now_us - slack_us:
                    continue
                return None
            data_us = self._data_us(slot, state.index)
            if data_us > now_us + slack_us and self._wake is not None:
                self._awaits_data = True
                if self._woken_us[state.index] != data_us:
                    self._woken_us[state.index] = data_us
                    self._wake(data_us)
                return None
            return slot
        return None

    def _choose(self, slot: PlannedSlot, state: ProcessorState, now_us: float) -> None:
        """Take a slot out of its order: its task starts now."""
        self._orders[state.index].remove(slot)
        start_us = max(now_us, self._data_us(slot, state.index))
        cost_us = slot.job.indexed.costs_us[slot.index][state.index]
        slot.job.ends_us[slot.index] = self._last_ends_us[state.index] = start_us + cost_us
        self._count_down(slot)

    def _count_down(self, slot: PlannedSlot) -> None:
        """Forget a job of which all slots are taken out of their orders."""
        slot.job.open -= 1
        if slot.job.open or slot.task is None:
            return
        key = slot.task.plan, slot.task.request
        self._jobs.pop(key, None)
        if self._is_open is not None:
            if len(self._given) > MOST_GIVEN:
                self._given = {job for job in self._given if self._is_open(job[1])}
            self._given.add(key)

    def _release(self, place: int) -> None:
        """Let the tasks of a lost processor go where they end first."""
        order = self._orders[place]
        for slot in order:
            if slot.task is not None:
                self._loose[slot.task.name] = slot.task
                self._count_down(slot)
        order[:] = [slot for slot in order if slot.task is None]

    def _pick_loose(self, now_us: float, processors: Sequence[ProcessorState]) -> Choice | None:
        for task in self._loose.values():
            row = self._costs.row(task)
            usable = [state for state in processors if state.open and state.alive]
            ends = [(max(now_us, s.free_us) + row[s.index], s.index) for s in usable]
            if ends and min(ends)[0] < float("inf"):
                del self._loose[task.name]
                return task, processors[min(ends)[1]]
        return None
